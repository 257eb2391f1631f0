"""The classic queue: first in, first out.

`ready` holds the waiting messages in levels of priority; a requeued message returns to its exact place.
`consumers` decides the rotation, `intake` gives messages that must survive a restart to the `store` and
confirms them when they are safe, and `disposal` settles deliveries and removes messages. `delayed` holds
messages until their time. Each command contains the time in ms of wall clock; the queue's time stands still
while the clock is set back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from amqp10broker.message.filters.filters import Filters
from amqp10broker.message.message import Message
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.classic.backlog import Page, content_bytes
from amqp10broker.queues.classic.consumers import ClassicConsumer, Consumers, has_more, has_passed
from amqp10broker.queues.classic.delayed import DelayedMessages
from amqp10broker.queues.classic.dispatch import Serving
from amqp10broker.queues.classic.publishing import Intake
from amqp10broker.queues.classic.ready import Cursor, ReadyMessages
from amqp10broker.queues.classic.removal import Disposal, is_limited, is_over, rejects
from amqp10broker.queues.classic.store import DELAYED, Store
from amqp10broker.queues.commands import (
    AttachPublisher,
    Cancel,
    Command,
    Configure,
    Credit,
    Delete,
    DeliveryOutcome,
    DetachPublisher,
    GiveBack,
    Inspect,
    Publish,
    Purge,
    Settle,
    Subscribe,
    Tick,
    Touch,
    Unsubscribe,
    tag_in,
)
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.effects import (
    Confirmed,
    CreditReply,
    DeadLetterReason,
    PublishRejected,
    QueueDeleted,
    Settled,
    Subscribed,
    SubscribeRefused,
)
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import QueueStats, QueueStatus, QueueWeight, few, is_full, length_limits
from amqp10broker.queues.round_robin import SCAN_MAX
from amqp10broker.queues.selecting import Select, selection
from amqp10broker.queues.settings import DEFAULTS, Overflow, QueueSettings

DUE_MAX: Final = 1024
"""Due messages that are handled in one step, so that other tasks run before the next."""


class ClassicQueue(QueueMachine):
    """The state of a classic queue. `auto_delete`: it goes with the last of its consumers."""

    def __init__(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool = False,
        settings: QueueSettings = DEFAULTS,
        store: Store | None = None,
        now_ms: int = 0,
        counters: QueueCounters | None = None,
        selector: str | None = None,
        scan_max: int = SCAN_MAX,
    ) -> None:
        super().__init__(name, counters)
        self.settings = settings
        self.durable = durable
        self.auto_delete = auto_delete
        self._store = store or Store()
        self._keeps = self._store.durable and durable
        self.waiting = ReadyMessages(settings.max_priority, self._store, settings.default_priority)
        self._consumers = Consumers(single=settings.single_active_consumer)
        self.delayed = DelayedMessages(self._store)
        self._disposal = Disposal(
            *(self.waiting, self.delayed, self._store, self.counters, self._dead_letters, self._outbox),
            keeps=self._keeps,
        )
        self._serving = Serving(
            *(self.waiting, self._consumers, self._disposal, self._outbox, self._store),
            self._end_drains,
            scan_max,
        )
        # Drains that are answered when the queue was looked through up to these positions.
        self._drains: dict[ClassicConsumer, list[int]] = {}
        self.intake = Intake(name, self.waiting, self.delayed, self._store, self._outbox, keeps=self._keeps)
        self._select = None if selector is None else selection(selector)
        self._now = now_ms
        self._unused_since = now_ms
        self.configure(settings)

    def configure(self, settings: QueueSettings) -> None:
        self.settings = self._disposal.settings = settings
        self._limited = is_limited(settings)
        if settings.max_length_bytes is not None:
            self.waiting.count_bytes()

    def recover(self, backlogs: Mapping[int, tuple[Sequence[Page], int]]) -> None:
        """Begin with what the store found: by level, and `DELAYED`: pages in order, and the next position."""
        self.waiting.recover({level: found for level, found in backlogs.items() if level != DELAYED})
        if DELAYED in backlogs:
            self.delayed.recover(*backlogs[DELAYED])

    @property
    def ready(self) -> int:
        return self.waiting.count

    @property
    def not_handed_out(self) -> int:
        return self.waiting.count + self.delayed.count

    @property
    def unsettled(self) -> int:
        holders = (each for each in self._consumers if not (each.settled or each.browses))
        return sum(len(each.unsettled) for each in holders)

    @property
    def consumers(self) -> int:
        return self._consumers.counted

    def figures(self) -> QueueStats:
        limits, active = length_limits(self.settings), self._consumers.active
        return QueueStats(
            messages_ready=self.ready,
            messages_unsettled=self.unsettled,
            consumers=self.consumers,
            publishers=self.publishers,
            messages_delayed=self.delayed.count,
            single_active_consumer_tag=None if active is None else tag_in(active.name),
            full=is_full(limits, *self._disposal.counted),
            limits=limits,
        )

    def weight(self) -> QueueWeight:
        holders = (each for each in self._consumers if not (each.settled or each.browses))
        held = few(each.unsettled.values() for each in holders)
        return self.waiting.weigh()._replace(unsettled=None if held is None else content_bytes(held))

    def queue_status(self) -> QueueStatus:
        consumers, disposal = self._consumers, self._disposal
        unconfirmed, unconfirmed_ms = self.intake.unsafe
        return QueueStatus(
            self.ready,
            self.waiting.arrived,
            {each.ref: each.part(self.waiting) for each in consumers},
            consumers.single,
            None if consumers.active is None else consumers.active.ref,
            self.counters,
            disposal.expired_ms,
            self._serving.delivered_ms,
            delayed=self.delayed.count,
            delayed_until_ms=self.delayed.next_due(),
            unconfirmed=unconfirmed,
            unconfirmed_ms=unconfirmed_ms,
        )

    def apply(self, command: Command, now_ms: int) -> None:
        self._now = max(self._now, now_ms)
        match command:
            case Publish():
                self._publish(command)
            case Settle():
                self._settle(command)
            case Credit():
                self._credit(command)
            case GiveBack():
                self._give_back(command)
            case Subscribe():
                self._subscribe(command)
            case Cancel():
                self._cancel(command)
            case Unsubscribe():
                self._unsubscribe(command)
            case AttachPublisher():
                self._attach(command)
            case DetachPublisher():
                self._publishers.pop(command.publisher, None)
            case Inspect():
                self._answer(command.request, self.ready)
            case Purge():
                self._answer(command.request, self.not_handed_out)
                self._disposal.drop_all()
            case Delete():
                self._delete(command)
            case Configure():
                self.configure(command.settings)
                self._disposal.make_room()
            case Touch():
                self._unused_since = self._now
            case Tick():
                self._pass_time()
            case _:
                assert_never(command)

    def _pass_time(self) -> None:
        if self.delayed.count:
            self._see_to_due()
        self._disposal.expire(self._now)
        if self._disposal.unfinished:
            self._disposal.make_room()
        # Messages behind many that had expired.
        self._serving.serve(self._now)
        gone_at = self._gone_at()
        if gone_at is not None and gone_at <= self._now:
            self._delete()

    def _see_to_due(self) -> None:
        # If not all are handled, the queue is due again at once.
        due = self.delayed.take_due(self._now, DUE_MAX)
        expired = [each for each in due if 0 < each.expiry <= self._now]
        if expired:
            self._disposal.expired_ms = self._now
            self._disposal.remove_delayed(DeadLetterReason.EXPIRED, expired)
            due = [each for each in due if not 0 < each.expiry <= self._now]
        if due:
            self.intake.release(due)

    def deadline(self) -> int | None:
        unfinished = self._serving.unfinished and bool(self._consumers.looking)
        if self.deleted or self._disposal.unfinished or unfinished:
            return None if self.deleted else self._now
        times = [self._gone_at(), self.waiting.next_expiry() if self.waiting.may_expire else None]
        if self.delayed.count:
            times.append(self.delayed.next_due())
        return min([when for when in times if when is not None], default=None)

    def safe_up_to(self, ticket: int) -> int | None:
        return self.intake.safe_up_to(ticket)

    def refuse_unsafe(self) -> None:
        """Refuse all publishes that are not safe, and later ones, since the store has failed."""
        self.intake.store_failed = True
        self.intake.refuse_unsafe(failed=True)

    def _break_off(self) -> None:
        # The store's messages are not this state's to remove any more.
        self._keeps = self.intake.keeps = self._disposal.keeps = self._serving.keeps = False
        self.intake.refuse_unsafe(failed=True)

    def _publish(self, command: Publish) -> None:
        if self.deleted:
            self._refuse(command)
            return
        if self._select is not None:
            command = self._selected(command, self._select)
            if not command.messages:
                return
        if self._limited and rejects(self.settings):
            self._publish_within(command)
            return
        if self._pass_on(command):
            return
        self._take_in(command, 0, len(command.messages))
        if self._consumers.waiting or self._consumers.looking:
            self._serving.serve(self._now)
        if self.waiting.may_expire:
            # A time to live of 0 is for messages that could not be delivered at once.
            self._disposal.expire(self._now)
        if self._limited:
            self._disposal.make_room()

    def _selected(self, command: Publish, select: Select) -> Publish:
        # Messages that are not selected are confirmed, since they are for no consumer here.
        ids, messages = command.ids, command.messages
        wanted = select(messages)
        if len(wanted) == len(messages):
            return command
        chosen = frozenset(wanted)
        others = [number for place, number in enumerate(ids) if place not in chosen]
        publisher = command.publisher
        self._tell(publisher.reply_to, Confirmed(publisher, others, command.settled))
        return Publish(
            publisher, [ids[at] for at in wanted], [messages[at] for at in wanted], command.settled
        )

    def _pass_on(self, command: Publish) -> bool:
        # Past the backlog, to the only consumer that waits for messages.
        waiting, consumers = self.waiting, self._consumers
        if (
            waiting.count
            or not consumers.waiting
            or consumers.looking
            or self.settings.message_ttl_ms is not None
        ):
            return False
        ring = consumers.top_ring()
        consumer = ring.first
        messages = command.messages
        count = len(messages)
        if len(ring) > 1 or consumer.credit < count or not self.intake.are_plain(messages):
            return False
        size = content_bytes(messages)
        if size > consumer.room:
            return False
        self.counters.published += count
        self._tell(command.publisher.reply_to, Confirmed(command.publisher, command.ids, command.settled))
        level = waiting.plain
        start = level.backlog.skip(count) * waiting.width + level.number
        keys = range(start, start + count * waiting.width, waiting.width)
        self._serving.give(consumer, keys, messages, size, self._now)
        consumers.had_turn(consumer)
        return True

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        # Regardless of what consumers take meanwhile.
        if not (self._limited and rejects(self.settings)):
            return True
        count, size = self._disposal.counted
        return not is_over(self.settings, count + len(messages), size + content_bytes(messages))

    def _publish_within(self, command: Publish) -> None:
        # A publish that would exceed a limit is refused; the others are not. As in RabbitMQ the ready
        # messages before it count, even if a consumer would take it at once.
        settings, disposal = self.settings, self._disposal
        ids, messages = command.ids, command.messages
        start = 0
        refused: list[int] = []
        count, size = disposal.counted
        for index, message in enumerate(messages):
            size_then = size + len(message[1])
            if is_over(settings, count + 1, size_then):
                # Consumers may take those before it, which makes room.
                self._take_in(command, start, index)
                self._serving.serve(self._now)
                start = index
                count, size = disposal.counted
                size_then = size + len(message[1])
                if is_over(settings, count + 1, size_then):
                    refused.append(index)
                    start = index + 1
                    continue
            count, size = count + 1, size_then
        self._take_in(command, start, len(messages))
        self._serving.serve(self._now)
        self._disposal.expire(self._now)
        if not refused:
            return
        self.counters.rejected += len(refused)
        if settings.overflow is Overflow.REJECT_PUBLISH_DLX:
            self._disposal.give_up(DeadLetterReason.MAXLEN, [messages[index] for index in refused])
        self._tell(
            command.publisher.reply_to,
            PublishRejected(command.publisher, [ids[index] for index in refused], command.settled, self.name),
        )

    def _take_in(self, command: Publish, start: int, stop: int) -> None:
        ids, messages = command.ids, command.messages
        self.counters.published += stop - start
        if stop - start < len(messages):
            ids, messages = ids[start:stop], messages[start:stop]
        ttl = self.settings.message_ttl_ms
        self.intake.take_in(command.publisher, ids, messages, command.settled, ttl, self._now)

    def _settle(self, command: Settle) -> None:
        if command.answer:
            self._tell(command.consumer.reply_to, Settled(command.consumer, command.keys))
        consumer = self._consumers.find(command.consumer)
        if consumer is None:
            return
        consumer.settled_ms = self._now
        pop = consumer.unsettled.pop
        if command.delivery_outcome is DeliveryOutcome.ACCEPT:
            if self._keeps or self.waiting.expiries:
                self._disposal.forget([key for key in command.keys if pop(key, None) is not None])
            else:
                for key in command.keys:
                    pop(key, None)
        else:
            held = [(key, message) for key in command.keys if (message := pop(key, None)) is not None]
            self._disposal.decide(held, command.delivery_outcome)
            self._serving.serve(self._now)
            self._disposal.make_room()
        if consumer.cancelled and not consumer.unsettled:
            self._consumers.remove(consumer)

    def _give_back(self, command: GiveBack) -> None:
        consumer = self._consumers.find_any(command.consumer)
        if consumer is None:
            return
        self._disposal.take_back(consumer, command.keys, command.messages, command.seen)
        if consumer in self._drains:
            self._answer_drain(consumer)
        consumer.delivery_count = command.delivery_count
        consumer.epoch = command.epoch
        self._consumers.take_credit(consumer)
        self._serving.serve(self._now)

    def _subscribe(self, command: Subscribe) -> None:
        ref = command.consumer
        if self._is_gone_for(ref):
            return
        if command.counted and not self._consumers.may_join(exclusive=command.exclusive):
            self._tell(ref.reply_to, SubscribeRefused(ref, self.name))
            return
        self._unused_since = self._now
        cursor = self._cursor(command)
        self._consumers.add(
            ClassicConsumer(
                ref,
                settled=command.settled,
                exclusive=command.exclusive,
                counted=command.counted,
                priority=command.priority,
                name=command.name,
                cursor=cursor,
            )
        )
        if command.answer:
            self._tell(ref.reply_to, Subscribed(ref))

    def _cursor(self, command: Subscribe) -> Cursor | None:
        wanted = None
        if command.filters is not None:
            assert isinstance(command.filters, Filters)
            wanted = command.filters.messages
        if wanted is None and not command.browse:
            return None
        cursor = Cursor(self.waiting.width, wanted, takes=not command.browse)
        if cursor.takes:
            self.waiting.cursors.append(cursor)
        return cursor

    def _forget_cursor(self, consumer: ClassicConsumer) -> None:
        self._drains.pop(consumer, None)
        if consumer.cursor is not None and not consumer.browses:
            self.waiting.cursors.remove(consumer.cursor)
            if not self.waiting.cursors:
                self.waiting.let_go()

    def _cancel(self, command: Cancel) -> None:
        consumer = self._consumers.find_any(command.consumer)
        if consumer is None or consumer.cancelled:
            return
        consumer.cancelled = True
        self._forget_cursor(consumer)
        if consumer.browses or consumer.settled or not consumer.unsettled:
            if not consumer.browses:
                self._disposal.forget(list(consumer.unsettled))
            self._consumers.remove(consumer)
        else:
            self._consumers.retire(consumer)
        self._serving.serve(self._now)
        self._end_of(consumer)

    def _unsubscribe(self, command: Unsubscribe) -> None:
        consumer = self._consumers.find_any(command.consumer)
        if consumer is None:
            return
        if not consumer.cancelled:
            self._forget_cursor(consumer)
        self._disposal.take_back(consumer, command.unsent, command.unsent_messages, command.seen)
        delivery_outcome = DeliveryOutcome.ACCEPT if consumer.settled else command.delivery_outcome
        if not consumer.browses:
            self._disposal.decide(consumer.unsettled.items(), delivery_outcome)
        # Only now, so that the next active consumer finds everything in its place.
        self._consumers.remove(consumer)
        self._serving.serve(self._now)
        self._disposal.make_room()
        self._end_of(consumer)

    def _end_of(self, consumer: ClassicConsumer) -> None:
        # An auto-delete queue goes with its last consumer.
        self._unused_since = self._now
        if self.auto_delete and consumer.counted and not self.deleted and not self.consumers:
            self._delete()

    def _gone_at(self) -> int | None:
        expires = self.settings.expires_ms
        if expires is None or self.deleted or self._consumers.counted:
            return None
        return self._unused_since + expires

    def _credit(self, command: Credit) -> None:
        consumer = self._consumers.find_any(command.consumer)
        if consumer is None:
            return
        if consumer.cursor is not None:
            self._credit_looking(consumer, command)
            return
        self._disposal.trim(consumer, command.seen)
        credit = limit_left(command.delivery_count, command.credit, consumer.delivery_count)
        consumer.grant(credit, command.room)
        self._consumers.set_credit(consumer, credit)
        if not consumer.counted:
            self._unused_since = self._now
        self._serving.serve(self._now, to_the_end=command.drain)
        if command.drain and consumer.credit:
            consumer.delivery_count = (consumer.delivery_count + consumer.credit) & MASK
            self._consumers.set_credit(consumer, 0)
        self._outbox.flush(consumer)
        self._tell(
            command.consumer.reply_to,
            CreditReply(
                command.consumer,
                consumer.delivery_count,
                consumer.credit,
                # A consumer that waits for the active one to go can have nothing, whatever its credit.
                self.ready if self._consumers.is_active(consumer) else 0,
                command.drain,
                consumer.epoch,
            ),
        )

    def _credit_looking(self, consumer: ClassicConsumer, command: Credit) -> None:
        # The drain of a consumer that selects or browses is answered when it has looked enough.
        if consumer in self._drains:
            self._answer_drain(consumer)
        self._disposal.trim(consumer, command.seen)
        credit = limit_left(command.delivery_count, command.credit, consumer.delivery_count)
        consumer.grant(credit, command.room)
        self._consumers.take_credit(consumer)
        consumer.credit = credit
        if not consumer.browses:
            self._consumers.set_credit(consumer, credit)
        if not consumer.counted:
            self._unused_since = self._now
        if command.drain:
            # Where the queue ends now: messages that come during the search do not count for the drain.
            self._drains[consumer] = [level.backlog.next for level in self.waiting.levels]
        self._serving.serve(self._now)
        if not command.drain:
            self._reply_looking(consumer, drain=False)

    def _answer_drain(self, consumer: ClassicConsumer) -> None:
        del self._drains[consumer]
        consumer.delivery_count = (consumer.delivery_count + consumer.credit) & MASK
        self._consumers.take_credit(consumer)
        self._reply_looking(consumer, drain=True)

    def _reply_looking(self, consumer: ClassicConsumer, *, drain: bool) -> None:
        assert consumer.cursor is not None
        self._outbox.flush(consumer)
        # It could have nothing of what it has looked through.
        available = self.ready if has_more(self.waiting, consumer.cursor) else 0
        ref, count = consumer.ref, consumer.delivery_count
        reply = CreditReply(ref, count, consumer.credit, available, drain, consumer.epoch)
        self._tell(ref.reply_to, reply)

    def _end_drains(self) -> None:
        for consumer, ends in list(self._drains.items()):
            assert consumer.cursor is not None
            if not consumer.credit or has_passed(self.waiting, consumer.cursor, ends):
                self._answer_drain(consumer)

    def _let_go(self) -> None:
        self.intake.refuse_unsafe(failed=self.failed)
        for consumer in self._consumers:
            self._outbox.flush(consumer)
            self._tell(consumer.ref.reply_to, QueueDeleted(consumer.ref, self.name))
        self._consumers.clear()
        self._drains.clear()
        self.waiting.cursors.clear()
        self._disposal.drop_all()
