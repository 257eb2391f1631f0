"""A recording on disk: rows of runs with their settings, parts with their events, names of their links.

Parquet needs pyarrow (the extras ``record`` and ``spark``), imported where it is used. Nothing is synced: a
recording need not be durable, and a sync would delay those of the broker's journal.

``DIR/runs.parquet`` has a file per run, so that each process rewrites only its own. ``names/RUN_ID.jsonl``
has a line of JSON (`LinkName`) for each link when it is first seen, written at once, so that a broker that is
killed leaves them. Handles are reused: a name is valid until the next one with the same numbers.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import secrets
import sys
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.observe.flow_events import (
    EVENTS,
    FIELDS,
    NAMES,
    PACK,
    RUN_PARTITION,
    RUNS,
    SCHEMA_VERSION,
    VERSION_KEY,
)


class RecordingError(BrokerError):
    """A recording cannot be written or read; the message contains the remedy."""


class ArrowMissing(RecordingError):
    """pyarrow is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "recordings are Parquet files and need pyarrow, which is not installed; "
            "install it with: pip install 'amqp10broker[record]'"
        )


class NotWritable(RecordingError):
    """A file cannot be written. `problem`: the system's text, such as "Permission denied"."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: cannot be written: {problem}; "
            "name a folder that this user may write to, on a disk that has room"
        )


class NotARecording(RecordingError):
    """The folder is not a recording. `problem`: a clause: what is missing or wrong."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}; name a folder that `serve --record` or a benchmark has written: "
            "it holds the folders runs.parquet and events"
        )


class OtherVersion(RecordingError):
    """The files have another layout. `found`: its version; None: they have none."""

    def __init__(self, path: str, found: int | None) -> None:
        what = "has no version of recordings" if found is None else f"was recorded with layout {found}"
        super().__init__(
            f"{path}: {what}, this program reads layout {SCHEMA_VERSION}; "
            "read it with the version of amqp10broker that recorded it, or record anew"
        )


_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# The length of a run name, which leaves room for a suffix with a number.
NAME_MAX: Final = 120


