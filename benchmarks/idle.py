"""What do a broker and its connections take while nothing happens?

Resident memory of the broker without connections, and with 100 and 1000 of them, each open with one
session; processor time over a few seconds in which nobody sends anything.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import Final

from benchmarks import spec, wire
from benchmarks.broker_process import Target
from benchmarks.errors import MeasureError
from benchmarks.load import raise_file_limit
from benchmarks.measure import Benchmark, Context, options
from benchmarks.peer import handshake, read_frame
from benchmarks.results import Outcome, Row

WINDOW_S_MAX: Final = 10.0


def _connect(endpoint: spec.Endpoint) -> socket.socket:
    """Open a connection with one session and leave it alone."""
    stream = handshake(endpoint).socket
    stream.sendall(wire.begin_frame(0, incoming_window=spec.INCOMING_WINDOW, handle_max=255))
    answer = read_frame(stream)
    if answer.code != wire.BEGIN:
        raise MeasureError(f"the broker answered begin with 0x{answer.code:02x}")
    return stream


def _measure(context: Context, target: Target, count: int) -> Row:
    rss_before = target.rss_bytes()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_connect(target.endpoint))
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


def run(context: Context) -> Outcome:
    """Measure each number of connections with a fresh broker."""
    raise_file_limit()
    samples = []
    for _ in range(context.repetitions):
        for count in context.options.connections:
            with context.target() as target:
                samples.append(_measure(context, target, count))
    columns = ("rss_mb", "rss_kb_connection", "idle_cpu_percent")
    return Outcome(columns, context.described_settings(), samples)


BENCHMARK = Benchmark(
    "idle", "What do idle connections take?", run, options(connections=([0, 100, 1000], "connections"))
)
