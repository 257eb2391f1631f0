"""How long the deliveries of one link wait, by counting: so many came in then, so many are done now.

Deliveries are taken to be done in the order in which they came, which is how queues confirm, and how most
clients settle. So nobody has to remember a delivery; what came in one wake is one entry here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from amqp10broker.service.observing.trail import UINT_MAX, Emit

ENTRIES_MAX: Final = 4_096
"""Wakes whose deliveries may wait at a time. Beyond, what comes in counts with the last of them."""

_UNKNOWN: Final = -1
"""In place of a time: these came before anybody looked."""


class Latency:
    """One link's deliveries under way.

    Attributes:
        taking: what comes in is timed; if not, only what came in before.
    """

    __slots__ = (
        "_came",
        "_channel",
        "_connection",
        "_done",
        "_entries",
        "_handle",
        "_kind",
        "taking",
    )

    def __init__(self, kind: int, connection: int, channel: int, handle: int) -> None:
        """Begin without deliveries.

        Args:
            kind: of the events.
            connection, channel, handle: of the link.
        """
        self._kind = kind
        self._connection = connection
        self._channel = channel
        self._handle = handle
        self._entries: deque[list[int]] = deque()
        self._came = 0
        self._done = 0
        self.taking = True

    def begin(self, came: int, done: int) -> None:
        """Forget all, and count from here: what is under way now is not timed.

        Args:
            came: deliveries that have come so far, modulo 2**32.
            done: how many of them are done, likewise.
        """
        self._came, self._done = came, done
        self.taking = True
        self._entries.clear()
        under_way = (came - done) & UINT_MAX
        if under_way:
            self._entries.append([under_way, _UNKNOWN])

    @property
    def waits(self) -> bool:
        """Whether deliveries are under way whose time is known, or would be taken."""
        return self.taking or bool(self._entries)

    def see(self, emit: Emit, now_ns: int, ts_ns: int, came: int, done: int) -> bool:
        """Count what has come, and emit an event for what is done.

        Args:
            emit: takes events.
            now_ns: the present, by a clock that never goes back.
            ts_ns: the same by the wall clock.
            came, done: as in `begin`.

        Returns:
            Whether something has come.
        """
        new = (came - self._came) & UINT_MAX
        gone = (done - self._done) & UINT_MAX
        entries = self._entries
        if new:
            self._came = came
            if self.taking:
                if len(entries) < ENTRIES_MAX:
                    entries.append([new, now_ns])
                else:
                    entries[-1][0] += new
        if gone:
            self._done = done
            while gone and entries:
                entry = entries[0]
                count, since_ns = entry
                if count <= gone:
                    entries.popleft()
                else:
                    entry[0] = count - gone
                    count = gone
                gone -= count
                if since_ns >= 0:
                    emit(
                        ts_ns,
                        self._kind,
                        0,
                        self._connection,
                        self._channel,
                        self._handle,
                        0,
                        0,
                        0,
                        count,
                        0,
                        now_ns - since_ns,
                        0,
                    )
        return bool(new)
