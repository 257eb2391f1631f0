"""The batch: one pass over the events, figures, recommendations, tables, and the report, one HTML file.

The report begins with the recommendation and its certainty, then has for each group of configurations the
figures and the reasons of waits as tables, and the definitions. Layout and fixed texts are in the template
`report.html`.

Each analysis writes each of `TABLES` beside it, as CSV and as Parquet, also without a row, with the same
columns and types, so that programs can rely on them.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events import (
    CONFIGURATION,
    EVENTS,
    GENERAL,
    NOT_HELD_UP,
    RUN_PARTITION,
    RUNS,
    EventKind,
)
from amqp10broker.observe.recording import (
    RUN_FIELDS,
    LinkNameIndex,
    NotARecording,
    check_version,
    event_schema,
    load_arrow,
    load_parquet,
    read_names,
    read_runs,
)
from amqp10broker.tools.analysis.cells import Cell, Estimate, aggregate, collect, cut, quantiles, read_events
from amqp10broker.tools.analysis.figures import (
    DEFAULTS,
    GROUP,
    METRICS,
    SETTINGS,
    SIDES,
    Compared,
    Configuration,
    ConfigurationFigures,
    Measured,
    RunStats,
    Settings,
    Stall,
    StreamStats,
    compare,
    configurations,
    describe_group,
    describe_settings,
    groups,
    in_milliseconds,
    measure,
    reason_name,
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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
    # `texts`: how many columns are left-aligned; `chosen`: the emphasised rows.

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
    # The reasons of a side, the most frequent first.
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


# --- tables -----------------------------------------------------------------------------------------

WAITS_MAX: Final = 200
_NS: Final = 1_000_000_000
_PLACE: Final = ("run_id", "kind", "connection", "channel", "handle")
_WAIT: Final = (*_PLACE, "general", "began_ns", "ended_ns", "reason")


@dataclass(frozen=True, slots=True)
class LinkWait:
    """An uninterrupted wait of one link for one reason. `link`: its name (AMQP 0-9-1: consumer tag); None
    with the next four if no names were recorded.
    """

    run_id: str
    side: str
    link: str | None
    address: str | None
    client: str | None
    user: str | None
    vhost: str | None
    connection: int
    channel: int
    handle: int
    reason: str
    began_ns: int
    seconds: float

    @property
    def subject(self) -> str:
        numbers = f"connection {self.connection}, channel {self.channel}"
        if self.link is None:
            return f"{self.side}, {numbers}, handle {self.handle}"
        return f"{self.side} {self.link} ({numbers})" if self.link else f"{self.side}, {numbers}"


def find_waits(events: DataFrame) -> list[tuple[Any, ...]]:
    """Return the longest waits of all runs, the longest first, one row of `_WAIT` each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    general = _general("reason")
    began = F.col("ts_ns") - F.col("value_ns")
    span = F.struct(F.col("value_ns").alias("length"), began.alias("began"), F.col("ts_ns").alias("ended"))
    links = F.col("kind").isin(int(EventKind.LINK_IN), int(EventKind.LINK_OUT))
    held = ~general.isin(list(NOT_HELD_UP))
    seconds = (
        events.where(links & held & (F.col("n") == 0) & (F.col("elapsed_ns") > 0))
        .groupBy(*_PLACE, general.alias("general"), F.floor(F.col("ts_ns") / _NS).alias("second"))
        .agg(
            F.sum("value_ns").alias("total"),
            F.min(began).alias("began"),
            F.max("ts_ns").alias("ended"),
            F.max(span).alias("longest"),
            F.max_by("reason", "ts_ns").alias("reason"),
        )
    )
    whole = F.col("total") == F.col("ended") - F.col("began")
    pieces = seconds.select(
        *_PLACE,
        "general",
        "reason",
        F.when(whole, F.col("began")).otherwise(F.col("longest.began")).alias("began_ns"),
        F.when(whole, F.col("ended")).otherwise(F.col("longest.ended")).alias("ended_ns"),
    )
    along = Window.partitionBy(*_PLACE, "general").orderBy("began_ns")
    apart = F.coalesce(F.lag("ended_ns").over(along) != F.col("began_ns"), F.lit(True))
    chains = pieces.withColumn("chain", F.sum(apart.cast("int")).over(along))
    waits = chains.groupBy(*_PLACE, "general", "chain").agg(
        F.min("began_ns").alias("began_ns"),
        F.max("ended_ns").alias("ended_ns"),
        F.max_by("reason", "ended_ns").alias("reason"),
    )
    order = [(F.col("ended_ns") - F.col("began_ns")).desc(), *_PLACE, "began_ns"]
    longest = waits.select(*_WAIT).orderBy(*order).limit(WAITS_MAX).toArrow().to_pydict()
    return list(zip(*(longest[name] for name in _WAIT), strict=True))


