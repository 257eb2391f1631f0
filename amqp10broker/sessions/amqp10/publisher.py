"""A client that publishes: a receiver link of the session, and the outcome of each delivery.

A delivery is complete, and its credit is replaced (`protocols/amqp10/credit.py`), when every queue that it
was routed to has confirmed it, even when the client sent it settled. So a slow queue withholds credit from
the links that publish to it, and from no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.config import FlowSettings
from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import ADDRESS_V1
from amqp10broker.errors import AccessRefused, NotFound, PermissionDenied, RefusedError
from amqp10broker.message.amqp10 import MessageReader, to_at_start
from amqp10broker.message.amqp10 import extra_keys as extra_keys_of
from amqp10broker.message.convert import routing_headers
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import CatalogRequest
from amqp10broker.metadata.plan import Decided
from amqp10broker.metadata.queue import DeclaredQueue, LastError
from amqp10broker.metadata.queue_requests import is_subscribed, temporary_topic
from amqp10broker.protocols.amqp10.credit import ReceiverCredit
from amqp10broker.protocols.amqp10.delivery import Arrival, PartialDelivery, Parts, on_resumed
from amqp10broker.protocols.amqp10.errors import (
    AmqpDeliveryError,
    AmqpError,
    AmqpLinkError,
    AmqpSessionError,
    Condition,
)
from amqp10broker.protocols.amqp10.link import (
    DeliveriesReceived,
    DeliveryBegun,
    DeliveryResumed,
    ReceiverLink,
    SenderLink,
)
from amqp10broker.protocols.amqp10.performatives import (
    Flow,
    ReceiverSettleMode,
    Rejected,
    TransactionalState,
)
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome, to_error
from amqp10broker.queues.commands import AttachPublisher, DetachPublisher, Publish, PublisherRef, Unconfirmed
from amqp10broker.queues.commands import PublishRejected as Refused
from amqp10broker.routing.address import (
    Address,
    BadAddress,
    ExchangeAddress,
    QueueAddress,
    TopicAddress,
    parse,
)
from amqp10broker.routing.exchange import Exchange
from amqp10broker.sessions.amqp10.attach import (
    Steps,
    as_exchange,
    internal_exchange_text,
    target_queue,
    to_amqp_error,
    to_declare,
)
from amqp10broker.sessions.amqp10.link_owner import LinkOwner
from amqp10broker.sessions.amqp10.resumable_links import Entry, ResumablePublisher, Tally, refusal_of
from amqp10broker.sessions.amqp10.transactions import Transaction
from amqp10broker.sessions.context import SessionContext, ToQueue
from amqp10broker.sessions.counters import ClientCounters, Moment
from amqp10broker.sessions.credit import AutoCredit, AutoLimit
from amqp10broker.sessions.messages import NoRoom, Part, no_part_text
from amqp10broker.sessions.routes import Route, Routes

READERS_MAX: Final = 1024
"""The most targets for which an anonymous terminus caches message heads."""

_CONTENT: Final = itemgetter(1)


@dataclass(eq=False, slots=True)
class PublisherTimes:
    _moment: Moment
    attached_ms: int = field(init=False)
    credit_ms: int = field(init=False)
    granted_ms: int = field(init=False)
    part_ms: int = field(init=False)
    received_ms: int | None = None
    outcome: Outcome | None = None
    outcome_ms: int | None = None
    _has_credit: bool = True
    _part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.attached_ms = self.credit_ms = self.granted_ms = self.part_ms = self._moment.ms

    def received(self, credit: ReceiverCredit) -> None:
        self.received_ms = self._moment.ms
        self.note(credit)

    def note_part(self, partial: PartialDelivery | None) -> None:
        part = None if partial is None else (partial.delivery_id, partial.size_bytes)
        if part != self._part:
            self._part = part
            self.part_ms = self._moment.ms

    def answered(self, credit: ReceiverCredit, outcome: Outcome | None) -> None:
        """Note deliveries that are complete; `outcome`: None if it is not sent to the client."""
        if outcome is not None:
            self.outcome = outcome
            self.outcome_ms = self._moment.ms
        self.note(credit)

    def note(self, credit: ReceiverCredit) -> None:
        if credit.granted is not None:
            self.granted_ms = self._moment.ms
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.sender_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms


class PublisherLinks(Protocol):
    """The services of a session's links that a publisher uses."""

    def drop_publisher(self, publisher: LinkPublisher) -> None:
        """Remove a publisher after its link has ended, and call its `leave`."""

    def commit(self, parts: Sequence[Part], also: Callable[[], None]) -> str | None:
        """Carry out parts in one step, behind all commands sent before; see `QueueCommits`."""

    def propose(
        self, link: SenderLink | ReceiverLink, request: CatalogRequest[Any], then: Callable[[Decided], None]
    ) -> Decided | None:
        """Propose a declaration for a link. Returns the decision, or None if it is passed to `then` later.
        Until then the link is held, so that later frames do not overtake those that wait.
        """


