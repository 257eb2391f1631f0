"""The stream: a log of messages in which each consumer has a position of its own.

Each step appends published messages as chunks. They are confirmed and delivered when the log has committed
them. A delivery removes nothing: settling is only an acknowledgement, and returning a delivery resets the
consumer's position. Consumers read in rotation, together at most `WORK_MAX` a step. So a consumer that reads
from the beginning, or with a narrow filter, does not delay those at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from amqp10broker.message.filters.filter_set import Filters, MessageFilter
from amqp10broker.message.filters.stream_filters import (
    AtTime,
    Interval,
    Offset,
    OffsetWord,
    chunk_filter,
)
from amqp10broker.message.message import Message, encode_batch
from amqp10broker.message.stream_heads import delivered, delivered_with_time, filter_values, kept
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.commands import (
    NO_BOUND,
    Cancel,
    Command,
    Configure,
    Confirmed,
    ConsumerRef,
    Credit,
    DeadLetterReason,
    Deliver,
    Effect,
    GiveBack,
    PeerId,
    Publish,
    Purge,
    Refusal,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Tick,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import ConsumerStatus, QueueStats, QueueStatus, StreamReading
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.queues.stream.log import Chunk, Place, StreamLog

NO_END: Final = 2**64
FILTER_WORK: Final = 8
"""The work of filtering one message, or of skipping one chunk."""


class StreamConsumer:
    """A consumer's state in its stream.

    Attributes:
        end: the first offset that it does not want.
        room: bytes that it may get now, a chunk's divided evenly over its messages; at 0 there is no credit
            either.
        draining: a drain has no answer yet, because there is more to read.
        queued: it is in the rotation, or waits at the end for new messages.
    """

    shown: Final = ()

    def __init__(
        self,
        ref: ConsumerRef,
        position: int,
        filters: Filters | None,
        *,
        settled: bool,
        enqueued_time: bool = False,
    ) -> None:
        self.ref = ref
        self.position = position
        self.end = NO_END if filters is None or filters.end is None else filters.end
        self.credit = 0
        self.room = NO_BOUND
        self.delivery_count = 0
        self.handed_out = 0
        self.epoch = 0
        self.unsettled = 0
        self.draining = False
        self.queued = False
        self.looked_at = 0
        self._bloom = None if filters is None else filters.bloom
        self._wanted = None if filters is None else filters.messages
        self._settled = settled
        self._timed = enqueued_time
        self._chunk: Chunk | None = None
        self._ahead: deque[Chunk] = deque()
        self._place: Place | None = None
        # First delivery number, and offsets, of deliveries that may not have reached the session.
        self._on_its_way: deque[tuple[int, Sequence[int]]] = deque()

    @property
    def reading(self) -> StreamReading:
        end = None if self.end == NO_END else self.end
        filtered = self._bloom is not None or self._wanted is not None
        return StreamReading(self.position, end, filtered, self.looked_at, self.handed_out)

    def chunk(self) -> Chunk | None:
        position = self.position
        chunk = self._chunk
        while chunk is None or not chunk.first <= position < chunk.end:
            if not self._ahead:
                self._chunk = None
                return None
            chunk = self._ahead.popleft()
        self._chunk = chunk
        return chunk

    def hold(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._ahead.clear()
        self._place = None

    def read(self, log: StreamLog) -> None:
        """Read the next chunks from the log; the position moves to the first that exists."""
        place = self._place
        chunks, self._place = log.read(log.find(self.position) if place is None else place)
        assert chunks, f"the log has no chunk at {self.position}, below what it has committed"
        # It is later than the position if retention removed messages before the consumer read them.
        self.position = max(self.position, chunks[0].first)
        self._ahead.extend(chunks)

    def take(self, chunk: Chunk, work: int, keys: list[int], messages: list[Message], now_ms: int) -> int:
        """Take messages of the chunk. `work`: the limit, 1 or more; filtering may exceed it a little."""
        position = self.position
        if self._bloom is not None and not self._bloom.may_match(chunk.filter):
            self.looked_at += chunk.end - position
            self.position = chunk.end
            return FILTER_WORK
        start = position - chunk.first
        if self._wanted is not None:
            return self._take_wanted(self._wanted, chunk, work, keys, messages, now_ms)
        count = min(self.credit, work, chunk.end - position, self.end - position)
        offsets = range(position, position + count)
        piece = chunk.messages[start : start + count]
        keys.extend(offsets)
        messages.extend(
            delivered_with_time(piece, offsets, chunk.timestamp_ms)
            if self._timed
            else delivered(piece, position)
        )
        self.looked_at += count
        self.position = position + count
        self.credit -= count
        return count

    def _take_wanted(
        self,
        wanted: MessageFilter,
        chunk: Chunk,
        work: int,
        keys: list[int],
        messages: list[Message],
        now_ms: int,
    ) -> int:
        position = self.position
        start = position - chunk.first
        count = min(-(-work // FILTER_WORK), chunk.end - position, self.end - position)
        piece = delivered(chunk.messages[start : start + count], position)
        places = wanted.matching(piece, now_ms)[: self.credit]
        offsets = [position + place for place in places]
        keys.extend(offsets)
        if self._timed:
            found = [chunk.messages[start + place] for place in places]
            messages.extend(delivered_with_time(found, offsets, chunk.timestamp_ms))
        else:
            messages.extend([piece[place] for place in places])
        self.credit -= len(places)
        # Without credit the next wanted message may directly follow the last one.
        self.position = position + (count if self.credit else places[-1] + 1)
        self.looked_at += self.position - position
        return count * FILTER_WORK

    def spend(self, chunk: Chunk, count: int) -> None:
        self.room -= chunk.size_bytes * count // (chunk.end - chunk.first)
        if self.room <= 0:
            self.credit = 0

    def note(self, keys: Sequence[int]) -> None:
        count = len(keys)
        self._on_its_way.append((self.handed_out, keys))
        self.handed_out += count
        self.delivery_count = (self.delivery_count + count) & MASK
        if not self._settled:
            self.unsettled += count

    def trim(self, seen: int) -> None:
        on_its_way = self._on_its_way
        while on_its_way and on_its_way[0][0] + len(on_its_way[0][1]) <= seen:
            on_its_way.popleft()

    def settle(self, count: int) -> None:
        self.unsettled = max(0, self.unsettled - count)

    def rewind(self, keys: Sequence[int], seen: int) -> None:
        """Move the position back to the first delivery that did not reach the client."""
        self.settle(len(keys) + self.handed_out - seen)
        if keys:
            self.position = keys[0]
        elif self.handed_out > seen:
            self.trim(seen)
            first, offsets = self._on_its_way[0]
            self.position = offsets[seen - first]
        self.handed_out = seen
        self._on_its_way.clear()
        self._ahead.clear()
        self._place = None


CHUNK_MESSAGES_MIN: Final = 32
CHUNK_MESSAGES_MAX: Final = 512
"""The first chunk of a burst gets at most this number of messages, each further chunk twice as many as the
one before, up to the larger limit. RabbitMQ 4.3.6 was seen to do about the same (of 100: 1, 32, 64, 3; of 50
000 half the chunks had up to 36, one in ten more than 136, the largest 457).
"""

CHUNK_BYTES_MAX: Final = 256 * 1024
"""A chunk with so many bytes gets no more messages. A consumer has one chunk in memory."""

WORK_MAX: Final = 8192
"""The work of one step: a message counts 1, a filtered one `FILTER_WORK`."""

_TURN_MAX: Final = 1024

_READ_WORK: Final = 256
"""The work of a read from the log: some hundred kilobytes with their checksums."""

_RECENT_MAX: Final = 256
_RECENT_BYTES_MAX: Final = 1024 * 1024
"""The size of the last chunks that stay decoded, for the consumers that wait at the end."""


class StreamQueue(QueueMachine):
    def __init__(self, name: str, log: StreamLog, *, settings: QueueSettings = DEFAULTS) -> None:
        super().__init__(name)
        self.settings = settings
        self.log = log
        self.log.segment_bytes = settings.segment_bytes
        self._pending: list[Publish] = []
        # For waiting messages that are parts of commits: their place, and the number that their chunk gets.
        self._numbers: dict[int, int] = {}
        self._unconfirmed: deque[tuple[int, Publish]] = deque()
        # Since when the oldest message waits for the commit, and since when the oldest waits to be appended.
        self._waits_ms = self._pending_ms = 0
        self._recent: deque[Chunk] = deque()
        self._recent_bytes = 0
        self._consumers: dict[ConsumerRef, StreamConsumer] = {}
        self._turns: deque[StreamConsumer] = deque()
        self._at_end: dict[StreamConsumer, None] = {}
        self._work = WORK_MAX

    @property
    def waiting(self) -> bool:
        return bool(self._pending)

    @property
    def ready(self) -> int:
        return self.log.committed - self.log.first_offset

    @property
    def unsettled(self) -> int:
        return sum(consumer.unsettled for consumer in self._consumers.values())

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    @property
    def next_offset(self) -> int:
        return self.log.committed

    def figures(self) -> QueueStats:
        return QueueStats(
            messages_ready=self.ready,
            messages_unsettled=self.unsettled,
            consumers=self.consumers,
            publishers=self.publishers,
            first_offset=self.log.first_offset,
            next_offset=self.log.committed,
            segments=len(self.log.segments),
            size_bytes=self.log.size_bytes,
        )

    def queue_status(self) -> QueueStatus:
        unconfirmed = sum(len(each.messages) for each in self._pending)
        unconfirmed += sum(len(each.messages) for _, each in self._unconfirmed)
        return QueueStatus(
            self.ready,
            self.log.next_offset,
            {
                ref: ConsumerStatus(ref, each.credit, held=each.unsettled)
                for ref, each in self._consumers.items()
            },
            counters=self.counters,
            unsynced=unconfirmed,
            unsynced_ms=self._waits_ms if unconfirmed else None,
            unconfirmed=unconfirmed,
            unconfirmed_ms=self._waits_ms if unconfirmed else None,
            next_offset=self.log.committed,
            readings={ref: each.reading for ref, each in self._consumers.items()},
        )

    def apply(self, command: Command, now_ms: int) -> None:
        match command:
            case Publish():
                self._publish(command, now_ms)
            case Settle():
                consumer = self._consumers.get(command.consumer)
                if consumer is not None:
                    consumer.settle(len(command.keys))
                if command.answer:
                    self._tell(command.consumer.reply_to, Settled(command.consumer, command.keys))
            case Credit():
                self._credit(command, now_ms)
            case GiveBack():
                self._give_back(command)
            case Subscribe():
                self._subscribe(command, now_ms)
            case Cancel() | Unsubscribe():
                self._remove(command.consumer)
            case Purge():
                self._answer(command.request, self.ready, Refusal.NOT_SUPPORTED)
            case Configure():
                self.settings = command.settings
                self.log.segment_bytes = command.settings.segment_bytes
                self._retain(now_ms)
            case Tick():
                if not self.deleted:
                    self._retain(now_ms)
                    self._serve(now_ms)
            case Touch():
                return
            case _:
                self._apply_common(command)

    def deadline(self) -> int | None:
        if self._turns:
            return 0
        age_ms = self.settings.max_age_ms
        return None if age_ms is None or self.deleted else self.log.next_expiry(age_ms)

    def write(self, now_ms: int) -> None:
        """Append published messages to the log, once a step, after all commands. Does nothing while appended
        messages are not committed. Raises `DiskFull` if nothing has changed, and the call can be repeated.
        """
        if not self._pending:
            return
        self.log.make_room()
        pending, self._pending = self._pending, []
        end = self.log.next_offset
        for command in pending:
            end += len(command.messages)
            self.counters.published += len(command.messages)
            self._unconfirmed.append((end, command))
        numbers, self._numbers = self._numbers, {}
        for chunk, number in _pieces(pending, numbers):
            first = self.log.next_offset
            filter_bytes = chunk_filter(filter_values(chunk), self.settings.filter_bytes)
            data = encode_batch(chunk)
            # Consumers at the end also get the log's time, which does not go back when the clock is set back.
            written_ms = self.log.append(len(chunk), now_ms, filter_bytes, data, number)
            size_bytes = sum(map(len, data))
            opened = Chunk(first, first + len(chunk), written_ms, filter_bytes, chunk, size_bytes)
            self._remember(opened)
        self._retain(now_ms)

    def commit(self, now_ms: int) -> None:
        committed = self.log.committed
        unconfirmed = self._unconfirmed
        if unconfirmed and unconfirmed[-1][0] <= committed:
            self._waits_ms = self._pending_ms
        while unconfirmed and unconfirmed[0][0] <= committed:
            command = unconfirmed.popleft()[1]
            publisher = command.publisher
            self._tell(publisher.reply_to, Confirmed(publisher, command.ids, command.settled))
        if not self.deleted:
            waiting, self._at_end = self._at_end, {}
            self._turns.extend(waiting)
            self._serve(now_ms)

    def take_effects(self) -> dict[PeerId, list[Effect]]:
        self._work = WORK_MAX
        return super().take_effects()

    def _break_off(self) -> None:
        self.refuse_waiting()

    def _publish(self, command: Publish, now_ms: int) -> None:
        if self.deleted:
            self._refuse(command)
            return
        if not self._pending:
            self._pending_ms = now_ms
            if not self._unconfirmed:
                self._waits_ms = now_ms
        self._pending.append(command)

    def publish_part(self, command: Publish, number: int, now_ms: int) -> None:
        if not self.deleted:
            self._numbers[len(self._pending)] = number
        self._publish(command, now_ms)

    def refuse_waiting(self, *, failed: bool = False) -> None:
        for _, command in self._unconfirmed:
            self._refuse(command, failed=failed)
        for command in self._pending:
            self._refuse(command, failed=failed)
        self._unconfirmed.clear()
        self._pending.clear()
        self._numbers.clear()

    def _remember(self, chunk: Chunk) -> None:
        recent = self._recent
        recent.append(chunk)
        self._recent_bytes += chunk.size_bytes
        while len(recent) > 1 and (self._recent_bytes > _RECENT_BYTES_MAX or len(recent) > _RECENT_MAX):
            self._recent_bytes -= recent.popleft().size_bytes

    def _retain(self, now_ms: int) -> None:
        settings = self.settings
        if settings.max_length_bytes is not None or settings.max_age_ms is not None:
            first = self.log.first_offset
            self.log.retain(now_ms, settings.max_length_bytes, settings.max_age_ms)
            self.counters.lost[DeadLetterReason.MAXLEN] += self.log.first_offset - first

    def _subscribe(self, command: Subscribe, now_ms: int) -> None:
        ref = command.consumer
        if self._is_gone_for(ref):
            return
        filters = command.filters
        assert filters is None or isinstance(filters, Filters)
        position = self._position(command.position, now_ms)
        self._consumers[ref] = StreamConsumer(
            ref, position, filters, settled=command.settled, enqueued_time=command.enqueued_time
        )
        if command.answer:
            self._tell(ref.reply_to, Subscribed(ref))

    def _position(self, spec: object, now_ms: int) -> int:
        log = self.log
        match spec:
            case None | OffsetWord.NEXT:
                return log.committed
            case OffsetWord.FIRST:
                return log.first_offset
            case OffsetWord.LAST:
                return log.last_chunk()
            case Offset(number):
                return min(max(number, log.first_offset), log.committed)
            case AtTime(time_ms):
                return log.offset_at(time_ms)
            case Interval(interval_ms):
                return log.offset_at(now_ms - interval_ms)
            case _:
                raise AssertionError(f"no position in a stream: {spec!r}")

    def _remove(self, ref: ConsumerRef) -> None:
        consumer = self._consumers.pop(ref, None)
        if consumer is not None:
            self._end_drain(consumer)
            self._withdraw(consumer)

    def _give_back(self, command: GiveBack) -> None:
        consumer = self._consumers.get(command.consumer)
        if consumer is None:
            return
        self._end_drain(consumer)
        consumer.rewind(command.keys, command.seen)
        consumer.delivery_count = command.delivery_count
        consumer.epoch = command.epoch
        self._withdraw(consumer)

    def _withdraw(self, consumer: StreamConsumer) -> None:
        # A consumer in the rotation stays there until its turn.
        consumer.credit = 0
        if consumer in self._at_end:
            del self._at_end[consumer]
            consumer.queued = False

    def _credit(self, command: Credit, now_ms: int) -> None:
        consumer = self._consumers.get(command.consumer)
        if consumer is None:
            return
        self._end_drain(consumer)
        consumer.trim(command.seen)
        consumer.credit = limit_left(command.delivery_count, command.credit, consumer.delivery_count)
        consumer.room = command.room
        if consumer.credit and not consumer.queued:
            consumer.queued = True
            self._turns.append(consumer)
        consumer.draining = command.drain
        self._serve(now_ms)
        if not command.drain:
            self._reply(consumer, drain=False)
        elif consumer.draining and not (consumer.credit and consumer.position < self._limit(consumer)):
            self._end_drain(consumer)

    def _end_drain(self, consumer: StreamConsumer) -> None:
        if consumer.draining:
            consumer.draining = False
            consumer.delivery_count = (consumer.delivery_count + consumer.credit) & MASK
            consumer.credit = 0
            self._reply(consumer, drain=True)

    def _reply(self, consumer: StreamConsumer, *, drain: bool) -> None:
        available = max(0, self._limit(consumer) - max(consumer.position, self.log.first_offset))
        self._outbox.reply(consumer, available, drain=drain)

    def _limit(self, consumer: StreamConsumer) -> int:
        # The consumer can read offsets below this one now.
        return min(self.log.committed, consumer.end)

    def _serve(self, now_ms: int) -> None:
        turns = self._turns
        committed = self.log.committed
        while turns and self._work > 0:
            consumer = turns.popleft()
            end = consumer.end
            limit = end if end < committed else committed
            if consumer.credit and consumer.position < limit:
                self._feed(consumer, limit, min(self._work, _TURN_MAX), now_ms)
            if not consumer.credit or consumer.position >= end:
                consumer.queued = False
            elif consumer.position < committed:
                turns.append(consumer)
                continue
            else:
                self._at_end[consumer] = None
            self._end_drain(consumer)

    def _feed(self, consumer: StreamConsumer, limit: int, work: int, now_ms: int) -> None:
        recent = self._recent
        keys: list[int] = []
        messages: list[Message] = []
        while work > 0 and consumer.credit and consumer.position < limit:
            chunk = consumer.chunk()
            if chunk is None:
                if not recent or consumer.position < recent[0].first:
                    consumer.read(self.log)
                    self._work -= _READ_WORK
                    work -= _READ_WORK
                    continue
                # Consumers that wait at the end want the newest chunk, so the search begins there.
                chunk = next(each for each in reversed(recent) if each.first <= consumer.position)
                consumer.hold(chunk)
            before = len(keys)
            work_done = consumer.take(chunk, work, keys, messages, now_ms)
            consumer.spend(chunk, len(keys) - before)
            self._work -= work_done
            work -= work_done
        if keys:
            consumer.note(keys)
            deliver = Deliver(consumer.ref, keys, messages, consumer.epoch, consumer.room <= 0)
            self._tell(consumer.ref.reply_to, deliver)

    def _let_go(self) -> None:
        self.refuse_waiting()
        self._outbox.end(self._consumers.values(), self.name)
        self._consumers.clear()
        self._turns.clear()
        self._at_end.clear()
        self._recent.clear()


def _pieces(pending: Sequence[Publish], numbers: Mapping[int, int]) -> Iterator[tuple[list[Message], int]]:
    # Iterate over chunks, each with the number of the commit whose messages it has, else 0.
    start = 0
    for end in (*numbers, len(pending)):
        plain = list(chain.from_iterable(command.messages for command in pending[start:end]))
        if plain:
            for chunk in _cut(kept(plain)):
                yield chunk, 0
        if end < len(pending):
            yield kept(pending[end].messages), numbers[end]
        start = end + 1


def _cut(messages: list[Message]) -> list[list[Message]]:
    size = 0
    start = 0
    most = min(CHUNK_MESSAGES_MIN, CHUNK_MESSAGES_MAX)
    pieces = []
    for at, (_, content) in enumerate(messages):
        if size >= CHUNK_BYTES_MAX or at - start >= most:
            pieces.append(messages[start:at])
            start = at
            size = 0
            most = min(2 * most, CHUNK_MESSAGES_MAX)
        size += len(content)
    pieces.append(messages[start:] if start else messages)
    return pieces
