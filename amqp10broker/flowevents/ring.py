"""Where packed events wait until somebody writes them: a buffer of fixed size that never waits. Pure.

When it is full, events are lost and counted. As soon as there is room again, the first thing in it is an
event of the kind `DROPPED` with the count, so that a reader sees where the gap is, and how big.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.flowevents.schema import FIELDS, PACK, Kind

_SIZE: Final = PACK.size
_KIND_AT: Final = 8
"""Where the kind stands in a packed event: one byte behind `ts_ns`."""
_N: Final = [field.name for field in FIELDS].index("n")

EVENTS_MAX: Final = 65_536
"""4 MB: seconds of a busy broker, of which few links are probed."""


class Ring:
    """See the module.

    Attributes:
        offered: events that were given to `add`, in all.
        dropped: those of them that were lost, in all.
        waiting: events in the buffer, those of the kind `DROPPED` included.
    """

    __slots__ = ("_buffer", "_capacity", "_pack", "_untold", "dropped", "offered", "waiting")

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        """Begin empty.

        Args:
            events_max: events that may wait, 2 or more.
        """
        assert events_max >= 2, "one event, and one that says what was lost"
        self._buffer = bytearray(events_max * PACK.size)
        self._capacity = events_max
        self._pack = PACK.pack_into
        self._untold = 0
        self.offered = 0
        self.dropped = 0
        self.waiting = 0

    def add(
        self,
        ts_ns: int,
        kind: int,
        reason: int,
        connection: int,
        channel: int,
        handle: int,
        link_credit: int,
        incoming_window: int,
        queue_credit: int,
        n: int,
        size_bytes: int,
        value_ns: int,
        queue_depth: int,
    ) -> None:
        """Take an event, or count it as lost; the arguments are the columns of `schema.FIELDS`.

        Raises:
            struct.error: a value does not fit its column; nothing was taken.
        """
        if self._untold and self.waiting < self._capacity - 1:
            self._tell(ts_ns)
        at = self.waiting
        if at >= self._capacity or self._untold:
            self.offered += 1
            self.dropped += 1
            self._untold += 1
            return
        self._pack(
            self._buffer,
            at * _SIZE,
            ts_ns,
            kind,
            reason,
            connection,
            channel,
            handle,
            link_credit,
            incoming_window,
            queue_credit,
            n,
            size_bytes,
            value_ns,
            queue_depth,
        )
        self.offered += 1
        self.waiting = at + 1

    def lose(self, events: bytes) -> None:
        """Count events as lost that had been taken, and could not be handed on.

        Args:
            events: as `take_all` gave them. What those of the kind `DROPPED` told is told again.
        """
        kinds = events[_KIND_AT :: PACK.size]
        again = 0
        at = kinds.find(Kind.DROPPED)
        while at >= 0:
            again += PACK.unpack_from(events, at * PACK.size)[_N]
            at = kinds.find(Kind.DROPPED, at + 1)
        lost = len(kinds) - kinds.count(Kind.DROPPED)
        self.dropped += lost
        self._untold += lost + again

    def take_all(self) -> bytes:
        """All events that wait, packed one after another; the buffer is empty then."""
        taken = bytes(memoryview(self._buffer)[: self.waiting * PACK.size])
        self.waiting = 0
        return taken

    def settle(self, ts_ns: int) -> None:
        """Tell of what was lost, if there is room: called when no event may follow.

        Args:
            ts_ns: the time, as in `add`.
        """
        if self._untold and self.waiting < self._capacity:
            self._tell(ts_ns)

    def _tell(self, ts_ns: int) -> None:
        PACK.pack_into(
            self._buffer,
            self.waiting * PACK.size,
            *(ts_ns, Kind.DROPPED, 0, 0, 0, 0, 0, 0, 0, self._untold, 0, 0, 0),
        )
        self.waiting += 1
        self._untold = 0
