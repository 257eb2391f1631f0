"""The report: result files in, `results/README.md` out, with every target and whether it is met.

Targets stand in one table, each with the reason for its figure. They are for a quiet machine of the kind
the figures were first taken on; a result that misses one is shown as missed, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.results import HEADINGS, Row, cells_of, load_all, used_columns

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One figure to reach."""

    benchmark: str
    text: str
    reason: str
    unit: str
    measure: Callable[[Sequence[Row]], float | None]
    """Takes the rows of the broker; None if they do not hold the figure."""
    passes: Callable[[float], bool]


def _figure(case: str, key: str) -> Callable[[Sequence[Row]], float | None]:
    """Return a measure: one figure of one case."""

    def measure(rows: Sequence[Row]) -> float | None:
        value: float | None = next((row.get(key) for row in rows if row["case"] == case), None)
        return value

    return measure


def _lowest_isolation(rows: Sequence[Row]) -> float | None:
    """AMQP 1.0 alone: that 0-9-1 has none is what the article shows."""
    known = (
        float(row["isolation"])
        for row in rows
        if row.get("isolation") is not None and row["case"].startswith("AMQP 1.0")
    )
    return min(known, default=None)


def _unlike(rows: Sequence[Row]) -> float | None:
    """Return by how much the two loops of an AMQP 0-9-1 channel differ at worst, in per cent."""
    known = (
        abs(float(row["slow_to_fast"]) - 1) * 100
        for row in rows
        if row.get("slow_to_fast") is not None and row["case"].startswith("AMQP 0-9-1")
    )
    return max(known, default=None)


def _dearest_ratio(rows: Sequence[Row]) -> float | None:
    return max((float(row["ratio_091"]) for row in rows if row.get("ratio_091") is not None), default=None)


def _dearest_since(rows: Sequence[Row]) -> float | None:
    return max(
        (float(row["ratio_before"]) for row in rows if row.get("ratio_before") is not None), default=None
    )


def _worst_of_million(kinds: Sequence[str], key: str) -> Callable[[Sequence[Row]], float | None]:
    """Return a measure: the highest figure among kinds of queues that hold a million messages."""

    def measure(rows: Sequence[Row]) -> float | None:
        known = [
            float(row[key])
            for row in rows
            if row.get(key) is not None
            and row.get("messages") == 1_000_000
            and row["case"].endswith(tuple(kinds))
        ]
        return max(known, default=None)

    return measure


def _excess(first: str, others: Callable[[str], bool]) -> Callable[[Sequence[Row]], float | None]:
    """Return a measure: how much dearer the dearest other case is than the first, in per cent."""

    def measure(rows: Sequence[Row]) -> float | None:
        costs: dict[str, float] = {
            row["case"]: row["cpu_us"] for row in rows if row.get("cpu_us") is not None
        }
        compared = [cost for case, cost in costs.items() if others(case) and case != first]
        if first not in costs or not compared:
            return None
        return (max(compared) / costs[first] - 1) * 100

    return measure


def _links(side: str) -> Target:
    return Target(
        "links",
        f"cost flat from 1 to 1000 links ({side}), within 15 %",
        "a link is a counter, not a task: the queue's work does not depend on how many links feed it",
        "% dearer at worst",
        _excess("1 link, burst 32", lambda case: case.endswith(f"links {side}, burst 32")),
        lambda value: value <= 15.0,
    )


_KEPT: Final = (": classic, persistent", ": quorum")

