"""Streams: what a load process counts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from struct import Struct
from typing import TYPE_CHECKING, Final

from amqp10broker.observe.flow_events import EventKind

if TYPE_CHECKING:
    from benchmarks.client_events import ClientEvents

LATENCY_SAMPLES_MAX: Final = 1_000_000
"""Latencies kept of one stream; those after it are not sampled."""
_U64: Final = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of one stream at one moment."""

    published: int
    confirmed: int
    refused: int
    delivered: int
    settled: int

    def __iter__(self) -> Iterator[int]:
        """Yield them in the order of `COUNTERS`."""
        return (getattr(self, name) for name in COUNTERS)

    def __sub__(self, before: Counts) -> Counts:
        """Return what was counted since an earlier moment."""
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


COUNTERS: Final = tuple(field.name for field in fields(Counts))


class Stream:
    """Counters of one stream; only ever grow."""

    __slots__ = (*COUNTERS, "confirm_ns", "delivery_ns", "events", "number")
    published: int
    confirmed: int
    refused: int
    """Confirmed with another outcome than accepted."""
    delivered: int
    settled: int

    def __init__(self, number: int = 0, events: ClientEvents | None = None) -> None:
        """Start at zero.

        Args:
            number: of the stream in its load.
            events: where latencies are told as flow events, if the run is recorded.
        """
        self.number = number
        self.events = events
        for name in COUNTERS:
            setattr(self, name, 0)
        self.confirm_ns = array("q")
        """Time from sending to confirm, of the first message of each batch sent."""
        self.delivery_ns = array("q")
        """Time from when a message was due to its delivery."""

    def forget_latencies(self) -> None:
        """Drop what was sampled so far: the measuring window begins."""
        del self.confirm_ns[:]
        del self.delivery_ns[:]

    def counts(self) -> Counts:
        """Return the counters as they are now."""
        return Counts(*(getattr(self, name) for name in COUNTERS))

    def sample_deliveries(self, stamps: Sequence[int], now_ns: int) -> None:
        """Keep the latencies of messages that have just been delivered.

        Args:
            stamps: when each of them was due.
            now_ns: when they were read.
        """
        kept, events = self.delivery_ns, self.events
        # Messages of one burst carry one time: a thousand of them are one step here, and one event.
        for stamp_ns, count in Counter(stamps).items():
            latency_ns = now_ns - stamp_ns
            room = LATENCY_SAMPLES_MAX - len(kept)
            if room > 0:
                kept.extend(array("q", (latency_ns,)) * min(count, room))
            if events is not None:
                events.add(now_ns, EventKind.CLIENT_DELIVERY, self.number, count, latency_ns)


def read_stamps(data: bytearray, place: int, stride: int, count: int) -> list[int]:
    """Read the times that `count` messages carry.

    Args:
        data: the buffer.
        place: where the first one's time stands.
        stride: bytes from one message to the next.
        count: messages, at least 1.
    """
    last = place + (count - 1) * stride
    stamps: list[int] = []
    if count > 1:
        # Read in place, and let go at once: a buffer that is looked at cannot grow.
        with memoryview(data) as view, view[place:last] as some:
            stamps = [stamp for (stamp,) in Struct(f">Q{stride - _U64.size}x").iter_unpack(some)]
    stamps.append(_U64.unpack_from(data, last)[0])
    return stamps