def check_run_id(name: str, what: str = "run id") -> str:
    """Return a valid run id, or prefix of files: up to 128 letters, digits, ``.``, ``_`` and ``-``, a letter
    or digit first, since readers ignore files that begin with ``_`` or ``.``. Raises `ValueError`.

    Readers must declare the partition column as text: those that infer types take ``2026-01-01`` for a date.
    """
    if not _SAFE.fullmatch(name):
        raise ValueError(
            f"{what} is {name!r}; it must be 1 to 128 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


def check_run_name(name: str) -> str:
    """Return a name for many runs; each but the first has a number as a suffix. Raises `ValueError` if it is
    not a run id, or too long for a number.
    """
    check_run_id(name)
    if len(name) > NAME_MAX:
        raise ValueError(
            f"run id has {len(name)} letters; a name for runs must have {NAME_MAX} at most, because the runs "
            "that follow get a number behind it"
        )
    return name


def numbered(name: str, number: int) -> str:
    """Return the id of the n-th run of a name: ``prod``, ``prod-2``, ``prod-3``."""
    return name if number == 1 else f"{name}-{number}"


METADATA: Final = {VERSION_KEY: str(SCHEMA_VERSION).encode()}

# The type that `struct` packs by each letter, before it is widened to the column's type.
_SMALLER: Final = {"q": "int64", "b": "int8", "I": "uint32", "H": "uint16"}


def load_arrow() -> Any:
    """Return pyarrow; raise ArrowMissing if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow


def load_parquet() -> Any:
    """Return pyarrow.parquet, likewise."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow.parquet


def event_schema() -> Any:
    pa = load_arrow()
    columns = [pa.field(field.name, pa.type_for_alias(field.parquet), nullable=False) for field in FIELDS]
    return pa.schema(columns, metadata=METADATA)


def event_table(events: bytes | bytearray | memoryview) -> Any:
    """Return packed events as an Arrow table. Raises `ValueError` for a part of an event."""
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
    """Raise OtherVersion unless a file's Arrow schema has this layout's version."""
    text = (metadata or {}).get(VERSION_KEY)
    found = int(text) if text is not None and text.isdigit() else None
    if found != SCHEMA_VERSION:
        raise OtherVersion(path, found)


def _column(view: memoryview, offset: int, code: str) -> array[int]:
    # The buffer is viewed as an array of the column's type, shifted so that that is at a multiple of its
    # size, and every n-th value is taken. A test checks that an event's size is a multiple of every column's.
    values: array[int] = array(code)
    size = values.itemsize
    shift = offset % size
    values.frombytes(view[shift : len(view) - (size - shift) % size])
    picked = values[offset // size :: PACK.size // size]
    if sys.byteorder == "big":
        picked.byteswap()
    return picked


def open_raw(path: Path) -> io.FileIO:
    return io.FileIO(path, "wb")


class Sink:
    """A file that is written from beginning to end, with the interface that pyarrow needs, and renamed by
    `publish`. Methods raise OSError.
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
        """Do nothing: the file is unbuffered."""

    def close(self) -> None:
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


# With this prefix ``part-*.parquet`` finds the complete files.
PART: Final = "part"
# About 15 MB of Parquet: few files, and each small enough for one task of Spark.
PART_EVENTS_MAX: Final = 2_000_000
# How long a reader that follows a recording waits at most.
PART_SECONDS_MAX: Final = 10.0
# 4 MB of packed events wait in memory for a row group, which takes 30 ms to make.
ROW_GROUP_EVENTS: Final = 65_536


class EventWriter:
    """Writes the events of one run.

    Several writers may write one run if their prefixes differ. A writer that is not closed leaves a file
    whose name begins with ``_``, and loses its events. After NotWritable a writer is unusable.
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
            prefix: "broker", "loader-1", of ``part-PREFIX-NUMBER.parquet``. Numbers continue after those of
                existing files.
            part_seconds_max: age after which a part is complete, checked in `write` and `tick`.
            clock: seconds, of which only differences count.

        Raises `ValueError` if the run id or the prefix is not a safe file name.
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
        """Write events packed by `PACK`. Raises `NotWritable`, and `ValueError` if the length is not a
        multiple of the event size.
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
        """Complete the part if it is large or old enough; to be called while there are no events."""
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
        """Discard the incomplete part, after an error of writing, and free its space, which the run's row
        needs. Returns the number of lost events.
        """
        lost, self._part_events = self._part_events, 0
        self._waiting.clear()
        self._waiting_bytes = 0
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.give_up()
        self._part = None  # this closes it, too, which writes: so it comes last
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
    return Path(recording) / EVENTS / f"{RUN_PARTITION}{check_run_id(run_id)}"


def read_events(recording: str | os.PathLike[str], run_id: str) -> Any:
    """Return all events of a run as one unsorted Arrow table, for tests and small recordings. Raises
    `NotARecording`.
    """
    folder = events_folder(recording, run_id)
    files = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("_"))
    if not files:
        raise NotARecording(str(folder), "there are no events of this run")
    return load_arrow().concat_tables(map(_read_table, files))


def _read_table(path: Path) -> Any:
    pa, pq = load_arrow(), load_parquet()
    try:
        # Not read_table: it would add a column for the folder's name.
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise NotARecording(str(path), f"cannot be read as Parquet: {error}") from error
    check_version(table.schema.metadata, str(path))
    return table


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritable(str(path), error.strerror or str(error)) from error


# A row takes 7 kB, and some 20 bytes for each queue that it names.
ROW_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run; None is null. Raises `ValueError` if the run id is not a safe file name."""

    run_id: str
    benchmark: str  # "sweep", "two_senders", ...; "broker" for a broker's own recording
    case: str = ""  # equal for all repetitions of all settings
    repetition: int = 0  # a broker counts those of one configuration in one recording
    began_ns: int  # events before are warm-up
    ended_ns: int | None = None  # null during the run: up to the last event
    max_link_credit: int | None = None
    max_incoming_window: int | None = None
    max_queue_credit: int | None = None
    message_size_bytes: int | None = None  # null if unknown, as the next ones
    queue_type: str | None = None
    protocol: str | None = None  # "amqp10", "amqp091"; null: unknown, or both ("protocols" in the settings)
    publishers: int | None = None
    consumers: int | None = None
    rate_limit_per_s: float | None = None  # null: unlimited
    durable: bool | None = None
    sample_ms: int | None = None
    events_dropped: int | None = None  # null during the run
    broker_version: str | None = None
    python_version: str | None = None
    machine: str | None = None
    settings: str = "{}"  # all other settings, as a JSON object

    def __post_init__(self) -> None:
        check_run_id(self.run_id)


_SHORT: Final = ("repetition", "publishers", "consumers")
_ARROW_TYPES: Final = {"str": "string", "int": "int64", "float": "double", "bool": "bool"}
RUN_FIELDS: Final = tuple(
    (each.name, "int32" if each.name in _SHORT else _ARROW_TYPES[str(each.type).partition(" ")[0]])
    for each in fields(RunRecord)
)
"""Columns of a run: name and Arrow type."""


def write_run(recording: str | os.PathLike[str], run: RunRecord) -> Path:
    """Write a run's row, atomically replacing an existing one. Raises `NotWritable`."""
    pa, pq = load_arrow(), load_parquet()
    path = _row_of(recording, run.run_id)
    folder = path.parent
    # With the process id: two processes that write the same run use different files.
    growing = folder / f"_{run.run_id}-{os.getpid()}.parquet"
    columns = [pa.field(name, pa.type_for_alias(kind)) for name, kind in RUN_FIELDS]
    table = pa.Table.from_pylist([asdict(run)], schema=pa.schema(columns, metadata=METADATA))
    with _writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        sink = Sink(growing)
        try:
            pq.write_table(table, sink, compression="zstd")
            sink.publish(path)
        except BaseException:
            sink.give_up()
            raise
    return path


def claim_run(recording: str | os.PathLike[str], run: RunRecord, number: int = 1) -> tuple[RunRecord, int]:
    """Take the next free `number` of a run name, the run id of `run`, and write the row.

    No other process can get the same run id: only one creates the folder of its events. Raises `NotWritable`,
    and `ValueError` if the name is too long for a number behind it.
    """
    load_parquet()
    while True:
        claimed = replace(run, run_id=numbered(run.run_id, number))
        folder = events_folder(recording, claimed.run_id)
        if _taken(folder, _row_of(recording, claimed.run_id)):
            break
        number += 1
    try:
        write_run(recording, claimed)
    except BaseException:
        folder.rmdir()
        raise
    return claimed, number


def _taken(folder: Path, row: Path) -> bool:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(row):  # its events were removed: a reader must not attribute ours to that row
            return False
        folder.mkdir()
    except FileExistsError as error:
        if os.path.lexists(folder):
            return False
        raise NotWritable(str(folder.parent), error.strerror or str(error)) from error
    except OSError as error:
        raise NotWritable(str(folder), error.strerror or str(error)) from error
    return True


def keep_room(recording: str | os.PathLike[str]) -> Sink:
    """Reserve space for a row that must be written even if the disk is full then. Returns a file without a
    name that occupies it, to be discarded before; the system does so when the process ends. Raises
    `NotWritable`.
    """
    path = Path(recording) / RUNS / f"_room-{os.getpid()}"
    with _writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = Sink(path)
        try:
            sink.write(os.urandom(ROW_BYTES_MAX))  # incompressible for file systems
            path.unlink()
        except BaseException:
            sink.give_up()
            raise
    return sink


def read_runs(recording: str | os.PathLike[str]) -> list[RunRecord]:
    """Return all runs, in the order of their beginnings. Raises `NotARecording` if there is none, or a file
    is damaged, and `OtherVersion`.
    """
    folder = Path(recording) / RUNS
    paths = [path for path in folder.glob("*.parquet") if path.name[0] not in "_."]
    if not paths:
        raise NotARecording(str(recording), f"it has no {RUNS} with a run in it")
    runs = [_read(path) for path in paths]
    return sorted(runs, key=lambda run: (run.began_ns, run.run_id))


def read_run(recording: str | os.PathLike[str], run_id: str) -> RunRecord:
    path = _row_of(recording, check_run_id(run_id))
    if not path.exists():
        raise NotARecording(str(recording), f"it has no run {run_id!r}")
    return _read(path)


def new_run_id(benchmark: str, *, now: float | None = None) -> str:
    """Return a unique run id: ``broker-20260102T030405-1f2e3d``. `now`: seconds since 1970."""
    at = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() if now is None else now))
    return check_run_id(f"{benchmark}-{at}-{secrets.token_hex(3)}")


