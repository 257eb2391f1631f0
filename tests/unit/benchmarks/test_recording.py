"""What a benchmark writes of a run: its row, the clients' events, and nothing of a run that failed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from amqp10broker.observe.flow_events import RUN_FIELDS, EventKind
from amqp10broker.observe.recording.runs import RunRecord, read_events, read_run, write_run
from benchmarks import spec
from benchmarks.broker_process import BrokerSettings
from benchmarks.client_events import ClientEvents, Edge, Recorded
from benchmarks.recording import RecordedRun, Recording
from benchmarks.stream import Counts

SOME = Counts(3, 0, 0, 1, 1)
MORE = Counts(7, 5, 1, 2, 2)
SETTINGS = BrokerSettings(max_link_credit=50, max_incoming_window=None, max_queue_credit=64)
ENDPOINT = spec.Endpoint("127.0.0.1", 1)


def load_of(*connections: spec.Connection) -> spec.Load:
    """Return a load; without connections one link that sends and one that receives."""
    usual: spec.Connections = (
        (spec.Session(publish=(spec.Publish(("a", "b"), size_bytes=12, rate_per_s=5.0),)),),
        (spec.Session(consume=(spec.Consume(("a",), size_bytes=12),)),),
    )
    return spec.Load(ENDPOINT, connections or usual)


def recorded(dropped: int = 0) -> Recorded:
    """Return what a load process hands over: two events and a window between them."""
    events = ClientEvents(0)
    events.add(1000, EventKind.CLIENT_SENT, 0, 3, 10, 36)
    events.add(2000, EventKind.CLIENT_SENT, 0, 4, 10, 48)
    return Recorded(events.packed(), dropped, (Edge(1000, (SOME,)), Edge(2000, (MORE,))), (MORE,))


def write(run: RecordedRun, settings: BrokerSettings = SETTINGS, what: spec.Load | None = None) -> RunRecord:
    return run.write(
        what or load_of(), recorded(2), settings, {"case": "c", "cpu_us": 4.5}, queue_type="classic"
    )


def test_the_row_has_a_value_in_every_column(tmp_path: Path) -> None:
    """What load, settings and the broker's own row tell; settings that nobody set are defaults."""
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
    """The sample at the beginning tells of warm-up, that at the end of the window."""
    run = Recording(tmp_path, "sweep", 50).begin("case")
    row = write(run)
    assert row.ended_ns is not None
    table = read_events(tmp_path, run.run_id)
    inside = [
        count
        for at, count in zip(table["ts_ns"].to_pylist(), table["n"].to_pylist(), strict=True)
        if row.began_ns <= at < row.ended_ns
    ]
    assert inside == [4]
