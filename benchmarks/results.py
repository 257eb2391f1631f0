"""Results: raw samples and their medians, with everything needed to run them again, as JSON.

One file holds one run of one benchmark: machine, command, date, settings, every sample, one row a case
with the medians over the repetitions. `print_table` shows the rows; `report` makes Markdown of the files.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parent / "results"

Row = dict[str, Any]
"""`case`, `target` ("broker" or "floor") and the figures by name; a figure that is not known is None."""


@dataclass(slots=True)
class Outcome:
    """What a benchmark hands back."""

    columns: tuple[str, ...]
    """Figures to show, in order."""
    settings: dict[str, Any]
    samples: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    """Medians; `summarise` makes them of the samples when the benchmark leaves this empty."""
    tables: list[str] = field(default_factory=list)
    """Further tables, already drawn."""
    notes: list[str] = field(default_factory=list)
    status: int = 0
    """Exit status of the command line, if a benchmark has found something that scripts should notice."""


# How a figure is headed and written.
HEADINGS: Final[dict[str, tuple[str, str]]] = {
    "rate_per_s": ("messages/s", ",.0f"),
    "cpu_us": ("broker CPU µs/msg", ".2f"),
    "bytecodes": ("broker bytecodes/msg", ".1f"),
    "helper_cpu_us": ("helper CPU µs/msg", ".3f"),
    "load_cpu_us": ("load CPU µs/msg", ".3f"),
    "broker_busy": ("broker cores", ".2f"),
    "confirm_p50_ms": ("confirm p50 ms", ".3f"),
    "confirm_p99_ms": ("confirm p99 ms", ".3f"),
    "delivery_p50_ms": ("end-to-end p50 ms", ".3f"),
    "delivery_p99_ms": ("end-to-end p99 ms", ".3f"),
    "rss_mb": ("RSS MB", ".1f"),
    "disk_mb": ("disk MB", ",.1f"),
    "fdatasync_p50_ms": ("fdatasync p50 ms", ".3f"),
    "fdatasync_p99_ms": ("fdatasync p99 ms", ".3f"),
    "confirm_syncs": ("confirm p50 / fdatasync p50", ".2f"),
    "cost_ratio": ("CPU / transient in memory", ".2f"),
    "ratio_before": ("cost now / before", ".3f"),
    "dropped": ("dropped", ",.0f"),
    "idle_cpu_percent": ("idle CPU %", ".2f"),
    "pause_p50_s": ("pause p50 s", ".3f"),
    "pause_max_s": ("longest pause s", ".3f"),
    "isolation": ("isolation", ".3f"),
    "together": ("both links / alone", ".3f"),
    "slow_to_fast": ("slow / fast", ".3f"),
    "slow_per_s": ("slow messages/s", ",.0f"),
    "messages": ("messages", ",.0f"),
    "reader_cpu_us": ("reader CPU µs/row", ".2f"),
    "python_cpu_us": ("Python workers CPU µs/row", ".2f"),
    "jvm_cpu_us": ("JVM CPU µs/row", ".2f"),
    "cores_busy": ("processors busy", ".2f"),
    "machine_busy": ("and with all others", ".2f"),
    "to_floor": ("rate / floor", ".2f"),
    "to_raw": ("rate / raw frames", ".2f"),
    "events": ("events", ",.0f"),
}


def size_name(size_bytes: int) -> str:
    """Write a size with its unit: ``100 B``, ``10 KiB``."""
    for unit, name in ((1024 * 1024, "MiB"), (1024, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def summarise(samples: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Return one row for each case and target, in the order of first sight, with medians and spread."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for sample in samples:
        groups.setdefault((sample["case"], sample["target"]), []).append(sample)
    rows: list[Row] = []
    for (case, target), members in groups.items():
        row: Row = {"case": case, "target": target, "repetitions": len(members)}
        for key in keys:
            known = [member[key] for member in members if member.get(key) is not None]
            row[key] = statistics.median(known) if known else None
            if len(known) > 1:
                row[f"{key}_range"] = [min(known), max(known)]
        rows.append(row)
    return rows


def draw_table(
    headings: Sequence[str], lines: Sequence[Sequence[str]], *, ruled: bool = False, left: int = 1
) -> str:
    """Draw a table with box characters.

    Args:
        headings: of the columns.
        lines: the cells, line by line.
        ruled: draw a rule between any two lines.
        left: so many columns are aligned left, the others right.
    """
    widths = [
        max(len(heading), *(len(line[column]) for line in lines)) if lines else len(heading)
        for column, heading in enumerate(headings)
    ]

    def rule(start: str, middle: str, end: str) -> str:
        return start + middle.join("─" * (width + 2) for width in widths) + end

    def line_of(cells: Sequence[str]) -> str:
        texts = [
            f" {cell:<{width}} " if column < left else f" {cell:>{width}} "
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "│" + "│".join(texts) + "│"

    between = "\n" + rule("├", "┼", "┤") + "\n" if ruled else "\n"
    head = [rule("┌", "┬", "┐"), line_of(headings), rule("├", "┼", "┤")]
    return "\n".join((*head, between.join(line_of(line) for line in lines), rule("└", "┴", "┘")))


def cells_of(row: Row, columns: Sequence[str]) -> list[str]:
    """Write the figures of a row; a dash stands for one that is not known."""
    cells = []
    for column in columns:
        value = row.get(column)
        cells.append("-" if value is None else format(value, HEADINGS[column][1]))
    return cells


def used_columns(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Leave out columns in which no row has a figure."""
    return [column for column in columns if any(row.get(column) is not None for row in rows)]


def print_table(outcome: Outcome) -> None:
    """Print the rows, the further tables and the notes."""
    columns = used_columns(outcome.rows, outcome.columns)
    if columns:
        headings = ["case", "target", *(HEADINGS[column][0] for column in columns)]
        lines = [[row["case"], row["target"], *cells_of(row, columns)] for row in outcome.rows]
        print(draw_table(headings, lines, left=2))
    for table in outcome.tables:
        print(table)
    for note in outcome.notes:
        print(note)


def machine() -> dict[str, Any]:
    """Describe this machine, as far as the figures depend on it."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_mb": memory_kb // 1024,
        "kernel": platform.release(),
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_average_1_min": os.getloadavg()[0],
    }


def revision() -> str | None:
    """Return the checked-out revision, with a mark if files differ from it; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=RESULTS.parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def save(name: str, question: str, label: str, outcome: Outcome, directory: Path) -> Path:
    """Write one run's JSON; an earlier run with the same label is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": name,
        "label": label,
        "question": question,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks " + shlex.join(sys.argv[1:]),
        "revision": revision(),
        "machine": machine(),
        **asdict(outcome),
    }
    path = directory / f"{name}-{label}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def load_all(directory: Path) -> list[dict[str, Any]]:
    """Read every result of a directory, in order of name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
