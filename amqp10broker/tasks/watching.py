"""What the recorder keeps of each session and channel: its observer, and when that looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from amqp10broker.service.observing.channels import ChannelObserver
from amqp10broker.service.observing.sessions import SessionObserver
from amqp10broker.service.observing.trail import Emit, OnLink
from amqp10broker.tasks.channel import RunningChannel
from amqp10broker.tasks.connection091 import Connection091
from amqp10broker.tasks.connection10 import Connection10
from amqp10broker.tasks.session import RunningSession

PROBE_NS_MAX: Final = 60_000_000_000
"""A probe whose deliveries are not settled for so long is given up, so that it does not cost for ever."""


TIMED_WAKES: Final = 16
"""Of so many wakes one is timed, so that the recorder can say what it costs: asking the system what time this
thread has used takes as long as an event."""


class Clock(Protocol):
    """What a watch needs of its recorder."""

    def times(self) -> tuple[int, int]:
        """The present, by a clock that never goes back and by the wall clock, in ns."""

    def spent(self, processor_ns: int) -> None:
        """So much processor time went into observing."""

    def crash(self, error: Exception) -> None:
        """A fault of ours: end the recording."""


class Watch:
    """One session or channel.

    Attributes:
        running: its task.
        turn: of the recorder's look that saw it last.
    """

    __slots__ = ("_began_ns", "_clock", "_look", "_observer", "_wakes", "running", "turn")

    def __init__(
        self,
        clock: Clock,
        running: RunningSession | RunningChannel,
        observer: SessionObserver | ChannelObserver,
        look: Callable[[int, int, bool], None],
    ) -> None:
        """See `watch_session` and `watch_channel`.

        Args:
            clock: the recorder.
            running: the task.
            observer: of what it runs.
            look: lets the observer look; takes both times and `whole`.
        """
        self._clock = clock
        self._observer = observer
        self._look = look
        self._began_ns = 0
        self._wakes = 0
        self.running = running
        self.turn = 0
        running.on_end = self._on_end

    @property
    def over(self) -> bool:
        """Whether the task has ended, so that nothing more comes of it."""
        return self.running.inbox.closed

    def look(self, now_ns: int, ts_ns: int, *, whole: bool) -> None:
        """Observe it now."""
        self._look(now_ns, ts_ns, whole)

    def attach(self) -> None:
        """Observe it after each wake from now on."""
        self.running.on_wake = self._on_wake

    def detach(self) -> None:
        """Leave it alone."""
        self.running.on_wake = None
        self.running.on_end = None

    def probe(self, now_ns: int) -> None:
        """Time the deliveries of its next wakes, unless it is being probed."""
        if self.running.on_wake is None or now_ns - self._began_ns > PROBE_NS_MAX:
            self._began_ns = now_ns
            self._observer.begin_probe()
            self.running.on_wake = self._on_probed_wake

    def _on_wake(self) -> None:
        self._wakes += 1
        if self._wakes % TIMED_WAKES == 0:
            self._timed(self._observe_wake)
        else:
            self._observe_wake()

    def _timed(self, observe: Callable[[], None]) -> None:
        began_ns = time.thread_time_ns()
        observe()
        self._clock.spent(TIMED_WAKES * (time.thread_time_ns() - began_ns))

    def _observe_wake(self) -> None:
        try:
            self._look(*self._clock.times(), False)
        except Exception as error:
            self.detach()
            self._clock.crash(error)

    def _on_end(self) -> None:
        self.detach()
        try:
            now_ns, ts_ns = self._clock.times()
            self._look(now_ns, ts_ns, False)  # what it has begun since the last time
            self._observer.finish(now_ns, ts_ns)
        except Exception as error:
            self._clock.crash(error)

    def _on_probed_wake(self) -> None:
        self._wakes += 1
        if self._wakes % TIMED_WAKES == 0:
            self._timed(self._probe_wake)
        else:
            self._probe_wake()

    def _probe_wake(self) -> None:
        try:
            if not self._observer.probe(*self._clock.times()):
                self.running.on_wake = None
        except Exception as error:
            self.detach()
            self._clock.crash(error)


def watch_session(
    clock: Clock,
    connection: Connection10,
    running: RunningSession,
    emit: Emit,
    now_ns: int,
    *,
    new: bool,
    latencies: bool,
    on_link: OnLink,
) -> Watch:
    """Watch a session of AMQP 1.0.

    Args:
        clock: the recorder.
        connection: the session's.
        running: its task.
        emit: takes events.
        now_ns: the present.
        new: it has just begun, what it does counts from its beginning.
        latencies: it will be observed after each wake.
        on_link: told of each of its links.
    """
    observer = SessionObserver(running.service, connection.number, emit, now_ns, new=new, on_link=on_link)

    def look(now_ns: int, ts_ns: int, whole: bool) -> None:
        observer.observe(now_ns, ts_ns, connection.around(running), latencies=latencies, whole=whole)

    return Watch(clock, running, observer, look)


def watch_channel(
    clock: Clock,
    connection: Connection091,
    running: RunningChannel,
    emit: Emit,
    now_ns: int,
    *,
    new: bool,
    latencies: bool,
    on_link: OnLink,
) -> Watch:
    """Watch a channel of AMQP 0-9-1; the arguments are those of `watch_session`."""
    observer = ChannelObserver(running.service, connection.number, emit, now_ns, new=new, on_link=on_link)

    def look(now_ns: int, ts_ns: int, whole: bool) -> None:
        observer.observe(now_ns, ts_ns, around=connection.around(running), latencies=latencies, whole=whole)

    return Watch(clock, running, observer, look)
