"""The runs of a recording, and the files with their events."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events import EVENTS, RUN_PARTITION, RUNS
from amqp10broker.observe.recording.runs import (
    NotARecording,
    check_version,
    event_schema,
    load_arrow,
    load_parquet,
    read_runs,
)

# Threads that open files: a remote file system has a latency for each.
_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class RecordingData:
    """The contents of a recording. `runs`: rows by the names of `schema.RUN_FIELDS`, in order of their
    beginnings; only those with events.
    """

    folder: Path
    runs: tuple[Mapping[str, Any], ...]
    files: int
    bytes: int
    without_events: tuple[str, ...]
    without_row: tuple[str, ...]

    @property
    def spans(self) -> list[tuple[str, int, int | None]]:
        return [(run["run_id"], run["began_ns"], run["ended_ns"]) for run in self.runs]


def find_recording(folder: Path) -> RecordingData:
    """Find the runs and files of a recording, without reading its events.

    Raises:
        NotARecording: the folder does not exist, or has no run or no events.
        OtherVersion: it has another layout.
        ArrowMissing: pyarrow is not installed.
    """
    if not folder.is_dir():
        raise NotARecording(str(folder), "is no folder")
    rows = {run.run_id: asdict(run) for run in read_runs(folder)}
    files = event_files(folder)
    check_layout(folder)
    if not files:
        raise NotARecording(str(folder), f"it has no events in {EVENTS}: nothing was recorded yet")
    known = [path for run_id, paths in files.items() if run_id in rows for path in paths]
    if not known:
        raise NotARecording(str(folder), f"no run of {RUNS} has events in {EVENTS}")
    return RecordingData(
        folder,
        tuple(row for run_id, row in rows.items() if run_id in files),
        len(known),
        sum(path.stat().st_size for path in known),
        tuple(sorted(set(rows) - set(files))),
        tuple(sorted(set(files) - set(rows))),
    )


def check_layout(folder: Path) -> None:
    """Check the footer of each file of events: Spark silently reads missing columns as null."""
    load_parquet()
    wanted = {field.name: field.type for field in event_schema()}
    paths = [path for paths in event_files(folder).values() for path in paths]
    with ThreadPoolExecutor(_READERS, "footer") as readers:
        for _ in readers.map(lambda path: _check_file(path, wanted), paths):
            pass


def _check_file(path: Path, wanted: Mapping[str, Any]) -> None:
    pa, pq = load_arrow(), load_parquet()
    try:
        schema = pq.read_schema(str(path))
    except (pa.ArrowException, OSError) as error:
        problem = f"cannot be read as Parquet: {error}: if it is damaged, move it away"
        raise NotARecording(str(path), problem) from error
    check_version(schema.metadata, str(path))
    found = {field.name: field.type for field in schema}
    for name, kind in wanted.items():
        if name not in found:
            raise NotARecording(str(path), f"it has no column {name}")
        if found[name] != kind:
            raise NotARecording(str(path), f"its column {name} is {found[name]} and not {kind}")


def event_files(folder: Path) -> dict[str, list[Path]]:
    """Return the complete files of each run that has any."""
    found: dict[str, list[Path]] = {}
    for path in sorted((folder / EVENTS).glob(f"{RUN_PARTITION}*/*.parquet")):
        if path.name[0] not in "_.":
            found.setdefault(path.parent.name.removeprefix(RUN_PARTITION), []).append(path)
    return found
