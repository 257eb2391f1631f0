"""The report: one HTML file, to be read from top to bottom.

It begins with the recommendation and its certainty, then has for each group of configurations the pictures
that explain it, the figures as tables, and the definitions. Layout and fixed texts are in the template
`report.html`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import CONFIGURATION
from amqp10broker.tools.analysis import pictures
from amqp10broker.tools.analysis.configurations import (
    Compared,
    ConfigurationFigures,
    Settings,
    compare,
    describe_group,
    describe_settings,
    written_value,
)
from amqp10broker.tools.analysis.drawing import as_svg, plain, style
from amqp10broker.tools.analysis.figures import Measured
from amqp10broker.tools.analysis.inputs import RecordingData
from amqp10broker.tools.analysis.pictures import Swept
from amqp10broker.tools.analysis.recommend import NoRecommendation, Recommendation, undecided, written
from amqp10broker.tools.analysis.statistics import Estimate
from amqp10broker.tools.analysis.waits import LinkWait

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


@dataclass(frozen=True, slots=True)
class Analysed:
    """The contents of a report. `recommended` has one entry per group, in the same order; `waits` the longest
    waits first.
    """

    recording: RecordingData
    measured: Sequence[Measured]
    groups: Sequence[Sequence[ConfigurationFigures]]
    recommended: Sequence[Recommendation | NoRecommendation]
    aim: str
    waits: Sequence[LinkWait]


class _Picture(NamedTuple):
    # A figure of matplotlib, or None; SVG in the page.
    image: Any
    title: str
    caption: str


class _Table(NamedTuple):
    # A table with the number of its left-aligned columns and the numbers of its emphasised rows.

    headings: list[str]
    rows: list[list[str]]
    summary: str = ""
    texts: int = 1
    chosen: Sequence[int] = ()


class _ReportSection(NamedTuple):
    heading: str | None
    pictures: list[_Picture]
    tables: tuple[_Table, ...]


class _Section(NamedTuple):
    heading: str
    parts: list[_ReportSection]


def report(analysed: Analysed, say: Callable[[str], None] = lambda text: None) -> str:
    """Return the report as HTML. `say` is called with a text for each group before its pictures."""
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
    with style():
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
            sections=list(_sections(analysed, say)),
        )
    return html


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


def _sections(analysed: Analysed, say: Callable[[str], None]) -> Iterator[_Section]:
    numbers = count(1)
    pairs = list(zip(analysed.groups, analysed.recommended, strict=True))
    swept = [(members, one) for members, one in pairs if len({each.settings for each in members}) > 1]
    fixed = [each for members, _ in pairs if len({m.settings for m in members}) == 1 for each in members]
    for number, (members, one) in enumerate(swept, 1):
        say(f"drawing sweep {number} of {len(swept)}")
        yield _Section(describe_group(members[0].group), list(_rates(analysed, members, one, numbers)))
    for name in dict.fromkeys(each["benchmark"] for each in fixed):
        say(f"drawing the cases of {name}")
        own = [each for each in fixed if each["benchmark"] == name]
        yield _Section(f"{name}: cases with one setting each", [_cases(analysed, own, numbers)])


def _rates(
    analysed: Analysed,
    members: Sequence[ConfigurationFigures],
    one: Recommendation | NoRecommendation,
    numbers: Iterator[int],
) -> Iterator[_ReportSection]:
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
        made = _drawn(_pictures(own, chosen), numbers)
        yield _ReportSection(
            heading, made, (_configurations_table(own, chosen), _streams_table(analysed, own))
        )


def _drawn(wanted: Iterable[_Picture], numbers: Iterator[int]) -> list[_Picture]:
    return [
        each._replace(image=as_svg(each.image, next(numbers), each.title))
        for each in wanted
        if each.image is not None
    ]


def _pictures(members: Sequence[ConfigurationFigures], chosen: Settings | None) -> Iterator[_Picture]:
    swept = Swept.of(members)
    whiskers = (
        "A point is the mean over repetitions, its whisker the 95 % interval of that mean: none where there "
        "is one repetition, and one with an arrow goes on beyond the picture."
    )
    if swept is not None:
        source = members[0].runs[0].throughput_source.capitalize()
        yield _Picture(
            pictures.over_setting(members, swept, pictures.THROUGHPUT, chosen),
            "Throughput",
            f"{source}, by {swept}. {whiskers}",
        )
        yield _Picture(
            pictures.over_setting(members, swept, pictures.LATENCY, chosen),
            "Latency",
            f"99 of 100 messages were faster. {whiskers}",
        )
    many = len(members) > pictures.BARS_MAX
    yield _Picture(
        pictures.stalls(pictures.some(members, chosen), chosen),
        "Why links wait",
        "Share of the time of all links of a side, by reason; what is left empty, they did not wait. "
        "* recommended." + (f" A selection of {len(members)}." if many else ""),
    )


def _cases(
    analysed: Analysed, members: Sequence[ConfigurationFigures], numbers: Iterator[int]
) -> _ReportSection:
    # Configurations of one benchmark without varied settings.
    labels = case_names(members)
    wanted = (
        _Picture(
            pictures.stalls(members[: pictures.BARS_MAX], None, labels[: pictures.BARS_MAX]),
            "Why links wait, by case",
            "Share of the time of all links of a side, by reason; what is left empty, they did not wait.",
        ),
    )
    tables = _configurations_table(members, None, labels), _streams_table(analysed, members)
    return _ReportSection(None, _drawn(wanted, numbers), tables)


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
    """Return throughput and p99 of each configuration beside the best, for the table beside the report."""
    return [
        one
        for members in groups
        for name, highest in _COMPARED
        for one in compare(members, name, highest=highest)
    ]


def _configurations_table(
    members: Sequence[ConfigurationFigures], chosen: Settings | None, labels: Sequence[str] = ()
) -> _Table:
    columns = [column for column in _COLUMNS if any(column[0] in each.estimates for each in members)]
    rows = []
    for each, label in zip(members, labels or [describe_settings(m.settings) for m in members], strict=True):
        cells = [_cell(each.estimates.get(name), factor) for name, _, factor in columns]
        rows.append([label, str(len(each.runs)), *cells])
    first = "case" if labels else "link credit / window / queue credit"
    headings = [first, "runs", *(heading for _, heading, _ in columns)]
    marked = [number for number, each in enumerate(members) if each.settings == chosen]
    return _Table(headings, rows, f"Figures of {len(members)} configurations", chosen=marked)


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
