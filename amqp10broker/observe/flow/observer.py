"""The observer of one session or channel: compares samples of its parts, and times some of their
deliveries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from amqp10broker.observe.flow.samples import LATER, Sample, first_count, is_answered, progress
from amqp10broker.observe.flow.trail import NOTHING, UINT_MAX, Emit, OnLink, Trail
from amqp10broker.observe.flow_events.schema import CHANNEL_HANDLE

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
