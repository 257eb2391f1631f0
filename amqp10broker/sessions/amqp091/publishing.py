"""Publishing on one channel: routes, returns, confirms, transactions, and the credit flow of the queues.

The credit flow is RabbitMQ's, the back-pressure of AMQP 0-9-1. Each pair of reader and channel, and of
channel and queue, has a counter. The sender of a pair may send until its credit is used up, and then stops
sending *everything*, whatever its destination. The receiver returns `more_after` whenever it has handled so
many messages, unless it is stopped itself. So a slow queue stops a channel, and the channel stops the reader
of the whole connection. Queues answer with `Confirmed` even where the client wants no confirms, because the
credit flow counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported, PreconditionFailed
from amqp10broker.message.amqp091 import read_content
from amqp10broker.message.convert import routing_headers
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp091.content import ContentTooLarge, Item, PublishRun
from amqp10broker.protocols.amqp091.delivery_tags import Confirm, ConfirmTracker
from amqp10broker.protocols.amqp091.properties import decode_properties, encode_properties
from amqp10broker.queues.commands import Publish, PublisherRef, ReplyTo
from amqp10broker.routing.exchange import DIRECT_REPLY_TO, Exchange
from amqp10broker.sessions.context import ChannelContext, ToQueue
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.routes import Route, Routes


class CreditFlow:
    """The credit flow between one sender and one receiver.

    Attributes:
        credit: what the sender may send; below 0 when it had to finish an item that it had begun.
        unreturned: messages that the receiver has handled, and whose credit is not returned.
    """

    __slots__ = ("credit", "more_after", "unreturned")

    def __init__(self, config: Config) -> None:
        self.credit = config.credit_flow_initial
        # A larger portion than the whole credit would never be returned, and the sender would wait forever.
        self.more_after = min(config.credit_flow_more_after, self.credit)
        self.unreturned = 0

    @property
    def blocked(self) -> bool:
        return self.credit <= 0

    def admit(self, item: Item) -> tuple[Item | None, Item | None]:
        """Spend credit on an item; return the part that may be sent now, and the part that has to wait."""
        contents = contents_of(item)
        if contents <= self.credit:
            self.credit -= contents
            return item, None
        if self.credit <= 0 or not isinstance(item, PublishRun):
            return None, item
        now, rest = _split(item, self.credit)
        self.credit = 0
        return now, rest

    def give_back(self) -> None:
        """Return credit to the sender, in whole portions. Must not be called while the receiver is held
        up.
        """
        returned = self.unreturned - self.unreturned % self.more_after
        self.unreturned -= returned
        self.credit += returned


def contents_of(item: Item) -> int:
    if type(item) is PublishRun:
        return len(item.bodies)
    return 1 if type(item) is ContentTooLarge else 0


def _split(run: PublishRun, count: int) -> tuple[PublishRun, PublishRun]:
    first = PublishRun(run.channel, run.exchange, run.routing_key, run.mandatory, run.immediate)
    rest = PublishRun(run.channel, run.exchange, run.routing_key, run.mandatory, run.immediate)
    first.properties, rest.properties = run.properties[:count], run.properties[count:]
    first.bodies, rest.bodies = run.bodies[:count], run.bodies[count:]
    return first, rest


_DIRECT_REPLY_TO_BYTES: Final = DIRECT_REPLY_TO.encode()

OUTLETS_MAX: Final = 1024
"""The most queues with credit counters; beyond, those without unconfirmed messages are dropped. If more are
left, the limit becomes twice their number, so that a fan-out to thousands of queues rarely scans them.
"""


class QueueOutlet(CreditFlow):
    """One queue to which this channel publishes. The channel counts for it, as the queue sends
    `Confirmed`.
    """

    __slots__ = ("outstanding", "queue", "ref")

    def __init__(self, queue: DeclaredQueue, reply_to: ReplyTo, config: Config) -> None:
        super().__init__(config)
        self.queue = queue
        self.ref = reply_to.publisher()
        self.outstanding = 0


@dataclass(eq=False)
class Publishing:
    """The contents that a channel's client publishes. `commit_failed`: some queue did not take its part of
    the last commit. `next_seq`: begins again at 1 after confirm.select.
    """

    _context: ChannelContext
    _to_queue: ToQueue
    _give_back: Callable[[Message], None]
    _reply_address: Callable[[], str | None]
    _counters: ClientCounters
    _routes: Routes = field(init=False)
    _outlets: dict[DeclaredQueue, QueueOutlet] = field(default_factory=dict)
    _outlets_max: int = OUTLETS_MAX
    _by_ref: dict[PublisherRef, QueueOutlet] = field(default_factory=dict)
    _held_by: set[QueueOutlet] = field(default_factory=set)
    tracker: ConfirmTracker = field(default_factory=ConfirmTracker)
    next_seq: int = 1
    _before_confirms: int = 0
    _buffered: list[tuple[Exchange, Sequence[DeclaredQueue], list[Message], bool]] = field(
        default_factory=list
    )
    _commit: dict[int, int] | None = None
    published_ms: int = 0
    confirming: bool = False
    transactional: bool = False
    commit_failed: bool = False

    def __post_init__(self) -> None:
        self._routes = Routes(self._context.vhost, self._context.access)

    @property
    def blocked(self) -> bool:
        return bool(self._held_by)

    @property
    def held_by(self) -> list[QueueOutlet]:
        """The queues that stop the channel, those with the most unconfirmed messages first."""
        return sorted(self._held_by, key=lambda outlet: -outlet.outstanding)

    @property
    def unconfirmed(self) -> int:
        return sum(outlet.outstanding for outlet in self._outlets.values())

    @property
    def told(self) -> int:
        """The number of messages whose confirm or rejection has been sent or will be sent in this step."""
        return self.tracker.acked + self.tracker.nacked

    @property
    def published(self) -> int:
        """The number of messages routed so far; those of a transaction count when it is committed."""
        return self._before_confirms + self.next_seq - 1

    # --- from the client --------------------------------------------------------------------------

    def publish(self, run: PublishRun) -> None:
        """Route contents to queues. Raises `RefusedError`; contents before the refused one are published."""
        moment = self._context.moment
        self.published_ms = moment.ms
        moment.measures.message_sizes.count(run.bodies)
        route = self.find(run.exchange, run.routing_key, immediate=run.immediate)
        queues = route.queues
        if queues is None or self.transactional:
            for properties, body in zip(run.properties, run.bodies, strict=True):
                self._publish_one(run, route, *self._read(route, properties, body), body)
            return
        heads = route.heads
        messages: list[Message] = []
        limit = self._context.config.max_message_size_bytes
        try:
            for properties, body in zip(run.properties, run.bodies, strict=True):
                head = heads.get(properties)
                if head is None or len(body) > limit:
                    head, extra_keys = self._read(route, properties, body)
                    if extra_keys:
                        # This message has another destination: the messages before it are sent first.
                        self._to_queues(route.exchange, queues, messages, run.mandatory)
                        messages = []
                        self._publish_one(run, route, head, extra_keys, body)
                        continue
                    if _DIRECT_REPLY_TO_BYTES not in properties:
                        # A message that names direct reply-to contains the address of the present consumer.
                        self._routes.remember(route, properties, head)
                messages.append((head, body))
        finally:
            # This also runs when a message was refused: those before it are published.
            self._to_queues(route.exchange, queues, messages, run.mandatory)

    def find(self, exchange: str, routing_key: str, *, immediate: bool) -> Route:
        if immediate:
            raise NotSupported("basic.publish", "immediate=true")
        return self._routes.find(exchange, routing_key)

    def _publish_one(
        self, run: PublishRun, route: Route, head: bytes, extra_keys: Sequence[str], body: bytes
    ) -> None:
        message = (head, body)
        queues = self._routes.queues(route, extra_keys, lambda: routing_headers(message))
        if self.transactional:
            self._buffered.append((route.exchange, queues, [message], run.mandatory))
        else:
            self._to_queues(route.exchange, queues, [message], run.mandatory)

    def _read(self, route: Route, properties: bytes, body: bytes) -> tuple[bytes, Sequence[str]]:
        # Returns the head of the message, and further routing keys.
        limit = self._context.config.max_message_size_bytes
        if len(body) > limit:
            raise PreconditionFailed(
                "basic.publish", f"message size {len(body)} is larger than configured max size {limit}"
            )
        context = self._context
        if _DIRECT_REPLY_TO_BYTES in properties:
            properties = self._with_reply_address(properties)
        return read_content(
            route.exchange.name,
            route.routing_key,
            properties,
            user=context.user,
            impersonator=context.access.impersonator,
        )

    def _with_reply_address(self, properties: bytes) -> bytes:
        # Direct reply-to: the pseudo queue's name becomes the address of this channel's consumer.
        decoded = decode_properties(properties)
        if decoded.reply_to != DIRECT_REPLY_TO:
            return properties
        address = self._reply_address()
        if address is None:
            raise PreconditionFailed("basic.publish", "fast reply consumer does not exist")
        decoded.reply_to = address
        return encode_properties(decoded)

    def _to_queues(
        self,
        exchange: Exchange,
        queues: Sequence[DeclaredQueue],
        messages: list[Message],
        mandatory: bool,
    ) -> None:
        if not messages:
            return
        count = len(messages)
        self._counters.published += count
        exchange.published += count
        ids: Sequence[int] = range(self.next_seq, self.next_seq + count)
        self.next_seq += count
        if not queues:
            self._counters.unroutable += count
            exchange.unroutable += count
            self._context.on_unroutable(messages)
            if mandatory:
                self._counters.returned += count
                exchange.returned += count
                for message in messages:
                    self._give_back(message)
            if self.confirming:
                self.tracker.published(ids[0], 0, count)
            else:
                self._counters.published_settled += count
            return
        if self.confirming:
            self.tracker.published(ids[0], len(queues), count)
        else:
            self._counters.published_settled += count
        if len(queues) > 1:
            self._counters.copies += (len(queues) - 1) * count
        for queue in queues:
            outlet = self._outlets.get(queue) or self._open_outlet(queue)
            outlet.outstanding += count
            outlet.credit -= count
            if outlet.credit <= 0:
                self._held_by.add(outlet)
            self._to_queue((queue.handle, Publish(outlet.ref, ids, messages, settled=not self.confirming)))

    def _open_outlet(self, queue: DeclaredQueue) -> QueueOutlet:
        if len(self._outlets) >= self._outlets_max:
            # This keeps a server that replies to many short-lived queues from accumulating counters.
            for outlet in [each for each in self._outlets.values() if not each.outstanding]:
                del self._outlets[outlet.queue]
                del self._by_ref[outlet.ref]
            self._outlets_max = max(OUTLETS_MAX, 2 * len(self._outlets))
        outlet = self._outlets[queue] = QueueOutlet(queue, self._context.reply_to, self._context.config)
        self._by_ref[outlet.ref] = outlet
        return outlet

    # --- from queues ------------------------------------------------------------------------------

    def on_confirmed(
        self, ref: PublisherRef, ids: Sequence[int], *, settled: bool, failed: bool = False
    ) -> None:
        """Count messages that a queue has taken; those of a deleted queue count as taken as well."""
        outlet = self._by_ref.get(ref)
        if outlet is None:
            return  # published before the channel was closed and opened again
        outlet.outstanding -= len(ids)
        outlet.unreturned += len(ids)
        if outlet.unreturned >= outlet.more_after:
            outlet.give_back()
            if outlet.credit > 0:
                self._held_by.discard(outlet)
        if not settled:
            (self.tracker.rejected if failed else self.tracker.confirmed)(ids)
        elif self._commit is not None:
            self._on_committed(ids, failed)

    def take_confirms(self) -> Sequence[Confirm]:
        """Return (delivery tag, multiple, nack) of the confirms to send since the last call."""
        if not self.confirming:
            return ()
        tracker, counters = self.tracker, self._counters
        acked, nacked = tracker.acked, tracker.nacked
        confirms = tracker.take()
        counters.confirmed += tracker.acked - acked
        counters.rejected += tracker.nacked - nacked
        return confirms

    # --- modes ------------------------------------------------------------------------------------

    def select_confirms(self) -> None:
        """Confirm each message from now on, counted from 1. Raises `PreconditionFailed`."""
        if self.transactional:
            raise PreconditionFailed("confirm.select", "cannot switch from tx to confirm mode")
        if not self.confirming:
            self.confirming = True
            self._before_confirms = self.next_seq - 1
            self.next_seq = 1

    def select_transactions(self) -> None:
        """Deliver nothing before a commit from now on. Raises `PreconditionFailed` in confirm mode."""
        if self.confirming:
            raise PreconditionFailed("tx.select", "cannot switch from confirm to tx mode")
        self.transactional = True

    def commit(self) -> bool:
        """Deliver the published messages, and send returns; return whether queues have taken all of it."""
        buffered, self._buffered = self._buffered, []
        self._commit = {}
        self.commit_failed = False
        for exchange, queues, messages, mandatory in buffered:
            if queues:
                self._commit[self.next_seq] = len(queues)
            self._to_queues(exchange, queues, messages, mandatory)
        return self.committed

    @property
    def committed(self) -> bool:
        return not self._commit

    def rollback(self) -> None:
        self._buffered = []

    def _on_committed(self, ids: Sequence[int], failed: bool) -> None:
        assert self._commit is not None
        for seq in ids:
            left = self._commit.get(seq)
            self.commit_failed = self.commit_failed or (failed and left is not None)
            if left == 1:
                del self._commit[seq]
            elif left is not None:
                self._commit[seq] = left - 1
