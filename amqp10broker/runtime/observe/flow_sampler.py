"""Samples all sessions, channels, connections and queues of a broker, at intervals of some milliseconds, and
makes flow events of them. After each sample a few wakes of some sessions or channels are *probed*, so that
there are also samples of the latencies of confirming and settling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import trio

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.observe.flow import (
    ConnectionObserver,
    Emit,
    Observer,
    ProcessObserver,
    QueueObserver,
    Sample,
    channel_samples,
    session_samples,
)
from amqp10broker.observe.recording import LinkName
from amqp10broker.runtime.connections.connection091 import ChannelTask, ConnectionTask091
from amqp10broker.runtime.connections.connection10 import Connection10, SessionTask
from amqp10broker.runtime.connections.connections import ClientsContext, Connection
from amqp10broker.runtime.observe.meters import rss_bytes

PROBES_MAX: Final = 4
"""The number of sessions and channels that are probed after one sample."""
TURN_NS: Final = 1_000_000
"""The processor time of a sample after which other tasks run; a step of it is a connection."""
QUEUES_A_STEP: Final = 64
MEMORY_NS: Final = 1_000_000_000
"""The interval at which memory is measured: reading it takes as long as a dozen links."""
PROBE_NS_MAX: Final = 60_000_000_000
"""A probe ends when its deliveries are not settled for so long, so that it does not cost time forever."""

TIMED_WAKES: Final = 16
"""One of so many probed wakes is timed: reading the thread's processor time takes as long as an event."""


class FlowSampler:
    """Makes flow events of a broker. `protocols`: those of the seen connections, "amqp10" and "amqp091";
    refilled for open ones after it was emptied.
    """

    def __init__(
        self,
        node_context: ClientsContext,
        emit: Emit,
        on_crash: Callable[[Exception], None],
        on_queue: Callable[[int, DeclaredQueue], None],
        on_link: Callable[[LinkName], None],
    ) -> None:
        self._node_context = node_context
        self._emit = emit
        self.on_crash = on_crash
        self._on_queue = on_queue
        self._on_link = on_link
        self.count = 0
        self.cost_ns = 0
        self.protocols: set[str] = set()
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._probes: dict[SessionTask | ChannelTask, _Probe] = {}
        self._connections: dict[Connection, ConnectionObserver] = {}
        self._queues: dict[DeclaredQueue, QueueObserver] = {}
        self._queue_number = 0
        self._measured_ns = -MEMORY_NS
        self._rss_bytes = 0
        self._process = ProcessObserver(emit, time.monotonic_ns(), processor_ns=time.process_time_ns())

    def begin(self) -> None:
        """Count what exists already from now on."""
        now_ns, _ = self._set_times()
        self._process = ProcessObserver(self._emit, now_ns, processor_ns=time.process_time_ns())
        for connection in self._node_context.connections.values():
            self._connections[connection] = ConnectionObserver(
                *(connection.number, self._emit, now_ns),
                bytes_in=connection.bytes_received,
                bytes_out=connection.writer.bytes_sent,
            )
            for running in connection.parts.values():
                if running not in self._probes:
                    probe = self._see_first(connection, running)
                    probe.begin(now_ns)
        self.look()

    def look(self, *, whole: bool = False) -> None:
        """Sample everything once, at one time. `whole`: report the elapsed time of unchanged parts, too."""
        for _ in self._timed(self._steps(whole=whole)):
            pass

    async def look_in_turns(self) -> None:
        """Sample everything once, each part at its own time, and let other tasks run in between."""
        pause_ns = self.cost_ns + TURN_NS
        for _ in self._timed(self._steps(whole=False)):
            if self.cost_ns >= pause_ns:
                await trio.lowlevel.checkpoint()
                pause_ns = self.cost_ns + TURN_NS

    def _timed(self, steps: Iterator[None]) -> Iterator[None]:
        more = True
        while more:
            began_ns = time.thread_time_ns()
            try:
                more = next(steps, self) is not self
            except Exception as error:
                self.on_crash(error)
                more = False
            self.cost_ns += time.thread_time_ns() - began_ns
            yield

    def _steps(self, *, whole: bool) -> Iterator[None]:
        self.count += 1
        for connection in list(self._node_context.connections.values()):
            self._look_at(connection, whole=whole)
            yield
        self._look_at_the_rest(whole=whole)
        yield
        yield from self._look_at_queues(whole=whole)
        now_ns, ts_ns = self._set_times()
        if now_ns - self._measured_ns >= MEMORY_NS:
            self._measured_ns, self._rss_bytes = now_ns, rss_bytes()
        self._process.observe(now_ns, ts_ns, rss_bytes=self._rss_bytes, processor_ns=time.process_time_ns())
        self._probe(now_ns)

    def join(self, connection: Connection, running: SessionTask | ChannelTask) -> None:
        try:
            self._see_first(connection, running)
        except Exception as error:
            self.on_crash(error)

    def detach(self) -> None:
        for probe in self._probes.values():
            probe.detach()

    def times(self) -> tuple[int, int]:
        """Return the present by a clock that never runs back, and by the wall clock as of the last sample."""
        now_ns = time.monotonic_ns()
        return now_ns, now_ns + self._offset_ns

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
            observer = ConnectionObserver(connection.number, self._emit, now_ns, bytes_in=0, bytes_out=0)
            self._connections[connection] = observer
        _observe_bytes(observer, connection, now_ns, ts_ns, whole=whole)
        for running in connection.parts.values():
            probe = self._probes.get(running) or self._see_first(connection, running)
            probe.turn = self.count
            probe.look(now_ns, ts_ns, whole=whole)

    def _look_at_the_rest(self, *, whole: bool) -> None:
        now_ns, ts_ns = self._set_times()
        connections = self._node_context.connections
        if len(self._connections) > len(connections):
            for connection in [each for each in self._connections if each.number not in connections]:
                self.protocols.add(_protocol_of(connection))
                _observe_bytes(self._connections.pop(connection), connection, now_ns, ts_ns, whole=True)
        for running, probe in list(self._probes.items()):
            if probe.over:
                del self._probes[running]
            elif probe.turn != self.count:
                # Messages that it got before its end are still being handled.
                probe.look(now_ns, ts_ns, whole=whole)

    def _see_first(self, connection: Connection, running: SessionTask | ChannelTask) -> _Probe:
        self.protocols.add(_protocol_of(connection))  # it may be over before the next sample
        samples: Callable[[Any], Iterator[Sample]]
        around: Callable[[], object]
        if isinstance(connection, Connection10):
            assert isinstance(running, SessionTask)
            samples, around = partial(session_samples, running.service), partial(connection.around, running)
            number = running.service.session.channel
        else:
            assert isinstance(running, ChannelTask)
            samples, around = partial(channel_samples, running.service), partial(connection.around, running)
            number = running.service.number
        on_link = partial(self._name_link, connection)
        observer = Observer(samples, connection.number, number, self._emit, on_link)
        probe = self._probes[running] = _Probe(self, running, observer, around)
        return probe

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
        # Probe some of the sessions and channels, in rotation if there are many. Other tasks ran since these
        # were sampled: some have ended by now.
        probes = [probe for probe in self._probes.values() if not probe.over]
        first = self.count * PROBES_MAX % len(probes) if len(probes) > PROBES_MAX else 0
        for probe in [*probes[first:], *probes[:first]][:PROBES_MAX]:
            probe.probe(now_ns)

    # --- queues -----------------------------------------------------------------------------------

    def _look_at_queues(self, *, whole: bool) -> Iterator[None]:
        queues = list(self._node_context.catalog)
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


