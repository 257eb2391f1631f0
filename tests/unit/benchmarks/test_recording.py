"""What a benchmark writes of a run: its row, the clients' events, and nothing of a run that failed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

import pytest

from amqp10broker.observe.flow_events.schema import EVENTS, PACK, RUN_FIELDS, RUNS, EventKind
from amqp10broker.observe.recording.parquet import EventWriter, read_events
from amqp10broker.observe.recording.runs import RunRecord, read_run, read_runs, write_run
from benchmarks import spec
from benchmarks.broker_process import BrokerSettings
from benchmarks.client_events import ClientEvents, Edge, Recorded
from benchmarks.errors import MeasureError
from benchmarks.recording import CLIENTS, RecordedRun, Recording, whole_or_nothing
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
    """Write a run with plain figures."""
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


def test_a_run_is_as_durable_as_its_first_stream(tmp_path: Path) -> None:
    """A slow neighbour's persistent messages do not make the fast queue's persistent."""
    recording = Recording(tmp_path, "two_senders", 50)
    for durable in (False, True):
        groups = (
            spec.Publish(("fast",), durable=durable),
            spec.Publish(("slow",), stream=1, durable=not durable),
        )
        row = write(recording.begin("case"), SETTINGS, load_of((spec.Session(publish=groups),)))
        assert row.durable is durable


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


def test_repetitions_are_counted_by_configuration(tmp_path: Path) -> None:
    """Another setting begins anew; another load likewise."""
    recording = Recording(tmp_path, "sweep", 50)
    settings = [SETTINGS, replace(SETTINGS, max_link_credit=51), SETTINGS, SETTINGS]
    assert [write(recording.begin("case"), one).repetition for one in settings] == [0, 0, 1, 2]
    amqp091 = load_of((spec.Channel(publish=(spec.Publish(("a",)),)),))
    row = write(recording.begin("case"), SETTINGS, amqp091)
    assert (row.protocol, row.repetition) == ("amqp091", 0)
    assert len({run.run_id for run in read_runs(tmp_path)}) == 5


def test_the_broker_is_told_where_and_how_to_record(tmp_path: Path) -> None:
    """It adds to the same run; a broker that runs already is not told anything."""
    run = Recording(tmp_path, "sweep", 7).begin("case")
    assert run.broker_arguments() == (
        "--record", str(tmp_path), "--record-run", run.run_id, "--record-every", "7",
    )  # fmt: skip
    foreign = Recording(tmp_path, "sweep", 7, own_broker=False).begin("case")
    assert foreign.broker_arguments() == ()


def test_settings_of_a_foreign_broker_are_what_the_command_line_claims_or_unknown(tmp_path: Path) -> None:
    """Ours are not written in their place, and the row says that the broker has not recorded."""
    claimed = BrokerSettings(max_link_credit=None, max_incoming_window=77)
    foreign = Recording(tmp_path, "both", 50, own_broker=False, claimed=claimed)
    row = write(foreign.begin("case"))
    assert (row.max_link_credit, row.max_incoming_window, row.max_queue_credit) == (None, 77, None)
    assert json.loads(row.settings)["broker_events"] is False


def test_of_a_run_that_failed_nothing_is_left(tmp_path: Path) -> None:
    """Neither events nor a row: readers would take them for a measurement."""
    recording = Recording(tmp_path, "sweep", 50)
    kept, failed = recording.begin("case"), recording.begin("case")
    write(kept)
    write(failed)
    with EventWriter(tmp_path, failed.run_id, "broker") as writer:
        writer.write(bytes(PACK.size))
    with pytest.raises(KeyboardInterrupt), whole_or_nothing(failed):
        raise KeyboardInterrupt
    assert [run.run_id for run in read_runs(tmp_path)] == [kept.run_id]
    assert [path.name for path in (tmp_path / EVENTS).iterdir()] == [f"run_id={kept.run_id}"]
    with whole_or_nothing(kept):
        failed.discard()
    assert [run.run_id for run in read_runs(tmp_path)] == [kept.run_id]


def test_the_files_say_who_wrote_them(tmp_path: Path) -> None:
    """The clients' events have a prefix of their own, so that broker and clients never meet in a file."""
    run = Recording(tmp_path, "sweep", 50).begin("case")
    write(run)
    (path,) = (tmp_path / EVENTS / f"run_id={run.run_id}").iterdir()
    assert path.name.startswith(f"part-{CLIENTS}-")


def test_a_run_without_a_window_is_refused(tmp_path: Path) -> None:
    """It would be all warm-up."""
    run = Recording(tmp_path, "sweep", 50).begin("case")
    no_window = replace(recorded(), edges=())
    for nothing in (None, no_window):
        with pytest.raises(MeasureError, match="recorded no window"):
            run.write(load_of(), nothing, SETTINGS, {}, queue_type="classic")


def test_a_folder_that_cannot_be_written_is_an_error_of_the_measurement(tmp_path: Path) -> None:
    """The message names the folder; other cases can still be measured."""
    import_module("pyarrow")  # without it, that is what it says
    (tmp_path / RUNS).write_text("in the way")
    run = Recording(tmp_path, "sweep", 50).begin("case")
    with pytest.raises(MeasureError, match=RUNS):
        write(run)
