"""Observers of what has no credit: a connection's bytes, a queue's depth, the broker's process.

In all of them `now_ns` is the present by a monotonic clock, `ts_ns` the same by the wall clock, and `whole`
emits the elapsed time up to now even without changes.
"""

from __future__ import annotations

from amqp10broker.observe.flow.trail import QUIET_NS, UINT_MAX, Emit
from amqp10broker.observe.flow_events.schema import EventKind


class ConnectionObserver:
    """Observes the bytes of one connection."""

    __slots__ = ("_connection", "_emit", "_in", "_out", "_reason", "_since_ns", "_waiting")

    def __init__(self, connection: int, emit: Emit, now_ns: int, *, bytes_in: int, bytes_out: int) -> None:
        self._connection = connection
        self._emit = emit
        self._since_ns = now_ns
        self._in = bytes_in
        self._out = bytes_out
        self._reason = 0
        self._waiting = 0

    def observe(
        self,
        now_ns: int,
        ts_ns: int,
        *,
        bytes_in: int,
        bytes_out: int,
        waiting: int,
        reason: int,
        whole: bool = False,
    ) -> None:
        """Emit the changes; `waiting` bytes are to be written, `reason` is why the connection is not read."""
        elapsed = now_ns - self._since_ns
        came, went = bytes_in - self._in, bytes_out - self._out
        quiet = not (came or went) and reason == self._reason and waiting == self._waiting
        if not elapsed or (quiet and not whole and elapsed < QUIET_NS):
            return
        number = self._connection
        self._emit(ts_ns, EventKind.CONNECTION_IN, self._reason, number, 0, 0, 0, 0, 0, 0, came, elapsed, 0)
        self._emit(ts_ns, EventKind.CONNECTION_OUT, 0, number, 0, 0, 0, 0, 0, 0, went, elapsed, self._waiting)
        self._since_ns, self._in, self._out = now_ns, bytes_in, bytes_out
        self._reason, self._waiting = reason, waiting


class QueueObserver:
    """Observes the depth of one queue."""

    __slots__ = ("_depth", "_emit", "_number", "_since_ns", "_unsettled", "turn")

    def __init__(self, number: int, emit: Emit, now_ns: int) -> None:
        self._number = number
        self._emit = emit
        self._since_ns = now_ns
        self._depth = 0
        self._unsettled = 0
        self.turn = 0

    def observe(self, now_ns: int, ts_ns: int, *, depth: int, unsettled: int, whole: bool = False) -> None:
        """Emit the state since the last observation, if it has changed, or has held long."""
        elapsed = now_ns - self._since_ns
        quiet = depth == self._depth and unsettled == self._unsettled
        if quiet and (not elapsed or not (whole or elapsed >= QUIET_NS)):
            return
        if elapsed:
            number = self._number & UINT_MAX
            self._emit(
                ts_ns, EventKind.QUEUE, 0, 0, 0, number, 0, 0, 0, self._unsettled, 0, elapsed, self._depth
            )
        self._since_ns, self._depth, self._unsettled = now_ns, depth, unsettled


class ProcessObserver:
    """Observes memory and processor time of the broker."""

    __slots__ = ("_emit", "_processor_ns", "_since_ns")

    def __init__(self, emit: Emit, now_ns: int, *, processor_ns: int) -> None:
        self._emit = emit
        self._since_ns = now_ns
        self._processor_ns = processor_ns

    def observe(self, now_ns: int, ts_ns: int, *, rss_bytes: int, processor_ns: int) -> None:
        """Emit the use of memory and processor since the last observation."""
        elapsed = now_ns - self._since_ns
        if not elapsed:
            return
        used = processor_ns - self._processor_ns
        self._emit(ts_ns, EventKind.PROCESS, 0, 0, 0, 0, 0, 0, 0, used, rss_bytes, elapsed, 0)
        self._since_ns, self._processor_ns = now_ns, processor_ns