@dataclass(slots=True, eq=False)
class _Probe:
    """The state of one session or channel: its observer, and the probes of its steps."""

    _sampler: FlowSampler
    running: SessionTask | ChannelTask
    _observer: Observer
    _around: Callable[[], Any]
    _began_ns: int = 0
    _wakes: int = 0
    turn: int = 0

    def __post_init__(self) -> None:
        self.running.on_end = self._on_end

    def begin(self, now_ns: int) -> None:
        self._observer.begin(now_ns, self._around())

    @property
    def over(self) -> bool:
        return self.running.inbox.closed

    def look(self, now_ns: int, ts_ns: int, *, whole: bool = False) -> None:
        self._observer.observe(now_ns, ts_ns, self._around(), whole=whole)

    def detach(self) -> None:
        self.running.on_wake = None
        self.running.on_end = None

    def probe(self, now_ns: int) -> None:
        """Time the deliveries of its next wakes, unless a probe is running."""
        if self.running.on_wake is None or now_ns - self._began_ns > PROBE_NS_MAX:
            self._began_ns = now_ns
            self._observer.begin_probe()
            self.running.on_wake = self._on_wake

    def _on_wake(self) -> None:
        self._wakes += 1
        timed = self._wakes % TIMED_WAKES == 0
        began_ns = time.thread_time_ns() if timed else 0
        try:
            if not self._observer.probe(*self._sampler.times()):
                self.running.on_wake = None
        except Exception as error:
            self.detach()
            self._sampler.on_crash(error)
        if timed:
            self._sampler.cost_ns += TIMED_WAKES * (time.thread_time_ns() - began_ns)

    def _on_end(self) -> None:
        self.detach()
        try:
            now_ns, ts_ns = self._sampler.times()
            self.look(now_ns, ts_ns)  # for the work that it has begun since the last time
            self._observer.finish(now_ns, ts_ns)
        except Exception as error:
            self._sampler.on_crash(error)


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
    observer.observe(
        now_ns,
        ts_ns,
        bytes_in=connection.bytes_received,
        bytes_out=connection.writer.bytes_sent,
        waiting=connection.writer.waiting_bytes,
        reason=connection.reader_waits if isinstance(connection, ConnectionTask091) else 0,
        whole=whole,
    )
