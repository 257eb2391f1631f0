"""Rows of runs with their settings, one small Parquet file per run.

``DIR/runs.parquet`` is a folder, so that each process writes the rows of its own runs and rewrites no others.
A row may be written again with more values, and replaces the one of the same run id as a whole.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import RUN_FIELDS, RUNS
from amqp10broker.observe.recording.errors import NotARecording, NotWritable, check_run_id, numbered
from amqp10broker.observe.recording.parquet import (
    Sink,
    check_version,
    events_folder,
    load_arrow,
    load_parquet,
    run_schema,
)

__all__ = [
    "RunRecord",
    "check_run_id",
    "claim_run",
    "keep_room",
    "new_run_id",
    "read_run",
    "read_runs",
    "write_run",
]


# A row takes 7 kB, and some 20 bytes for each queue that it names.
ROW_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run: the columns of `schema.RUN_FIELDS`, where they are defined. None is null. Raises `ValueError`
    if the run id is not a safe file name.
    """

    run_id: str
    benchmark: str
    case: str = ""
    repetition: int = 0
    began_ns: int
    ended_ns: int | None = None
    max_link_credit: int | None = None
    max_incoming_window: int | None = None
    max_queue_credit: int | None = None
    message_size_bytes: int | None = None
    queue_type: str | None = None
    protocol: str | None = None
    publishers: int | None = None
    consumers: int | None = None
    rate_limit_per_s: float | None = None
    durable: bool | None = None
    sample_ms: int | None = None
    events_dropped: int | None = None
    broker_version: str | None = None
    python_version: str | None = None
    machine: str | None = None
    settings: str = "{}"

    def __post_init__(self) -> None:
        check_run_id(self.run_id)


def write_run(recording: str | os.PathLike[str], run: RunRecord) -> Path:
    """Write a run's row, atomically replacing an existing one, and return its file. Raises `NotWritable` if
    the system does not allow it.
    """
    pa, pq = load_arrow(), load_parquet()
    path = _row_of(recording, run.run_id)
    folder = path.parent
    # With the process id: two processes that write the same run use different files.
    growing = folder / f"_{run.run_id}-{os.getpid()}.parquet"
    table = pa.Table.from_pylist([asdict(run)], schema=run_schema())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sink = Sink(growing)
        try:
            pq.write_table(table, sink, compression="zstd")
            sink.publish(path)
        except BaseException:
            sink.give_up()
            raise
    except OSError as error:
        raise NotWritable(str(path), error.strerror or str(error)) from error
    return path


def claim_run(recording: str | os.PathLike[str], run: RunRecord, number: int = 1) -> tuple[RunRecord, int]:
    """Take the next free number of a run name, and write the run's row.

    No other process can get the same run id: only one creates the folder of its events. `run`: the row, with
    the name as run id: the first run of a name has it as its id. `number`: to begin with: 2 for ``NAME-2``.
    Raises `NotWritable` if the system does not allow it, and `ValueError` if the name is too long for a
    number behind it.
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
    name that occupies the space: discard it before writing the row. The system does so when the process ends.
    Raises `NotWritable` if the disk is full.
    """
    path = Path(recording) / RUNS / f"_room-{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = Sink(path)
        try:
            sink.write(os.urandom(ROW_BYTES_MAX))  # incompressible for file systems
            path.unlink()
        except BaseException:
            sink.give_up()
            raise
    except OSError as error:
        raise NotWritable(str(path.parent), error.strerror or str(error)) from error
    return sink


def read_runs(recording: str | os.PathLike[str]) -> list[RunRecord]:
    """Return all runs of a recording, in the order of their beginnings. Raises `NotARecording` if the folder
    of runs is missing, empty, or has a damaged file, and `OtherVersion` if it has another layout.
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
    """Return a unique run id: ``broker-20260102T030405-1f2e3d``.

    `now` is in seconds since 1970, None for the present.
    """
    at = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() if now is None else now))
    return check_run_id(f"{benchmark}-{at}-{secrets.token_hex(3)}")


def _row_of(recording: str | os.PathLike[str], run_id: str) -> Path:
    return Path(recording) / RUNS / f"{run_id}.parquet"


def _read(path: Path) -> RunRecord:
    pa, pq = load_arrow(), load_parquet()
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise NotARecording(str(path), f"cannot be read as Parquet: {error}") from error
    check_version(table.schema.metadata, str(path))
    row = table.to_pylist()[0]
    return RunRecord(**{name: row[name] for name, _ in RUN_FIELDS})
