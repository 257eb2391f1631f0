"""How fast does the broker start and set up connections, and what do they take while nothing happens?

Start: from starting the process to the first accepted TCP connection, and to the first AMQP connection
opened. Set-up: several processes connect, log in, exchange open frames (in one case also begin a session
and attach a link), close in order, and again. Idle: resident memory of the broker without connections, and
with 100 and 1000 of them, each open with one session; processor time over a few seconds in which nobody
sends anything.
"""

from __future__ import annotations

import multiprocessing
import signal
import socket
import time
from contextlib import ExitStack
from ctypes import Array, c_uint64
from typing import Final

from amqp10broker.protocols.amqp10.performatives import Begin, Close
from benchmarks import spec, wire
from benchmarks.broker_process import Target
from benchmarks.cases import QUEUE
from benchmarks.errors import LoadError, MeasureError, PeerError
from benchmarks.load import raise_file_limit
from benchmarks.measure import Benchmark, Context, options
from benchmarks.peer import Peer, handshake, read_frame
from benchmarks.processes import process_cpu_s
from benchmarks.results import Outcome, Row
from benchmarks.stream import Stream

# Each closed connection keeps a port busy for a minute; the system has about 28 000.
CONNECTIONS_MAX: Final = 20_000
WINDOW_S_MAX: Final = 10.0
_SPAWN: Final = multiprocessing.get_context("spawn")
_COLUMNS: Final = (
    *("accept_s", "open_s", "connections_per_s", "cpu_us_connection"),
    *("broker_busy", "rss_mb"),
)


def _open_only(endpoint: spec.Endpoint) -> None:
    with handshake(endpoint).socket as stream:
        stream.sendall(wire.frame(Close()))
        read_frame(stream)


def _open_and_attach(endpoint: spec.Endpoint, address: str) -> None:
    peer = Peer(endpoint, (spec.Session(publish=(spec.Publish((address,)),)),), [Stream()])
    peer.open()
    peer.close()


