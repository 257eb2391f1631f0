"""A recording on disk: runs, names of links, files of Parquet."""

from __future__ import annotations

import gc
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqp10broker.observe import recording as runs
from amqp10broker.observe.flow_events import FIELDS, PACK, SCHEMA_VERSION, VERSION_KEY, EventKind

WHOLE = runs.RunRecord(
    run_id="sweep-1",
    benchmark="sweep",
    case="both 100 B",
    repetition=3,
    began_ns=1_700_000_000_000_000_000,
    ended_ns=1_700_000_005_000_000_000,
    max_link_credit=170,
    max_incoming_window=400,
    max_queue_credit=256,
    message_size_bytes=100,
    queue_type="quorum",
    protocol="amqp10",
    publishers=2,
    consumers=1,
    rate_limit_per_s=1e4,
    durable=True,
    sample_ms=50,
    events_dropped=0,
    broker_version="1",
    python_version="3.11",
    machine="two cores",
    settings='{"a": 1}',
)


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = runs.write_run(tmp_path, WHOLE)
    assert path == tmp_path / "runs.parquet" / "sweep-1.parquet"
    assert runs.read_runs(tmp_path) == [WHOLE]
    assert runs.read_run(tmp_path, "sweep-1") == WHOLE
    types = pq.ParquetFile(path).schema_arrow
    assert [(name, str(types.field(name).type)) for name, _ in runs.RUN_FIELDS] == list(runs.RUN_FIELDS)


def test_a_name_that_has_a_run_gets_a_number(tmp_path: Path) -> None:
    for began_ns, expected in enumerate([("prod", 1), ("prod-2", 2), ("prod-3", 3)]):
        row, number = runs.claim_run(tmp_path, replace(WHOLE, run_id="prod", began_ns=began_ns))
        assert (row.run_id, number) == expected
        assert runs.read_run(tmp_path, row.run_id) == row
    assert runs.claim_run(tmp_path, replace(WHOLE, run_id="prod"), 7)[1] == 7
    assert runs.claim_run(tmp_path, replace(WHOLE, run_id="prod"))[1] == 4
    assert [run.began_ns for run in runs.read_runs(tmp_path)][:3] == [0, 1, 2]


@pytest.mark.parametrize("there", ["row", "events", "growing"])
def test_whatever_is_there_of_a_run_takes_its_name(tmp_path: Path, there: str) -> None:
    """This holds for rows without events, events without a row, and those of a killed helper."""
    if there == "row":
        runs.write_run(tmp_path, WHOLE)
    else:
        with runs.EventWriter(tmp_path, WHOLE.run_id) as writer:
            (writer.folder / ("_" * (there == "growing") + "part-broker-00000.parquet")).write_bytes(b"")
    assert runs.claim_run(tmp_path, WHOLE)[0].run_id == "sweep-1-2"


def test_of_many_who_ask_at_once_each_gets_a_run_of_his_own(tmp_path: Path) -> None:
    """Two brokers with one folder do this."""
    barrier = threading.Barrier(8)

    def claim(publisher_count: int) -> str:
        barrier.wait()
        row, _ = runs.claim_run(tmp_path, replace(WHOLE, run_id="prod", publishers=publisher_count))
        assert runs.read_run(tmp_path, row.run_id).publishers == publisher_count
        return row.run_id

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(claim, range(8)))
    assert sorted(got) == sorted(["prod", *(f"prod-{number}" for number in range(2, 9))])


S = 1_000_000_000
NAME = runs.LinkName(
    5 * S, int(EventKind.LINK_IN), 1, 0, 3, "grün", "/queues/q", "client", "ann", "/", "127.0.0.1:5"
)


def written(folder: Path, *names: runs.LinkName) -> Path:
    file = runs.NamesFile(folder, "r")
    for name in names:
        file.write([asdict(name)])
    file.close()
    return runs.path_of(folder, "r")


def test_names_are_found_by_the_numbers_of_an_event(tmp_path: Path) -> None:
    written(tmp_path, NAME, replace(NAME, handle=4, link="other"))
    names = runs.read_names(tmp_path, "r")
    assert len(names) == 2
    assert names.find(NAME.place, 7 * S) == NAME
    for place in ((2, 1, 0, 3), (1, 2, 0, 3), (1, 1, 1, 3), (1, 1, 0, 5)):
        assert names.find(place, 7 * S) is None


