"""The recorder's state of each session and channel: its observer, and the probes of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from amqp10broker.observe.flow.observer import Observer
from amqp10broker.runtime.connections.session_task import ChannelTask, SessionTask

PROBE_NS_MAX: Final = 60_000_000_000
"""A probe whose deliveries are not settled for so long is given up, so that it does not cost for ever."""

TIMED_WAKES: Final = 16
"""Of so many probed wakes one is timed, so that the recorder can say what it costs: asking the system what
time this thread has used takes as long as an event."""


class Clock(Protocol):
    """The sampler as a probe sees it."""

    def times(self) -> tuple[int, int]:
        """The present, by a clock that never goes back and by the wall clock, in ns."""

    def spent(self, processor_ns: int) -> None:
        """So much processor time went into observing."""

    def crash(self, error: Exception) -> None:
        """A fault of ours: end the recording."""


class FlowProbe:
    __slots__ = ("_around", "_began_ns", "_clock", "_observer", "_wakes", "running", "turn")

    def __init__(
        self,
        clock: Clock,
        running: SessionTask | ChannelTask,
        observer: Observer,
        around: Callable[[], Any],
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._around = around
        self._began_ns = 0
        self._wakes = 0
        self.running = running
        self.turn = 0
        running.on_end = self._on_end

    def begin(self, now_ns: int) -> None:
        """Count what exists already from now on."""
        self._observer.begin(now_ns, self._around())

    @property
    def over(self) -> bool:
        """Whether the task has ended, so that nothing more comes of it."""
        return self.running.inbox.closed

    def look(self, now_ns: int, ts_ns: int, *, whole: bool = False) -> None:
        self._observer.observe(now_ns, ts_ns, self._around(), whole=whole)

    def detach(self) -> None:
        self.running.on_wake = None
        self.running.on_end = None

    def probe(self, now_ns: int) -> None:
        """Time the deliveries of its next wakes, unless it is being probed."""
        if self.running.on_wake is None or now_ns - self._began_ns > PROBE_NS_MAX:
            self._began_ns = now_ns
            self._observer.begin_probe()
            self.running.on_wake = self._on_wake

    def _on_wake(self) -> None:
        self._wakes += 1
        timed = self._wakes % TIMED_WAKES == 0
        began_ns = time.thread_time_ns() if timed else 0
        try:
            if not self._observer.probe(*self._clock.times()):
                self.running.on_wake = None
        except Exception as error:
            self.detach()
            self._clock.crash(error)
        if timed:
            self._clock.spent(TIMED_WAKES * (time.thread_time_ns() - began_ns))

    def _on_end(self) -> None:
        self.detach()
        try:
            now_ns, ts_ns = self._clock.times()
            self.look(now_ns, ts_ns)  # what it has begun since the last time
            self._observer.finish(now_ns, ts_ns)
        except Exception as error:
            self._clock.crash(error)