def _connect_repeatedly(
    endpoint: spec.Endpoint, address: str | None, number: int, shared: Array[c_uint64], seconds: float
) -> None:
    """Set up connections one after the other until the time is over; runs in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = time.monotonic() + seconds
    while time.monotonic() < end and shared[number] < CONNECTIONS_MAX // len(shared):
        try:
            if address is None:
                _open_only(endpoint)
            else:
                _open_and_attach(endpoint, address)
        except (PeerError, OSError) as error:
            raise SystemExit(f"connection {shared[number]} failed: {error}") from error
        shared[number] += 1


def _measure_rate(context: Context, target: Target, case: str, name: str, address: str | None) -> Row:
    connectors: int = context.options.connectors
    shared: Array[c_uint64] = _SPAWN.RawArray(c_uint64, connectors)
    seconds = context.warmup_s + context.duration_s + 2.0
    processes = [
        _SPAWN.Process(
            target=_connect_repeatedly, args=(target.endpoint, address, number, shared, seconds), daemon=True
        )
        for number in range(connectors)
    ]
    try:
        for process in processes:
            process.start()
        began = time.monotonic()
        while not all(shared):
            if any(process.exitcode for process in processes) or time.monotonic() - began > 20.0:
                raise LoadError("a process could not connect")
            time.sleep(0.01)
        time.sleep(context.warmup_s)
        before, began, cpu_before = sum(shared), time.monotonic(), target.cpu_s()
        pids = [process.pid for process in processes if process.pid is not None]
        load_before = sum(process_cpu_s(pid) for pid in pids)
        time.sleep(context.duration_s)
        count, taken_s = sum(shared) - before, time.monotonic() - began
        cpu_after, rss_bytes = target.cpu_s(), target.rss_bytes()
        load_cpu_s = sum(process_cpu_s(pid) for pid in pids) - load_before
    finally:
        for process in processes:
            process.terminate()
            process.join()
    if count == 0:
        raise MeasureError("no connection was set up")
    cpu_s = None if cpu_after is None or cpu_before is None else cpu_after - cpu_before
    context.say(f"{name:6} {case:32} {count / taken_s:,.0f} connections/s")
    return {
        "case": case,
        "target": name,
        "connections_per_s": count / taken_s,
        "cpu_us_connection": None if cpu_s is None else cpu_s / count * 1e6,
        "load_cpu_us_connection": load_cpu_s / count * 1e6,
        "broker_busy": None if cpu_s is None else cpu_s / taken_s,
        "rss_mb": None if rss_bytes is None else rss_bytes / 1e6,
    }


def _measure_start(context: Context) -> list[Row]:
    """Start the broker several times."""
    samples = []
    # The first start may have to compile Python files and read them from the disk: it is not counted.
    for number in range(1 + (3 if context.quick else 7)):
        with context.target() as target:
            row: Row = {"case": "start", "target": "broker"}
            row |= {name: getattr(target, name, None) for name in ("accept_s", "open_s")}
            rss_bytes = target.rss_bytes()
            row["rss_mb"] = None if rss_bytes is None else rss_bytes / 1e6
        if number:
            samples.append(row)
            context.say(f"start: accepts after {row['accept_s']:.3f} s, opens after {row['open_s']:.3f} s")
    return samples


def _run_setup(context: Context) -> Outcome:
    """Measure start time and both kinds of set-up."""
    cases = {"open, close": None, "open, begin, attach, close": QUEUE}
    samples: list[Row] = []
    if context.with_floor:
        for case, queue in cases.items():
            with context.floor() as floor:
                samples.append(_measure_rate(context, floor, case, "floor", queue))
    if context.own:
        samples += _measure_start(context)
    for _ in range(context.repetitions):
        for case, queue in cases.items():
            with context.target() as target:
                address = None if queue is None else context.address(queue)
                samples.append(_measure_rate(context, target, case, "broker", address))
    return Outcome(_COLUMNS, context.described_settings(), samples)


def _connect_and_rest(endpoint: spec.Endpoint) -> socket.socket:
    """Open a connection with one session and leave it alone."""
    stream = handshake(endpoint).socket
    window = spec.INCOMING_WINDOW
    stream.sendall(wire.frame(Begin(next_outgoing_id=0, incoming_window=window, outgoing_window=window)))
    answer = read_frame(stream)
    if not isinstance(answer, Begin):
        raise MeasureError(f"the broker answered begin with {answer.NAME}")
    return stream


def _measure_idle(context: Context, target: Target, count: int) -> Row:
    rss_before = target.rss_bytes()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_connect_and_rest(target.endpoint))
        time.sleep(0.5)
        cpu_before, began = target.cpu_s(), time.monotonic()
        # No heartbeats are sent: the window must end before a broker takes the silence for death.
        time.sleep(min(context.duration_s, WINDOW_S_MAX))
        cpu_after, taken_s = target.cpu_s(), time.monotonic() - began
        rss = target.rss_bytes()
    row: Row = {"case": f"{count} connections", "target": "broker"}
    row["rss_mb"] = None if rss is None else rss / 1e6
    if rss is not None and rss_before is not None and count:
        row["rss_kb_connection"] = (rss - rss_before) / count / 1e3
    if cpu_after is not None and cpu_before is not None:
        row["idle_cpu_percent"] = (cpu_after - cpu_before) / taken_s * 100
    context.say(f"{row['case']}: {row['rss_mb'] or 0:.1f} MB")
    return row


def _run_idle(context: Context) -> Outcome:
    """Measure each number of connections with a fresh broker."""
    raise_file_limit()
    samples = []
    for _ in range(context.repetitions):
        for count in context.options.connections:
            with context.target() as target:
                samples.append(_measure_idle(context, target, count))
    columns = ("rss_mb", "rss_kb_connection", "idle_cpu_percent")
    return Outcome(columns, context.described_settings(), samples)


BENCHMARKS: Final = (
    Benchmark(
        "setup",
        "How fast are start and connection set-up?",
        _run_setup,
        options(connectors=(4, "processes that connect")),
    ),
    Benchmark(
        "idle",
        "What do idle connections take?",
        _run_idle,
        options(connections=([0, 100, 1000], "connections")),
    ),
)
