"""Writes packed events to Parquet files, part by part, and reads them for tests and small recordings.

A part is a separate file. It grows under a name that begins with ``_``, a row group at a time, and is renamed
when it is complete, so that readers see complete files only. Nothing is synced: a recording need not be
durable, and a sync would delay those of the broker's journal.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from amqp10broker.observe.flow_events.schema import (
    EVENTS,
    FIELDS,
    PACK,
    RUN_FIELDS,
    RUN_PARTITION,
    SCHEMA_VERSION,
    VERSION_KEY,
)
from amqp10broker.observe.recording.errors import (
    ArrowMissing,
    NotARecording,
    NotWritable,
    OtherVersion,
    check_run_id,
)

METADATA: Final = {VERSION_KEY: str(SCHEMA_VERSION).encode()}

# The type that `struct` packs by each letter, before it is widened to the column's type.
_SMALLER: Final = {"q": "int64", "b": "int8", "I": "uint32", "H": "uint16"}


def load_arrow() -> Any:
    """Import and return pyarrow; raise ArrowMissing if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow


def load_parquet() -> Any:
    """Import and return pyarrow.parquet; raise ArrowMissing if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow.parquet


def event_schema() -> Any:
    pa = load_arrow()
    fields = [pa.field(field.name, pa.type_for_alias(field.parquet), nullable=False) for field in FIELDS]
    return pa.schema(fields, metadata=METADATA)


def run_schema() -> Any:
    pa = load_arrow()
    return pa.schema(
        [pa.field(name, pa.type_for_alias(kind)) for name, kind in RUN_FIELDS], metadata=METADATA
    )


def event_table(events: bytes | bytearray | memoryview) -> Any:
    """Return packed events as an Arrow table with `event_schema`. Raises `ValueError` if the length is not a
    multiple of the event size, and `ArrowMissing` if pyarrow is not installed.
    """
    count, rest = divmod(len(events), PACK.size)
    if rest:
        raise ValueError(f"{len(events)} bytes are no whole number of events of {PACK.size} bytes")
    pa = load_arrow()
    view = memoryview(events).cast("B")
    columns = []
    offset = 0
    for field in FIELDS:
        column = _column(view, offset, field.code)
        buffer = pa.py_buffer(column)
        packed = pa.Array.from_buffers(pa.type_for_alias(_SMALLER[field.code]), count, [None, buffer])
        columns.append(packed.cast(pa.type_for_alias(field.parquet)))
        offset += column.itemsize
    return pa.Table.from_arrays(columns, schema=event_schema())


def check_version(metadata: dict[bytes, bytes] | None, path: str) -> None:
    """Raise OtherVersion unless the metadata of a file's Arrow schema have this layout's version."""
    text = (metadata or {}).get(VERSION_KEY)
    found = int(text) if text is not None and text.isdigit() else None
    if found != SCHEMA_VERSION:
        raise OtherVersion(path, found, SCHEMA_VERSION)


def _column(view: memoryview, offset: int, code: str) -> array[int]:
    # The whole buffer is viewed as an array of the column's type, shifted so that the column is at a multiple
    # of its size, and every n-th value is taken. The size of an event (64 bytes) is a multiple of every
    # column's, which a test checks.
    values: array[int] = array(code)
    size = values.itemsize
    shift = offset % size
    values.frombytes(view[shift : len(view) - (size - shift) % size])
    picked = values[offset // size :: PACK.size // size]
    if sys.byteorder == "big":
        picked.byteswap()
    return picked


def open_raw(path: Path) -> io.FileIO:
    """Create or truncate a file."""
    return io.FileIO(path, "wb")


class Sink:
    """A file that is written from beginning to end, with the interface that pyarrow needs.

    The file at `path` is created or truncated; it is renamed by `publish`. Methods raise OSError, for
    instance if the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw = open_raw(path)
        self._at = 0
        self._given_up = False
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write all of the data; nothing if the file was discarded."""
        size = len(data)
        if not self._given_up:
            view = memoryview(data)
            while len(view):
                written = self._raw.write(view)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                view = view[written:]
        self._at += size
        return size

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Do nothing, because the file is unbuffered."""

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if not self.closed:
            self.closed = True
            self._raw.close()

    def publish(self, path: Path) -> None:
        """Close the file and rename it, atomically replacing a file of that name."""
        self.close()
        os.replace(self._path, path)

    def give_up(self) -> None:
        """Remove the file and free its space on the disk; later writes are dropped."""
        if self._given_up:
            return
        self._given_up = True
        # A file that is not on a disk cannot be truncated; if its folder was removed, so was the file.
        if not self.closed:
            with suppress(OSError):
                self._raw.truncate(0)
        with suppress(OSError):
            self.close()
        with suppress(OSError):
            self._path.unlink()


# Prefix of all event files, so that ``part-*.parquet`` finds those that are complete.
PART: Final = "part"
# About 15 MB of Parquet: few files, and each small enough for one task of Spark.
PART_EVENTS_MAX: Final = 2_000_000
# How long a reader that follows a recording waits at most.
PART_SECONDS_MAX: Final = 10.0
# 4 MB of packed events wait in memory for a row group, which takes 30 ms to make.
ROW_GROUP_EVENTS: Final = 65_536


