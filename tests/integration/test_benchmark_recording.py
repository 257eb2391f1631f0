"""Benchmarks that record, against the real broker: what was recorded is what was counted.

Nothing here looks at how fast anything was: the runs are as short as they can be. A window in which no
message moves is a failed run, so windows are longer than a loaded machine may let a process stand still.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.observe.flow_events.schema import EVENTS, RUN_FIELDS, EventKind
from amqp10broker.observe.recording.parquet import read_events
from amqp10broker.observe.recording.runs import RunRecord, read_runs
from benchmarks import sweep
from benchmarks.__main__ import BENCHMARKS, parser_of_all
from benchmarks.measure import Benchmark, Context

SHORT = ["--duration", "2.2", "--warmup", "0.1", "--repetitions", "1", "--no-floor"]


def context(benchmark: Benchmark, folder: Path, *arguments: str) -> Context:
    """Return a run of a benchmark as the command line would make it."""
    options = parser_of_all().parse_args([benchmark.name, *SHORT, "--record", str(folder), *arguments])
    return Context(options, benchmark.name)


def counted(folder: Path, run: RunRecord, *, in_window: bool = False) -> Counter[tuple[EventKind, int]]:
    """Add up the messages of a run's events by kind and stream."""
    table = read_events(folder, run.run_id)
    columns = [table[name].to_pylist() for name in ("ts_ns", "kind", "channel", "n")]
    sums: Counter[tuple[EventKind, int]] = Counter()
    assert run.ended_ns is not None
    for at, kind, stream, count in zip(*columns, strict=True):
        if not in_window or run.began_ns <= at < run.ended_ns:
            sums[EventKind(kind), stream] += count
    return sums


def told(run: RunRecord) -> dict[str, Any]:
    """Return what a run says in its column of everything else."""
    found: dict[str, Any] = json.loads(run.settings)
    return found


def writers(folder: Path, run: RunRecord) -> set[str]:
    """Return who has written events of a run, by the prefixes of the files."""
    paths = (folder / EVENTS / f"run_id={run.run_id}").iterdir()
    return {path.name.rpartition("-")[0] for path in paths}


@pytest.mark.long
def test_a_recorded_sweep_adds_up(tmp_path: Path) -> None:
    """Every message that the clients counted is in the events of each run, and so is the window."""
    asked = ["--sweep-credits", "10", "170", "--sweep-windows", "400", "--sweep-sizes", "100"]
    outcome = sweep.run(context(sweep.BENCHMARK, tmp_path, *asked))
    assert [sample.get("failed") for sample in outcome.samples] == [None, None]
    runs = read_runs(tmp_path)
    assert sorted(run.max_link_credit or 0 for run in runs) == [10, 170]
    for run in runs:
        missing = {name for name, _ in RUN_FIELDS if getattr(run, name) is None}
        assert missing == {"rate_limit_per_s"}
        assert (run.max_incoming_window, run.max_queue_credit, run.message_size_bytes) == (400, 256, 100)
        (total,) = told(run)["streams_total"]
        (window,) = told(run)["streams_window"]
        for name, kinds in {
            "published": [EventKind.CLIENT_SENT],
            "confirmed": [EventKind.CLIENT_CONFIRM],
            "delivered": [EventKind.CLIENT_RECEIVED, EventKind.CLIENT_DELIVERY],
        }.items():
            assert total[name] > 0
            for kind in kinds:
                assert counted(tmp_path, run)[kind, 0] == total[name]
                assert counted(tmp_path, run, in_window=True)[kind, 0] == window[name] > 0


def test_broker_and_clients_write_into_one_run(tmp_path: Path) -> None:
    """Two processes, two prefixes, one run; the broker has seen what the clients have sent."""
    asked = ["--sweep-credits", "170", "--sweep-windows", "400", "--sweep-sizes", "100"]
    sweep.run(context(sweep.BENCHMARK, tmp_path, *asked, "--record-every", "10"))
    (run,) = read_runs(tmp_path)
    assert len(writers(tmp_path, run)) == 2
    (total,) = told(run)["streams_total"]
    sums: Counter[EventKind] = Counter()
    for (kind, _), count in counted(tmp_path, run).items():
        sums[kind] += count
    # What was published last may have been on its way when the connection was closed.
    assert total["confirmed"] <= sums[EventKind.LINK_IN] <= total["published"]
    assert sums[EventKind.LINK_OUT] >= total["delivered"]
    assert run.events_dropped == 0
    assert run.sample_ms == 10


@pytest.mark.long
def test_two_senders_tell_fast_and_slow_apart(tmp_path: Path) -> None:
    """Each half, with and without its neighbour, is a run; the streams are its two queues."""
    asked = ["--two_senders-delay", "confirm", "--two_senders-delay-ms", "5", "--two_senders-seconds", "2.5"]
    two_senders = BENCHMARKS["two_senders"]
    two_senders.run(context(two_senders, tmp_path, *asked))
    runs = {(run.protocol, run.case): run for run in read_runs(tmp_path)}
    assert set(runs) == {
        (protocol, f"{neighbour}, confirms +5 ms")
        for protocol in ("amqp10", "amqp091")
        for neighbour in ("with slow neighbour", "alone")
    }
    for (_, case), run in runs.items():
        sums = counted(tmp_path, run)
        fast, slow = told(run)["streams_total"]
        assert sums[EventKind.CLIENT_SENT, 0] == fast["published"] > 0
        assert sums[EventKind.CLIENT_SENT, 1] == slow["published"]
        assert (slow["published"] > 0) == case.startswith("with")
        assert run.publishers == (2 if case.startswith("with") else 1)
        assert (run.message_size_bytes, run.queue_type, run.durable) == (12, "classic", False)
        assert len(writers(tmp_path, run)) == 2
