"""The report: result files in, `results/README.md` out, with every target and whether it is met.

Targets stand in one table, each with the reason for its figure. They are for a quiet machine of the kind
the figures were first taken on; a result that misses one is shown as missed, never left out: the table of
targets tells of every kept result, whatever its label. Of the figures the latest result of each question is
shown; the others are in their files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import ge, le, lt
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import STANDARD_COLUMNS
from benchmarks.results import HEADINGS, Row, cells_of, load_all, used_columns

Document = dict[str, Any]
_COMPARE: Final = {"<=": le, ">=": ge, "<": lt}
Measure = Callable[[Sequence[Row]], float | None]
"""Takes the rows of the broker; None if they do not hold the figure."""


@dataclass(frozen=True, slots=True)
class Target:
    """One figure to reach."""

    benchmark: str
    bound: str
    """How it is compared, the limit, and its unit."""
    measure: Measure
    text: str = ""
    reason: str = ""
    """Why this figure."""

    def named(self, text: str, reason: str) -> Target:
        """Return the same target with its words."""
        return replace(self, text=text, reason=reason)

    def passes(self, value: float) -> bool:
        """Return whether what was measured is within the bound."""
        how, limit, *_ = self.bound.split()
        within: bool = _COMPARE[how](value, float(limit))
        return within


def _known(rows: Sequence[Row], key: str, wanted: Callable[[str], bool]) -> list[float]:
    return [float(row[key]) for row in rows if row.get(key) is not None and wanted(row["case"])]


def _figure(case: str, key: str) -> Measure:
    """Return a measure: one figure of one case."""
    return lambda rows: next(iter(_known(rows, key, lambda name: name == case)), None)


def _highest(key: str, wanted: Callable[[str], bool] = lambda case: True) -> Measure:
    """Return a measure: the highest figure of the cases wanted."""
    return lambda rows: max(_known(rows, key, wanted), default=None)


def _lowest(key: str, wanted: Callable[[str], bool] = lambda case: True) -> Measure:
    """Return a measure: the lowest figure of the cases wanted."""
    return lambda rows: min(_known(rows, key, wanted), default=None)


def _of_10(case: str) -> bool:
    """AMQP 1.0 alone: that 0-9-1 has no isolation is what the article shows."""
    return case.startswith("AMQP 1.0")


def _unlike(rows: Sequence[Row]) -> float | None:
    """Return by how much the two loops of an AMQP 0-9-1 channel differ at worst, in per cent."""
    known = _known(rows, "slow_to_fast", lambda case: case.startswith("AMQP 0-9-1"))
    return max((abs(one - 1) * 100 for one in known), default=None)


TARGETS: Final = (
    Target("versus", "<= 1.1 times at worst", _highest("ratio_before")).named(
        "transient messages in memory: no more expensive than before",
        "a client without durability must not pay for it; the noise of this machine hides a tenth",
    ),
    Target("durability", "<= 8 µs", _figure("publish: classic, persistent", "cpu_us")).named(
        "publish, persistent, classic: at most 8 µs of broker CPU a message",
        "publishing in memory costs 2 µs; the record, its checksum and the write take the rest",
    ),
    Target("durability", ">= 50000 messages/s", _figure("publish: quorum", "rate_per_s")).named(
        "publish, quorum: at least 50 000 confirmed messages/s at 2 000 in flight",
        "2 000 in flight and a commit of 4 ms allow 250 000; the processor should be the limit, not the disk",
    ),
    Target("durability", "<= 3 fdatasyncs", _figure("publish: quorum", "confirm_syncs")).named(
        "publish, quorum, 2 000 in flight: confirms within 3 fdatasyncs (p50)",
        "a message waits for the sync under way, then for its own; one more allows for the work",
    ),
    Target("durability", "<= 3 fdatasyncs", _figure("publish, 1 in flight: quorum", "confirm_syncs")).named(
        "publish, quorum, one in flight: confirm within 3 fdatasyncs (p50)",
        "a lone message waits only for its own sync",
    ),
    Target("publish", "<= 5 µs", _figure("publish unsettled", "cpu_us")).named(
        "publish, unsettled: at most 5 µs of broker CPU a message",
        "a prototype needs 1.2 to 1.8 µs for the basic work; routing, sections and confirms take the rest",
    ),
    Target("publish", "<= 5 µs", _figure("publish settled", "cpu_us")).named(
        "publish, settled: at most 5 µs of broker CPU a message",
        "it is less work than unsettled publishing and must not cost more",
    ),
    Target("both", "<= 8 µs", _figure("unsettled, settle range", "cpu_us")).named(
        "publish + deliver + settle: at most 8 µs of broker CPU a message",
        "publishing and half as much again for delivery and settlement; RabbitMQ needs 28 here",
    ),
    Target("two_senders", ">= 0.95", _lowest("isolation", _of_10)).named(
        "isolation at least 0.95",
        "link credit stops only the slow link; the rest is the processor time that both links share",
    ),
    Target("two_senders", "<= 10 % apart at worst", _unlike).named(
        "AMQP 0-9-1: both queues get the same number of messages, within 10 %",
        "a slow queue blocks the reader of the whole connection, as in RabbitMQ",
    ),
    Target("one_sender_one_receiver", ">= 0.95", _lowest("isolation", _of_10)).named(
        "isolation at least 0.95", "the broker reads dispositions while the sender has no credit"
    ),
    Target("sync_publisher", ">= 10000 messages/s", _figure("one message in flight", "rate_per_s")).named(
        "a lone synchronous publisher: at least 10 000 messages/s",
        "reader, session, queue and the way back take 40 to 65 µs; RabbitMQ reaches 12 000 to 18 000",
    ),
)


def _broker_rows(document: Document) -> list[Row]:
    return [row for row in document["rows"] if row["target"] != "floor"]


def _markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Write a table whose first `left` columns are words and the others figures."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return ["| " + " | ".join(line) + " |" for line in (headings, rule, *lines)] + [""]


def target_lines(documents: Sequence[Document]) -> list[list[str]]:
    """Return one line a target: what was measured in each result that speaks of it, and whether met."""
    lines = []
    for target in TARGETS:
        shown, met = [], []
        for document in documents:
            if document["benchmark"] != target.benchmark:
                continue
            value = target.measure(_broker_rows(document))
            if value is None:
                continue
            figure = f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"
            shown.append(" ".join((figure, *target.bound.split()[2:])) + f" ({document['label']})")
            met.append("yes" if target.passes(value) else "**no**")
        measured, delivery_outcomes = "; ".join(shown) or "not measured", ", ".join(met) or "-"
        lines.append([f"{target.benchmark}: {target.text}", measured, delivery_outcomes, target.reason])
    return lines


def latest(documents: Sequence[Document]) -> list[Document]:
    """Return the latest result of each question."""
    by_date = sorted(documents, key=lambda one: str(one["date"]))
    newest = {document["benchmark"]: document for document in by_date}
    return [newest[name] for name in sorted(newest)]


def _title(document: Document) -> str:
    return f"{document['benchmark']} ({document['label']}, {document['revision'] or 'unknown'})"


def _floors(document: Document) -> dict[str, float]:
    """Return the rate of the floor peer in the cases it has played."""
    rows = [row for row in document["rows"] if row["target"] == "floor"]
    return {row["case"]: row["rate_per_s"] for row in rows if row.get("rate_per_s")}


def _loads(documents: Sequence[Document]) -> list[str]:
    """Write the results that have the usual columns as one table, the floor's rate beside the broker's."""
    columns = used_columns([row for one in documents for row in one["rows"]], (*STANDARD_COLUMNS, "disk_mb"))
    lines = []
    for document in documents:
        floors = _floors(document)
        for row in _broker_rows(document):
            rate, *others = cells_of(row, columns)
            floor = f"{floors[row['case']]:,.0f}" if row["case"] in floors else "-"
            lines.append([_title(document), row["case"], rate, floor, *others])
    headings = ["question", "case", HEADINGS[columns[0]][0], "floor messages/s"] if columns else []
    headings += [HEADINGS[column][0] for column in columns[1:]]
    return ["## Loads", "", *_markdown_table(headings, lines, left=2)] if lines else []


# What is divided by what, and what the ratio is called.
_COMPARED: Final = {
    "versus": ("now", "before", "ratio_before"),
    "two_senders": ("with slow neighbour", "alone", "isolation"),
    "one_sender_one_receiver": ("with slow neighbour", "alone", "isolation"),
}


def _compared(documents: Sequence[Document]) -> list[str]:
    """Write the results that compare two variants of each work as one table."""
    lines = []
    for document in documents:
        over, under, key = _COMPARED[document["benchmark"]]
        rows = {row["case"]: row for row in document["rows"]}

        def told(case: str, rows: dict[str, Row] = rows) -> str:
            cells = cells_of(rows.get(case, {}), ("rate_per_s", "cpu_us", "slow_per_s"))
            beside = "" if cells[2] == "-" else f", slow {cells[2]}/s"
            return f"{cells[0]}/s, {cells[1]} µs{beside}"

        for row in rows.values():
            if row.get(key) is not None:
                work, _, divided = row["case"].rpartition(": ")
                # The article's benchmarks may have a second ratio for each work.
                by = "slow neighbour apart" if divided.endswith("/ apart") else under
                variants = [told(f"{work}: {one}") for one in (over, by)]
                lines.append([_title(document), work, f"{over} / {by}", *variants, *cells_of(row, (key,))])
    headings = ("question", "work", "A / B", "A: messages, broker CPU a message", "B", "ratio")
    return ["## Comparisons", "", *_markdown_table(headings, lines, left=5)] if lines else []


def _section(document: Document) -> list[str]:
    """Write a result that has columns of its own."""
    lines = [f"## {_title(document)}: {document['question']}", ""]
    columns = used_columns(document["rows"], document["columns"])
    if document["tables"]:
        lines += ["```", *document["tables"], "```", ""]
    elif columns:
        headings = ["case", "target", *(HEADINGS[column][0] for column in columns)]
        body = [[row["case"], row["target"], *cells_of(row, columns)] for row in document["rows"]]
        lines += _markdown_table(headings, body, left=2)
    return lines


def _notes(documents: Sequence[Document]) -> list[str]:
    """Return what the results say besides; those that are in the comparisons say what stands there."""
    told = [one for one in documents if one["benchmark"] not in _COMPARED]
    lines = [f"- {_title(document)}: {note}" for document in told for note in document["notes"]]
    return ["## Notes", "", *lines, ""] if lines else []


def render(documents: Sequence[Document]) -> str:
    """Return the report as Markdown."""
    shown = latest(documents)
    compared = [one for one in shown if one["benchmark"] in _COMPARED]
    usual = set(STANDARD_COLUMNS)
    loads = [
        one for one in shown if one not in compared and usual.issuperset(one["columns"]) and not one["tables"]
    ]
    lines = [
        "# Results",
        "",
        "`python -m benchmarks report` writes this page from result files; do not edit it. It shows the",
        "medians of the latest result of each question, with label and revision. `NOTES.md` describes the",
        "machine.",
        "",
        "## Targets",
        "",
        *_markdown_table(("target", "measured", "met", "reason"), target_lines(documents), left=4),
        *_loads(loads),
        *_compared(compared),
    ]
    for document in shown:
        if document not in loads and document not in compared:
            lines += _section(document)
    return "\n".join((*lines, *_notes(shown))).rstrip() + "\n"


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