class Undecided(Exception):
    """The declaration of a message's queue is not decided yet."""


class Way(NamedTuple):
    """The destination of a run of messages. `topic`: unroutable ones are accepted."""

    exchange: Exchange
    queues: Sequence[DeclaredQueue]
    topic: bool


@dataclass(eq=False, slots=True)
class LinkPublisher(LinkOwner):
    """One link on which a client publishes. With neither `queue` nor `exchange` it is an anonymous terminus,
    which routes each message by its `to`. `resumable`: the state that survives this end of the link. `auto`:
    adapts its credit.
    """

    _session: Session
    link: ReceiverLink
    ref: PublisherRef
    address: str | None
    settings: FlowSettings
    _to_queue: ToQueue
    _links: PublisherLinks
    _context: SessionContext
    _routes: Routes
    queue: DeclaredQueue | None
    exchange: ExchangeAddress | None
    exclusive_queue: bool
    topic: bool
    temporary: DeclaredQueue | None
    resumable: ResumablePublisher | None
    auto: AutoCredit | None = None
    last_error: LastError | None = None
    counters: ClientCounters = field(default_factory=ClientCounters)
    times: PublisherTimes = field(init=False)
    _default_exchange: Exchange = field(init=False)
    _permitted_at: int = field(init=False)
    _tally: Tally = field(default_factory=Tally)
    _last_queues: Sequence[DeclaredQueue] = ()
    # For bare names without a queue, whether they name topics, as of a version of the topology.
    _topics: dict[str, bool] = field(default_factory=dict)
    _topics_at: int = -1
    # Deliveries behind a declaration that is not decided; they use the client's credit until then.
    _held: list[DeliveriesReceived] = field(default_factory=list)
    # The transaction in which it publishes at present.
    _posting: Transaction | None = None
    # The reader for its target; and the readers of an anonymous terminus, by exchange and routing key.
    _reader: MessageReader = field(init=False)
    _readers: dict[tuple[str, str], MessageReader] = field(init=False)
    _read_at: int = field(init=False)

    def __post_init__(self) -> None:
        self._default_exchange = self._context.vhost.topology.lookup_exchange("")
        self._permitted_at = self._context.access.changes.version
        self.times = PublisherTimes(self._context.moment)
        if self.resumable is not None:
            self.resumable.attached(self.tell_late, self.ref, self._tally)
        self._renew_readers()
        if self.queue is not None:
            self._to_queue((self.queue.handle, AttachPublisher(self.ref)))

    def _new_reader(self, exchange: str, routing_key: str) -> MessageReader:
        return MessageReader(exchange, routing_key, self._context.user, self._context.access.impersonator)

    @property
    def queues(self) -> Sequence[DeclaredQueue]:
        """The queues of its target, if they do not depend on the message."""
        if self.queue is not None:
            return (self.queue,)
        if self.exchange is None:
            return tuple(self._last_queues)
        try:
            route = self._routes.find(self.exchange.exchange, self.exchange.routing_key)
        except (NotFound, PermissionDenied, AccessRefused):
            return ()
        return self._last_queues if route.queues is None else route.queues

    @property
    def only_queue(self) -> DeclaredQueue | None:
        """The queue to which all messages are sent at once. None if messages may have other destinations,
        wait, or are tracked.
        """
        elsewhere = self.resumable is not None or self._held or self._reader.has_extra_keys
        return None if elsewhere else self.queue

    def _renew_readers(self) -> None:
        # A check that readers have passed may have become invalid: which user-id a message may bear.
        self._read_at = self._context.access.changes.version
        if self.exchange is not None:
            self._reader = self._new_reader(self.exchange.exchange, self.exchange.routing_key)
        else:
            self._reader = self._new_reader("", self.queue.name if self.queue else "")
        self._readers = {}

    # --- from the client --------------------------------------------------------------------------

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Route deliveries to their queues. If one raises an error, those before it have been routed."""
        self.times.received(self.link.credit)
        if self.auto is not None:
            payloads = event.payloads
            closed = self._session.incoming.closed
            size = sum(map(len, payloads))
            self.auto.received(self._context.moment.ms, len(payloads), size, held_back=closed)
        if self.resumable is not None and not event.settled and event.txn_id is None:
            credit = self._credit_max
            ids, tags = event.delivery_ids, event.tags
            self.resumable.began(self.ref, ids, tags, second=self._second, credit=credit)
        if self._held:
            self._held.append(event)
        elif event.txn_id is None:
            self._take(event)
        else:
            with self._within(event):
                self._take(event)

    def on_begun(self, event: DeliveryBegun) -> None:
        """Check the permission when a delivery of several transfers has begun on an anonymous terminus. Its
        address is usually in the first transfer, so the rest of a delivery that the user may not send is not
        stored. Other faults are reported when the delivery is complete.
        """
        with suppress(AmqpDeliveryError):
            address = self._address_of(to_at_start(event.payload))
            if isinstance(address, QueueAddress):
                self._find("", address.queue)
            else:
                target = as_exchange(address) if isinstance(address, TopicAddress) else address
                self._find(target.exchange, target.routing_key)

    @contextmanager
    def _within(self, event: DeliveriesReceived) -> Iterator[None]:
        # Raise if the event names a transaction that is not open.
        if event.txn_id is None:
            yield
            return
        self._posting = posting = self._context.transactions.find(event.txn_id)
        try:
            yield
        except (AmqpError, RefusedError) as error:
            if event.settled:
                posting.fail(f"a message for link '{self.link.name}' was refused: {error.description}")
            raise
        finally:
            self._posting = None

    def _take(self, event: DeliveriesReceived) -> None:
        if self._read_at != self._context.access.changes.version:
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
        if self.queue is not None and not self._reader.has_extra_keys and self._posting is None:
            access = self._context.access
            if self._permitted_at != access.changes.version:
                access.write("exchange", "")
                self._permitted_at = access.changes.version
            self.counters.published += len(ids)
            if settled:
                self.counters.published_settled += len(ids)
            self._default_exchange.published += len(ids)
            if self.resumable is None:
                self._to_queue((self.queue.handle, Publish(self.ref, ids, messages, settled)))
            else:
                self._send(self.resumable, (self.queue,), ids, messages, settled)
            return
        if self.temporary is not None:
            self._check_there(self.temporary, ids, settled)
        exchange, routing_key = (
            ("", "") if self.exchange is None else (self.exchange.exchange, self.exchange.routing_key)
        )
        if self.queue is not None:
            routing_key = self.queue.name
        try:
            route = self._routes.find(exchange, routing_key)
        except NotFound:
            self._answer(ids, None if settled else RELEASED)
            raise
        except PermissionDenied:
            raise
        except AccessRefused as error:
            text = internal_exchange_text(exchange, self._context.vhost.name)
            raise AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, text) from error
        if route.queues is not None and not self._reader.has_extra_keys:
            self._to_queues(Way(route.exchange, route.queues, self.topic), ids, messages, settled)
            return
        for delivery_id, message in zip(ids, messages, strict=True):
            queues = self._queues_of(route, self._reader, delivery_id, message, settled)
            self._to_queues(Way(route.exchange, queues, self.topic), [delivery_id], [message], settled)

    def _check_there(self, temporary: DeclaredQueue, ids: Sequence[int], settled: bool) -> None:
        # A temporary topic ends with the link that declared it, or with its connection.
        vhost = self._context.vhost
        if vhost.find(temporary.name) is not temporary:
            self._answer(ids, None if settled else RELEASED)
            text = f"temporary topic '{temporary.name}' in vhost '{vhost.name}' was deleted"
            raise AmqpLinkError(Condition.RESOURCE_DELETED, text)

    def _queues_of(
        self, route: Route, reader: MessageReader, delivery_id: int, message: Message, settled: bool
    ) -> Sequence[DeclaredQueue]:
        # A bad x-cc is answered here, and raised.
        if route.queues is not None and not reader.has_extra_keys:
            return route.queues
        try:
            extra_keys = extra_keys_of(message[0]) if reader.has_extra_keys else ()
        except AmqpLinkError:
            self._answer([delivery_id], None if settled else RELEASED)
            raise
        return self._routes.queues(route, extra_keys, lambda: routing_headers(message))

    def _to_queues(self, way: Way, ids: Sequence[int], messages: Sequence[Message], settled: bool) -> None:
        exchange, queues, topic = way
        self.counters.published += len(ids)
        if settled:
            self.counters.published_settled += len(ids)
        exchange.published += len(ids)
        if not queues:
            exchange.unroutable += len(ids)
            if topic:
                self._answer(ids, None if settled else ACCEPTED)
                return
            self.counters.unroutable += len(ids)
            self._context.on_unroutable(messages)
            if self._posting is not None and settled:
                self._posting.fail(f"a message for link '{self.link.name}' could not be routed")
            self._answer(ids, None if settled else RELEASED)
            return
        if self._posting is not None:
            self._hold(self._posting, queues, ids, messages, settled)
            return
        if len(queues) > 1:
            self.counters.copies += (len(queues) - 1) * len(ids)
        self._last_queues = queues
        if self.resumable is not None:
            self._send(self.resumable, queues, ids, messages, settled)
            return
        if len(queues) > 1:
            self._tally.expect(ids, len(queues))
        for queue in queues:
            self._to_queue((queue.handle, Publish(self.ref, ids, messages, settled)))

    def _send(
        self,
        resumable: ResumablePublisher,
        queues: Sequence[DeclaredQueue],
        ids: Sequence[int],
        messages: Sequence[Message],
        settled: bool,
    ) -> None:
        # For a resumable link the record of what survives a restart is in one commit with the messages.
        parts = [(queue.handle, Publish(self.ref, ids, messages, settled)) for queue in queues]
        if resumable.keeps_unsettled and not settled and all(map(self._context.transacts, queues)):
            refusal = self._links.commit(parts, partial(resumable.noted, self.ref, ids))
            if isinstance(refusal, NoRoom) and len(ids) > 1:
                for number, message in zip(ids, messages, strict=True):
                    self._send(resumable, queues, [number], [message], settled)
                return
            if refusal is not None:
                full = AmqpDeliveryError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal)
                self._answer(ids, self._rejected(full) if isinstance(refusal, NoRoom) else RELEASED)
                return
        else:
            for handle, publish in parts:
                self._to_queue((handle, publish))
        # None of them has answered yet: an answer is a later event of the session.
        if len(queues) > 1:
            self._tally.expect(ids, len(queues))
        resumable.posted(self.ref, ids)

    def _hold(
        self,
        posting: Transaction,
        queues: Sequence[DeclaredQueue],
        ids: Sequence[int],
        messages: Sequence[Message],
        settled: bool,
    ) -> None:
        # The messages wait for the commit; the client gets their outcome now (part 4, section 4.4.1).
        context = self._context
        self._last_queues = queues
        assert context.commits is not None, "there are transactions only if they can be committed"
        unfit = next((queue for queue in queues if not context.commits.takes(queue.handle)), None)
        if unfit is not None:
            text = no_part_text(unfit)
            if settled:
                posting.fail(text)
            refused = self._rejected(AmqpDeliveryError(Condition.NOT_IMPLEMENTED, text), unfit.name)
            self._answer(ids, None if settled else refused)
            return
        context.transactions.post(posting, queues, messages, sum(map(len, map(_CONTENT, messages))))
        config = context.config
        if posting.messages > config.transaction_max_messages:
            posting.fail(f"it has more messages than transaction_max_messages ({posting.messages})")
        elif posting.bytes > config.transaction_max_bytes:
            posting.fail(f"it has more bytes than transaction_max_bytes ({posting.bytes})")
        self._answer(ids, None if settled else ACCEPTED)

    # --- anonymous terminus -----------------------------------------------------------------------

    def _route_each(self, event: DeliveriesReceived) -> None:
        # Consecutive messages for the same queues are sent together. The first message that waits for a
        # declaration, and those behind it, are held.
        batch: tuple[Way, list[int], list[Message]] | None = None
        try:
            for delivery_id, tag, payload in zip(event.delivery_ids, event.tags, event.payloads, strict=True):
                try:
                    routed = self._route(delivery_id, tag, payload, settled=event.settled)
                except Undecided:
                    self._held.append(_rest(event, event.delivery_ids.index(delivery_id)))
                    break
                if routed is None:
                    continue
                way, message = routed
                if batch is None or way != batch[0]:
                    if batch is not None:
                        self._to_queues(*batch, event.settled)
                    batch = (way, [], [])
                batch[1].append(delivery_id)
                batch[2].append(message)
        finally:
            if batch is not None:
                self._to_queues(*batch, event.settled)

    def _route(
        self, delivery_id: int, tag: bytes, payload: bytes, *, settled: bool
    ) -> tuple[Way, Message] | None:
        to = self._reader.to_of(payload)
        try:
            exchange, routing_key, topic = self._target_of(to)
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
        return Way(route.exchange, queues, topic), message

    def _refuse(self, delivery_id: int, tag: bytes, error: AmqpDeliveryError, *, settled: bool) -> None:
        if settled and self._posting is not None:
            # The commit will be refused; the link has not broken a rule (part 4, section 4.4.4.1).
            self._posting.fail(f"a message for link '{self.link.name}' was refused: {error.description}")
            self._answer([delivery_id], None)
            return
        if settled:
            raise AmqpLinkError(error.condition, error.description, {"delivery-tag": tag}) from error
        self._answer([delivery_id], self._rejected(error))

    def _find(self, exchange: str, routing_key: str) -> Route:
        try:
            return self._routes.find(exchange, routing_key)
        except NotFound as error:
            raise AmqpDeliveryError(Condition.NOT_FOUND, error.description) from error
        except PermissionDenied:
            raise
        except AccessRefused as error:
            text = internal_exchange_text(exchange, self._context.vhost.name)
            raise AmqpSessionError(Condition.UNAUTHORIZED_ACCESS, text) from error

    def _address_of(self, to: object) -> Address:
        # A message's `to` has no capabilities. A bare name is a topic's if no queue has it and there is a
        # subscription to exactly that topic: a new queue of this name would have no consumers.
        if to is None:
            raise AmqpDeliveryError(
                Condition.PRECONDITION_FAILED, "anonymous terminus requires 'to' address to be set"
            )
        if not isinstance(to, str):
            raise AmqpDeliveryError(Condition.PRECONDITION_FAILED, f"bad 'to' address: {to!r} is no string")
        try:
            address = parse(to, bare=ADDRESS_V1 not in self._context.config.rules.denied)
        except BadAddress as error:
            raise AmqpDeliveryError(
                Condition.PRECONDITION_FAILED, f"bad 'to' address string: {error}"
            ) from error
        if isinstance(address, QueueAddress) and address.declare and self._is_topic(address.queue):
            return TopicAddress(address.queue)
        return address

    def _is_topic(self, name: str) -> bool:
        vhost = self._context.vhost
        if vhost.find(name) is not None:
            return False
        if self._topics_at != vhost.version or len(self._topics) >= READERS_MAX:
            self._topics.clear()
            self._topics_at = vhost.version
        if name not in self._topics:
            self._topics[name] = is_subscribed(vhost, name)
        return self._topics[name]

    def _target_of(self, to: object) -> tuple[str, str, bool]:
        address = self._address_of(to)
        if isinstance(address, QueueAddress):
            if to_declare(address, self._context):
                self._declare(address)
            return "", address.queue, False
        if isinstance(address, ExchangeAddress):
            return address.exchange, address.routing_key, False
        try:
            temporary_topic(self._context.vhost, address.topic)
        except NotFound as error:
            raise AmqpDeliveryError(Condition.NOT_FOUND, error.description) from error
        target = as_exchange(address)
        return target.exchange, target.routing_key, True

    def _declare(self, address: QueueAddress) -> None:
        steps = target_queue(address, self._context)
        request = _advance(steps, None)
        assert request is not None, "the queue does not exist"
        decided = self._links.propose(self.link, request, partial(self._on_decided, steps))
        if decided is None:
            raise Undecided
        _advance(steps, decided)

    def _on_decided(self, steps: Steps[DeclaredQueue], decided: Decided) -> None:
        # The queue of the first held message now exists, or was refused.
        held, self._held = self._held, []
        if not held:
            return  # the link has ended
        first = held[0]
        try:
            _advance(steps, decided)
        except AmqpDeliveryError as error:
            with self._within(first):
                self._refuse(first.delivery_ids[0], first.tags[0], error, settled=first.settled)
            held[0] = _rest(first, 1)
        for event in held:
            if self._held:
                self._held.append(event)
            else:
                with self._within(event):
                    self._route_each(event)

    # --- from the queue ---------------------------------------------------------------------------

    def on_confirmed(self, ids: Sequence[int], *, settled: bool) -> None:
        if self._tally.left:
            self.count_down(ids, ACCEPTED, settled=settled)
        else:
            self._answer(ids, None if settled else ACCEPTED)

    def on_refused(self, effect: Unconfirmed | Refused) -> None:
        refusal = refusal_of(effect)
        outcome = RELEASED if refusal is None else self._rejected(refusal, effect.queue)
        self.count_down(effect.ids, outcome, settled=effect.settled)

    def _rejected(self, error: AmqpDeliveryError, queue: str | None = None) -> Rejected:
        self.last_error = self._context.log.noted(
            "message rejected",
            link=self.link.name,
            queue=queue,
            condition=str(error.condition),
            text=error.description,
        )
        return Rejected(error=to_error(error))

    def count_down(self, ids: Sequence[int], outcome: Outcome, *, settled: bool) -> None:
        for worst, its_ids in self._tally.count_down(ids, outcome):
            self._answer(its_ids, None if settled else worst)

    def release_unsettled(self) -> None:
        """Release what a deleted queue has not confirmed."""
        unsettled = self._session.inbound.unsettled
        self._session.settling.settle_received(
            [delivery_id for delivery_id, link in unsettled.items() if link is self.link], RELEASED
        )

    def _answer(self, ids: Sequence[int], outcome: Outcome | None) -> None:
        # `outcome`: None for deliveries that the client sent settled.
        if outcome is not None:
            if outcome is ACCEPTED:
                self.counters.confirmed += len(ids)
            elif isinstance(outcome, Rejected):
                self.counters.rejected += len(ids)
            posting = self._posting
            state = outcome if posting is None else TransactionalState(txn_id=posting.id, outcome=outcome)
            second = self._second
            self._session.settling.settle_received(ids, state, settled=not second)
            if self.resumable is not None:
                most = 2 * self._credit_max
                self.resumable.decided(self.ref, ids, outcome, second=second, most=most)
        self._session.inbound.finish(self.link, len(ids))
        self.times.answered(self.link.credit, outcome)
        if self.auto is not None:
            self.auto.answered(self._context.moment.ms, len(ids))

    @property
    def auto_limit(self) -> AutoLimit | None:
        return None if self.auto is None else self.auto.auto

    @property
    def _credit_max(self) -> int:
        # This is the most that may have been granted at a time: grants are not taken back.
        return self.link.credit.limit if self.auto is None else self.auto.auto.highest

    @property
    def _second(self) -> bool:
        return self.link.rcv_settle_mode == ReceiverSettleMode.SECOND

    def on_resumed(self, event: DeliveryResumed) -> None:
        resumable = self.resumable
        entry = None if resumable is None else resumable.entries.get(event.tag)
        if resumable is None or entry is None:
            return
        arrival = on_resumed(entry.outcome, settled=event.settled, aborted=event.aborted)
        if event.settled or arrival is Arrival.ABORTED:
            resumable.forget(entry)
            return
        self._session.inbound.note_unsettled(event.delivery_id, self.link)
        if entry.outcome is None:
            entry.number = event.delivery_id  # queues have its content by now, and will answer
        else:
            self.tell_late(entry, event.delivery_id)

    def tell_late(self, entry: Entry, number: int) -> None:
        assert entry.outcome is not None
        self._session.settling.settle_received([number], entry.outcome, settled=not self._second)
        if self._second and self.resumable is not None:
            self.resumable.told[number] = entry

    def on_settled(self, ids: Sequence[int]) -> None:
        if self.resumable is not None:
            self.resumable.settled(ids)

    def on_flow(self, flow: Flow) -> None:
        self.times.note(self.link.credit)

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        self._links.drop_publisher(self)

    def leave(self) -> None:
        self._held.clear()
        if self.queue is not None:
            self._to_queue((self.queue.handle, DetachPublisher(self.ref)))


def _advance(steps: Steps[DeclaredQueue], decided: Decided | None) -> CatalogRequest[Any] | None:
    # Return None when the queue exists.
    try:
        return next(steps) if decided is None else steps.send(decided)
    except StopIteration:
        return None
    except PermissionDenied:
        raise
    except RefusedError as refusal:
        raise AmqpDeliveryError(to_amqp_error(refusal).condition, refusal.description) from refusal


def _rest(event: DeliveriesReceived, first: int) -> DeliveriesReceived:
    ids, tags, payloads = event.delivery_ids[first:], event.tags[first:], event.payloads[first:]
    return DeliveriesReceived(
        event.link, ids, tags, payloads, event.settled, event.message_format, event.txn_id
    )
