"""What does HTTP cost a broker: when it starts, at rest, with nobody looking, and with the page open?

Start and rest: a broker with HTTP and one without, in turns; processor time and time to the first AMQP
connection, and resident memory a while later.

Load: two brokers, one without HTTP, and the same load on each. Only one of the two loads runs at a time, the
other is stopped by a signal; each window of the broker with HTTP, first with nobody looking, then with a page
open and its metrics scraped, is compared with the two beside it of the other broker.

Lists: a broker with many queues in this process, asked over HTTP by a thread. Beside the time of an answer
stands the longest step of any task meanwhile, in processor time of the broker's thread: so long does it hold
up all others, whatever else the machine does.
"""

from __future__ import annotations

import base64
import gc
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

import trio

from amqp10broker.catalog.queue_requests import DeclareQueue
from amqp10broker.cli.serve import COUNTS_REFERENCES, GC_THRESHOLDS
from amqp10broker.config import Config
from amqp10broker.tasks.broker import Broker
from benchmarks import spec
from benchmarks.broker_process import OwnBroker
from benchmarks.cases import Case, passing
from benchmarks.errors import BenchmarkError, MeasureError
from benchmarks.load import LoadProcess
from benchmarks.measure import Benchmark, Context, options
from benchmarks.processes import reserved_port
from benchmarks.queues091 import Queues
from benchmarks.recording_cost import describe_intervals, threads_cpu_s
from benchmarks.results import Outcome, Row

COLUMNS: Final = (
    *("open_s", "start_cpu_s", "start_ratio", "rss_mb", "rss_more_mb"),
    *("rate_per_s", "cpu_us", "cpu_ratio", "rate_ratio", "took_ms", "took_cpu_ms"),
    "hold_ms",
)
FOLLOWED: Final = ("/overview", "/queues?page=1&page_size=100", "/connections")
"""What stands on the page."""
ASKED: Final = (
    *("/metrics", "/metrics/per-object", "/api/overview", "/api/queues?page=1&page_size=100"),
    *("/api/queues", "/api/queues?columns=name,messages&sort=messages", "/api/exchanges", "/api/definitions"),
)
LOGIN: Final = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
_WITHOUT: Final = ("--no-http", "--no-prometheus")
_SETTLE_S: Final = 0.3
_REST_S: Final = 1.5
_SPARE_S: Final = 240.0
_TIMEOUT_S: Final = 60.0


def works(context: Context) -> list[Case]:
    """Return the loads: one busy pair of connections in each protocol."""
    return [
        passing(context, "both, settle range"),
        passing(context, "both, settle range, AMQP 0-9-1", amqp091=True),
    ]


@contextmanager
def _broker(context: Context, port: int | None) -> Iterator[OwnBroker]:
    """Start a broker with HTTP at a port; None: without."""
    settings = context.settings()
    extra = _WITHOUT if port is None else ("--http-port", str(port), "--no-prometheus")
    settings = replace(settings, extra=(*settings.extra, *extra))
    with context.target(settings) as broker:
        if not isinstance(broker, OwnBroker):
            raise BenchmarkError("HTTP is measured with brokers that are started here: leave out --target")
        yield broker


# --- start and rest -------------------------------------------------------------------------------


def _started(context: Context, port: int | None) -> Row:
    with _broker(context, port) as broker:
        assert broker.pid is not None, "it runs"
        row: Row = {"open_s": broker.open_s, "start_cpu_s": threads_cpu_s(broker.pid)}
        time.sleep(_REST_S)
        row["rss_mb"] = (broker.rss_bytes() or 0) / 1e6
    return row


def _starts(context: Context) -> list[Row]:
    """Start brokers in turns. The first two may have to compile Python files: they are not counted."""
    samples: list[Row] = []
    with reserved_port() as port:
        for number in range(1 + 2 * context.repetitions):
            without, with_http = _started(context, None), _started(context, port)
            if not number:
                continue
            with_http["start_ratio"] = with_http["start_cpu_s"] / without["start_cpu_s"]
            with_http["rss_more_mb"] = with_http["rss_mb"] - without["rss_mb"]
            samples.append({"case": "start without HTTP", "target": "broker", **without})
            samples.append({"case": "start with HTTP", "target": "broker", **with_http})
            context.say(
                f"start with HTTP: {with_http['start_ratio']:.2f} times the processor time, "
                f"{with_http['rss_more_mb']:+.1f} MB"
            )
    return samples


