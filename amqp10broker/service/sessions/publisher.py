"""A client that publishes: our receiver link, and what became of each delivery.

Credit is topped up by the engine's rule (`amqp10/credit.py`) from what is told here: a delivery is
finished when its queue has confirmed it, also when the client sent it settled and hears nothing. So
a queue that cannot follow withholds credit from the links that feed it, and from no others.
"""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.amqp10.disposition import ACCEPTED, RELEASED, Outcome
from amqp10broker.amqp10.errors import AmqpDeliveryError, AmqpLinkError, Condition
from amqp10broker.amqp10.events import DeliveriesReceived
from amqp10broker.amqp10.faults import to_error
from amqp10broker.amqp10.link import ReceiverLink
from amqp10broker.amqp10.performatives import Properties, ReceiverSettleMode, Rejected
from amqp10broker.amqp10.session import Session
from amqp10broker.catalog.catalog import VHOST, Catalog, DeclaredQueue
from amqp10broker.config import FlowSettings
from amqp10broker.message.message import Message, MessageReader
from amqp10broker.queues.commands import AttachPublisher, DetachPublisher, Publish, PublisherRef
from amqp10broker.routing.address import BadAddress, ExchangeAddress, parse
from amqp10broker.service.context import Post


class Publisher:
    """One publishing link.

    Attributes:
        link: our end.
        queue: the fixed target; None for an anonymous terminus, which routes each message by its `to`.
        ref: under which queues know it.
        address: as the client attached it, None for an anonymous terminus.
        settings: the flow settings in force for it.
        exclusive_queue: delete the queue with the link (a dynamic target).
    """

    __slots__ = (
        "_catalog",
        "_post",
        "_reader",
        "_readers",
        "_session",
        "_user",
        "address",
        "exclusive_queue",
        "link",
        "queue",
        "ref",
        "settings",
    )

    def __init__(
        self,
        session: Session,
        link: ReceiverLink,
        queue: DeclaredQueue | None,
        ref: PublisherRef,
        address: str | None,
        settings: FlowSettings,
        post: Post,
        *,
        catalog: Catalog,
        user: str,
        exclusive_queue: bool,
    ) -> None:
        self._session = session
        self._post = post
        self._catalog = catalog
        self._user = user
        self._reader = MessageReader("", queue.name if queue else "", user)
        self._readers: dict[str, MessageReader] = {}
        self.link = link
        self.queue = queue
        self.ref = ref
        self.address = address
        self.settings = settings
        self.exclusive_queue = exclusive_queue
        if queue is not None:
            post(queue.handle, AttachPublisher(ref))

    # --- from the client --------------------------------------------------------------------------

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Route deliveries to their queues.

        Raises:
            AmqpLinkError: one of them breaks a rule of the link; those before it have been routed.
        """
        if self.queue is None:
            self._route_each(event)
            return
        messages: list[Message] = []
        read = self._reader.read
        try:
            for payload in event.payloads:
                messages.append(read(payload))
        except AmqpLinkError:
            # The malformed one and those behind it end with the link, unanswered.
            if messages:
                self._publish(self.queue, event.delivery_ids[: len(messages)], messages, event.settled)
            raise
        self._publish(self.queue, event.delivery_ids, messages, event.settled)

    def _publish(
        self, queue: DeclaredQueue, ids: Sequence[int], messages: Sequence[Message], settled: bool
    ) -> None:
        self._post(queue.handle, Publish(self.ref, ids, messages, settled))

    def _route_each(self, event: DeliveriesReceived) -> None:
        """An anonymous terminus: neighbours for one queue still travel together."""
        batch: tuple[DeclaredQueue, list[int], list[Message]] | None = None
        try:
            for delivery_id, tag, payload in zip(event.delivery_ids, event.tags, event.payloads, strict=True):
                queue, message = self._route(delivery_id, tag, payload, settled=event.settled)
                if queue is None or message is None:
                    continue
                if batch is None or batch[0] is not queue:
                    if batch is not None:
                        self._publish(*batch, event.settled)
                    batch = (queue, [], [])
                batch[1].append(delivery_id)
                batch[2].append(message)
        finally:
            if batch is not None:
                self._publish(*batch, event.settled)

    def _route(
        self, delivery_id: int, tag: bytes, payload: bytes, *, settled: bool
    ) -> tuple[DeclaredQueue | None, Message | None]:
        _, properties = self._reader.read_with_properties(payload)
        try:
            name = self._target_of(properties)
        except AmqpDeliveryError as error:
            if settled:
                raise AmqpLinkError(error.condition, error.description, {"delivery-tag": tag}) from error
            self._answer([delivery_id], Rejected(error=to_error(error)))
            return None, None
        queue = self._catalog.find(name)
        if queue is None:
            self._answer([delivery_id], None if settled else RELEASED)
            return None, None
        reader = self._readers.get(name)
        if reader is None:
            if len(self._readers) >= 1024:
                self._readers.clear()
            reader = self._readers[name] = MessageReader("", name, self._user)
        return queue, reader.read(payload)

    def _target_of(self, properties: Properties | None) -> str:
        to = None if properties is None else properties.to
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
            raise AmqpDeliveryError(
                Condition.NOT_FOUND, f"no exchange '{address.exchange}' in vhost '{VHOST}'"
            )
        return address.queue

    # --- from the queue ---------------------------------------------------------------------------

    def on_confirmed(self, ids: Sequence[int], *, settled: bool) -> None:
        """A queue has taken responsibility."""
        self._answer(ids, None if settled else ACCEPTED)

    def on_unconfirmed(self, ids: Sequence[int], *, settled: bool) -> None:
        """A queue was deleted before it could: nobody has the messages."""
        self._answer(ids, None if settled else RELEASED)

    def release_unsettled(self) -> None:
        """The queue is gone: what it had not confirmed by then, it never will."""
        unsettled = self._session.unsettled_in
        self._session.settle_received(
            [delivery_id for delivery_id, link in unsettled.items() if link is self.link], RELEASED
        )

    def _answer(self, ids: Sequence[int], outcome: Outcome | None) -> None:
        """Tell the client, unless it sent the delivery settled, and count it as finished."""
        if outcome is not None:
            second = self.link.rcv_settle_mode == ReceiverSettleMode.SECOND
            self._session.settle_received(ids, outcome, settled=not second)
        self._session.finish_received(self.link, len(ids))

    def leave(self) -> None:
        """The link is gone."""
        if self.queue is not None:
            self._post(self.queue.handle, DetachPublisher(self.ref))