_DURABLE: Final = (
    Target(
        "versus",
        "transient messages in memory: not dearer than before",
        "who asks for no durability must not pay for it; a tenth is what this machine's noise hides",
        "times at worst",
        _dearest_since,
        lambda value: value <= 1.1,
    ),
    Target(
        "durability",
        "publish, persistent, classic: at most 8 µs of broker CPU a message",
        "publishing in memory costs 2; a record, its checksum and the write are the rest",
        "µs",
        _figure("publish: classic, persistent", "cpu_us"),
        lambda value: value <= 8.0,
    ),
    Target(
        "durability",
        "publish, quorum: at least 50 000 confirmed messages/s at 2 000 in flight",
        "2 000 in flight and a commit of 4 ms allow 250 000; the processor is to be the limit, not the disk",
        "messages/s",
        _figure("publish: quorum", "rate_per_s"),
        lambda value: value >= 50_000.0,
    ),
    Target(
        "durability",
        "publish, quorum, 2 000 in flight: confirms within 3 fdatasyncs (p50)",
        "a message waits for the sync under way, then for its own; one more is for the work",
        "fdatasyncs",
        _figure("publish: quorum", "confirm_syncs"),
        lambda value: value <= 3.0,
    ),
    Target(
        "durability",
        "publish, quorum, one in flight: confirm within 3 fdatasyncs (p50)",
        "a lone message waits for its own sync alone",
        "fdatasyncs",
        _figure("publish, 1 in flight: quorum", "confirm_syncs"),
        lambda value: value <= 3.0,
    ),
    Target(
        "millions",
        "1 000 000 messages of 100 bytes in at most 250 MB of resident memory",
        "bodies of a long backlog live on disk",
        "MB at worst",
        _worst_of_million((": classic, transient", *_KEPT), "rss_mb"),
        lambda value: value <= 250.0,
    ),
    Target(
        "millions",
        "started with 1 000 000 messages, the queue answers in less than 10 s",
        "recovery reads records in batches, and no body twice",
        "s at worst",
        _worst_of_million(_KEPT, "crash_answer_s"),
        lambda value: value < 10.0,
    ),
    Target(
        "streams",
        "at least 100 000 messages/s of 100 bytes over one link",
        "so many rows the connector for Spark wants",
        "messages/s",
        _figure("read, settle presettled", "rate_per_s"),
        lambda value: value >= 100_000.0,
    ),
)

TARGETS: Final = (
    *_DURABLE,
    Target(
        "publish",
        "publish, unsettled: at most 5 µs of broker CPU a message",
        "a prototype needs 1.2 to 1.8 µs for the skeleton; the rest is routing, sections and confirms",
        "µs",
        _figure("publish unsettled", "cpu_us"),
        lambda value: value <= 5.0,
    ),
    Target(
        "publish",
        "publish, settled: at most 5 µs of broker CPU a message",
        "it does less than unsettled publishing and must not cost more",
        "µs",
        _figure("publish settled", "cpu_us"),
        lambda value: value <= 5.0,
    ),
    Target(
        "both",
        "publish + deliver + settle: at most 8 µs of broker CPU a message",
        "publishing and half as much again for delivery and settlement; RabbitMQ needs 28 here",
        "µs",
        _figure("unsettled, settle range", "cpu_us"),
        lambda value: value <= 8.0,
    ),
    Target(
        "two_senders",
        "isolation at least 0.95",
        "link credit stops the slow link alone; the rest is the processor both links share",
        "",
        _lowest_isolation,
        lambda value: value >= 0.95,
    ),
    Target(
        "two_senders",
        "AMQP 0-9-1: both queues get the same, within 10 %",
        "a slow queue blocks the reader of the whole connection, as in RabbitMQ",
        "% apart at worst",
        _unlike,
        lambda value: value <= 10.0,
    ),
    Target(
        "recommendation",
        "recommended settings within 5 % of the best, noise included",
        "who follows the advice must not lose by it; below 0.95 it may be noise, and the result says so",
        "of the best, at the lower end of the interval",
        lambda rows: min((row["to_best_low"] for row in rows if row.get("to_best_low")), default=None),
        lambda value: value >= 0.95,
    ),
    Target(
        "protocols",
        "AMQP 0-9-1 at most 1.5 times the processor time of AMQP 1.0",
        "the same queues and the same skeleton; only the frames differ",
        "times at worst",
        _dearest_ratio,
        lambda value: value <= 1.5,
    ),
    Target(
        "one_sender_one_receiver",
        "isolation at least 0.95",
        "dispositions are read while the sender has no credit",
        "",
        _lowest_isolation,
        lambda value: value >= 0.95,
    ),
    Target(
        "setup",
        "start to first accepted connection in less than 0.3 s",
        "a broker inside a test must not be felt; RabbitMQ takes 2.5 to 4 s",
        "s",
        _figure("start", "accept_s"),
        lambda value: value < 0.3,
    ),
    Target(
        "idle",
        "resident memory at rest below 50 MB",
        "RabbitMQ takes 125 MiB",
        "MB",
        _figure("0 connections", "rss_mb"),
        lambda value: value < 50.0,
    ),
    Target(
        "backlog",
        "cost flat from 10 to 1 000 000 queued, within 15 %",
        "no step of a message's way may look at the others in the queue",
        "% dearer at worst",
        _excess("10 queued", lambda case: case.endswith(" queued")),
        lambda value: value <= 15.0,
    ),
    _links("sending"),
    _links("receiving"),
    _links("both"),
    Target(
        "scatter",
        "scattered over 1000 queues: at most 25 µs of broker CPU a message",
        "each message then wakes its own queue task, and a wake-up costs about 5 µs in Trio",
        "µs",
        _figure("1000 queues", "cpu_us"),
        lambda value: value <= 25.0,
    ),
    Target(
        "sync_publisher",
        "a lone synchronous publisher: at least 10 000 messages/s",
        "a wave through reader, session, queue and back takes 40 to 65 µs; RabbitMQ does 12 to 18 thousand",
        "messages/s",
        _figure("one message in flight", "rate_per_s"),
        lambda value: value >= 10_000.0,
    ),
)