# --- under load -----------------------------------------------------------------------------------


class _Looking:
    """A page that is open, and a scrape of metrics every so often, by threads of this process."""

    def __init__(self, port: int, every_s: float) -> None:
        self._port = port
        self._every_s = every_s
        self._over = threading.Event()
        self._faults: list[str] = []
        self.heard = 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look for as long as the block lasts.

        Raises:
            MeasureError: an answer was no answer, or nothing was heard.
        """
        self._over.clear()
        threads = [threading.Thread(target=each) for each in (self._follow, self._scrape)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if self._faults or not self.heard:
            raise MeasureError(f"nobody heard what was followed: {self._faults}")

    def _follow(self) -> None:
        paths = "&".join(f"path={quote(path, safe='')}" for path in FOLLOWED)
        # Bytes are enough: what they say takes the machine's time, and is the page's to understand.
        with socket.create_connection(("127.0.0.1", self._port)) as stream:
            stream.settimeout(_SETTLE_S)
            head = f"GET /api/live?{paths} HTTP/1.1\r\nhost: broker\r\n"
            stream.sendall(f"{head}authorization: {LOGIN['authorization']}\r\n\r\n".encode())
            begun = stream.recv(1024)
            if not begun.startswith(b"HTTP/1.1 200 "):
                self._faults.append(f"/api/live: {begun!r}")
            while not self._over.is_set():
                with suppress(TimeoutError):
                    self.heard += len(stream.recv(65536))

    def _scrape(self) -> None:
        while not self._over.is_set():
            status, size = asked(self._port, "/metrics")
            self.heard += size
            if status != http.client.OK:
                self._faults.append(f"/metrics: {status}")
            self._over.wait(self._every_s)


def asked(port: int, path: str) -> tuple[int, int]:
    """Ask for something; its status, and the bytes of its body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path, headers=LOGIN)
        answer = connection.getresponse()
        return answer.status, len(answer.read())
    finally:
        connection.close()


@dataclass(slots=True)
class _Loaded:
    """A broker whose load waits."""

    broker: OwnBroker
    load: LoadProcess
    work: Case
    streams: int

    def wait(self) -> None:
        """Stop the load where it is."""
        os.kill(self.load.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.load.pid, signal.SIGCONT)

    def window(self, seconds: float) -> Row:
        """Measure while only this load runs."""
        self.go_on()
        time.sleep(_SETTLE_S)
        began, cpu, moved = self._look()
        time.sleep(seconds)
        ended, cpu_after, moved_after = self._look()
        self.wait()
        messages = moved_after - moved
        if messages <= 0:
            raise MeasureError(f"{self.work.name}: no message moved in {seconds:g} s")
        return {"rate_per_s": messages / (ended - began), "cpu_us": (cpu_after - cpu) / messages * 1e6}

    def _look(self) -> tuple[float, float, int]:
        moved = sum(getattr(self.load.counts(stream), self.work.counter) for stream in range(self.streams))
        assert self.broker.pid is not None, "it runs"
        return time.monotonic(), threads_cpu_s(self.broker.pid), moved


def _loaded(context: Context, stack: ExitStack, work: Case, port: int | None, seconds_max: float) -> _Loaded:
    broker = stack.enter_context(_broker(context, port))
    if work.amqp091:
        with Queues(broker.endpoint) as known:
            known.declare(dict.fromkeys(work.queues, "classic"))
    address: Callable[[str], str] = str if work.amqp091 else context.address
    what = spec.Load(broker.endpoint, work.connections(address), seconds_max=seconds_max, name=work.name)
    load = stack.enter_context(LoadProcess(what))
    load.start()
    time.sleep(context.warmup_s)
    loaded = _Loaded(broker, load, work, what.streams)
    loaded.wait()
    return loaded


