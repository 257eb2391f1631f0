"""The classic queue: first in, first out.

`ready` has the waiting messages; `consumers` decides the rotation; `dispatch` delivers, settles and removes.
Messages that must survive a restart are given to the store, and confirmed when they are durable. Each command
contains the time in ms of wall clock. The queue's time does not change while the clock is set back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from amqp10broker.message.amqp10 import HEAD_BYTES_MAX
from amqp10broker.message.filters.filter_set import Filters, MessageFilter
from amqp10broker.message.filters.sql_eval import compile_selector
from amqp10broker.message.message import Message
from amqp10broker.message.traits import traits_of
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.classic.backlog import DELAYED, Page, Store, chosen, content_bytes
from amqp10broker.queues.classic.consumers import ClassicConsumer, Consumers, has_more, has_passed
from amqp10broker.queues.classic.dispatch import (
    Disposal,
    Serving,
    dues_of,
    expiries_of,
    is_limited,
    is_over,
    rejects,
)
from amqp10broker.queues.classic.ready import Cursor, Delayed, DelayedMessages, ReadyMessages
from amqp10broker.queues.commands import (
    Cancel,
    Command,
    Configure,
    Confirmed,
    Credit,
    DeadLetterReason,
    DeliveryOutcome,
    GiveBack,
    Publish,
    PublisherRef,
    PublishRejected,
    Purge,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    SubscribeRefused,
    Tick,
    Touch,
    Unconfirmed,
    Unsubscribe,
    tag_in,
)
from amqp10broker.queues.machine import SCAN_MAX, QueueMachine
from amqp10broker.queues.queue_status import (
    QueueCounters,
    QueueStats,
    QueueStatus,
    QueueWeight,
    few,
    is_full,
    length_limits,
)
from amqp10broker.queues.settings import DEFAULTS, Overflow, QueueSettings

PLAIN_HEADS_MAX: Final = 256

_HEAD: Final = itemgetter(0)


DUE_MAX: Final = 1024
"""The number of due messages that are handled in one step."""


Select = Callable[[Sequence[Message]], Sequence[int]]
"""Returns the positions of the wanted messages, from 0, in order."""


def selection(selector: str) -> Select:
    """Compile a JMS selector for a queue that accepts only some of the messages published to it. Raises
    `ValueError`, with the position of the fault.
    """
    wanted = MessageFilter.of_sql(compile_selector(selector))
    return lambda messages: wanted.matching(messages, 0)


class ClassicQueue(QueueMachine):
    """The state of a classic queue. `auto_delete`: it is deleted with the last of its consumers."""

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
        self.delayed = DelayedMessages(self._store)
        self.waiting = ReadyMessages(settings.max_priority, self._store, settings.default_priority)
        self._consumers = Consumers(single=settings.single_active_consumer)
        self._disposal = Disposal(
            *(self.waiting, self.delayed, self._store, self.counters, self._dead_letters, self._outbox),
            keeps=self._keeps,
        )
        self._serving = Serving(
            *(self.waiting, self._consumers, self._disposal, self._outbox, self._store),
            self._end_drains,
            scan_max=scan_max,
        )
        # Drains, each answered when the queue was looked through up to these positions.
        self._drains: dict[ClassicConsumer, list[int]] = {}
        # Publishes that are not durable yet: the store's ticket, publisher, numbers, settled, since when in
        # ms.
        self.unsafe: list[tuple[int, PublisherRef, Sequence[int], bool, int]] = []
        self._store_failed = False
        # Heads of transient messages without properties that matter here.
        self._plain: set[bytes] = set()
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
        """Begin with the messages that the store found. For each level, and `DELAYED`: pages in order, and
        the next position.
        """
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
            unconfirmed=sum(len(ids) for _, _, ids, _, _ in self.unsafe),
            unconfirmed_ms=self.unsafe[0][4] if self.unsafe else None,
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
            case Purge():
                self._answer(command.request, self.not_handed_out)
                self._disposal.drop_all()
            case Configure():
                self.configure(command.settings)
                self._disposal.make_room()
            case Touch():
                self._unused_since = self._now
            case Tick():
                self._pass_time()
            case _:
                self._apply_common(command)

    def _pass_time(self) -> None:
        if self.delayed.count:
            self._see_to_due()
        self._disposal.expire(self._now)
        if self._disposal.unfinished:
            self._disposal.make_room()
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
            self._release(due)

    def deadline(self) -> int | None:
        unfinished = self._serving.unfinished and bool(self._consumers.looking)
        if self.deleted or self._disposal.unfinished or unfinished:
            return None if self.deleted else self._now
        times = [self._gone_at(), self.waiting.next_expiry() if self.waiting.may_expire else None]
        if self.delayed.count:
            times.append(self.delayed.next_due())
        return min([when for when in times if when is not None], default=None)

    def refuse_unsafe(self) -> None:
        """Refuse all publishes that are not durable, and later ones, because the store has failed."""
        self._store_failed = True
        self._refuse_unsafe(failed=True)

    def _break_off(self) -> None:
        # This state must not remove the store's messages any more.
        self._keeps = self._disposal.keeps = False
        self._refuse_unsafe(failed=True)

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
        if self._consumers.rings or self._consumers.looking:
            self._serving.serve(self._now)
        if self.waiting.may_expire:
            # A message with a time to live of 0 expires if it could not be delivered at once.
            self._disposal.expire(self._now)
        if self._limited:
            self._disposal.make_room()

    def _selected(self, command: Publish, select: Select) -> Publish:
        # Messages that are not selected are confirmed: no consumer of this queue wants them.
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
        waiting, consumers = self.waiting, self._consumers
        if (
            waiting.count
            or len(consumers.top) != 1
            or consumers.looking
            or self.settings.message_ttl_ms is not None
        ):
            return False
        consumer = next(iter(consumers.top))
        messages = command.messages
        count = len(messages)
        if consumer.credit < count or not self._are_plain(messages):
            return False
        size = content_bytes(messages)
        if size > consumer.room:
            return False
        self.counters.published += count
        level = waiting.plain
        start = level.backlog.skip(count) * waiting.width + level.number
        keys = range(start, start + count * waiting.width, waiting.width)
        self._serving.give(consumer, keys, messages, size, self._now)
        self._tell(command.publisher.reply_to, Confirmed(command.publisher, command.ids, command.settled))
        if not consumer.credit:
            consumers.leave_ring(consumer)
        return True

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        # Consumers may take messages meanwhile; that does not matter here.
        if not (self._limited and rejects(self.settings)):
            return True
        count, size = self._disposal.counted
        return not is_over(self.settings, count + len(messages), size + content_bytes(messages))

    def _publish_within(self, command: Publish) -> None:
        # Only a publish that would exceed a limit is refused. As in RabbitMQ, the ready messages before it
        # count, even if a consumer would take it at once.
        settings, disposal = self.settings, self._disposal
        ids, messages = command.ids, command.messages
        start = 0
        refused: list[int] = []
        count, size = disposal.counted
        for index, message in enumerate(messages):
            size_then = size + len(message[1])
            if is_over(settings, count + 1, size_then):
                # Consumers may take the messages before it, which makes room.
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
        self.counters.published += stop - start
        if stop == start:
            return
        publisher, ids, messages, settled = command.publisher, command.ids, command.messages, command.settled
        if stop - start < len(messages):
            ids, messages = ids[start:stop], messages[start:stop]
        queue_ttl_ms, now_ms = self.settings.message_ttl_ms, self._now
        waiting = self.waiting
        if queue_ttl_ms is None and self._are_plain(messages):
            waiting.add(waiting.plain, messages, None)
            self._tell(publisher.reply_to, Confirmed(publisher, ids, settled))
            return
        published = messages
        expiries, delays = expiries_of(messages, queue_ttl_ms, now_ms)
        ticket = 0
        if delays:
            ticket, messages, expiries = self._hold_back(messages, expiries, now_ms)
        if messages:
            ticket = max(ticket, self._line_up(messages, expiries, None))
        if ticket:
            durable = {head: traits_of(head).durable for head in set(map(_HEAD, published))}
            if not all(durable.values()):
                numbered = list(zip(ids, published, strict=True))
                at_once = [number for number, (head, _) in numbered if not durable[head]]
                self._tell(publisher.reply_to, Confirmed(publisher, at_once, settled))
                ids = [number for number, (head, _) in numbered if durable[head]]
            self.unsafe.append((ticket, publisher, ids, settled, now_ms))
            if self._store_failed:
                self._refuse_unsafe(failed=True)
        else:
            self._tell(publisher.reply_to, Confirmed(publisher, ids, settled))

    def _release(self, due: Sequence[Delayed]) -> None:
        expiries = [each.expiry for each in due]
        self._line_up(
            [each.message for each in due],
            expiries if any(expiries) else None,
            [each.position for each in due],
        )

    def _hold_back(
        self, messages: Sequence[Message], expiries: Sequence[int] | None, now_ms: int
    ) -> tuple[int, Sequence[Message], Sequence[int] | None]:
        # Return the store's ticket, and the messages without a delay and their expiries.
        dues = dues_of(messages, now_ms)
        later = [index for index, due in enumerate(dues) if due > now_ms]
        if not later:
            return 0, messages, expiries
        others = [index for index, due in enumerate(dues) if due <= now_ms]
        held, times = chosen(messages, expiries, later)
        dues = [dues[index] for index in later]
        ticket = self._keep(DELAYED, self.delayed.next, held, times, dues=dues) if self._keeps else 0
        self.delayed.add(held, dues, times)
        return ticket, *chosen(messages, expiries, others)

    def _line_up(
        self, messages: Sequence[Message], expiries: Sequence[int] | None, moved: Sequence[int] | None
    ) -> int:
        # Return the store's ticket, 0 if nothing was stored.
        waiting = self.waiting
        ticket = 0
        for level, indexes in waiting.by_level(messages):
            part, times, positions = messages, expiries, moved
            if indexes is not None:
                part, times = chosen(messages, expiries, indexes)
                positions = None if moved is None else [moved[index] for index in indexes]
            if self._keeps:
                kept = self._keep(level.number, level.backlog.next, part, times, moved=positions)
                ticket = max(ticket, kept)
            waiting.add(level, part, times)
        return ticket

    def _are_plain(self, messages: Sequence[Message]) -> bool:
        # All messages are transient (or not to be stored), without time to live, delay or priority.
        heads = set(map(_HEAD, messages))
        plain, default = self._plain, self.waiting.default
        if heads <= plain:
            return True
        for head in heads - plain:
            traits = traits_of(head)
            if traits.ttl_ms is not None or traits.priority not in (None, default):
                return False
            if traits.delay is not None or (self._keeps and traits.durable):
                return False
        if len(plain) + len(heads) > PLAIN_HEADS_MAX:
            plain.clear()
        plain |= {head for head in heads if len(head) <= HEAD_BYTES_MAX}
        return True

    def _keep(
        self,
        level: int,
        first: int,
        messages: Sequence[Message],
        expiries: Sequence[int] | None,
        *,
        dues: Sequence[int] | None = None,
        moved: Sequence[int] | None = None,
    ) -> int:
        # Return 0 if no message must survive a restart.
        durable = {head: traits_of(head).durable for head in {head for head, _ in messages}}
        if all(durable.values()):
            return self._store.keep(level, first, messages, expiries, dues=dues, moved=moved)
        if not any(durable.values()):
            return 0
        ticket = start = 0
        for index in range(len(messages) + 1):
            if index < len(messages) and durable[messages[index][0]]:
                continue
            if start < index:
                run = slice(start, index)
                times, their_dues, positions = (
                    None if each is None else each[run] for each in (expiries, dues, moved)
                )
                ticket = self._store.keep(
                    level, first + start, messages[run], times, dues=their_dues, moved=positions
                )
            start = index + 1
        return ticket

    def safe_up_to(self, ticket: int) -> int | None:
        """Confirm publishes up to a ticket that the store has made durable; return the first unsafe one."""
        safe = 0
        for safe_at, publisher, ids, settled, _ in self.unsafe:
            if safe_at > ticket:
                break
            safe += 1
            self._tell(publisher.reply_to, Confirmed(publisher, ids, settled))
        del self.unsafe[:safe]
        return self.unsafe[0][0] if self.unsafe else None

    def _refuse_unsafe(self, *, failed: bool) -> None:
        unsafe, self.unsafe = self.unsafe, []
        for _, publisher, ids, settled, _ in unsafe:
            self._tell(publisher.reply_to, Unconfirmed(publisher, ids, settled, failed, self.name))

    def _settle(self, command: Settle) -> None:
        if command.answer:
            self._tell(command.consumer.reply_to, Settled(command.consumer, command.keys))
        consumer = self._consumers.by_ref.get(command.consumer)
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
        # The consumer is removed last, so that the next active consumer finds all messages in their places.
        self._consumers.remove(consumer)
        self._serving.serve(self._now)
        self._disposal.make_room()
        self._end_of(consumer)

    def _end_of(self, consumer: ClassicConsumer) -> None:
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
        # A consumer that waits for the active one to leave gets nothing, whatever its credit.
        available = self.ready if self._consumers.is_active(consumer) else 0
        self._outbox.reply(consumer, available, drain=command.drain)

    def _credit_looking(self, consumer: ClassicConsumer, command: Credit) -> None:
        # The drain of a consumer that selects or browses is answered when its search has ended.
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
            # The present ends of the queue: messages that come during the search do not count for the drain.
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
        # Messages that the consumer has looked at are not available to it.
        available = self.ready if has_more(self.waiting, consumer.cursor) else 0
        self._outbox.reply(consumer, available, drain=drain)

    def _end_drains(self) -> None:
        for consumer, ends in list(self._drains.items()):
            assert consumer.cursor is not None
            if not consumer.credit or has_passed(self.waiting, consumer.cursor, ends):
                self._answer_drain(consumer)

    def _let_go(self) -> None:
        self._refuse_unsafe(failed=self.failed)
        self._outbox.end(self._consumers, self.name)
        self._consumers.clear()
        self._drains.clear()
        self.waiting.cursors.clear()
        self._disposal.drop_all()
