"""A bounded buffer of packed events that never blocks.

When it is full, events are lost and counted. As soon as there is room again, an event of the kind `DROPPED`
with the count comes first, so that a reader finds the position and size of the gap.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.observe.flow_events.schema import FIELDS, PACK, EventKind

_SIZE: Final = PACK.size
# The kind is one byte behind `ts_ns` in a packed event.
_KIND_AT: Final = 8
_N: Final = [field.name for field in FIELDS].index("n")

# 4 MB: seconds of a busy broker in which few links are probed.
EVENTS_MAX: Final = 65_536


class EventRing:
    """The buffer that this module describes. `events_max`: capacity in events, 2 or more."""

    __slots__ = ("_buffer", "_capacity", "_pack", "_untold", "dropped", "offered", "waiting")

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        assert events_max >= 2, "one event, and one that says what was lost"
        self._buffer = bytearray(events_max * PACK.size)
        self._capacity = events_max
        self._pack = PACK.pack_into
        self._untold = 0
        self.offered = 0
        self.dropped = 0
        self.waiting = 0

    def add(self, ts_ns: int, *rest: int) -> None:
        """Add an event, or count it as lost; the arguments are the columns of `schema.FIELDS`.

        Raises:
            struct.error: a value does not fit its column, or their number is wrong; nothing was added.
        """
        if self._untold and self.waiting < self._capacity - 1:
            self._tell(ts_ns)
        at = self.waiting
        if at >= self._capacity or self._untold:
            self.offered += 1
            self.dropped += 1
            self._untold += 1
            return
        self._pack(self._buffer, at * _SIZE, ts_ns, *rest)
        self.offered += 1
        self.waiting = at + 1

    def lose(self, events: bytes) -> None:
        """Count events from `take_all` as lost, including the counts of their `DROPPED` events."""
        kinds = events[_KIND_AT :: PACK.size]
        again = 0
        at = kinds.find(EventKind.DROPPED)
        while at >= 0:
            again += PACK.unpack_from(events, at * PACK.size)[_N]
            at = kinds.find(EventKind.DROPPED, at + 1)
        lost = len(kinds) - kinds.count(EventKind.DROPPED)
        self.dropped += lost
        self._untold += lost + again

    def take_all(self) -> bytes:
        taken = bytes(memoryview(self._buffer)[: self.waiting * PACK.size])
        self.waiting = 0
        return taken

    def settle(self, ts_ns: int) -> None:
        """Add an event for those lost, if there is room; call it when no event may follow.

        `ts_ns` is as in `add`.
        """
        if self._untold and self.waiting < self._capacity:
            self._tell(ts_ns)

    def _tell(self, ts_ns: int) -> None:
        PACK.pack_into(
            self._buffer,
            self.waiting * PACK.size,
            *(ts_ns, EventKind.DROPPED, 0, 0, 0, 0, 0, 0, 0, self._untold, 0, 0, 0),
        )
        self.waiting += 1
        self._untold = 0
