"""Load processes: each drives the connections of one `spec.Load` in an operating-system process of its own.

The driver knows no protocol: it moves peers, which read and write one connection each, and producers, which
publish when they may.

The parent talks to a load process through a pipe (start, mark, stop) and reads its counters from shared
memory, so that looking does not disturb. A process ends by itself after `seconds_max`, when its parent
goes away, and when the broker breaks off.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import select
import signal
import time
from collections.abc import Sequence
from ctypes import Array, c_uint64
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Self

from benchmarks import spec
from benchmarks.channel091 import PeerChannel
from benchmarks.client_events import SAMPLE_NS, ClientEvents, ClientRecorder, Recorded, wall_offset_ns
from benchmarks.errors import LoadError, PeerError, WireError
from benchmarks.peer import Peer
from benchmarks.peer091 import Peer091
from benchmarks.session import Sender
from benchmarks.stream import COUNTERS, Counts, Stream

_SPAWN: Final = multiprocessing.get_context("spawn")
# poll() counts in milliseconds; a fixed-rate load spins through the last one and a half.
_SPIN_NS: Final = 1_500_000
_IDLE_POLL_MS: Final = 200.0
_READY_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the sampled latencies of one stream, in milliseconds."""

    samples: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    @classmethod
    def of(cls, values_ns: Sequence[int]) -> Latency | None:
        """Summarise samples; None if there are none."""
        if not values_ns:
            return None
        ordered = sorted(values_ns)
        count = len(ordered)

        def at(share: float) -> float:
            return ordered[min(count - 1, int(count * share))] / 1e6

        return cls(count, at(0.50), at(0.99), at(0.999), ordered[-1] / 1e6)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load process says when it is stopped; latencies are those since `mark`."""

    counts: tuple[Counts, ...]
    confirm: tuple[Latency | None, ...]
    delivery: tuple[Latency | None, ...]
    cpu_s: float
    recorded: Recorded | None = None


class LoadProcess:
    """The parent's end of one load process, to be used in a `with` statement."""

    def __init__(self, what: spec.Load) -> None:
        """Prepare the process; it is started on entering."""
        self._what = what
        self._shared: Array[c_uint64] = _SPAWN.RawArray(c_uint64, len(COUNTERS) * what.streams)
        self._pipe, self._child_pipe = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_main, args=(what, self._shared, self._child_pipe), name=what.name, daemon=True
        )

    def __enter__(self) -> Self:
        """Start the process and wait until all its links are attached.

        Raises:
            LoadError: it could not connect, or the broker refused a link.
        """
        self._process.start()
        self._child_pipe.close()
        try:
            self._answer(_READY_TIMEOUT_S)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Make sure that the process is gone."""
        self._kill()

    @property
    def pid(self) -> int:
        """Process id of the load process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the load process still runs."""
        return self._process.is_alive()

    def start(self) -> None:
        """Begin: grant credit, publish."""
        self._tell("start")

    def mark(self) -> None:
        """Begin the measuring window: forget the latencies sampled so far."""
        self._tell("mark")

    def end_window(self) -> None:
        """End the measuring window of a recorded run: what comes now is told apart from it."""
        self._tell("end window")

    def counts(self, stream: int = 0) -> Counts:
        """Return the counters of a stream now.

        Raises:
            LoadError: the process has ended by itself.
        """
        if self._pipe.poll():
            self._answer(0)
        elif not self._process.is_alive():
            raise LoadError(f"load process {self._what.name} ended with {self._process.exitcode}")
        start = stream * len(COUNTERS)
        return Counts(*self._shared[start : start + len(COUNTERS)])

    def stop(self) -> LoadResult:
        """Stop the load, close its connections and return what it counted."""
        self._tell("stop")
        result = self._answer(_STOP_TIMEOUT_S)
        if not isinstance(result, LoadResult):
            raise LoadError(f"load process {self._what.name} answered {result!r}")
        self._process.join(_STOP_TIMEOUT_S)
        return result

    def _tell(self, command: str) -> None:
        """Send a command; if the process has ended, say why it did."""
        if self._pipe.poll():
            self._answer(0)
        try:
            self._pipe.send(command)
        except BrokenPipeError:
            self._answer(0)

    def _answer(self, timeout_s: float) -> Any:
        try:
            if not self._pipe.poll(timeout_s):
                raise LoadError(f"load process {self._what.name} did not answer in {timeout_s:g} s")
            answer = self._pipe.recv()
        except EOFError:
            self._process.join(1.0)
            raise LoadError(f"load process {self._what.name} ended with {self._process.exitcode}") from None
        if isinstance(answer, Exception):
            raise LoadError(f"{self._what.name}: {answer}") from answer
        return answer

    def _kill(self) -> None:
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(5.0)
            if self._process.is_alive():
                self._process.kill()
                self._process.join(5.0)
        self._pipe.close()


# --- inside the load process ------------------------------------------------------------------------------


def _peer_for(endpoint: spec.Endpoint, connection: spec.Connection, streams: list[Stream]) -> Peer | Peer091:
    """Make the peer for a connection: what stands in it says which protocol it speaks."""
    channels = tuple(part for part in connection if isinstance(part, spec.Channel))
    if channels:
        return Peer091(endpoint, channels, streams)
    return Peer(endpoint, tuple(part for part in connection if isinstance(part, spec.Session)), streams)


def _main(what: spec.Load, shared: Array[c_uint64], pipe: Connection) -> None:
    """Run one load process from connecting to its result."""
    # Ctrl-C is the parent's to handle: it ends its load processes in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    try:
        driver = _Driver(what, shared, pipe)
        driver.open()
        pipe.send("ready")
        driver.run()
    except (PeerError, WireError, OSError) as error:
        try:
            pipe.send(LoadError(f"{type(error).__name__}: {error}"))
        except OSError:
            # The parent has gone first; there is nobody left to tell.
            pass


def raise_file_limit() -> None:
    """Allow this process as many open sockets as the system lets it have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Driver:
    """The loop of a load process: read, publish, write, wait."""

    def __init__(self, what: spec.Load, shared: Array[c_uint64], pipe: Connection) -> None:
        self._what = what
        self._shared = shared
        self._pipe = pipe
        events = ClientEvents(wall_offset_ns()) if what.record else None
        self._streams = [Stream(number, events) for number in range(what.streams)]
        self._recorder = None if events is None else ClientRecorder(what, events, self._streams)
        self._idle_poll_ms = _IDLE_POLL_MS if events is None else SAMPLE_NS / 1e6
        self._peers = [_peer_for(what.endpoint, one, self._streams) for one in what.connections]
        self._producers: list[Sender | PeerChannel] = []
        self._poll = select.poll()
        self._by_fd: dict[int, Peer | Peer091] = {}
        self._events: dict[int, int] = {}
        self._started = False
        self._running = True
        self._deadline_ns = time.monotonic_ns() + int(what.seconds_max * 1e9)

    def open(self) -> None:
        """Connect every peer; attach every link, open every channel."""
        for peer in self._peers:
            peer.open()
            fd = peer.socket.fileno()
            self._by_fd[fd] = peer
            self._events[fd] = select.POLLIN
            self._poll.register(fd, select.POLLIN)
            self._producers += peer.producers
        self._poll.register(self._pipe.fileno(), select.POLLIN)

    def run(self) -> None:
        """Work until told to stop, then send the result and close.

        Raises:
            PeerError: the broker broke off or broke a rule.
        """
        control = self._pipe.fileno()
        busy = False
        while self._running:
            for fd, _ in self._poll.poll(0 if busy else self._timeout_ms()):
                if fd == control:
                    self._command()
                else:
                    self._by_fd[fd].read()
            now_ns = time.monotonic_ns()
            if now_ns > self._deadline_ns:
                raise PeerError(f"stopped after {self._what.seconds_max:g} s, the time this load may take")
            if self._started:
                self._publish(now_ns)
            busy = False
            for fd, peer in self._by_fd.items():
                full = len(peer.out) >= peer.out_bytes_max
                left = peer.flush(now_ns)
                # Its buffer stopped it and the socket took everything: nothing else would wake us for it.
                busy = busy or (full and not left)
                events = select.POLLIN | (select.POLLOUT if left else 0)
                if events != self._events[fd]:
                    self._events[fd] = events
                    self._poll.modify(fd, events)
            if self._recorder is not None and now_ns >= self._recorder.due_ns:
                self._recorder.sample(now_ns)
            self._show()
        self._pipe.send(self._result())
        for peer in self._peers:
            peer.close()

    def _timeout_ms(self) -> float:
        """Return how long to sleep: until the next message of a fixed-rate group, if there is one."""
        if not self._started:
            return self._idle_poll_ms
        due = [
            ns for ns in (pace.due_ns() for one in self._producers for pace in one.paces) if ns is not None
        ]
        if not due:
            return self._idle_poll_ms
        wait_ns = min(due) - time.monotonic_ns()
        return 0.0 if wait_ns < _SPIN_NS else min(self._idle_poll_ms, (wait_ns - _SPIN_NS) // 1_000_000)

    def _publish(self, now_ns: int) -> None:
        """Let every producer publish in turns, until nothing more may be sent or its buffer is full."""
        going = True
        while going:
            going = False
            for producer in self._producers:
                if len(producer.peer.out) < producer.peer.out_bytes_max:
                    going = producer.produce(now_ns) > 0 or going

    def _command(self) -> None:
        try:
            command = self._pipe.recv()
        except EOFError:
            # The parent is gone and with it everyone who wants the result.
            os._exit(1)
        if command == "start":
            self._started = True
            now_ns = time.monotonic_ns()
            for producer in self._producers:
                for pace in producer.paces:
                    pace.started_ns = now_ns
            for peer in self._peers:
                peer.start()
            if self._recorder is not None:
                self._recorder.start(now_ns)
        elif command == "mark":
            for stream in self._streams:
                stream.forget_latencies()
            self._edge()
        elif command == "end window":
            self._edge()
        elif command == "stop":
            self._running = False

    def _edge(self) -> None:
        if self._recorder is not None:
            self._recorder.edge(time.monotonic_ns())

    def _show(self) -> None:
        """Copy the counters to where the parent sees them."""
        values: list[c_uint64 | int] = []
        for one in self._streams:
            values += (one.published, one.confirmed, one.refused, one.delivered, one.settled)
        self._shared[:] = values

    def _result(self) -> LoadResult:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return LoadResult(
            tuple(one.counts() for one in self._streams),
            tuple(Latency.of(one.confirm_ns) for one in self._streams),
            tuple(Latency.of(one.delivery_ns) for one in self._streams),
            usage.ru_utime + usage.ru_stime,
            None if self._recorder is None else self._recorder.end(time.monotonic_ns()),
        )