def test_numbers_that_are_used_again_are_told_apart_by_the_time() -> None:
    """A name holds from its time on, until the next."""
    names = runs.LinkNameIndex([replace(NAME, ts_ns=9 * S, link="second"), NAME])
    found = [names.find(NAME.place, at) for at in (5 * S, 9 * S - 2 * runs.LATE_NS, 9 * S, 20 * S)]
    assert [name and name.link for name in found] == ["grün", "grün", "second", "second"]
    assert (
        names.find(NAME.place, 5 * S - runs.LATE_NS) == NAME
    )  # its first event may have begun a little before
    assert names.find(NAME.place, 5 * S - 2 * runs.LATE_NS) is None


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """It is from a broker that records, or from a broker that was killed."""
    path = written(tmp_path, NAME, NAME)
    path.write_bytes(path.read_bytes()[:-9])
    assert len(runs.read_names(tmp_path, "r")) == 1


@pytest.mark.parametrize("line", [b"no json", b"{}", b'{"link": 1}', b"[]", b"\xff"])
def test_a_damaged_file_is_said(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path, NAME)
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(runs.NotARecording, match=r"r\.jsonl"):
        runs.read_names(tmp_path, "r")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    path = runs.path_of(tmp_path, "r")
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    file = runs.NamesFile(tmp_path, "r")
    with pytest.raises(runs.NotWritable, match="No space left"):
        file.write([asdict(NAME)])
    file.close()


_BITS = {"q": 63, "b": 7, "I": 32, "H": 16}


def some_events(count: int, *, seed: int = 1) -> list[tuple[int, ...]]:
    random_source = random.Random(seed)
    return [tuple(random_source.getrandbits(_BITS[field.code]) for field in FIELDS) for _ in range(count)]


def packed(events: list[tuple[int, ...]]) -> bytes:
    return b"".join(PACK.pack(*event) for event in events)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_events_size_is_a_multiple_of_every_columns() -> None:
    """`parquet._column` picks every n-th value of the whole buffer."""
    offset = 0
    for field in FIELDS:
        size = runs.array(field.code).itemsize
        assert PACK.size % size == 0
        offset += size
    assert offset == PACK.size


def test_half_an_event_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no whole number of events"):
        runs.event_table(b"x" * (PACK.size + 1))
    with (
        runs.EventWriter(tmp_path, "r") as writer,
        pytest.raises(ValueError, match="no whole number of events"),
    ):
        writer.write(b"x")


def test_a_file_is_zstd_and_says_its_version(tmp_path: Path) -> None:
    with runs.EventWriter(tmp_path, "r") as writer:
        writer.write(packed(some_events(3)))
    file = pq.ParquetFile(writer.folder / "part-00000.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.schema_arrow.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()


def test_files_of_all_writers_are_found_by_their_first_letters(tmp_path: Path) -> None:
    for prefix in ("", "broker", "clients", "broker"):
        with runs.EventWriter(tmp_path, "r", prefix) as writer:
            writer.write(packed(some_events(2)))
    found = ["part-00000", "part-broker-00000", "part-broker-00001", "part-clients-00000"]
    assert names(writer.folder) == [f"{name}.parquet" for name in found]


def test_what_is_given_up_leaves_its_room(tmp_path: Path) -> None:
    """It does so at once, although the file is open: its other name shows that."""
    writer = runs.EventWriter(tmp_path, "r", "broker", row_group_events=100)
    writer.write(packed(some_events(500)))
    part, other = writer.folder / "_part-broker-00000.parquet", tmp_path / "the same file"
    other.hardlink_to(part)
    assert other.stat().st_size > 0
    writer.write(packed(some_events(7)))
    assert writer.abandon() == 507
    gc.collect()  # a Parquet writer that is forgotten closes itself, which writes
    assert (other.stat().st_size, part.exists()) == (0, False)
    assert writer.abandon() == 0


def test_a_full_disk_is_said_parquet(tmp_path: Path) -> None:
    """/dev/full takes no byte; Parquet writes its first ones at once."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    writer = runs.EventWriter(tmp_path, "r")
    os.symlink("/dev/full", writer.folder / "_part-00000.parquet")
    writer.write(packed(some_events(10)))
    with pytest.raises(runs.NotWritable, match="No space left"):
        writer.complete_part()
    assert writer.abandon() == 10
    assert names(writer.folder) == []


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(runs.ArrowMissing, match=r"pip install 'amqp10broker\[record\]'"):
        runs.EventWriter(tmp_path, "r")


@pytest.mark.parametrize(
    ("metadata", "says"), [({VERSION_KEY: b"2"}, "layout 2"), (None, "no version of recordings")]
)
def test_another_layout_is_said(tmp_path: Path, metadata: dict[bytes, bytes] | None, says: str) -> None:
    folder = tmp_path / "events" / "run_id=r"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(metadata), folder / "a-0.parquet")
    with pytest.raises(runs.OtherVersion, match=says):
        runs.read_events(tmp_path, "r")
