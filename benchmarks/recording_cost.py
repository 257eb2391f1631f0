"""What does recording flow events cost the broker?

One broker and one load, and windows of measuring in which the broker records nothing, or at intervals.
Recording is switched while the load goes on, and each window that records is
compared with the two beside it that do not: nothing else changes between them, so that a percent can be
seen on a machine whose speed drifts by ten.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from amqp10broker.analysis.statistics import estimate_ratio
from benchmarks import spec
from benchmarks.broker_process import OwnBroker
from benchmarks.cases import QUEUE, Case, passing, publishing
from benchmarks.errors import BenchmarkError, MeasureError
from benchmarks.load import LoadProcess
from benchmarks.measure import Benchmark, Context, options
from benchmarks.processes import children_cpu_s, folder_bytes
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row
from benchmarks.spec import Settle

OFF: Final = -1
EVERY_MS: Final[dict[int, str]] = {OFF: "off", 50: "every 50 ms", 10: "every 10 ms"}
COLUMNS: Final = (
    "rate_per_s",
    "cpu_us",
    "cpu_ratio",
    "rate_ratio",
    "observing_percent",
    "helper_cpu_us",
    "events_per_s",
    "event_bytes",
    "dropped",
)
_SETTLE_S: Final = 0.3
"""After switching: what the helper's start costs the machine must not be in the window."""
_COMMAND_S: Final = 60.0
_SPARE_S: Final = 240.0


def works(context: Context) -> list[Case]:
    """Return the loads: one busy pair of connections in each protocol, many links, and one in flight."""
    many = [f"{QUEUE}{number}" for number in range(100)]
    return [
        passing(context, "both, settle range"),
        passing(context, "both, settle each", settle=Settle.EACH),
        passing(context, "both, settle each, AMQP 0-9-1", settle=Settle.EACH, amqp091=True),
        passing(context, "both, 100 queues and 200 links", sending=many),
        publishing(context, "publish, one in flight", in_flight_max=1),
    ]


class _Recorded:
    """A broker under load whose recording is switched."""

    def __init__(self, broker: OwnBroker, load: LoadProcess, work: Case, folder: Path, streams: int) -> None:
        self._broker = broker
        self._load = load
        self._work = work
        self._folder = folder
        self._streams = streams

    def window(self, every_ms: int, seconds: float) -> Row:
        """Measure with recording switched on or off for this window."""
        if every_ms != OFF:
            self._command("start", str(self._folder), "--every", str(every_ms))
        time.sleep(_SETTLE_S)
        began, cpu, helper, moved = self._look()
        time.sleep(seconds)
        ended, cpu_after, helper_after, moved_after = self._look()
        messages = moved_after - moved
        if messages <= 0:
            raise MeasureError(f"{self._work.name}: no message moved in {seconds:g} s")
        row: Row = {"rate_per_s": messages / (ended - began), "cpu_us": (cpu_after - cpu) / messages * 1e6}
        if every_ms != OFF:
            status = json.loads(self._command("status", "--format", "json"))
            self._command("stop")
            events = status["events"]
            row["observing_percent"] = status["cost_percent"]
            row["dropped"] = status["events_dropped"]
            row["helper_cpu_us"] = (helper_after - helper) / messages * 1e6
            row["events_per_s"] = events / (time.monotonic() - began)
            run = self._folder / "events" / f"run_id={status['run_id']}"
            row["event_bytes"] = folder_bytes(run) / max(1, events)
            shutil.rmtree(run)
        return row

    def _look(self) -> tuple[float, float, float, int]:
        moved = sum(getattr(self._load.counts(stream), self._work.counter) for stream in range(self._streams))
        pid = self._broker.pid
        assert pid is not None, "it runs"
        return time.monotonic(), threads_cpu_s(pid), children_cpu_s(pid), moved

    def _command(self, *words: str) -> str:
        command = [self._broker.python, "-m", "amqp10broker", "record", *words]
        command += ["--port", str(self._broker.endpoint.port)]
        done = subprocess.run(
            command, cwd=self._broker.settings.tree, capture_output=True, text=True, timeout=_COMMAND_S
        )
        if done.returncode:
            raise BenchmarkError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout


def threads_cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process, to the nanosecond."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # it ended after the directory was read
    return total / 1e9


def _measure(context: Context, work: Case, folder: Path) -> list[Row]:
    """Windows of one work, off and on in turn; the order of what is on changes."""
    address: Callable[[str], str] = str if work.amqp091 else context.address
    samples: list[Row] = []
    with context.target(queues=work.queues, amqp091=work.amqp091) as broker:
        if not isinstance(broker, OwnBroker):
            raise BenchmarkError(
                "recording is measured with a broker that is started here: leave out --target"
            )
        if work.amqp091:
            with Queues(broker.endpoint) as known:
                known.declare(dict.fromkeys(work.queues, "classic"))
        count = context.repetitions * (len(EVERY_MS) - 1)
        seconds_max = 2 * count * (context.duration_s + 5.0) + _SPARE_S
        what = spec.Load(broker.endpoint, work.connections(address), seconds_max=seconds_max, name=work.name)
        with LoadProcess(what) as load:
            load.start()
            time.sleep(context.warmup_s)
            recorded = _Recorded(broker, load, work, folder, what.streams)
            modes = [every_ms for every_ms in EVERY_MS if every_ms != OFF]
            before = recorded.window(OFF, context.duration_s)
            for turn in range(context.repetitions):
                for every_ms in modes[turn % len(modes) :] + modes[: turn % len(modes)]:
                    on = recorded.window(every_ms, context.duration_s)
                    after = recorded.window(OFF, context.duration_s)
                    for column in ("cpu", "rate"):
                        name = "cpu_us" if column == "cpu" else "rate_per_s"
                        on[f"{column}_ratio"] = 2 * on[name] / (before[name] + after[name])
                    samples.append({"case": f"{work.name}: {EVERY_MS[every_ms]}", "target": "broker", **on})
                    samples.append({"case": f"{work.name}: off", "target": "broker", **after})
                    context.say_row(samples[-2])
                    before = after
            load.stop()
    return samples


def describe_intervals(samples: Sequence[Row]) -> list[str]:
    """Return a sentence for each case that records: the mean ratios, and where the true ones lie with 95 %.

    Args:
        samples: windows, with `cpu_ratio` and `rate_ratio` where they recorded.
    """
    told: list[str] = []
    for case in dict.fromkeys(row["case"] for row in samples if "rate_ratio" in row):
        rows = [row for row in samples if row["case"] == case]
        parts: list[str] = []
        for name, column in (("rate", "rate_ratio"), ("CPU", "cpu_ratio")):
            known = estimate_ratio([row[column] for row in rows])
            if known is None or known.low is None or known.high is None:
                break
            parts.append(f"{name} on / off {known.mean:.3f} ({known.low:.3f} to {known.high:.3f})")
        else:
            told.append(f"{case}: {', '.join(parts)}, with 95 %, from {len(rows)} windows")
    return told


def run(context: Context) -> Outcome:
    """Measure all loads."""
    outcome = Outcome(COLUMNS, context.described_settings())
    chosen: str = context.options.recording_work
    with tempfile.TemporaryDirectory(prefix="amqp10broker-recording-") as folder:
        for work in works(context):
            if chosen in work.name:
                outcome.samples += _measure(context, work, Path(folder))
    outcome.notes += describe_intervals(outcome.samples)
    return outcome


BENCHMARK = Benchmark(
    "recording",
    "What does recording flow events cost?",
    run,
    options(recording_work=("", "only loads whose name has this in it")),
)
