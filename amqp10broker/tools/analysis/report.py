"""The batch: one pass over the events, figures, recommendations, tables, and the report, one HTML file.

The report begins with the recommendation and its certainty, then has for each group of configurations the
figures and the reasons of waits as tables, and the definitions. Layout and fixed texts are in the template
`report.html`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events import CONFIGURATION, EVENTS, RUN_PARTITION, RUNS
from amqp10broker.observe.recording import (
    NotARecording,
    check_version,
    event_schema,
    load_arrow,
    load_parquet,
    read_names,
    read_runs,
)
from amqp10broker.tools.analysis.cells import Cell, Estimate, aggregate, collect, cut, read_events
from amqp10broker.tools.analysis.figures import (
    SIDES,
    Compared,
    ConfigurationFigures,
    Measured,
    Settings,
    compare,
    configurations,
    describe_group,
    describe_settings,
    groups,
    measure,
    written_value,
)
from amqp10broker.tools.analysis.recommend import (
    Aim,
    NoRecommendation,
    Recommendation,
    recommend_all,
    undecided,
    written,
)
from amqp10broker.tools.analysis.session import NothingToAnalyse, OutputNotWritable, explained
from amqp10broker.tools.analysis.tables import LinkWait, find_waits, name_waits, tables_of, write_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Threads that open files: a remote file system has a latency for each.
_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class RecordingData:
    """The contents of a recording. `runs`: rows of `RUN_FIELDS`, in order of their beginnings; only those
    with events.
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

    Raises `NotARecording` if there is no folder, run or event, `OtherVersion`, and `ArrowMissing`.
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


_COLUMNS: Final = (
    ("throughput_per_s", "messages / s", 1.0), ("confirm_p50_ms", "confirm p50 ms", 1.0),
    ("confirm_p99_ms", "p99 ms", 1.0), ("confirm_p999_ms", "p99.9 ms", 1.0),
    ("end_to_end_p50_ms", "end to end p50 ms", 1.0), ("end_to_end_p99_ms", "p99 ms", 1.0),
    ("end_to_end_p999_ms", "p99.9 ms", 1.0), ("publisher_stall_share", "publishers wait %", 100.0),
    ("consumer_stall_share", "consumers wait %", 100.0), ("credit_utilisation", "credit used %", 100.0),
    ("window_utilisation", "window used %", 100.0),
    ("queue_credit_utilisation", "queue credit used %", 100.0),
    ("queue_depth_mean", "queue depth", 1.0), ("queue_depth_max", "max", 1.0),
    ("memory_max_bytes", "memory MB", 1e-6), ("cpu_us_per_message", "CPU µs / message", 1.0),
)  # fmt: skip
_STREAM_COLUMNS: Final = (
    ("sent_per_s", "sent / s"), ("confirmed_per_s", "confirmed / s"), ("received_per_s", "received / s"),
    ("confirm_p50_ms", "confirm p50 ms"), ("confirm_p99_ms", "p99 ms"),
    ("end_to_end_p50_ms", "end to end p50 ms"), ("end_to_end_p99_ms", "p99 ms"),
)  # fmt: skip
# The compared figures, and whether the highest is the best.
_COMPARED: Final = (("throughput_per_s", True), ("confirm_p99_ms", False), ("end_to_end_p99_ms", False))
_WAITS_SHOWN: Final = 20
# Characters that XML does not allow even escaped; names of queues and cases may contain them.
_CONTROL: Final = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Analysed:
    """The contents of a report. `recommended`: one per group, in the same order; `waits`: the longest
    first.
    """

    recording: RecordingData
    measured: Sequence[Measured]
    groups: Sequence[Sequence[ConfigurationFigures]]
    recommended: Sequence[Recommendation | NoRecommendation]
    aim: str
    waits: Sequence[LinkWait]


class _Table(NamedTuple):
    # A table with the number of its left-aligned columns and the numbers of its emphasised rows.

    headings: list[str]
    rows: list[list[str]]
    summary: str = ""
    texts: int = 1
    chosen: Sequence[int] = ()


class _Section(NamedTuple):
    heading: str
    parts: list[tuple[str | None, list[_Table]]]


