"""The batch: one pass over the events, figures, recommendations, tables and the report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.recording.link_names import read_names
from amqp10broker.tools.analysis.cells import Cell, aggregate, collect, cut, read_events
from amqp10broker.tools.analysis.configurations import configurations, groups
from amqp10broker.tools.analysis.errors import NothingToAnalyse, OutputNotWritable, explained
from amqp10broker.tools.analysis.figures import Measured, measure
from amqp10broker.tools.analysis.inputs import RecordingData, find_recording
from amqp10broker.tools.analysis.recommend import Aim, NoRecommendation, Recommendation, recommend_all
from amqp10broker.tools.analysis.report import Analysed, comparisons, report
from amqp10broker.tools.analysis.tables import find_waits, name_waits, tables_of, write_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ProgressLines:
    """Writes lines with the time since the start. `stream`: None for no output."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        if self._stream is not None:
            print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Write a warning, even without output of progress."""
        print(f"amqp10broker: {text}", file=self._stream or sys.stderr, flush=True)


_Row = TypeVar("_Row")
REPORT: Final = "report.html"


@dataclass(frozen=True, slots=True)
class Result:
    report: Path
    files: tuple[Path, ...]
    recommended: tuple[Recommendation | NoRecommendation, ...]
    events: int
    runs: int


def analyse(folder: Path, output: Path, aim: Aim, spark: SparkSession, progress: ProgressLines) -> Result:
    """Analyse a recording, and write the report and the tables.

    Args:
        output: a folder, created if necessary; files of an earlier analysis are replaced.

    Raises:
        RecordingError: the folder is not a recording that this version reads.
        NothingToAnalyse: its runs have no events that count.
        OutputNotWritable: the system does not allow writing there.
        SparkFailed: Spark has failed.
    """
    recording = find_recording(folder)
    make_folder(output)
    progress.say(
        f"{len(recording.runs)} runs, {recording.files} files, {recording.bytes / 1e6:,.1f} MB in {folder}"
    )
    measured = measure_all(recording, sum_up(recording, spark))
    names = {run["run_id"]: read_names(recording.folder, run["run_id"]) for run in recording.runs}
    events = sum(each.figures.events for each in measured)
    if not events:
        raise NothingToAnalyse(str(folder), "no event lies in the time that counts (behind the warm-up)")
    progress.say(f"{events:,} events counted")
    waits = name_waits(look_for_waits(recording, spark), names)
    found = configurations(measured)
    together = groups(found)
    recommended = recommend_all(together, aim)
    tables = tables_of(measured, found, comparisons(together), recommended, waits)
    analysed = Analysed(recording, measured, together, recommended, aim.describe(), waits)
    html = report(analysed)
    try:
        files = write_tables(output, tables)
        _write_whole(output / REPORT, html)
    except OSError as error:
        raise OutputNotWritable(str(output), error.strerror or str(error)) from error
    progress.say(f"{len(files) // 2} tables and the report written")
    return Result(output / REPORT, (output / REPORT, *files), tuple(recommended), events, len(recording.runs))


def sum_up(recording: RecordingData, spark: SparkSession) -> list[Cell]:
    """Return all cells of all runs, by the pass over the events."""
    return _asked(recording, spark, lambda events: collect(aggregate(events)))


def look_for_waits(recording: RecordingData, spark: SparkSession) -> list[tuple[Any, ...]]:
    """Return the longest waits of single links, as rows of `waits.find_waits`."""
    return _asked(recording, spark, find_waits)


def _asked(
    recording: RecordingData, spark: SparkSession, question: Callable[[DataFrame], list[_Row]]
) -> list[_Row]:
    with explained(recording.folder):
        return question(cut(read_events(spark, recording.folder), recording.spans))


def measure_all(recording: RecordingData, cells: Sequence[Cell]) -> list[Measured]:
    by_run: dict[str, list[Cell]] = {}
    for cell in cells:
        by_run.setdefault(cell.run_id, []).append(cell)
    return [measure(run, by_run.get(run["run_id"], [])) for run in recording.runs]


def make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputNotWritable(str(output), error.strerror or str(error)) from error
    if not os.access(output, os.W_OK):
        raise OutputNotWritable(str(output), "Permission denied")


def _write_whole(path: Path, text: str) -> None:
    # Atomic, so that readers see either the old file or the new one.
    growing = path.with_name(f"_{path.name}")
    growing.write_text(text, encoding="utf-8")
    os.replace(growing, path)
