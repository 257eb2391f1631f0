"""Writes packed events to Parquet files, part by part; reads them back for tests and small recordings.

A part is a file of its own. It grows under a name that begins with ``_``, a row group at a time, and gets
its real name when it is complete, so a reader never sees half a file. Nothing is synced: a recording is
no promise, and a sync would hold up those of the broker's journal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from amqp10broker.flowevents.schema import EVENTS, PACK, RUN_PARTITION
from amqp10broker.recording.arrow import check_version, event_schema, event_table, load_arrow, load_parquet
from amqp10broker.recording.errors import NotARecording, NotWritable
from amqp10broker.recording.names import check_run_id
from amqp10broker.recording.sinks import Sink

PART: Final = "part"
"""All names of files of events begin with it, so that ``part-*.parquet`` finds those that are complete."""
PART_EVENTS_MAX: Final = 2_000_000
"""About 15 MB of Parquet: few files, and each small enough for one task of Spark."""
PART_SECONDS_MAX: Final = 10.0
"""How long a reader that follows a recording waits at most for what has happened."""
ROW_GROUP_EVENTS: Final = 65_536
"""4 MB of packed events wait in memory for a row group, which takes 30 ms to make."""


class EventWriter:
    """Writes the events of one run.

    Attributes:
        folder: ``DIR/events/run_id=ID``.
        events: that were given to `write`.
        complete: those of them that are in complete files.
        parts: complete files.

    Several writers may write one run at a time if their prefixes differ. A writer that is not closed
    leaves a file whose name begins with ``_``, and what it holds is lost.
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
        """Make the folder; the first file is made with the first event.

        Args:
            recording: its folder, made if it is not there.
            run_id: of the run; see `recording.runs.check_run_id`.
            prefix: says who writes: "broker", "loader-1"; files are named ``part-PREFIX-NUMBER.parquet``, and
                ``part-NUMBER.parquet`` without one. Numbers go on behind files that are there.
            part_events_max: events after which a part is complete.
            part_seconds_max: age after which a part is complete, seen in `write` and `tick`.
            row_group_events: events of a row group: so many wait in memory.
            clock: seconds, of which only differences count.

        Raises:
            ArrowMissing: pyarrow is not installed.
            NotWritable: the folder cannot be made.
            ValueError: the run id or the prefix is no safe name of a file.
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
        """Take events; if `tick` is called, too, they can be read after `part_seconds_max` at the latest.

        Args:
            events: a whole number of them, packed by `schema.PACK`.

        Raises:
            NotWritable: the disk is full, for instance; the writer is of no use any more.
            ValueError: it is no whole number of events.
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
        """Complete the part if it is big or old enough; call it now and then when nothing is to be written.

        Raises:
            NotWritable: as `write`.
        """
        if not self._part_events:
            return
        if self._part_events >= self._part_events_max or (
            self._clock() - self._began >= self._part_seconds_max
        ):
            self.complete_part()

    def complete_part(self) -> None:
        """Give the file its name; what was written until now can be read.

        Raises:
            NotWritable: as `write`.
        """
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
        """Complete the last part. Again is no harm.

        Raises:
            NotWritable: as `write`.
        """
        self.complete_part()

    def abandon(self) -> int:
        """Give up the part that is not complete, and its room on the disk; after an error of writing.

        What is written next has that room: the row of the run has to say what is missing.

        Returns:
            Events that are lost with it.
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
    """Where the events of a run lie.

    Raises:
        ValueError: the run id is no safe name of a file.
    """
    return Path(recording) / EVENTS / f"{RUN_PARTITION}{check_run_id(run_id)}"


def read_events(recording: str | os.PathLike[str], run_id: str) -> Any:
    """All events of a run in one Arrow table, part by part and not sorted, for tests and small recordings.

    Raises:
        ArrowMissing: pyarrow is not installed.
        NotARecording: there are no events of that run, or a file is damaged.
        OtherVersion: a file has another layout.
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