def _row_of(recording: str | os.PathLike[str], run_id: str) -> Path:
    return Path(recording) / RUNS / f"{run_id}.parquet"


def _read(path: Path) -> RunRecord:
    row = _read_table(path).to_pylist()[0]
    return RunRecord(**{name: row[name] for name, _ in RUN_FIELDS})


# The most by which a name may be later than the first event's beginning, because the two clocks are read one
# after the other.
LATE_NS: Final = 1_000_000
Place = tuple[int, int, int, int]
"""Kind (`LINK_IN` or `LINK_OUT`), connection, channel and handle of an event."""


@dataclass(frozen=True, slots=True)
class LinkName:
    """One link; in AMQP 0-9-1 the publishing side of a channel, or a consumer.

    Attributes:
        ts_ns: wall clock since 1970; before, the numbers belonged to another link.
        link: its name, or the consumer's tag; "" for the publishing side of a channel.
        address: of AMQP 1.0, or a queue's name; "" for an anonymous terminus, and for the publishing side.
        client: container-id, or the connection name; "" without one.
    """

    ts_ns: int
    kind: int
    connection: int
    channel: int
    handle: int
    link: str
    address: str
    client: str
    user: str
    vhost: str
    peer: str

    @property
    def place(self) -> Place:
        return self.kind, self.connection, self.channel, self.handle

    @classmethod
    def read(cls, line: str) -> Self:
        """Parse a line of the file."""
        return cls(**json.loads(line))