def _under_load(context: Context, work: Case) -> list[Row]:
    """Windows of the two brokers in turns; the order of the ways of looking changes."""
    every_s: float = context.options.http_every
    # As many scrapes fall into each window, wherever it begins.
    seconds = max(context.duration_s, every_s)
    samples: list[Row] = []
    with reserved_port() as port, ExitStack() as stack:
        seconds_max = 4 * (context.repetitions + 1) * (seconds + 2.0) + _SPARE_S
        without = _loaded(context, stack, work, None, seconds_max)
        with_http = _loaded(context, stack, work, port, seconds_max)
        page = _Looking(port, every_s)
        before = without.window(seconds)
        # In this order: the broker goes on sampling for a while when the page is closed.
        for looked_at in [False] * context.repetitions + [True] * context.repetitions:
            with page.looking() if looked_at else ExitStack():
                on = with_http.window(seconds)
            after = without.window(seconds)
            for column, name in (("cpu_ratio", "cpu_us"), ("rate_ratio", "rate_per_s")):
                on[column] = 2 * on[name] / (before[name] + after[name])
            how = "page open, metrics scraped" if looked_at else "nobody looks"
            samples.append({"case": f"{work.name}: {how}", "target": "broker", **on})
            samples.append({"case": f"{work.name}: no HTTP", "target": "broker", **after})
            context.say_row(samples[-2])
            before = after
        for each in (without, with_http):
            each.go_on()
            each.load.stop()
    return samples


# --- many queues ----------------------------------------------------------------------------------


class _Steps(trio.abc.Instrument):
    """How long the longest step of a task takes, in processor time of its thread."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._began_ns: int | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        self._began_ns = time.thread_time_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It lets others go on."""
        # The step in which this begins to look began before that.
        if self._began_ns is not None:
            self.longest_ns = max(self.longest_ns, time.thread_time_ns() - self._began_ns)


def _of_many_queues(context: Context) -> list[Row]:
    return trio.run(_ask_for_many, context)


async def _ask_for_many(context: Context) -> list[Row]:
    count: int = context.options.http_queues
    if COUNTS_REFERENCES:
        gc.set_threshold(*GC_THRESHOLDS)  # as `serve` does
    samples: list[Row] = []
    config = Config(
        port=0, http_port=0, prometheus=False, admin_socket="", log_level="error", container_id="many"
    )
    async with Broker(config) as broker:
        for number in range(count):
            broker.catalog.propose(DeclareQueue("/", f"queue-{number:06}", True, None, False, {}, False))
        await trio.sleep(_SETTLE_S)  # it listens
        if COUNTS_REFERENCES:
            gc.freeze()
        port = broker.http_addresses[0][1]
        await trio.to_thread.run_sync(asked, port, ASKED[0])  # imports
        for path in ASKED * context.repetitions:
            steps = _Steps()
            trio.lowlevel.add_instrument(steps)
            began, cpu_ns = time.monotonic(), time.thread_time_ns()
            status, size = await trio.to_thread.run_sync(asked, port, path)
            took_s, cpu_ns = time.monotonic() - began, time.thread_time_ns() - cpu_ns
            trio.lowlevel.remove_instrument(steps)
            if status != http.client.OK or not size:
                raise MeasureError(f"{path}: {status}")
            row: Row = {"case": f"{count} queues: {path}", "target": "broker"}
            row |= {"took_ms": took_s * 1e3, "took_cpu_ms": cpu_ns / 1e6, "hold_ms": steps.longest_ns / 1e6}
            samples.append(row)
    return samples


def run(context: Context) -> Outcome:
    """Measure all of it."""
    outcome = Outcome(COLUMNS, context.described_settings())
    outcome.samples += _starts(context)
    for work in works(context):
        outcome.samples += _under_load(context, work)
    outcome.samples += _of_many_queues(context)
    outcome.notes += describe_intervals(outcome.samples)
    return outcome


BENCHMARK = Benchmark(
    "http",
    "What does HTTP cost: at start, at rest, with nobody looking, with the page open, and for many queues?",
    run,
    options(
        http_every=(5.0, "seconds between two scrapes of metrics"),
        http_queues=(10_000, "queues of the broker that is asked for lists"),
    ),
)
