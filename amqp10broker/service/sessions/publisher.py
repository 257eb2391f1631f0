"""A client that publishes: our receiver link, and what became of each delivery.

Credit is topped up by the engine's rule (`amqp10/credit.py`) from what is told here: a delivery is
finished when every queue it went to has confirmed it, also when the client sent it settled and hears
nothing. So a queue that cannot follow withholds credit from the links that feed it, and from no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from amqp10broker.amqp10.delivery import Parts
from amqp10broker.amqp10.disposition import ACCEPTED, RELEASED, Outcome
from amqp10broker.amqp10.errors import AmqpDeliveryError, AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.amqp10.events import DeliveriesReceived
from amqp10broker.amqp10.faults import to_error
from amqp10broker.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.amqp10.performatives import Flow, ReceiverSettleMode, Rejected
from amqp10broker.amqp10.session import Session
from amqp10broker.amqp10.types import Symbol
from amqp10broker.catalog.last_error import LastError
from amqp10broker.catalog.proposing import Decided
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.catalog.queue_requests import DeclareQueue
from amqp10broker.config import FlowSettings
from amqp10broker.errors import AccessRefused, NotFound, PermissionDenied, RefusedError
from amqp10broker.message.message import Message, MessageReader
from amqp10broker.message.routing_headers import routing_headers
from amqp10broker.queues.commands import AttachPublisher, DetachPublisher, Publish, PublisherRef
from amqp10broker.queues.effects import Rejected as Refused
from amqp10broker.queues.effects import Unconfirmed
from amqp10broker.routing.address import BadAddress, ExchangeAddress, QueueAddress, parse
from amqp10broker.routing.exchange import Exchange
from amqp10broker.service.context import Post, SessionContext
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.routes import Route, Routes
from amqp10broker.service.sessions.attach import (
    Steps,
    internal_exchange_text,
    target_queue,
    to_amqp_error,
    to_declare,
)
from amqp10broker.service.sessions.times import PublisherTimes

READERS_MAX: Final = 1024
"""Different targets whose message heads an anonymous terminus remembers."""


class PublisherLinks(Protocol):
    """What a publisher asks of the links of its session."""

    def drop_publisher(self, publisher: Publisher) -> None:
        """Its link has ended: forget it, and let it `leave`."""

    def propose(
        self, link: SenderLink | ReceiverLink, request: DeclareQueue, then: Callable[[Decided], None]
    ) -> Decided | None:
        """Have the declaration of a queue decided for a link.

        Returns:
            What became of it; None: that comes later, to `then`. The link is held until then: nothing that
            comes for it overtakes what it waits with.
        """


class Undecided(Exception):
    """A message goes to a queue whose declaration is not decided yet."""


class Publisher:
    """One publishing link.

    Attributes:
        link: our end.
        queue: the fixed target if it is a queue.
        exchange: the fixed target if it is an exchange. Neither: an anonymous terminus, which routes
            each message by its `to`.
        ref: under which queues know it.
        address: as the client attached it, None for an anonymous terminus.
        settings: the flow settings in force for it.
        exclusive_queue: delete the queue with the link (a dynamic target).
        last_error: of the last message that was rejected.
        counters: what the client sent, and what became of it.
        times: when what happened last.
    """

    __slots__ = (
        "_context",
        "_default_exchange",
        "_held",
        "_last_queues",
        "_links",
        "_pending",
        "_permitted_at",
        "_post",
        "_read_at",
        "_reader",
        "_readers",
        "_routes",
        "_session",
        "address",
        "counters",
        "exchange",
        "exclusive_queue",
        "last_error",
        "link",
        "queue",
        "ref",
        "settings",
        "times",
    )

    def __init__(
        self,
        session: Session,
        link: ReceiverLink,
        queue: DeclaredQueue | None,
        exchange: ExchangeAddress | None,
        ref: PublisherRef,
        address: str | None,
        settings: FlowSettings,
        post: Post,
        links: PublisherLinks,
        *,
        context: SessionContext,
        routes: Routes,
        exclusive_queue: bool,
    ) -> None:
        self._session = session
        self._post = post
        self._links = links
        self._context = context
        self._routes = routes
        self._default_exchange = context.vhost.topology.lookup_exchange("")
        # Of deliveries that went to several queues: how many have not answered, and the outcome so far.
        self._pending: dict[int, tuple[int, Outcome]] = {}
        self._last_queues: Sequence[DeclaredQueue] = ()
        # Deliveries behind a declaration that is not decided; they have the client's credit until then.
        self._held: list[DeliveriesReceived] = []
        self._permitted_at = context.access.version
        self.link = link
        self.queue = queue
        self.exchange = exchange
        self.ref = ref
        self.address = address
        self.settings = settings
        self.exclusive_queue = exclusive_queue
        self.last_error: LastError | None = None
        self.counters = ClientCounters()
        self.times = PublisherTimes(context.moment)
        self._renew_readers()
        if queue is not None:
            post(queue.handle, AttachPublisher(ref))

    def _new_reader(self, exchange: str, routing_key: str) -> MessageReader:
        return MessageReader(exchange, routing_key, self._context.user, self._context.access.impersonator)

    @property
    def queues(self) -> Sequence[DeclaredQueue]:
        """Where what it publishes goes, as far as that is known before a message says so."""
        if self.queue is not None:
            return (self.queue,)
        if self.exchange is None:
            return tuple(self._last_queues)
        try:
            route = self._routes.find(self.exchange.exchange, self.exchange.routing_key)
        except (NotFound, PermissionDenied, AccessRefused):
            return ()
        return self._last_queues if route.queues is None else route.queues

    def _renew_readers(self) -> None:
        """What readers have found right may be so no more: whose name a message may bear."""
        self._read_at = self._context.access.version
        if self.exchange is not None:
            self._reader = self._new_reader(self.exchange.exchange, self.exchange.routing_key)
        else:
            self._reader = self._new_reader("", self.queue.name if self.queue else "")
        # Of an anonymous terminus, by exchange and routing key.
        self._readers: dict[tuple[str, str], MessageReader] = {}

    # --- from the client --------------------------------------------------------------------------

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Route deliveries to their queues.

        Raises:
            AmqpLinkError: one of them breaks a rule of the link, or the exchange is gone; those before
                it have been routed.
            AmqpSessionError: the user may not publish (any more).
        """
        self.times.received(self.link.credit)
        if self._held:
            self._held.append(event)
            return
        if self._read_at != self._context.access.version:
            self._renew_readers()
        self._context.moment.measures.message_sizes.count(event.payloads)
        if self.queue is None and self.exchange is None:
            self._route_each(event)
            return
        messages: list[Message] = []
        read = self._reader.read
        ids = event.delivery_ids
        try:
            for payload in event.payloads:
                messages.append(read(payload))
        except AmqpLinkError:
            # The malformed one and those behind it end with the link, unanswered.
            self._publish(ids[: len(messages)], messages, event.settled)
            raise
        self._publish(ids, messages, event.settled)

    def _publish(self, ids: Sequence[int], messages: Sequence[Message], settled: bool) -> None:
        if not messages:
            return
        if self.queue is not None and not self._reader.has_extra_keys:
            if self._permitted_at != self._context.access.version:
                self._check_permission()
            self.counters.published += len(ids)
            if settled:
                self.counters.published_settled += len(ids)
            self._default_exchange.count(len(ids), routed=True)
            self._post(self.queue.handle, Publish(self.ref, ids, messages, settled))
            return
        exchange, routing_key = (
            ("", "") if self.exchange is None else (self.exchange.exchange, self.exchange.routing_key)
        )
        if self.queue is not None:
            routing_key = self.queue.name
        try:
            route = self._routes.find(exchange, routing_key)
        except NotFound as error:
            self._answer(ids, None if settled else RELEASED)
            raise to_amqp_error(error) from error
        except PermissionDenied as error:
            raise to_amqp_error(error) from error
        except AccessRefused as error:
            text = internal_exchange_text(exchange, self._context.vhost.name)
            raise AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, text) from error
        if route.queues is not None and not self._reader.has_extra_keys:
            self._to_queues(route.exchange, route.queues, ids, messages, settled)
            return
        for delivery_id, message in zip(ids, messages, strict=True):
            queues = self._queues_of(route, self._reader, delivery_id, message, settled)
            self._to_queues(route.exchange, queues, [delivery_id], [message], settled)

    def _check_permission(self) -> None:
        """Permissions have changed since the link was attached to a queue."""
        access = self._context.access
        try:
            access.write("exchange", "")
        except PermissionDenied as error:
            raise to_amqp_error(error) from error
        self._permitted_at = access.version

    def _queues_of(
        self, route: Route, reader: MessageReader, delivery_id: int, message: Message, settled: bool
    ) -> Sequence[DeclaredQueue]:
        """Where one message goes; a bad x-cc is answered here, and raised."""
        if route.queues is not None and not reader.has_extra_keys:
            return route.queues
        try:
            extra_keys = reader.extra_keys(message[0]) if reader.has_extra_keys else ()
        except AmqpLinkError:
            self._answer([delivery_id], None if settled else RELEASED)
            raise
        try:
            return self._routes.queues(route, extra_keys, lambda: routing_headers(message))
        except RefusedError as error:
            raise to_amqp_error(error) from error

    def _to_queues(
        self,
        exchange: Exchange,
        queues: Sequence[DeclaredQueue],
        ids: Sequence[int],
        messages: Sequence[Message],
        settled: bool,
    ) -> None:
        self.counters.published += len(ids)
        if settled:
            self.counters.published_settled += len(ids)
        exchange.count(len(ids), routed=bool(queues))
        if not queues:
            self.counters.unroutable += len(ids)
            self._answer(ids, None if settled else RELEASED)
            return
        if len(queues) > 1:
            count = len(queues)
            self.counters.copies += (count - 1) * len(ids)
            for delivery_id in ids:
                self._pending[delivery_id] = (count, RELEASED)
        self._last_queues = queues
        for queue in queues:
            self._post(queue.handle, Publish(self.ref, ids, messages, settled))

    # --- anonymous terminus -----------------------------------------------------------------------

    def _route_each(self, event: DeliveriesReceived) -> None:
        """Neighbours for the same queues still travel together.

        The first that must wait for its queue to be declared, and those behind it, are held.
        """
        batch: tuple[Exchange, Sequence[DeclaredQueue], list[int], list[Message]] | None = None
        try:
            for delivery_id, tag, payload in zip(event.delivery_ids, event.tags, event.payloads, strict=True):
                try:
                    routed = self._route(delivery_id, tag, payload, settled=event.settled)
                except Undecided:
                    self._held.append(_rest(event, event.delivery_ids.index(delivery_id)))
                    break
                if routed is None:
                    continue
                exchange, queues, message = routed
                if batch is None or batch[1] is not queues or batch[0] is not exchange:
                    if batch is not None:
                        self._to_queues(*batch, event.settled)
                    batch = (exchange, queues, [], [])
                batch[2].append(delivery_id)
                batch[3].append(message)
        finally:
            if batch is not None:
                self._to_queues(*batch, event.settled)

    def _route(
        self, delivery_id: int, tag: bytes, payload: bytes, *, settled: bool
    ) -> tuple[Exchange, Sequence[DeclaredQueue], Message] | None:
        to = self._reader.to_of(payload)
        try:
            exchange, routing_key = self._target_of(to)
            route = self._find(exchange, routing_key)
        except AmqpDeliveryError as error:
            self._refuse(delivery_id, tag, error, settled=settled)
            return None
        key = (exchange, routing_key)
        reader = self._readers.get(key)
        if reader is None:
            if len(self._readers) >= READERS_MAX:
                self._readers.clear()
            reader = self._readers[key] = self._new_reader(exchange, routing_key)
        message = reader.read(payload)
        queues = self._queues_of(route, reader, delivery_id, message, settled)
        return route.exchange, queues, message

    def _refuse(self, delivery_id: int, tag: bytes, error: AmqpDeliveryError, *, settled: bool) -> None:
        if settled:
            raise AmqpLinkError(error.condition, error.description, {"delivery-tag": tag}) from error
        self._answer([delivery_id], self._rejected(error))

    def _find(self, exchange: str, routing_key: str) -> Route:
        try:
            return self._routes.find(exchange, routing_key)
        except NotFound as error:
            raise AmqpDeliveryError(Condition.NOT_FOUND, error.description) from error
        except PermissionDenied as error:
            raise to_amqp_error(error) from error
        except AccessRefused as error:
            text = internal_exchange_text(exchange, self._context.vhost.name)
            raise AmqpSessionError(Condition.UNAUTHORIZED_ACCESS, text) from error

    def _target_of(self, to: object) -> tuple[str, str]:
        """Exchange and routing key that a message names in its `to`: an address as an attach has it."""
        if to is None:
            raise AmqpDeliveryError(
                Condition.PRECONDITION_FAILED, "anonymous terminus requires 'to' address to be set"
            )
        if not isinstance(to, str):
            raise AmqpDeliveryError(Condition.PRECONDITION_FAILED, f"bad 'to' address: {to!r} is no string")
        try:
            address = parse(to)
        except BadAddress as error:
            raise AmqpDeliveryError(
                Condition.PRECONDITION_FAILED, f"bad 'to' address string: {error}"
            ) from error
        if isinstance(address, ExchangeAddress):
            return address.exchange, address.routing_key
        if to_declare(address, self._context):
            self._declare(address)
        return "", address.queue

    def _declare(self, address: QueueAddress) -> None:
        steps = target_queue(address, self._context)
        try:
            request = next(steps)
        except AmqpLinkError as error:
            raise AmqpDeliveryError(error.condition, error.description) from error
        decided = self._links.propose(self.link, request, partial(self._on_decided, steps))
        if decided is None:
            raise Undecided
        _finish(steps, decided)

    def _on_decided(self, steps: Steps[DeclaredQueue], decided: Decided) -> None:
        """The queue of the first message that is held is there, or refused; see `on_deliveries`."""
        held, self._held = self._held, []
        if not held:
            return  # the link has ended
        first = held[0]
        try:
            _finish(steps, decided)
        except AmqpDeliveryError as error:
            self._refuse(first.delivery_ids[0], first.tags[0], error, settled=first.settled)
            held[0] = _rest(first, 1)
        for event in held:
            if self._held:
                self._held.append(event)
            else:
                self._route_each(event)

    # --- from the queue ---------------------------------------------------------------------------

    def on_confirmed(self, ids: Sequence[int], *, settled: bool) -> None:
        """A queue has taken responsibility."""
        if self._pending:
            self._count_down(ids, ACCEPTED, settled=settled)
        else:
            self._answer(ids, None if settled else ACCEPTED)

    def on_unconfirmed(self, effect: Unconfirmed) -> None:
        """A queue does not have the messages: it was deleted before it could take them, or broke down."""
        outcome: Outcome = RELEASED
        if effect.failed:
            unavailable = AmqpDeliveryError(
                Condition.PRECONDITION_FAILED,
                f"queue '{effect.queue}' is unavailable",
                {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("unavailable")},
            )
            outcome = self._rejected(unavailable, effect.queue)
        self._on_refused(effect, outcome)

    def on_rejected(self, effect: Refused) -> None:
        """A queue is full."""
        full = AmqpDeliveryError(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            f"queue '{effect.queue}' exceeded maximum length",
            {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("maxlen")},
        )
        self._on_refused(effect, self._rejected(full, effect.queue))

    def _rejected(self, error: AmqpDeliveryError, queue: str | None = None) -> Rejected:
        self.last_error = self._context.log.noted(
            "message rejected",
            link=self.link.name,
            queue=queue,
            condition=str(error.condition),
            text=error.description,
        )
        return Rejected(error=to_error(error))

    def _on_refused(self, effect: Unconfirmed | Refused, outcome: Outcome) -> None:
        if self._pending:
            self._count_down(effect.ids, outcome, settled=effect.settled)
        else:
            self._answer(effect.ids, None if effect.settled else outcome)

    def _count_down(self, ids: Sequence[int], outcome: Outcome, *, settled: bool) -> None:
        """Answer deliveries whose last queue has spoken.

        Rejected if one of them was full or broke down, else accepted if one of them took it, else released.
        """
        answered: list[tuple[Outcome, list[int]]] = []
        for delivery_id in ids:
            left, worst = self._pending.get(delivery_id, (1, RELEASED))
            if isinstance(outcome, Rejected) or worst is RELEASED:
                worst = outcome
            if left > 1:
                self._pending[delivery_id] = (left - 1, worst)
                continue
            self._pending.pop(delivery_id, None)
            if not answered or answered[-1][0] is not worst:
                answered.append((worst, []))
            answered[-1][1].append(delivery_id)
        for worst, its_ids in answered:
            self._answer(its_ids, None if settled else worst)

    def release_unsettled(self) -> None:
        """The queue is gone: what it had not confirmed by then, it never will."""
        unsettled = self._session.inbound.unsettled
        self._session.settling.settle_received(
            [delivery_id for delivery_id, link in unsettled.items() if link is self.link], RELEASED
        )

    def _answer(self, ids: Sequence[int], outcome: Outcome | None) -> None:
        """Tell the client, unless it sent the delivery settled, and count it as finished."""
        if outcome is not None:
            if outcome is ACCEPTED:
                self.counters.confirmed += len(ids)
            elif isinstance(outcome, Rejected):
                self.counters.rejected += len(ids)
            second = self.link.rcv_settle_mode == ReceiverSettleMode.SECOND
            self._session.settling.settle_received(ids, outcome, settled=not second)
        self._session.inbound.finish(self.link, len(ids))
        self.times.answered(self.link.credit, outcome)

    def on_flow(self, flow: Flow) -> None:
        """The client's flow may have moved the credit: it can give up what it was granted."""
        self.times.note(self.link.credit)

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        """The link has ended."""
        self._links.drop_publisher(self)

    def leave(self) -> None:
        """The link is gone, and with it what it holds."""
        self._held.clear()
        if self.queue is not None:
            self._post(self.queue.handle, DetachPublisher(self.ref))


def _finish(steps: Steps[DeclaredQueue], decided: Decided) -> None:
    """Raise `AmqpDeliveryError` if a queue was not declared."""
    try:
        steps.send(decided)
    except StopIteration:
        return
    except AmqpLinkError as error:
        raise AmqpDeliveryError(error.condition, error.description) from error


def _rest(event: DeliveriesReceived, first: int) -> DeliveriesReceived:
    """The deliveries of an event from the one at this place on."""
    ids, tags, payloads = event.delivery_ids[first:], event.tags[first:], event.payloads[first:]
    return DeliveriesReceived(event.link, ids, tags, payloads, event.settled, event.message_format)