def name_waits(rows: Iterable[Sequence[Any]], names: Mapping[str, LinkNameIndex]) -> list[LinkWait]:
    return [_of_link(row, names.get(row[0])) for row in rows]


def _of_link(row: Sequence[Any], names: LinkNameIndex | None) -> LinkWait:
    run_id, kind, connection, channel, handle, _, began_ns, ended_ns, reason = row
    name = None if names is None else names.find((kind, connection, channel, handle), began_ns)
    return LinkWait(
        run_id=run_id,
        side="publisher" if kind == EventKind.LINK_IN else "consumer",
        **{each: getattr(name, each, None) for each in ("link", "address", "client", "user", "vhost")},
        connection=connection,
        channel=channel,
        handle=handle,
        reason=reason_name(reason),
        began_ns=began_ns,
        seconds=(ended_ns - began_ns) / _NS,
    )


def _general(column: str) -> Column:
    from pyspark.sql import functions as F

    value = F.col(column).cast("int")
    return reduce(
        lambda otherwise, case: F.when(value == case, F.lit(GENERAL[case])).otherwise(otherwise),
        [reason for reason, general in GENERAL.items() if reason != general],
        value,
    )


Row = dict[str, Any]
Columns = dict[str, str]

# Quantiles of latency curves.
CURVE: Final = (
    0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
)  # fmt: skip
_TYPES: Final = {
    "str": "string", "int": "int64", "int | None": "int64", "float": "double", "float | None": "double",
    "bool": "bool", "bool | None": "bool", "str | None": "string",
}  # fmt: skip
_SPREAD: Final = ("run_id", "configuration", "best")
# Of the columns of an estimated figure.
_ENDS: Final = {"": "mean", "_low": "low", "_high": "high"}
# A spreadsheet evaluates a text that begins with one of these as a formula.
_RISKY: Final = ("=", "+", "-", "@", "\t", "\r")


def columns_of(record: type) -> Columns:
    """Return the columns for the fields of a record, without those that other columns represent."""
    return {each.name: _TYPES[str(each.type)] for each in fields(record) if each.name not in _SPREAD}


def schema_of(columns: Columns) -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


_RUN_TYPES: Final = dict(RUN_FIELDS)
_NAMED: Final = {name: _RUN_TYPES[name] for name in CONFIGURATION}
_BEST: Final = {f"best_{name}": "int64" for name in SETTINGS}
_RUN: Final = {"run_id": "string", **_NAMED}

TABLES: Final[Mapping[str, Columns]] = {
    "runs": _RUN | columns_of(RunStats),
    "configurations": _NAMED
    | {"repetitions": "int64"}
    | {f"{metric}{end}": "double" for metric in METRICS for end in _ENDS},
    "stalls": _RUN | columns_of(Stall),
    "configuration_stalls": _NAMED | {"repetitions": "int64"} | columns_of(Stall),
    "streams": _RUN | columns_of(StreamStats),
    "waits": {"run_id": "string"} | columns_of(LinkWait),
    "latencies": _NAMED | {"latency": "string", "share": "double", "ms": "double", "messages": "int64"},
    "comparison": _NAMED | _BEST | columns_of(Compared) | {"relative": "double"},
    "recommendations": {"group": "string", "aim": "string"}
    | {name: _RUN_TYPES[name] for name in (*GROUP, *SETTINGS, "rate_limit_per_s")}
    | dict.fromkeys(("settings", "figure"), "string")
    | dict.fromkeys(("mean", "low", "high"), "double")
    | {"best": "string", "best_mean": "double", "proven": "bool", "default": "bool"}
    | dict.fromkeys(("as_good", "command_line", "reasons", "weak", "notes"), "string"),
}