class NamesFile:
    """Writes the names of one run; a run without links has no file."""

    def __init__(self, recording: str | os.PathLike[str], run_id: str) -> None:
        self._path = path_of(recording, run_id)
        self._file: TextIO | None = None

    def write(self, names: Iterable[dict[str, Any]]) -> None:
        """Add names, and pass them to the system."""
        with _writing(self._path):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
            self._file.writelines(f"{json.dumps(name)}\n" for name in names)
            self._file.flush()

    def close(self) -> None:
        # Errors of writing were raised by `write`.
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # a line did not fit on the disk, which `write` has reported
                file.close()


class LinkNameIndex:
    """Finds the name of a link by the numbers and the time of an event."""

    def __init__(self, names: Iterable[LinkName]) -> None:
        self._by_place: dict[Place, list[LinkName]] = {}
        for name in sorted(names, key=lambda name: name.ts_ns):
            self._by_place.setdefault(name.place, []).append(name)

    def __len__(self) -> int:
        return sum(map(len, self._by_place.values()))

    def find(self, place: Place, began_ns: int) -> LinkName | None:
        """Return the link that had these numbers then; None: it was not recorded."""
        found = self._by_place.get(place, [])
        at = bisect_right(found, began_ns + LATE_NS, key=lambda name: name.ts_ns)
        return found[at - 1] if at else None


def path_of(recording: str | os.PathLike[str], run_id: str) -> Path:
    return Path(recording) / NAMES / f"{check_run_id(run_id)}.jsonl"


def read_names(recording: str | os.PathLike[str], run_id: str) -> LinkNameIndex:
    """Return the names of a run, if they were recorded.

    An incomplete last line is ignored: it is being written, or could not be. Raises `NotARecording`.
    """
    path = path_of(recording, run_id)
    try:
        lines = path.read_text("utf-8").split("\n")
    except FileNotFoundError:
        return LinkNameIndex(())
    except (OSError, UnicodeDecodeError) as error:
        raise NotARecording(str(path), f"cannot be read: {error}: if it is damaged, move it away") from error
    try:
        return LinkNameIndex(LinkName.read(line) for line in lines[:-1])
    except (ValueError, TypeError) as error:
        raise NotARecording(str(path), f"has a line that is no name: {error}: move it away") from error