def report(analysed: Analysed) -> str:
    """Return the report as HTML."""
    from jinja2 import Environment, StrictUndefined

    recording, measured = analysed.recording, analysed.measured
    # Names come from recordings, that is, from any client: all of them are escaped.
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.from_string(Path(__file__).with_name("report.html").read_text("utf-8"))
    dropped = sum(each.figures.events_dropped for each in measured)
    first = min(run["began_ns"] for run in recording.runs) / 1e9
    html: str = template.render(
        analysed=analysed,
        name=recording.folder.resolve().name,
        runs=_so_many(len(measured), "run"),
        configurations=_so_many(sum(map(len, analysed.groups)), "configuration"),
        began=time.strftime("%Y-%m-%d %H:%M", time.gmtime(first)),
        events=sum(each.figures.events for each in measured),
        dropped=dropped,
        machines=_machines(recording),
        notices=list(_notices(analysed, dropped)),
        undecided=undecided(analysed.recommended),
        interval=interval,
        waits=_waits(analysed),
        sections=list(_sections(analysed)),
    )
    return html


def plain(text: str) -> str:
    """Replace each character that XML does not allow."""
    return _CONTROL.sub("\ufffd", text)


def _notices(analysed: Analysed, dropped: int) -> Iterator[str]:
    recording = analysed.recording
    live = [each.figures.run_id for each in analysed.measured if not each.figures.complete]
    for said, names in (
        ("Still being recorded, counted up to the last event", live),
        ("Left out, for there are no events of it", recording.without_events),
        ("Left out, for nobody has said what it was", recording.without_row),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield f"{said}: {', '.join(names[:5])}{more}."
    if dropped:
        yield "Events were dropped because the recorder's buffers were full: counts are too low."


def _so_many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _machines(recording: RecordingData) -> str:
    machines, versions = (
        sorted({run[name] for run in recording.runs if run[name]}) for name in ("machine", "broker_version")
    )
    parts = [f"Broker {', '.join(versions)}."] if versions else []
    return " ".join([*parts, f"{'; '.join(machines)}."] if machines else parts)


def _waits(analysed: Analysed) -> _Table:
    began = {run["run_id"]: run["began_ns"] for run in analysed.recording.runs}
    rows = [
        [
            wait.subject,
            wait.address or "-",
            " / ".join(part for part in (wait.user, wait.client) if part) or "-",
            wait.reason,
            f"{wait.seconds:,.3f}",
            _clock(wait.began_ns),
            f"{(wait.began_ns - began[wait.run_id]) / 1e9:,.1f}",
            wait.run_id,
        ]
        for wait in analysed.waits[:_WAITS_SHOWN]
    ]
    headings = "link,address,user / client,waited for,seconds,from (UTC),run's second,run"
    return _Table(headings.split(","), rows, texts=4)


def _clock(ns: int) -> str:
    # To the millisecond; the date is at the top of the report.
    at = time.strftime("%H:%M:%S", time.gmtime(ns // 1_000_000_000))
    return f"{at}.{ns % 1_000_000_000 // 1_000_000:03}"


def interval(known: Estimate) -> str:
    """Return ``60,275 ± 1,243`` over repetitions, or a note that there was one."""
    if known.half_width is None:
        return f"{written(known.mean)} (one repetition: no interval)"
    return f"{written(known.mean)} ± {written(known.half_width)} (95 %, {known.repetitions} repetitions)"


def _sections(analysed: Analysed) -> Iterator[_Section]:
    pairs = list(zip(analysed.groups, analysed.recommended, strict=True))
    fixed = [each for members, _ in pairs if len({m.settings for m in members}) == 1 for each in members]
    for members, one in pairs:
        if len({each.settings for each in members}) > 1:
            yield _Section(describe_group(members[0].group), list(_rates(analysed, members, one)))
    for name in dict.fromkeys(each["benchmark"] for each in fixed):
        own = [each for each in fixed if each["benchmark"] == name]
        tables = _tables(analysed, own, None, case_names(own))
        yield _Section(f"{name}: cases with one setting each", [(None, tables)])


def _rates(
    analysed: Analysed, members: Sequence[ConfigurationFigures], one: Recommendation | NoRecommendation
) -> Iterator[tuple[str | None, list[_Table]]]:
    def limit(each: ConfigurationFigures) -> tuple[bool, float]:
        rate = each["rate_limit_per_s"]
        return rate is not None, rate or 0.0

    parts = [list(own) for _, own in groupby(sorted(members, key=limit), limit)]
    for own in parts:
        rate, heading = own[0]["rate_limit_per_s"], None
        if rate is not None:
            heading = f"publishers limited to {rate:,.0f} messages / s"
        elif len(parts) > 1:
            heading = "as fast as it goes"
        recommended = isinstance(one, Recommendation) and one.chosen.rate_limit_per_s == rate
        chosen = one.chosen.settings if isinstance(one, Recommendation) and recommended else None
        yield heading, _tables(analysed, own, chosen)


def _tables(
    analysed: Analysed,
    members: Sequence[ConfigurationFigures],
    chosen: Settings | None,
    labels: Sequence[str] = (),
) -> list[_Table]:
    first = "case" if labels else "link credit / window / queue credit"
    labels = labels or [describe_settings(each.settings) for each in members]
    marked = [number for number, each in enumerate(members) if each.settings == chosen]
    return [
        _configurations_table(members, first, labels, marked),
        _stalls_table(members, first, labels, marked),
        _streams_table(analysed, members),
    ]


def case_names(members: Sequence[ConfigurationFigures]) -> list[str]:
    """Return the shortest names that distinguish these configurations."""
    names = [name for name in CONFIGURATION if len({each[name] for each in members}) > 1]
    shown = [name for name in names if name not in ("publishers", "consumers", "durable")] or names

    def text(each: ConfigurationFigures) -> str:
        parts = [written_value(name, each[name]) for name in shown]
        return ", ".join(part for part in parts if part) or describe_settings(each.settings)

    short = [text(each) for each in members]
    if len(set(short)) == len(short):
        return short
    return [", ".join(written_value(name, each[name]) for name in names) for each in members]


def comparisons(groups: Sequence[Sequence[ConfigurationFigures]]) -> list[Compared]:
    """Return throughput and p99 of each configuration beside the best."""
    return [
        one
        for members in groups
        for name, highest in _COMPARED
        for one in compare(members, name, highest=highest)
    ]


def _configurations_table(
    members: Sequence[ConfigurationFigures], first: str, labels: Sequence[str], chosen: Sequence[int]
) -> _Table:
    columns = [column for column in _COLUMNS if any(column[0] in each.estimates for each in members)]
    rows = []
    for each, label in zip(members, labels, strict=True):
        cells = [_cell(each.estimates.get(name), factor) for name, _, factor in columns]
        rows.append([label, str(len(each.runs)), *cells])
    headings = [first, "runs", *(heading for _, heading, _ in columns)]
    return _Table(headings, rows, f"Figures of {len(members)} configurations", chosen=chosen)


def _stalls_table(
    members: Sequence[ConfigurationFigures], first: str, labels: Sequence[str], chosen: Sequence[int]
) -> _Table:
    # The reasons of a side, the most frequent first; empty where its links did not wait.
    rows = []
    for each, label in zip(members, labels, strict=True):
        cells = []
        for side in SIDES.values():
            own = [(share, reason) for (of, reason), share in each.stalls.items() if of == side and share]
            cells.append(", ".join(f"{reason} {share:.0%}" for share, reason in sorted(own, reverse=True)))
        rows.append([label, *cells])
    headings = [first, *(f"{side} wait for" for side in SIDES.values())]
    waited = any(any(cells) for _, *cells in rows)
    return _Table(headings, rows if waited else [], "Why links wait", texts=len(headings), chosen=chosen)


def _cell(known: Estimate | None, factor: float) -> str:
    if known is None:
        return "-"
    half = known.half_width
    return written(known.mean * factor) + ("" if half is None else f" ± {written(half * factor)}")


def _streams_table(analysed: Analysed, members: Sequence[ConfigurationFigures]) -> _Table:
    run_ids = {run.run_id for each in members for run in each.runs}
    rows = []
    for stream in (s for m in analysed.measured if m.figures.run_id in run_ids for s in m.streams):
        values = [getattr(stream, name) for name, _ in _STREAM_COLUMNS]
        cells = ["-" if value is None else written(value) for value in values]
        rows.append([stream.run_id, stream.stream, *cells])
    headings = ["run", "stream", *(heading for _, heading in _STREAM_COLUMNS)]
    return _Table(headings, rows, f"Streams of {len(run_ids)} runs", texts=2)


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

    `output` is created if necessary; files of an earlier analysis are replaced. Raises `RecordingError` if
    this version cannot read it, `NothingToAnalyse` if no event counts, `OutputNotWritable`, and
    `SparkFailed`.
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
    """Return the longest waits of single links, as rows of `find_waits`."""
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
