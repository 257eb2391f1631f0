"""Events, rows and figures of the benchmarks."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amqp10broker.observe.flow_events import FIELDS, PACK, EventKind
from amqp10broker.observe.recording import RUN_FIELDS, RunRecord, read_events, read_run, write_run
from benchmarks import cases, report, results, spec, sweep
from benchmarks.broker_process import BrokerSettings
from benchmarks.client_events import SAMPLE_NS, ClientEvents, ClientRecorder, Edge, Recorded
from benchmarks.load import Latency
from benchmarks.measure import Context
from benchmarks.pace import Pace
from benchmarks.recording import RecordedRun, Recording
from benchmarks.results import Row
from benchmarks.stream import Counts, Stream

SOME = Counts(3, 0, 0, 1, 1)
MORE = Counts(7, 5, 1, 2, 2)
SETTINGS = BrokerSettings(max_link_credit=50, max_incoming_window=None, max_queue_credit=64)
ENDPOINT = spec.Endpoint("127.0.0.1", 1)


def load_of(*connections: spec.Connection) -> spec.Load:
    usual: spec.Connections = (
        (spec.Session(publish=(spec.Publish(("a", "b"), size_bytes=12, rate_per_s=5.0),)),),
        (spec.Session(consume=(spec.Consume(("a",), size_bytes=12),)),),
    )
    return spec.Load(ENDPOINT, connections or usual)


def recorded(dropped: int = 0) -> Recorded:
    events = ClientEvents(0)
    events.add(1000, EventKind.CLIENT_SENT, 0, 3, 10, 36)
    events.add(2000, EventKind.CLIENT_SENT, 0, 4, 10, 48)
    return Recorded(events.packed(), dropped, (Edge(1000, (SOME,)), Edge(2000, (MORE,))), (MORE,))


def write(run: RecordedRun, settings: BrokerSettings = SETTINGS, what: spec.Load | None = None) -> RunRecord:
    return run.write(
        what or load_of(), recorded(2), settings, {"case": "c", "cpu_us": 4.5}, queue_type="classic"
    )


def test_the_row_has_a_value_in_every_column(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "sweep", 50)
    run = recording.begin("publish and consume")
    write_run(
        tmp_path,
        RunRecord(run_id=run.run_id, benchmark="broker", began_ns=1, events_dropped=5, broker_version="0.1"),
    )
    row = write(run)
    assert read_run(tmp_path, run.run_id) == row
    assert [name for name, _ in RUN_FIELDS if getattr(row, name) is None] == []
    assert (row.benchmark, row.case, row.repetition) == ("sweep", "publish and consume", 0)
    assert (row.max_link_credit, row.max_incoming_window, row.max_queue_credit) == (50, 400, 64)
    assert (row.publishers, row.consumers, row.message_size_bytes, row.rate_limit_per_s) == (2, 1, 12, 5.0)
    assert (row.protocol, row.queue_type, row.durable, row.sample_ms) == ("amqp10", "classic", False, 50)
    assert (row.events_dropped, row.broker_version) == (2 + 5, "0.1")
    told = json.loads(row.settings)
    assert told["measured"] == {"cpu_us": 4.5}
    assert told["broker_arguments"] == SETTINGS.arguments()
    assert told["clients_events_dropped"] == 2
    assert told["streams_total"] == [asdict(MORE)]
    assert told["streams_window"] == [asdict(Counts(4, 5, 1, 1, 1))]


def test_events_of_the_edges_fall_on_the_right_side_of_the_window(tmp_path: Path) -> None:
    """The sample at the beginning belongs to warm-up, that at the end to the window."""
    run = Recording(tmp_path, "sweep", 50).begin("case")
    row = write(run)
    table = read_events(tmp_path, run.run_id)
    inside = [
        count
        for at, count in zip(table["ts_ns"].to_pylist(), table["n"].to_pylist(), strict=True)
        if row.began_ns <= at < row.ended_ns
    ]
    assert inside == [4]


OFFSET_NS = 1_000_000_000
NAMES = [field.name for field in FIELDS]


def told(events: ClientEvents | bytes) -> list[dict[str, int]]:
    packed = events if isinstance(events, bytes) else events.packed()
    return [
        {name: value for name, value in zip(NAMES, values, strict=True) if value}
        for values in PACK.iter_unpack(packed)
    ]


def test_deliveries_of_one_burst_are_one_event() -> None:
    """Messages with the same time are one event; the latency tables have each of them."""
    events = ClientEvents(0)
    stream = Stream(1, events)
    stream.sample_deliveries([100, 100, 100, 250], 1000)
    assert told(events) == [
        {"ts_ns": 1000, "kind": 6, "channel": 1, "n": 3, "value_ns": 900},
        {"ts_ns": 1000, "kind": 6, "channel": 1, "n": 1, "value_ns": 750},
    ]
    assert list(stream.delivery_ns) == [900, 900, 900, 750]


def test_confirms_are_told_first_in_first_out_and_none_twice() -> None:
    """A confirm that covers part of a batch and the next one make two events; the counts add up."""
    events = ClientEvents(0)
    stream = Stream(0, events)
    pace = Pace(spec.Publish(("q",)), [stream])
    pace.sent(0, 4, 100)
    pace.sent(4, 6, 200)
    pace.confirmed(3, 0, 2, accepted=True, now_ns=1000)
    pace.confirmed(5, 3, 7, accepted=True, now_ns=2000)
    assert [(one["n"], one["value_ns"]) for one in told(events)] == [(3, 900), (1, 1900), (4, 1800)]
    assert sum(one["n"] for one in told(events)) == stream.confirmed == 8


def load_of_client(*parts: spec.Session) -> spec.Load:
    return spec.Load(ENDPOINT, (parts,), streams=2, record=True)


def test_the_events_of_a_window_add_up_to_what_its_edges_counted() -> None:
    """An event between two edges has a time after the first edge and not after the second."""
    events = ClientEvents(OFFSET_NS)
    streams = [Stream(0, events), Stream(1, events)]
    what = load_of_client(
        spec.Session(
            publish=(spec.Publish(("a",), size_bytes=10),), consume=(spec.Consume(("b",), stream=1),)
        )
    )
    recorder = ClientRecorder(what, events, streams)
    assert recorder.due_ns > 2**63, "nothing is due before the load starts"
    recorder.start(1000)
    assert recorder.due_ns == 1000 + SAMPLE_NS
    streams[0].published, streams[1].delivered = 5, 1
    recorder.edge(2000)
    streams[0].published = 11
    recorder.sample(3000)
    streams[1].delivered = 8
    recorder.edge(4000)
    streams[0].published = 12
    recorded = recorder.end(5000)
    first, second = recorded.edges
    assert (first.wall_ns, second.wall_ns) == (OFFSET_NS + 2000, OFFSET_NS + 4000)
    assert second.counts == (Counts(11, 0, 0, 0, 0), Counts(0, 0, 0, 8, 0))
    inside = [one for one in told(recorded.events) if first.wall_ns < one["ts_ns"] <= second.wall_ns]
    assert sum(one.get("n", 0) for one in inside if one["kind"] == EventKind.CLIENT_SENT) == 11 - 5
    assert sum(one.get("n", 0) for one in inside if one["kind"] == EventKind.CLIENT_RECEIVED) == 8 - 1
    assert sum(one.get("bytes", 0) for one in inside if one["kind"] == EventKind.CLIENT_SENT) == 60
    sent = [one for one in told(recorded.events) if one["kind"] == EventKind.CLIENT_SENT]
    assert sum(one["value_ns"] for one in sent) == 5000 - 1000, "elapsed times leave no gap"
    assert sum(one.get("n", 0) for one in sent) == recorded.totals[0].published == 12


def sample(case: str, cost: float | None, target: str = "broker") -> results.Row:
    return {"case": case, "target": target, "cpu_us": cost, "rate_per_s": 1e6 / (cost or 1.0)}


def document(name: str, rows: list[results.Row]) -> dict[str, object]:
    return {
        "benchmark": name,
        "label": "local",
        "question": "Why?",
        "date": "2026-01-01T00:00:00+00:00",
        "command": f"python -m benchmarks {name}",
        "revision": None,
        "machine": {"cpu": "x", "cores": 2, "kernel": "6", "python": "3.11", "load_average_1_min": 0.1},
        "columns": ["rate_per_s", "cpu_us"],
        "rows": rows,
        "tables": [],
        "notes": ["A note."],
    }


def test_rows_are_medians_with_their_range() -> None:
    """Floor and broker are different rows of one case."""
    samples = [sample("a", 3.0), sample("a", 1.0), sample("a", 2.0), sample("a", 0.1, "floor")]
    first, second = results.summarise(samples, ["cpu_us"])
    assert (first["target"], first["cpu_us"], first["cpu_us_range"]) == ("broker", 2.0, [1.0, 3.0])
    assert (second["target"], second["cpu_us"]) == ("floor", 0.1)


def test_percentiles_are_those_of_the_sorted_samples() -> None:
    """One sample in a hundred lies above the 99th."""
    latency = Latency.of([number * 1_000_000 for number in range(100)])
    assert (latency.p50_ms, latency.p99_ms, latency.max_ms, latency.samples) == (50.0, 99.0, 99.0, 100)
    assert Latency.of([]) is None


@pytest.mark.parametrize(("cost", "delivery_outcome"), [(4.9, "yes"), (5.1, "**no**")])
def test_a_target_is_judged_by_the_brokers_row(cost: float, delivery_outcome: str) -> None:
    rows = [sample("publish unsettled", 0.1, "floor"), sample("publish unsettled", cost)]
    lines = report.target_lines([document("publish", rows)])
    (line,) = [one for one in lines if one[0].startswith("publish: publish, unsettled")]
    assert line[2] == delivery_outcome


OPTIONS: dict[str, Any] = {
    "quick": True,
    "repetitions": None,
    "duration": None,
    "warmup": None,
    "size": 100,
    "credit": 1000,
    "no_floor": True,
    "record": None,
    "record_every": 50,
    "target": None,
    "max_link_credit": None,
    "max_incoming_window": None,
    "max_queue_credit": None,
    "broker_arg": [],
    "data": False,
    "data_root": Path("/disk"),
    "sync_delay_ms": 0,
    "sweep_credits": None,
    "sweep_windows": None,
    "sweep_queue_credits": None,
    "sweep_sizes": None,
    "sweep_seed": 1,
    "rate": 0.0,
}


def context(**changed: Any) -> Context:
    return Context(argparse.Namespace(**{**OPTIONS, **changed}), sweep.BENCHMARK.name)


def test_every_combination_is_measured_with_the_brokers_own_queue_credit() -> None:
    """Sizes are outermost, credits innermost; the third dimension has one value by default."""
    cells = sweep.Grid.of(context(sweep_credits=[1, 2], sweep_windows=[3, 4], sweep_sizes=[5, 6])).cells()
    assert len(cells) == 8
    assert cells[0] == sweep.Cell(5, None, 3, 1)
    assert cells[-1] == sweep.Cell(6, None, 4, 2)
    assert len({cell.name for cell in cells}) == 8


def test_each_repetition_has_an_order_of_its_own_and_a_seed_repeats_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every repetition has every case once; equal seeds give equal orders, other seeds others."""

    def measured(context: Context, case: cases.Case, target: str) -> Row:
        return {"case": case.name, "target": target}

    monkeypatch.setattr(cases, "_measured", measured)
    run = context(repetitions=4)
    all_cases = [sweep.case_of(run, cell) for cell in sweep.Grid.of(run).cells()]

    def orders(seed: int) -> list[list[str]]:
        names = [row["case"] for row in cases.run_cases(run, all_cases, Random(seed))]
        return [names[start : start + 6] for start in range(0, len(names), 6)]

    first = orders(1)
    assert all(sorted(order) == sorted(case.name for case in all_cases) for order in first)
    assert len({tuple(order) for order in first}) == 4
    assert orders(1) == first
    assert orders(2) != first
