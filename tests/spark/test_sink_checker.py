"""The checker of the crash proofs would notice: sinks that are doctored are told from a whole one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.support.spark_rows import body, message_id, tally, tally_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES: Final = 3
ROWS: Final = 10
COUNT: Final = FILES * ROWS


def write(path: Path, numbers: range, *, wrong: int | None = None) -> None:
    table = pa.table(
        {
            "offset": pa.array(numbers, pa.int64()),
            "messageId": [message_id(number) for number in numbers],
            "body": [b"other" if number == wrong else body(number) for number in numbers],
        }
    )
    pyarrow.parquet.write_table(table, path)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark's streaming has written this sink: one file a batch, and the log of them."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "in").mkdir()
    for number in range(FILES):
        write(folder / "in" / f"{number}.parquet", range(number * ROWS, (number + 1) * ROWS))
    schema = "offset bigint, messageId string, body binary"
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "sink")).awaitTermination()
    return folder / "sink"


def log_of(sink: Path, batch: int) -> tuple[Path, list[str]]:
    path = sink / "_spark_metadata" / str(batch)
    return path, path.read_text().splitlines()


def put_log(path: Path, lines: list[str]) -> None:
    """Write the log anew, without the checksum of the old one."""
    path.write_text("\n".join(lines))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def nothing(sink: Path) -> None:
    """The sink as it was written."""


def lose_a_file(sink: Path) -> None:
    path, lines = log_of(sink, 1)
    put_log(path, lines[:1])


def count_a_file_twice(sink: Path) -> None:
    """Copy a file and list the copy in a later batch."""
    _, (_, line) = log_of(sink, 0)
    entry = json.loads(line)
    original = Path(entry["path"].removeprefix("file://"))
    copy = sink / "copy.parquet"
    shutil.copy(original, copy)
    path, lines = log_of(sink, 2)
    put_log(path, [*lines, json.dumps({**entry, "path": f"file://{copy}"})])


def leave_a_stray_file(sink: Path) -> None:
    """A failed attempt leaves such a file, in no list: it does not count."""
    write(sink / "stray.parquet", range(5, 15))


def change_a_row(sink: Path) -> None:
    _, (_, line) = log_of(sink, 0)
    entry = json.loads(line)
    path = Path(entry["path"].removeprefix("file://"))
    first = pyarrow.parquet.read_table(path)["offset"][0].as_py()
    write(path, range(first, first + ROWS), wrong=first + 4)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    log, lines = log_of(sink, 0)
    put_log(log, [lines[0], json.dumps({**entry, "size": path.stat().st_size})])


@pytest.mark.parametrize(
    ("doctor", "missing", "twice", "strange"),
    [
        (nothing, 0, 0, 0),
        (leave_a_stray_file, 0, 0, 0),
        (lose_a_file, ROWS, 0, 0),
        (count_a_file_twice, 0, ROWS, 0),
        (change_a_row, 1, 0, 1),
    ],
)
def test_a_doctored_sink_is_noticed(
    spark: SparkSession,
    whole: Path,
    tmp_path: Path,
    doctor: Callable[[Path], None],
    missing: int,
    twice: int,
    strange: int,
) -> None:
    """Lost, double and wrong rows are counted; files that the log does not list are not."""
    sink = tmp_path / "sink"
    shutil.copytree(whole, sink)
    for path, lines in (log_of(sink, batch) for batch in range(FILES)):
        put_log(path, [line.replace(str(whole), str(sink)) for line in lines])
    doctor(sink)
    found = tally(spark.read.parquet(str(sink)), COUNT, offsets=True)
    assert (len(found.missing), len(found.twice), len(found.strange)) == (missing, twice, strange), found
    assert found.exactly_once == (doctor in (nothing, leave_a_stray_file))
    assert found.nothing_lost == (doctor in (nothing, leave_a_stray_file, count_a_file_twice))


def test_rows_are_compared_with_what_was_published() -> None:
    good = [(message_id(number), body(number), number) for number in range(3)]
    assert tally_rows(good, 3).exactly_once
    assert tally_rows(good, 4).missing == (3,)
    assert tally_rows([*good, good[1]], 3).twice == (1,)
    for wrong in (
        ("m-3", body(3), 3),
        ("x", b"", 0),
        (None, b"", 0),
        ("m-1", body(2), 1),
        ("m-1", body(1), 2),
    ):
        found = tally_rows([*good, wrong], 3)
        assert found.strange == (wrong,)
        assert not found.nothing_lost
        assert found.rows == 4
