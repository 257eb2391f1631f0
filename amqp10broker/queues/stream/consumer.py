"""A consumer of a stream: its position, its credit, and the chunk that it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from amqp10broker.message.filters.filters import Filters, MessageFilter
from amqp10broker.message.message import Message
from amqp10broker.message.offsets import delivered, delivered_with_time
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import NO_BOUND, ConsumerRef
from amqp10broker.queues.queue_status import StreamReading
from amqp10broker.queues.stream.log import Chunk, Place, StreamLog

NO_END: Final = 2**64
FILTER_WORK: Final = 8
"""The work of filtering one message, or of skipping one chunk."""


class StreamConsumer:
    """A consumer's state in its stream.

    Attributes:
        end: the first offset that it does not want; `NO_END`: it wants all.
        room: bytes it may have now, a chunk's divided evenly over its messages; used up, there is no credit
            either.
        draining: a drain has no answer yet, because there is more to read.
        queued: it is in the rotation, or waits at the end for new messages.
    """

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
        # Later than the position if retention has been faster than the consumer.
        self.position = max(self.position, chunks[0].first)
        self._ahead.extend(chunks)

    def take(self, chunk: Chunk, work: int, keys: list[int], messages: list[Message], now_ms: int) -> int:
        """Take messages of the chunk. `work`: limit, 1 or more; filtering may exceed it a little."""
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
        # Without credit the next message that it wants may be right behind the last one.
        self.position = position + (count if self.credit else places[-1] + 1)
        self.looked_at += self.position - position
        return count * FILTER_WORK

    def spend(self, chunk: Chunk, count: int) -> None:
        """Account for the room of messages that were taken; without room there is no credit."""
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
        """Note how many deliveries have reached the session."""
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