def _broker_rows(document: Document) -> list[Row]:
    return [row for row in document["rows"] if row["target"] == "broker"]


def _markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Write a table whose first `left` columns are words and the others figures."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return ["| " + " | ".join(line) + " |" for line in (headings, rule, *lines)]


def target_lines(documents: Sequence[Document]) -> list[list[str]]:
    """Return one line for each target and each result that speaks of it."""
    lines = []
    for target in TARGETS:
        found = [one for one in documents if one["benchmark"] == target.benchmark]
        if not found:
            lines.append([f"{target.benchmark}: {target.text}", "not measured", "-", target.reason])
        for document in found:
            value = target.measure(_broker_rows(document))
            shown = "not measured" if value is None else f"{value:,.3g} {target.unit}".strip()
            if value is not None and value >= 1000:
                shown = f"{value:,.0f} {target.unit}"
            verdict = "-" if value is None else "yes" if target.passes(value) else "**no**"
            label = "" if document["label"] == "local" else f" ({document['label']})"
            lines.append([f"{target.benchmark}{label}: {target.text}", shown, verdict, target.reason])
    return lines


def headroom_line(document: Document) -> str | None:
    """Say how much faster the generator was against the floor peer, at the tightest case."""
    floors = {row["case"]: row.get("rate_per_s") for row in document["rows"] if row["target"] == "floor"}
    ratios = [
        floors[row["case"]] / row["rate_per_s"]
        for row in _broker_rows(document)
        if floors.get(row["case"]) and row.get("rate_per_s")
    ]
    if not ratios:
        return None
    return f"Against the floor peer the generator reached {min(ratios):.1f} times this rate or more."


def _section(document: Document) -> list[str]:
    label = document["label"]
    lines = [f"## {document['benchmark']}" + ("" if label == "local" else f" ({label})"), ""]
    lines += [document["question"], ""]
    columns = used_columns(document["rows"], document["columns"])
    if columns and document["benchmark"] != "sweep":
        headings = ["case", "target", *(HEADINGS[column][0] for column in columns)]
        body = [[row["case"], row["target"], *cells_of(row, columns)] for row in document["rows"]]
        lines += [*_markdown_table(headings, body, left=2), ""]
    for table in document["tables"]:
        lines += ["```", table, "```", ""]
    if document["picture"]:
        lines += [f"![{document['benchmark']}]({document['picture']})", ""]
    lines += [f"- {note}" for note in document["notes"]]
    headroom = headroom_line(document)
    if headroom:
        lines.append(f"- {headroom}")
    machine = document["machine"]
    lines += [
        f"- {document['date']}, revision {document['revision'] or 'unknown'}, `{document['command']}`",
        f"- {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, {machine['python']}",
        f"- load average at the end {machine['load_average_1_min']:.2f}",
        "",
    ]
    return lines


def render(documents: Sequence[Document]) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Results",
        "",
        "Made by `python -m benchmarks report` from the JSON files beside it, which also hold every raw",
        "sample; do not edit. Figures are medians over the repetitions. How to read them: `../README.md`.",
        "",
        "## Targets",
        "",
        *_markdown_table(("target", "measured", "met", "why this figure"), target_lines(documents), left=4),
        "",
    ]
    for document in documents:
        lines += _section(document)
    return "\n".join(lines).rstrip() + "\n"


def write(directory: Path, label: str | None) -> Path:
    """Write the report of a directory of results and return its path."""
    documents = [
        one
        for one in load_all(directory)
        if (one["label"] == label if label is not None else one["label"] != "quick")
    ]
    path = directory / "README.md"
    path.write_text(render(documents), encoding="utf-8")
    return path
