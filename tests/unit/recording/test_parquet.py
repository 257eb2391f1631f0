"""Packed events become Parquet files and come back as they were."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqp10broker.observe.flow_events import FIELDS, PACK, SCHEMA_VERSION, VERSION_KEY
from amqp10broker.observe.recording import runs
from amqp10broker.observe.recording.runs import (
    ArrowMissing,
    EventWriter,
    NotWritable,
    OtherVersion,
    read_events,
)

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
    with EventWriter(tmp_path, "r") as writer, pytest.raises(ValueError, match="no whole number of events"):
        writer.write(b"x")


def test_a_file_is_zstd_and_says_its_version(tmp_path: Path) -> None:
    with EventWriter(tmp_path, "r") as writer:
        writer.write(packed(some_events(3)))
    file = pq.ParquetFile(writer.folder / "part-00000.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.schema_arrow.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()


def test_files_of_all_writers_are_found_by_their_first_letters(tmp_path: Path) -> None:
    """``part-*``, and each writer counts its own."""
    for prefix in ("", "broker", "clients", "broker"):
        with EventWriter(tmp_path, "r", prefix) as writer:
            writer.write(packed(some_events(2)))
    found = ["part-00000", "part-broker-00000", "part-broker-00001", "part-clients-00000"]
    assert names(writer.folder) == [f"{name}.parquet" for name in found]


def test_what_is_given_up_leaves_its_room(tmp_path: Path) -> None:
    """At once, although the file is open: it is seen by another name that it has."""
    writer = EventWriter(tmp_path, "r", "broker", row_group_events=100)
    writer.write(packed(some_events(500)))
    part, other = writer.folder / "_part-broker-00000.parquet", tmp_path / "the same file"
    other.hardlink_to(part)
    assert other.stat().st_size > 0
    writer.write(packed(some_events(7)))
    assert writer.abandon() == 507
    gc.collect()  # a Parquet writer that is forgotten closes itself, which writes
    assert (other.stat().st_size, part.exists()) == (0, False)
    assert writer.abandon() == 0


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """/dev/full takes no byte; Parquet writes its first ones at once."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    writer = EventWriter(tmp_path, "r")
    os.symlink("/dev/full", writer.folder / "_part-00000.parquet")
    writer.write(packed(some_events(10)))
    with pytest.raises(NotWritable, match="No space left"):
        writer.complete_part()
    assert writer.abandon() == 10
    assert names(writer.folder) == []


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ArrowMissing, match=r"pip install 'amqp10broker\[record\]'"):
        EventWriter(tmp_path, "r")


@pytest.mark.parametrize(
    ("metadata", "says"), [({VERSION_KEY: b"2"}, "layout 2"), (None, "no version of recordings")]
)
def test_another_layout_is_said(tmp_path: Path, metadata: dict[bytes, bytes] | None, says: str) -> None:
    folder = tmp_path / "events" / "run_id=r"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(metadata), folder / "a-0.parquet")
    with pytest.raises(OtherVersion, match=says):
        read_events(tmp_path, "r")
