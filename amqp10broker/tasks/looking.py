"""Looks at all sessions, channels, connections and queues of a broker, and has flow events made of it.

Who looks when: to observe each wake, a session's task calls its observer at the end of each, which gives an
exact time line; what does not wake is seen by the looks. Without that, everything is seen by looks alone, and
beside them a few wakes of a session are *probed* after each look, so that there are samples of the latencies
of confirming and settling, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio

from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.recording.link_names import LinkName
from amqp10broker.service.observing.others import ConnectionObserver, ProcessObserver, QueueObserver
from amqp10broker.service.observing.trail import Emit
from amqp10broker.tasks.channel import RunningChannel
from amqp10broker.tasks.connection10 import Connection10
from amqp10broker.tasks.connections import Connection, Occupied
from amqp10broker.tasks.meters import rss_bytes
from amqp10broker.tasks.session import RunningSession
from amqp10broker.tasks.watching import Watch, watch_channel, watch_session

PROBES_MAX: Final = 4
"""Sessions and channels that are probed after one look."""
TURN_NS: Final = 1_000_000
"""Others have their turn when a look has taken so much processor time; a step of it is a connection."""
QUEUES_A_STEP: Final = 64
MEMORY_NS: Final = 1_000_000_000
"""How often memory is measured: reading it takes as long as a dozen links."""


class Looks:
    """See the module.

    Attributes:
        count: how often everything has been looked at.
        cost_ns: processor time that all observing took, about.
        protocols: what the connections that were seen speak, "amqp10" and "amqp091"; whoever empties it hears
            of those that are still there again.
    """

    def __init__(
        self,
        surroundings: Occupied,
        emit: Emit,
        on_crash: Callable[[Exception], None],
        on_queue: Callable[[int, DeclaredQueue], None],
        on_link: Callable[[LinkName], None],
        *,
        each_wake: bool,
    ) -> None:
        """Look at nothing yet.

        Args:
            surroundings: of the broker.
            emit: takes events.
            on_crash: told of a fault of ours.
            on_queue: told of each queue and its number, when it is seen first.
            on_link: told of each link, channel that may publish, and consumer, when it is seen first.
            each_wake: observe sessions and channels after each wake.
        """
        self._surroundings = surroundings
        self._emit = emit
        self._on_crash = on_crash
        self._on_queue = on_queue
        self._on_link = on_link
        self._each_wake = each_wake
        self.count = 0
        self.cost_ns = 0
        self.protocols: set[str] = set()
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._watches: dict[RunningSession | RunningChannel, Watch] = {}
        self._connections: dict[Connection, ConnectionObserver] = {}
        self._queues: dict[DeclaredQueue, QueueObserver] = {}
        self._queue_number = 0
        self._measured_ns = -MEMORY_NS
        self._rss_bytes = 0
        self._process = ProcessObserver(emit, time.monotonic_ns(), processor_ns=time.process_time_ns())

    def begin(self) -> None:
        """What is there already counts from now on."""
        now_ns, _ = self._set_times()
        self._process = ProcessObserver(self._emit, now_ns, processor_ns=time.process_time_ns())
        for connection in self._surroundings.connections.values():
            self._connections[connection] = self._connection_observer(connection, now_ns, new=False)
            for running in connection.parts.values():
                if running not in self._watches:
                    self._watch(connection, running, now_ns, new=False)
        self.look()

    def look(self, *, whole: bool = False) -> None:
        """Look at everything once, at one time.

        Args:
            whole: tell the elapsed time up to now, also of what has not moved.
        """
        for _ in self._timed(self._steps(whole=whole)):
            pass

    async def look_in_turns(self) -> None:
        """Look at everything once, and let others have their turn again and again.

        So each thing is looked at at a time of its own; its elapsed time is right all the same.
        """
        pause_ns = self.cost_ns + TURN_NS
        for _ in self._timed(self._steps(whole=False)):
            if self.cost_ns >= pause_ns:
                await trio.lowlevel.checkpoint()
                pause_ns = self.cost_ns + TURN_NS

    def _timed(self, steps: Iterator[None]) -> Iterator[None]:
        """Go through steps, count the processor time of each, and end with the first that fails."""
        more = True
        while more:
            began_ns = time.thread_time_ns()
            try:
                more = next(steps, self) is not self
            except Exception as error:
                self._on_crash(error)
                more = False
            self.cost_ns += time.thread_time_ns() - began_ns
            yield

    def _steps(self, *, whole: bool) -> Iterator[None]:
        self.count += 1
        for connection in list(self._surroundings.connections.values()):
            self._look_at(connection, whole=whole)
            yield
        self._look_at_the_rest(whole=whole)
        yield
        yield from self._look_at_queues(whole=whole)
        now_ns, ts_ns = self._set_times()
        if now_ns - self._measured_ns >= MEMORY_NS:
            self._measured_ns, self._rss_bytes = now_ns, rss_bytes()
        self._process.observe(now_ns, ts_ns, rss_bytes=self._rss_bytes, processor_ns=time.process_time_ns())
        if not self._each_wake:
            self._probe(now_ns)

    def join(self, connection: Connection, running: RunningSession | RunningChannel) -> None:
        """A session or a channel begins, of which everything counts."""
        try:
            self._watch(connection, running, self.times()[0], new=True)
        except Exception as error:
            self._on_crash(error)

    def detach(self) -> None:
        """Leave everybody alone."""
        for watch in self._watches.values():
            watch.detach()

    def times(self) -> tuple[int, int]:
        """The present by a clock that never goes back, and by the wall clock as of the last look."""
        now_ns = time.monotonic_ns()
        return now_ns, now_ns + self._offset_ns

    def spent(self, processor_ns: int) -> None:
        """So much processor time went into observing wakes."""
        self.cost_ns += processor_ns

    def crash(self, error: Exception) -> None:
        """A fault of ours in an observer."""
        self._on_crash(error)

    def _set_times(self) -> tuple[int, int]:
        now_ns, ts_ns = time.monotonic_ns(), time.time_ns()
        self._offset_ns = ts_ns - now_ns
        return now_ns, ts_ns

    # --- sessions, channels, their connections ----------------------------------------------------

    def _look_at(self, connection: Connection, *, whole: bool) -> None:
        now_ns, ts_ns = self._set_times()
        self.protocols.add(_protocol_of(connection))
        observer = self._connections.get(connection)
        if observer is None:
            observer = self._connection_observer(connection, now_ns, new=True)
            self._connections[connection] = observer
        _observe_bytes(observer, connection, now_ns, ts_ns, whole=whole)
        for running in connection.parts.values():
            watch = self._watches.get(running)
            if watch is None:
                watch = self._watch(connection, running, now_ns, new=True)
            watch.turn = self.count
            watch.look(now_ns, ts_ns, whole=whole)

    def _look_at_the_rest(self, *, whole: bool) -> None:
        """Connections that are gone, and sessions and channels that their connections know no more."""
        now_ns, ts_ns = self._set_times()
        connections = self._surroundings.connections
        if len(self._connections) > len(connections):
            for connection in [each for each in self._connections if each.number not in connections]:
                self.protocols.add(_protocol_of(connection))
                _observe_bytes(self._connections.pop(connection), connection, now_ns, ts_ns, whole=True)
        for running, watch in list(self._watches.items()):
            if watch.over:
                del self._watches[running]
            elif watch.turn != self.count:
                # What it was sent before its end is still being worked off.
                watch.look(now_ns, ts_ns, whole=whole)

    def _watch(
        self,
        connection: Connection,
        running: RunningSession | RunningChannel,
        now_ns: int,
        *,
        new: bool,
    ) -> Watch:
        emit, each_wake = self._emit, self._each_wake
        on_link = partial(self._name_link, connection)
        self.protocols.add(_protocol_of(connection))  # it may be gone before the next look
        if isinstance(connection, Connection10):
            assert isinstance(running, RunningSession)
            watch = watch_session(
                *(self, connection, running, emit, now_ns), new=new, latencies=each_wake, on_link=on_link
            )
        else:
            assert isinstance(running, RunningChannel)
            watch = watch_channel(
                *(self, connection, running, emit, now_ns), new=new, latencies=each_wake, on_link=on_link
            )
        self._watches[running] = watch
        if each_wake:
            watch.attach()
        return watch

    def _name_link(
        self,
        connection: Connection,
        now_ns: int,
        kind: int,
        channel: int,
        handle: int,
        link: str,
        address: str,
    ) -> None:
        names = link, address, connection.client_name, connection.user, connection.vhost, connection.peer
        ts_ns = now_ns + self._offset_ns
        self._on_link(LinkName(ts_ns, kind, connection.number, channel, handle, *names))

    def _probe(self, now_ns: int) -> None:
        """Probe some of the sessions and channels; all in turn if they are many.

        Others had their turn since these were looked at: some are over by now, and have nothing left to see.
        """
        watches = [watch for watch in self._watches.values() if not watch.over]
        first = self.count * PROBES_MAX % len(watches) if len(watches) > PROBES_MAX else 0
        for watch in [*watches[first:], *watches[:first]][:PROBES_MAX]:
            watch.probe(now_ns)

    def _connection_observer(self, connection: Connection, now_ns: int, *, new: bool) -> ConnectionObserver:
        line = connection.line
        return ConnectionObserver(
            connection.number,
            self._emit,
            now_ns,
            bytes_in=0 if new else line.bytes_received,
            bytes_out=0 if new else line.writer.bytes_sent,
        )

    # --- queues -----------------------------------------------------------------------------------

    def _look_at_queues(self, *, whole: bool) -> Iterator[None]:
        queues = list(self._surroundings.catalog)
        for first in range(0, len(queues), QUEUES_A_STEP):
            now_ns, ts_ns = self._set_times()
            for queue in queues[first : first + QUEUES_A_STEP]:
                observer = self._queues.get(queue)
                if observer is None:
                    self._queue_number += 1
                    observer = self._queues[queue] = QueueObserver(self._queue_number, self._emit, now_ns)
                    self._on_queue(self._queue_number, queue)
                observer.turn = self.count
                depth, unsettled = queue.handle.ready, queue.handle.unsettled
                observer.observe(now_ns, ts_ns, depth=depth, unsettled=unsettled, whole=whole)
            yield
        if len(queues) < len(self._queues):
            now_ns, ts_ns = self._set_times()
            for queue in [each for each, of in self._queues.items() if of.turn != self.count]:
                self._queues.pop(queue).observe(now_ns, ts_ns, depth=0, unsettled=0, whole=True)


def _protocol_of(connection: Connection) -> str:
    return "amqp10" if isinstance(connection, Connection10) else "amqp091"


def _observe_bytes(
    observer: ConnectionObserver,
    connection: Connection,
    now_ns: int,
    ts_ns: int,
    *,
    whole: bool,
) -> None:
    line = connection.line
    observer.observe(
        now_ns,
        ts_ns,
        bytes_in=line.bytes_received,
        bytes_out=line.writer.bytes_sent,
        waiting=line.writer.waiting_bytes,
        reason=0 if isinstance(connection, Connection10) else connection.reader_waits,
        whole=whole,
    )
