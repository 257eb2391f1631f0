"""The latency of one link's deliveries, by counting those that came and those that are done.

Deliveries are taken to be done in the order in which they came, which is how queues confirm, and how most
clients settle. So single deliveries need not be remembered; those of one step are one entry here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from amqp10broker.observe.flow.trail import UINT_MAX, Emit

# In place of a time: these came before the first observation.
_UNKNOWN: Final = -1


class Latency:
    """The deliveries under way of one link."""

    __slots__ = ("_came", "_done", "_entries", "_kind", "_where")

    def __init__(self, kind: int, where: tuple[int, int, int], came: int, done: int) -> None:
        self._kind = kind
        self._where = where
        self._came, self._done = came, done
        under_way = (came - done) & UINT_MAX
        self._entries: deque[list[int]] = deque([[under_way, _UNKNOWN]] if under_way else ())

    @property
    def waits(self) -> bool:
        """Whether deliveries are under way that came before the end of the probe."""
        return bool(self._entries)

    def see(self, emit: Emit, now_ns: int, ts_ns: int, came: int, done: int, *, taking: bool) -> bool:
        """Count deliveries (timed if `taking`), and emit an event for those done; return whether any came."""
        new = (came - self._came) & UINT_MAX
        gone = (done - self._done) & UINT_MAX
        self._came, self._done = came, done
        entries = self._entries
        if new and taking:
            entries.append([new, now_ns])
        while gone and entries:
            entry = entries[0]
            count, since_ns = min(entry[0], gone), entry[1]
            gone -= count
            entry[0] -= count
            if not entry[0]:
                entries.popleft()
            if since_ns != _UNKNOWN:
                emit(ts_ns, self._kind, 0, *self._where, 0, 0, 0, count, 0, now_ns - since_ns, 0)
        return bool(new)