class EventWriter:
    """Writes the events of one run.

    Several writers may write one run at a time if their prefixes differ. A writer that is not closed leaves a
    file whose name begins with ``_``, and loses its events. After NotWritable (the disk is full, for
    instance) a writer is unusable.
    """

    def __init__(
        self,
        recording: str | os.PathLike[str],
        run_id: str,
        prefix: str = "",
        *,
        part_events_max: int = PART_EVENTS_MAX,
        part_seconds_max: float = PART_SECONDS_MAX,
        row_group_events: int = ROW_GROUP_EVENTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the folder; the first file is created with the first event.

        Args:
            prefix: the writer: "broker", "loader-1"; files are named ``part-PREFIX-NUMBER.parquet``, and
                ``part-NUMBER.parquet`` without one. Numbers continue after those of existing files.
            part_seconds_max: age after which a part is complete, checked in `write` and `tick`.
            clock: seconds, of which only differences count.

        Raises:
            ValueError: the run id or the prefix is not a safe file name.
        """
        self._pq = load_parquet()
        self._schema = event_schema()
        self.folder = events_folder(recording, run_id)
        self._prefix = f"{PART}-{check_run_id(prefix, 'prefix')}" if prefix else PART
        self._part_events_max = part_events_max
        self._part_seconds_max = part_seconds_max
        self._group_bytes = row_group_events * PACK.size
        self._clock = clock
        self.events = 0
        self.complete = 0
        self.parts = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._part: Any = None
        self._sink: Sink | None = None
        self._part_events = 0
        self._began = 0.0
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._number = self._first_number()

    def write(self, events: bytes) -> None:
        """Write events packed by `schema.PACK`; with calls of `tick` they are readable after
        `part_seconds_max`. Raises `NotWritable` if the disk is full, for instance, and `ValueError` if the
        length is not a multiple of the event size.
        """
        if not events:
            return
        if len(events) % PACK.size:
            raise ValueError(f"{len(events)} bytes are no whole number of events of {PACK.size} bytes")
        if not self._part_events:
            self._began = self._clock()
        count = len(events) // PACK.size
        self.events += count
        self._part_events += count
        self._waiting.append(events)
        self._waiting_bytes += len(events)
        if self._waiting_bytes >= self._group_bytes:
            self._write_group()
        self.tick()

    def tick(self) -> None:
        """Complete the part if it is large or old enough; call it regularly while there are no events."""
        if not self._part_events:
            return
        if self._part_events >= self._part_events_max or (
            self._clock() - self._began >= self._part_seconds_max
        ):
            self.complete_part()

    def complete_part(self) -> None:
        """Complete the part and rename its file, so that its events can be read."""
        self._write_group()
        if self._sink is None:
            return
        with _writing(self.folder):
            self._part.close()
            self._sink.publish(self._path(""))
        self._part = self._sink = None
        self._part_events = 0
        self._number += 1
        self.parts += 1
        self.complete = self.events

    def close(self) -> None:
        """Complete the last part; safe to repeat."""
        self.complete_part()

    def abandon(self) -> int:
        """Discard the incomplete part, and free its space on the disk, after an error of writing.

        The space is needed by the run's row, which records the loss.
        """
        lost, self._part_events = self._part_events, 0
        self._waiting.clear()
        self._waiting_bytes = 0
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.give_up()
        self._part = None  # this closes it, too, which writes: therefore last
        return lost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_group(self) -> None:
        if not self._waiting_bytes:
            return
        table = event_table(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0
        with _writing(self.folder):
            if self._sink is None:
                self._sink = Sink(self._path("_"))
                self._part = self._pq.ParquetWriter(self._sink, self._schema, compression="zstd")
            self._part.write_table(table)

    def _path(self, hidden: str) -> Path:
        return self.folder / f"{hidden}{self._prefix}-{self._number:05}.parquet"

    def _first_number(self) -> int:
        found = [-1]
        for path in self.folder.glob(f"{self._prefix}-*.parquet"):
            number = path.stem.removeprefix(f"{self._prefix}-")
            if number.isdigit():
                found.append(int(number))
        return max(found) + 1


def events_folder(recording: str | os.PathLike[str], run_id: str) -> Path:
    """Return the folder of the events of a run; raise ValueError if the id is not a safe file name."""
    return Path(recording) / EVENTS / f"{RUN_PARTITION}{check_run_id(run_id)}"


def read_events(recording: str | os.PathLike[str], run_id: str) -> Any:
    """Return all events of a run as one unsorted Arrow table, for tests and small recordings. Raises
    `NotARecording` if the run has no events, or a file is damaged.
    """
    pa, pq = load_arrow(), load_parquet()
    folder = events_folder(recording, run_id)
    files = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("_"))
    if not files:
        raise NotARecording(str(folder), "there are no events of this run")
    tables = []
    for path in files:
        try:
            # Not read_table: it would add a column for the folder's name.
            table = pq.ParquetFile(path).read()
        except (pa.ArrowException, OSError) as error:
            raise NotARecording(str(path), f"cannot be read as Parquet: {error}") from error
        check_version(table.schema.metadata, str(path))
        tables.append(table)
    return pa.concat_tables(tables)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritable(str(folder), error.strerror or str(error)) from error
