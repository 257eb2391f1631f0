"""Which credit and which window are worth having?

Publish, deliver and settle with every combination of the broker's `max_link_credit` (what it grants each
sending link), its `max_incoming_window` (transfer frames a session may send) and message size. The result
is a table and a picture: rate and processor time a message over credit, one line a window.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product

from benchmarks.cases import QUEUE, Case, delivered, publish_and_consume, run_cases
from benchmarks.measure import Benchmark, Context
from benchmarks.results import Outcome, Row, draw_table, summarise
from benchmarks.sizes import size_name
from benchmarks.svg import Line, Panel, draw

_COLUMNS = ("rate_per_s", "cpu_us", "broker_busy", "confirm_p50_ms", "confirm_p99_ms")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sweep-credits", type=int, nargs="+", help="max_link_credit (10 50 170 500 1000 4000)"
    )
    parser.add_argument(
        "--sweep-windows", type=int, nargs="+", help="max_incoming_window (50 400 2000 10000)"
    )
    parser.add_argument("--sweep-sizes", type=int, nargs="+", help="bytes in a message (100 10240)")


def _case(context: Context, credit: int, window: int, size_bytes: int) -> Case:
    return Case(
        f"credit {credit}, window {window}, {size_name(size_bytes)}",
        lambda address: publish_and_consume(
            (address(QUEUE),),
            (address(QUEUE),),
            size_bytes=size_bytes,
            credit=context.options.credit,
        ),
        delivered,
        settings=replace(context.settings(), max_link_credit=credit, max_incoming_window=window),
        floor=None,
        duration_s=context.options.duration or (0.7 if context.quick else 1.5),
    )


def run(context: Context) -> Outcome:
    """Measure every combination."""
    options = context.options
    quick = context.quick
    credits: list[int] = options.sweep_credits or (
        [10, 170, 1000] if quick else [10, 50, 170, 500, 1000, 4000]
    )
    windows: list[int] = options.sweep_windows or ([50, 400] if quick else [50, 400, 2000, 10_000])
    sizes: list[int] = options.sweep_sizes or ([100] if quick else [100, 10 * 1024])
    context.warmup_s = min(context.warmup_s, 0.4)
    context.repetitions = options.repetitions or 1
    cells = list(product(sizes, windows, credits))
    samples = run_cases(context, [_case(context, credit, window, size) for size, window, credit in cells])
    rows = summarise(samples, _COLUMNS)
    for row, (size, window, credit) in zip(rows, cells, strict=True):
        row |= {"credit": credit, "window": window, "size_bytes": size}
    tables = [_table(rows, size, windows, credits) for size in sizes]
    return Outcome(
        _COLUMNS,
        context.described_settings() | {"credits": credits, "windows": windows, "sizes": sizes},
        samples,
        rows,
        tables,
        picture=_picture(rows, sizes, windows),
    )


def _table(rows: list[Row], size_bytes: int, windows: list[int], credits: list[int]) -> str:
    """Draw messages a second, one line a window, one column a credit."""
    rates = {
        (row["window"], row["credit"]): "-" if row["rate_per_s"] is None else f"{row['rate_per_s']:,.0f}"
        for row in rows
        if row["size_bytes"] == size_bytes
    }
    headings = [f"{size_name(size_bytes)}: messages/s", *(f"credit {credit}" for credit in credits)]
    lines = [[f"window {window}", *(rates[window, credit] for credit in credits)] for window in windows]
    return draw_table(headings, lines)


def _picture(rows: list[Row], sizes: list[int], windows: list[int]) -> str:
    """Draw rate (above) and processor time (below) over credit, one column a size."""

    def panel(size_bytes: int, figure: str, y_label: str) -> Panel:
        lines = tuple(
            Line(
                str(window),
                tuple(
                    (row["credit"], row[figure])
                    for row in sorted(rows, key=lambda row: int(row["credit"]))
                    if row["window"] == window and row["size_bytes"] == size_bytes and row[figure] is not None
                ),
            )
            for window in windows
        )
        return Panel(size_name(size_bytes), "max_link_credit", y_label, lines)

    return draw(
        "Publish, deliver and settle: credit and session window",
        "max_incoming_window",
        (
            [panel(size, "rate_per_s", "messages / s") for size in sizes],
            [panel(size, "cpu_us", "broker CPU µs / message") for size in sizes],
        ),
    )


BENCHMARK = Benchmark("sweep", "Which credit and which window are worth having?", run, _add_arguments)
