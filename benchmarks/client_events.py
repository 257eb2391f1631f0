"""Flow events of a load process: what its clients saw, packed and kept in memory until the run is over.

The same counters and latencies that make the tables, as events of the one schema
(`amqp10broker.observe.flow_events`): every ten milliseconds how many messages each stream sent and
received, and the latency of every message that was confirmed or that carried a stamp. Nothing is written
while the load runs: the events go to the parent with the result, and the parent writes the file.

Latencies of confirms are told first in, first out: if a broker confirms the messages of one group out of
order, the sum of all latencies is right and single ones may be exchanged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from amqp10broker.observe.flow_events import NO_REASON, PACK, EventKind
from benchmarks import spec
from benchmarks.stream import Counts, Stream

SAMPLE_NS: Final = 10_000_000
EVENTS_MAX: Final = 1_000_000
"""At 66 bytes each; what comes after them is counted and dropped."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of the measuring window, as the load process saw it."""

    wall_ns: int
    """Events up to here, and none after, tell of messages that `counts` counts."""
    counts: tuple[Counts, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a load process hands to its parent at the end of a recorded run."""

    events: bytes
    """Records of `observe.flow_events.PACK`, one behind the other."""
    dropped: int
    edges: tuple[Edge, ...]
    """Begin and end of the window."""
    totals: tuple[Counts, ...]
    """What the streams have counted in all."""


def wall_offset_ns() -> int:
    """Return wall clock minus monotonic clock: both are read once, so that events never go backwards."""
    # The narrowest of a few readings: the process may be interrupted between two clocks.
    readings = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


class ClientEvents:
    """The events of one load process, bounded."""

    __slots__ = ("_buffer", "_left", "_offset_ns", "dropped")

    def __init__(self, offset_ns: int, limit: int = EVENTS_MAX) -> None:
        """Start with none.

        Args:
            offset_ns: wall clock minus monotonic clock.
            limit: most events that are kept.
        """
        self._buffer = bytearray()
        self._left = limit
        self._offset_ns = offset_ns
        self.dropped = 0

    def add(
        self, now_ns: int, kind: EventKind, stream: int, count: int, value_ns: int, payload_bytes: int = 0
    ) -> int:
        """Keep one event, or count it as dropped.

        Args:
            now_ns: monotonic time.
            kind: one of the four kinds of a client.
            stream: number of the stream, which goes into the column `channel`.
            count: messages.
            value_ns: their latency, or the time they took together.
            payload_bytes: of all of them.

        Returns:
            The wall clock's time of the event.
        """
        wall_ns = now_ns + self._offset_ns
        if self._left > 0:
            self._left -= 1
            self._buffer += PACK.pack(
                wall_ns, kind, NO_REASON, 0, stream, 0, 0, 0, 0, count, payload_bytes, value_ns, 0
            )
        else:
            self.dropped += 1
        return wall_ns

    def packed(self) -> bytes:
        """Return all events."""
        return bytes(self._buffer)


@dataclass(slots=True)
class _Direction:
    """One stream's sending or receiving: what was told of it so far."""

    kind: EventKind
    stream: int
    payload_bytes: int
    told: int = 0


class ClientRecorder:
    """Samples the counters of the streams of one load process."""

    def __init__(self, what: spec.Load, events: ClientEvents, streams: Sequence[Stream]) -> None:
        """Learn from the load which stream sends and which receives, and how large messages are."""
        self._events = events
        self._streams = streams
        sent, received = payload_bytes_of(what)
        self._directions = [_Direction(EventKind.CLIENT_SENT, *one) for one in sent.items()]
        self._directions += [_Direction(EventKind.CLIENT_RECEIVED, *one) for one in received.items()]
        self._last_ns = 0
        self._edges: list[Edge] = []
        self.due_ns: float = float("inf")
        """When the next sample is to be taken."""

    def start(self, now_ns: int) -> None:
        """Begin to observe."""
        self._last_ns = now_ns
        self.due_ns = now_ns + SAMPLE_NS

    def sample(self, now_ns: int) -> int:
        """Tell what was sent and received since the last sample; return the wall clock's time."""
        elapsed_ns = now_ns - self._last_ns
        wall_ns = now_ns
        for one in self._directions:
            stream = self._streams[one.stream]
            total = stream.published if one.kind is EventKind.CLIENT_SENT else stream.delivered
            count, one.told = total - one.told, total
            wall_ns = self._events.add(
                now_ns, one.kind, one.stream, count, elapsed_ns, count * one.payload_bytes
            )
        self._last_ns = now_ns
        self.due_ns = now_ns + SAMPLE_NS
        return wall_ns

    def edge(self, now_ns: int) -> None:
        """Take a sample at one end of the measuring window."""
        wall_ns = self.sample(now_ns)
        self._edges.append(Edge(wall_ns, tuple(stream.counts() for stream in self._streams)))

    def end(self, now_ns: int) -> Recorded:
        """Take the last sample; return everything."""
        self.sample(now_ns)
        totals = tuple(stream.counts() for stream in self._streams)
        return Recorded(self._events.packed(), self._events.dropped, tuple(self._edges), totals)


def payload_bytes_of(what: spec.Load) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return bytes in a message of each stream that sends, and of each that receives.

    Messages of mixed sizes count with their mean; 0 stands for groups of one stream that differ.
    """
    return _sizes(what.publishing), _sizes(what.consuming)


def _sizes(groups: Sequence[spec.Publish | spec.Consume]) -> dict[int, int]:
    sizes: dict[int, set[int]] = {}
    for group in groups:
        sizes.setdefault(group.stream, set()).add(group.size_bytes)
    return {stream: some.pop() if len(some) == 1 else 0 for stream, some in sizes.items()}
