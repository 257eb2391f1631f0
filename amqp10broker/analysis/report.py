"""The report: one HTML file with everything in it, to be read from top to bottom.

First what to set and how sure that is, then, for each group of configurations, the pictures that show
why, then the figures as tables, then what the words mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amqp10broker.analysis import pictures
from amqp10broker.analysis.configurations import (
    Compared,
    ConfigurationFigures,
    compare,
    describe_group,
    describe_settings,
    written_value,
)
from amqp10broker.analysis.drawing import as_svg, style
from amqp10broker.analysis.figures import Measured
from amqp10broker.analysis.inputs import Recording
from amqp10broker.analysis.page import bullets, details, element, figure, page, table
from amqp10broker.analysis.pictures import Settings, Swept
from amqp10broker.analysis.recommend import Recommendation, Undecided, written
from amqp10broker.analysis.statistics import Estimate, estimate
from amqp10broker.analysis.waits import LinkWait
from amqp10broker.analysis.wording import WORDS
from amqp10broker.flowevents.schema import CONFIGURATION

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

_WAITS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Analysed:
    """All that is known when the report is written."""

    recording: Recording
    measured: Sequence[Measured]
    groups: Sequence[Sequence[ConfigurationFigures]]
    recommended: Sequence[Recommendation | Undecided]
    """One for each group, in the same order."""
    aim: str
    waits: Sequence[LinkWait]
    """Of single links, the longest first."""


def report(analysed: Analysed, say: Callable[[str], None] = lambda text: None) -> str:
    """The report as HTML.

    Args:
        analysed: what it tells.
        say: is told of each group whose pictures are drawn.
    """
    name = analysed.recording.folder.resolve().name
    body = [element("h1", f"Flow control: what {name} shows"), *_summary(analysed)]
    body.append(element("h2", f"What to set for the {analysed.aim}"))
    body += [_card(one) for one in analysed.recommended if isinstance(one, Recommendation)]
    body += _undecided([one for one in analysed.recommended if isinstance(one, Undecided)])
    body += _waits(analysed)
    counter = iter(range(1, 1_000_000))
    pairs = list(zip(analysed.groups, analysed.recommended, strict=True))
    with style():
        swept = [(m, one) for m, one in pairs if len({each.settings for each in m}) > 1]
        fixed = [m for m, _ in pairs if len({each.settings for each in m}) == 1]
        benchmarks = dict.fromkeys(members[0]["benchmark"] for members in fixed)
        for number, (members, one) in enumerate(swept, 1):
            say(f"drawing sweep {number} of {len(swept)}")
            body += _group(analysed, members, one, counter)
        for name in benchmarks:
            say(f"drawing the cases of {name}")
            own = [each for members in fixed for each in members if each["benchmark"] == name]
            body += _cases(analysed, name, own, counter)
    body.append(element("h2", "What the words mean"))
    body.append("<dl>" + "".join(element("dt", word) + element("dd", text) for word, text in WORDS) + "</dl>")
    return page(f"Flow control: {name}", body)


def _summary(analysed: Analysed) -> Iterator[str]:
    recording, measured = analysed.recording, analysed.measured
    events = sum(each.figures.events for each in measured)
    dropped = sum(each.figures.events_dropped for each in measured)
    first = min(run["began_ns"] for run in recording.runs) / 1e9
    configurations = sum(len(members) for members in analysed.groups)
    at = time.strftime("%Y-%m-%d %H:%M", time.gmtime(first))
    yield element(
        "p",
        f"{_so_many(len(measured), 'run')} of {_so_many(configurations, 'configuration')} from {at} UTC on, "
        f"{events:,} events, {dropped:,} dropped. {_machines(recording)}",
        "soft",
    )
    notices = []
    live = [each.figures.run_id for each in measured if not each.figures.complete]
    if live:
        notices.append(f"Still being recorded, counted up to the last event: {_few(live)}.")
    if recording.without_events:
        notices.append(f"Left out, for there are no events of it: {_few(recording.without_events)}.")
    if recording.without_row:
        notices.append(f"Left out, for nobody has said what it was: {_few(recording.without_row)}.")
    if dropped:
        notices.append("Events were dropped because the recorder's buffers were full: counts are too low.")
    yield bullets(notices, "warn")


def _so_many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _machines(recording: Recording) -> str:
    machines = sorted({run["machine"] for run in recording.runs if run["machine"]})
    versions = sorted({run["broker_version"] for run in recording.runs if run["broker_version"]})
    parts = [
        f"Broker {', '.join(versions)}." if versions else "",
        f"{'; '.join(machines)}." if machines else "",
    ]
    return " ".join(part for part in parts if part)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _undecided(found: Sequence[Undecided]) -> Iterator[str]:
    """One card for all groups that lack a recommendation for the same reason."""
    for reason in dict.fromkeys(one.reason for one in found):
        names = bullets([one.group for one in found if one.reason == reason])
        yield f'<div class="card none">{element("h3", f"No recommendation: {reason}")}{names}</div>'


def _waits(analysed: Analysed) -> Iterator[str]:
    """Which link stalled, when and why."""
    yield element("h2", "The longest waits of single links")
    waits = analysed.waits[:_WAITS_SHOWN]
    if not waits:
        yield element("p", "No link waited for anything but messages: nothing held one up.", "soft")
        return
    began = {run["run_id"]: run["began_ns"] for run in analysed.recording.runs}
    rows = [
        [
            wait.who,
            wait.address or "-",
            " / ".join(part for part in (wait.user, wait.client) if part) or "-",
            wait.reason,
            f"{wait.seconds:,.3f}",
            _clock(wait.began_ns),
            f"{(wait.began_ns - began[wait.run_id]) / 1e9:,.1f}",
            wait.run_id,
        ]
        for wait in waits
    ]
    headings = (
        "link",
        "address",
        "user / client",
        "waited for",
        "seconds",
        "from (UTC)",
        "run's second",
        "run",
    )
    yield table(headings, rows, texts=4)
    more = f" These are {len(waits)} of {len(analysed.waits)}." if len(analysed.waits) > len(waits) else ""
    yield element(
        "p",
        "A link waits when it could move nothing and moved nothing for all of the time. Consumers that only "
        f"waited for a message are not listed.{more} All of them stand in waits.csv.",
        "soft",
    )


def _clock(ns: int) -> str:
    """A time of the day, to the millisecond. The date stands at the top of the report."""
    at = time.strftime("%H:%M:%S", time.gmtime(ns // 1_000_000_000))
    return f"{at}.{ns % 1_000_000_000 // 1_000_000:03}"


def _card(one: Recommendation) -> str:
    weak = element("p", "What makes the evidence weak:", "warn") + bullets(one.weak) if one.weak else ""
    notes = element("p", "To mind:", "warn") + bullets(one.notes) if one.notes else ""
    code = f'<div class="side">{element("pre", one.command_line)}{element("pre", one.toml)}</div>'
    text = f"{one.figure} {interval(one.chosen_figure)} {one.unit}"
    if one.unproven is not None:
        said = f"Not proven: {one.unproven}. Leave the settings as they are, or measure again."
        doubt = element("p", said, "figure") + element("p", "If they are all you have, these would be it:")
        return (
            f'<div class="card none">{element("h3", one.group)}{doubt}{element("p", text)}{code}'
            f"{bullets(one.reasons)}{weak}{notes}</div>"
        )
    return (
        f'<div class="card">{element("h3", one.group)}{element("p", text, "figure")}{code}'
        f"{bullets(one.reasons)}{weak}{notes}</div>"
    )


def interval(known: Estimate, factor: float = 1.0) -> str:
    """``60,275 ± 1,243`` over repetitions, or that there was one."""
    mean = written(known.mean * factor)
    if known.half_width is None:
        return f"{mean} (one repetition: no interval)"
    return f"{mean} ± {written(known.half_width * factor)} (95 %, {known.repetitions} repetitions)"


def _group(
    analysed: Analysed,
    members: Sequence[ConfigurationFigures],
    one: Recommendation | Undecided,
    counter: Iterator[int],
) -> Iterator[str]:
    group = describe_group(members[0].group)
    yield element("h2", group)
    rates = sorted(
        {each["rate_limit_per_s"] for each in members}, key=lambda rate: (rate is not None, rate or 0.0)
    )
    for rate in rates:
        own = [each for each in members if each["rate_limit_per_s"] == rate]
        if len(rates) > 1 or rate is not None:
            limit = (
                "as fast as it goes" if rate is None else f"publishers limited to {rate:,.0f} messages / s"
            )
            yield element("h3", limit)
        chosen = None
        if isinstance(one, Recommendation) and one.chosen.rate_limit_per_s == rate:
            chosen = one.chosen.settings
        yield from _pictures(analysed, own, chosen, one, counter)
        yield _configurations_table(own, chosen)
        yield _streams_table(analysed, own)


def _pictures(
    analysed: Analysed,
    members: Sequence[ConfigurationFigures],
    chosen: Settings | None,
    one: Recommendation | Undecided,
    counter: Iterator[int],
) -> Iterator[str]:
    def put(made: Any, title: str, caption: str) -> Iterator[str]:
        if made is not None:
            yield figure(as_svg(made, next(counter), title), f"{title}. {caption}")

    swept = Swept.of(members)
    whiskers = (
        "A point is the mean over repetitions, its whisker the 95 % interval of that mean: none where there "
        "is one repetition, and one with an arrow goes on beyond the picture."
    )
    if swept is not None:
        yield from put(
            pictures.throughput(members, swept, chosen) if _any(members, "throughput_per_s") else None,
            "Throughput",
            f"{members[0].runs[0].throughput_source.capitalize()}, by {_varied(swept)}. {whiskers}",
        )
        yield from put(
            pictures.heat(members, swept, chosen),
            "Throughput of every combination",
            "Brighter is faster; the frame marks the recommended settings.",
        )
        yield from put(
            pictures.latency(members, swept, chosen), "Latency", f"99 of 100 messages were faster. {whiskers}"
        )
    curves = _curves(members, chosen)
    yield from put(
        pictures.latency_curves(curves),
        "Latency curves",
        "The share of messages below took at most the time at the left; the last ten messages are not drawn. "
        "The histograms of all repetitions are added, and a value is at most 4.4 % off.",
    )
    some = f" A selection of {len(members)}." if len(members) > pictures.BARS_MAX else ""
    more = f" The first {pictures.BARS_MAX} of {len(members)}." if len(members) > pictures.BARS_MAX else ""
    yield from put(
        pictures.stalls(pictures.some(members, chosen), chosen),
        "Why links wait",
        f"Share of the time of all links of a side, by reason; what is left empty, they did not wait. "
        f"* recommended.{some}",
    )
    if swept is not None:
        yield from put(
            pictures.utilisation(members, swept),
            "Utilisation",
            "How much of a limit is used up, as the broker sees it when it looks: mostly when it has just "
            "granted anew. Near 100 % the limit holds the link back; near 0 % it may do so all the same.",
        )
        yield from put(
            pictures.resources(members, swept), "Memory and processor time of the broker", whiskers
        )
    figure_name, unit, highest = _compared_figure(one)
    compared = compare(members, figure_name, highest=highest)
    if len(compared) > 1:
        yield from put(
            pictures.comparison(compared, unit, chosen),
            "Differences to the best",
            "The best first. A point is the mean, a line the 95 % interval of its difference to the best, by "
            "the scatter of all repetitions together; where it crosses 0 the repetitions do not tell the two "
            f"apart. A line that reaches the edge goes on.{more}",
        )


def _cases(
    analysed: Analysed, name: str, members: Sequence[ConfigurationFigures], counter: Iterator[int]
) -> Iterator[str]:
    """Configurations of one benchmark whose settings were not varied: case beside case."""
    yield element("h2", f"{name}: cases with one setting each")
    labels = case_names(members)
    rates = [(label, _stream_rates(analysed, each)) for label, each in zip(labels, members, strict=True)]
    for made, title, caption in (
        (
            pictures.rates(rates[: pictures.BARS_MAX]),
            "Rates by case",
            "Mean over repetitions of each stream; whiskers: 95 % interval, none where there is one.",
        ),
        (
            pictures.stalls(members[: pictures.BARS_MAX], None, labels[: pictures.BARS_MAX]),
            "Why links wait, by case",
            "Share of the time of all links of a side, by reason; what is left empty, they did not wait.",
        ),
    ):
        if made is not None:
            yield figure(as_svg(made, next(counter), title), f"{title}. {caption}")
    yield _configurations_table(members, None, labels)
    yield _streams_table(analysed, members)


def case_names(members: Sequence[ConfigurationFigures]) -> list[str]:
    """What tells these configurations apart, as shortly as can be."""
    names = [name for name in CONFIGURATION if len({each[name] for each in members}) > 1]
    shown = [name for name in names if name not in ("publishers", "consumers", "durable")] or names

    def text(each: ConfigurationFigures) -> str:
        parts = [written_value(name, each[name]) for name in shown]
        return ", ".join(part for part in parts if part) or describe_settings(each.settings)

    short = [text(each) for each in members]
    if len(set(short)) == len(short):
        return short
    return [", ".join(written_value(name, each[name]) for name in names) for each in members]


def _stream_rates(analysed: Analysed, each: ConfigurationFigures) -> dict[str, Estimate]:
    """The rate of each stream over the repetitions; without streams, the throughput."""
    own = {run.run_id for run in each.runs}
    values: dict[str, list[float]] = {}
    for one in analysed.measured:
        for stream in one.streams if one.figures.run_id in own else ():
            if stream.rate_per_s is not None:
                values.setdefault(stream.stream, []).append(stream.rate_per_s)
    if len(values) < 2 and all(name.isdigit() for name in values):
        values = {"messages": list(each.values("throughput_per_s"))}
    return {name: known for name, rates in values.items() if (known := estimate(rates)) is not None}


def _compared_figure(one: Recommendation | Undecided) -> tuple[str, str, bool]:
    name = one.figure if isinstance(one, Recommendation) else "throughput"
    return {
        "throughput": ("throughput_per_s", "messages / s", True),
        "end-to-end p99": ("end_to_end_p99_ms", "ms", False),
        "confirm p99": ("confirm_p99_ms", "ms", False),
        "resident memory": ("memory_max_bytes", "B", False),
    }[name]


def comparisons(groups: Sequence[Sequence[ConfigurationFigures]]) -> list[Compared]:
    """For the table beside the report: throughput and p99 of each configuration beside the best."""
    wanted = (("throughput_per_s", True), ("confirm_p99_ms", False), ("end_to_end_p99_ms", False))
    return [
        one
        for members in groups
        for name, highest in wanted
        for one in compare(members, name, highest=highest)
    ]


def _any(members: Sequence[ConfigurationFigures], metric: str) -> bool:
    return any(metric in each.estimates for each in members)


def _varied(swept: Swept) -> str:
    names = [name for name in (swept.x, swept.line, swept.panel) if name is not None]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _curves(
    members: Sequence[ConfigurationFigures], chosen: Settings | None
) -> list[tuple[str, ConfigurationFigures]]:
    """A few that stand for all: the recommended, the fastest, the smallest and the largest settings."""
    fastest = max(members, key=lambda each: each.mean("throughput_per_s") or 0.0)
    by_size = sorted(members, key=lambda each: [value or 0 for value in each.settings])
    named = [(each, "recommended") for each in members if chosen is not None and each.settings == chosen]
    named += [(fastest, "fastest"), (by_size[0], "smallest"), (by_size[-1], "largest")]
    texts: dict[int, list[str]] = {}
    for each, text in named:
        texts.setdefault(id(each), []).append(text)
    known = {id(each): each for each, _ in named}
    return [
        (f"{describe_settings(known[key].settings)} ({', '.join(words)})", known[key])
        for key, words in texts.items()
    ]


def _configurations_table(
    members: Sequence[ConfigurationFigures], chosen: Settings | None, labels: Sequence[str] = ()
) -> str:
    columns = [column for column in _COLUMNS if _any(members, column[0])]
    rows = []
    for each, label in zip(members, labels or [describe_settings(m.settings) for m in members], strict=True):
        cells = [label, str(len(each.runs))]
        cells += [_cell(each.estimates.get(name), factor) for name, _, factor in columns]
        rows.append(cells)
    headings = [
        "case" if labels else "link credit / window / queue credit",
        "runs",
        *(heading for _, heading, _ in columns),
    ]
    marked = [number for number, each in enumerate(members) if each.settings == chosen]
    return details(f"Figures of {len(members)} configurations", table(headings, rows, chosen=marked))


def _cell(known: Estimate | None, factor: float) -> str:
    if known is None:
        return "-"
    half = known.half_width
    return written(known.mean * factor) + ("" if half is None else f" ± {written(half * factor)}")


def _streams_table(analysed: Analysed, members: Sequence[ConfigurationFigures]) -> str:
    run_ids = {run.run_id for each in members for run in each.runs}
    rows = [
        [
            stream.run_id,
            stream.stream,
            *(
                "-" if value is None else written(value)
                for value in (
                    stream.sent_per_s,
                    stream.confirmed_per_s,
                    stream.received_per_s,
                    stream.confirm_p50_ms,
                    stream.confirm_p99_ms,
                    stream.end_to_end_p50_ms,
                    stream.end_to_end_p99_ms,
                )
            ),
        ]
        for each in analysed.measured
        if each.figures.run_id in run_ids
        for stream in each.streams
    ]
    if not rows:
        return ""
    headings = (
        "run",
        "stream",
        "sent / s",
        "confirmed / s",
        "received / s",
        "confirm p50 ms",
        "p99 ms",
        "end to end p50 ms",
        "p99 ms",
    )
    return details(f"Streams of {len(run_ids)} runs", table(headings, rows, texts=2))
