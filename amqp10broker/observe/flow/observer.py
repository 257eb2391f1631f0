"""Observers of a session or channel, which compare samples of its parts and time some of their deliveries;
and of what has no credit: a connection's bytes, a queue's depth, the broker's process.

In all of them `now_ns` is the present by a monotonic clock, `ts_ns` the same by the wall clock, and `whole`
emits the elapsed time up to now even without changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from amqp10broker.observe.flow.samples import (
    LATER,
    NOTHING,
    QUIET_NS,
    UINT_MAX,
    Emit,
    OnLink,
    Sample,
    Trail,
    first_count,
    is_answered,
    progress,
)
from amqp10broker.observe.flow_events.schema import CHANNEL_HANDLE, EventKind

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


PROBE_WAKES_MAX: Final = 4
"""The most steps with deliveries in one probe."""
PROBE_PARTS_MAX: Final = 4
"""The most parts of one session or channel that are probed at a time; all of them in rotation."""


class Observer:
    """Observes one session or channel."""

    __slots__ = (
        "_channel",
        "_connection",
        "_emit",
        "_handles",
        "_on_link",
        "_parts",
        "_probe_left",
        "_probed",
        "_samples",
        "_turn",
    )

    def __init__(
        self,
        samples: Callable[[Any], Iterable[Sample]],
        connection: int,
        channel: int,
        emit: Emit,
        on_link: OnLink,
    ) -> None:
        self._samples = samples
        self._connection = connection
        self._channel = channel
        self._emit = emit
        self._on_link = on_link
        self._parts: dict[Any, Trail] = {}
        self._handles = CHANNEL_HANDLE
        self._turn = 0
        self._probe_left = 0
        self._probed: list[tuple[Any, Latency]] = []

    def begin(self, now_ns: int, around: Any) -> None:
        """Count from the present state on; parts that come later count whole."""
        for sample in self._samples(around):
            self._see_first(sample, now_ns, progress(sample.part)[0])

    def observe(self, now_ns: int, ts_ns: int, around: Any, *, whole: bool = False) -> None:
        """Emit the changes since the last observation; with `whole` the elapsed time even without changes."""
        emit, parts = self._emit, self._parts
        self._turn = turn = self._turn + 1
        seen = 0
        for sample in self._samples(around):
            trail = parts.get(sample.part)
            if trail is None:
                trail = self._see_first(sample, now_ns, first_count(sample.part))
            trail.turn = turn
            seen += 1
            trail.see(emit, now_ns, ts_ns, sample.deliveries, sample.state, whole=whole)
            if sample.limit != trail.limit:
                trail.see_limit(emit, ts_ns, sample.limit)
        if seen < len(parts):
            self._forget_gone(now_ns, ts_ns)

    def finish(self, now_ns: int, ts_ns: int) -> None:
        self._turn += 1
        self._forget_gone(now_ns, ts_ns)

    def _see_first(self, sample: Sample, now_ns: int, count: int) -> Trail:
        handle = sample.handle
        if handle is None:
            self._handles += 1
            handle = self._handles
        self._on_link(now_ns, sample.kind, self._channel, handle, sample.name, sample.address)
        where = self._connection, self._channel, handle
        trail = self._parts[sample.part] = Trail(sample.kind, where, now_ns, count)
        return trail

    def _forget_gone(self, now_ns: int, ts_ns: int) -> None:
        turn = self._turn
        for part in [part for part, trail in self._parts.items() if trail.turn != turn]:
            trail = self._parts.pop(part)
            trail.see(self._emit, now_ns, ts_ns, progress(part)[0], NOTHING, whole=True)
        self._probed = [each for each in self._probed if each[0] in self._parts]

    # --- probes -----------------------------------------------------------------------------------

    def begin_probe(self) -> None:
        """Time the deliveries of the next steps, by `probe`, until their latencies are complete."""
        parts = [each for each in self._parts.items() if is_answered(each[0])]
        if len(parts) > PROBE_PARTS_MAX:
            first = self._turn * PROBE_PARTS_MAX % len(parts)
            parts = [*parts[first:], *parts[:first]][:PROBE_PARTS_MAX]
        self._probe_left = PROBE_WAKES_MAX
        self._probed = [
            (part, Latency(LATER[trail.kind], trail.where, *progress(part))) for part, trail in parts
        ]

    def probe(self, now_ns: int, ts_ns: int) -> bool:
        """Time deliveries after a step; return whether to continue."""
        taking = self._probe_left > 0
        came = waits = False
        for part, latency in self._probed:
            came = latency.see(self._emit, now_ns, ts_ns, *progress(part), taking=taking) or came
            waits = waits or taking or latency.waits
        self._probe_left -= came and taking
        return waits


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