def tables_of(
    measured: Sequence[Measured],
    found: Sequence[ConfigurationFigures],
    compared: Sequence[Compared],
    recommended: Sequence[Recommendation | NoRecommendation],
    waits: Sequence[LinkWait],
) -> dict[str, list[Row]]:
    return {
        "runs": [_spread(asdict(each.figures)) for each in measured],
        "configurations": [_configuration(each) for each in found],
        "stalls": [_spread(asdict(stall)) for each in measured for stall in each.stalls],
        "configuration_stalls": [row for each in found for row in _stalls(each, measured)],
        "streams": [_spread(asdict(stream)) for each in measured for stream in each.streams],
        "waits": [asdict(each) for each in waits],
        "latencies": [row for each in found for row in _latencies(each)],
        "comparison": [_comparison(each) for each in compared],
        "recommendations": [
            recommendation_row(one, members[0])
            for members, one in zip(groups(found), recommended, strict=True)
        ],
    }


def write_tables(folder: Path, tables: Mapping[str, Sequence[Row]]) -> list[Path]:
    """Write each table as ``NAME.csv`` and ``NAME.parquet``, replacing earlier files."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    files = []
    for name, columns in TABLES.items():
        schema = schema_of(columns)
        rows = list(tables[name])
        table = pa.Table.from_pylist(rows, schema=schema)
        harmless = pa.Table.from_pylist([_harmless(row) for row in rows], schema=schema)
        pyarrow.csv.write_csv(harmless, str(folder / f"{name}.csv"))
        pq.write_table(table, str(folder / f"{name}.parquet"), compression="zstd")
        files += [folder / f"{name}.csv", folder / f"{name}.parquet"]
    return files


def _harmless(row: Row) -> Row:
    return {
        name: f"'{value}" if isinstance(value, str) and value.startswith(_RISKY) else value
        for name, value in row.items()
    }


def recommendation_row(one: Recommendation | NoRecommendation, member: ConfigurationFigures) -> Row:
    row: Row = {"group": one.group, "aim": one.aim, **dict(zip(GROUP, member.group, strict=True))}
    if isinstance(one, NoRecommendation):
        return {**row, "reasons": one.reason}
    return {
        **row,
        **dict(zip(SETTINGS, one.chosen.settings, strict=True)),
        "rate_limit_per_s": one.chosen.rate_limit_per_s,
        "settings": one.chosen.name(),
        "figure": f"{one.figure} ({one.unit})",
        "mean": one.chosen_figure.mean,
        "low": one.chosen_figure.low,
        "high": one.chosen_figure.high,
        "best": one.best.name(),
        "best_mean": one.best_figure.mean,
        "proven": one.unproven is None,
        "default": one.chosen.settings == DEFAULTS,
        "as_good": "; ".join(each.name() for each in one.as_good),
        "command_line": one.command_line,
        "reasons": "; ".join(one.reasons),
        "weak": "; ".join(one.weak),
        "notes": "; ".join(one.notes),
    }


def _named(configuration: Configuration) -> Row:
    return dict(zip(CONFIGURATION, configuration, strict=True))


def _spread(row: Row) -> Row:
    rest = {name: value for name, value in row.items() if name not in _SPREAD}
    return {"run_id": row["run_id"], **_named(row["configuration"]), **rest}


def _configuration(each: ConfigurationFigures) -> Row:
    row: Row = {**_named(each.configuration), "repetitions": len(each.runs)}
    for metric in METRICS:
        known = each.estimates.get(metric)
        row |= {f"{metric}{end}": getattr(known, name, None) for end, name in _ENDS.items()}
    return row


def _stalls(each: ConfigurationFigures, measured: Sequence[Measured]) -> Iterable[Row]:
    # Seconds of all repetitions together, and the mean share.
    own = {run.run_id for run in each.runs}
    seconds: dict[tuple[str, str], float] = {}
    for one in measured:
        for stall in one.stalls if one.figures.run_id in own else ():
            key = (stall.side, stall.reason)
            seconds[key] = seconds.get(key, 0.0) + stall.seconds
    for (side, reason), share in each.stalls.items():
        yield {
            **_named(each.configuration),
            "repetitions": len(each.runs),
            "side": side,
            "reason": reason,
            "seconds": seconds[side, reason],
            "share": share,
        }


def _latencies(each: ConfigurationFigures) -> Iterable[Row]:
    for name, counts in each.histograms.items():
        for share, value in zip(CURVE, in_milliseconds(quantiles(counts, CURVE)), strict=True):
            yield {
                **_named(each.configuration),
                "latency": name,
                "share": share,
                "ms": value,
                "messages": sum(counts.values()),
            }


def _comparison(each: Compared) -> Row:
    row, best = asdict(each), _named(each.best)
    beside = {f"best_{name}": best[name] for name in SETTINGS}
    rest = {name: value for name, value in row.items() if name not in _SPREAD}
    return {**_named(each.configuration), **beside, **rest, "relative": each.relative}
