"""Which credit and which window are worth having?

Publish, deliver and settle with every combination of the broker's `max_link_credit` (what it grants each
sending link), its `max_incoming_window` (transfer frames a session may send), its `max_queue_credit` (what a
session asks of a queue at a time) and message size. The result is a table: rate over credit, one line a
window. With `--rate` the load publishes by the clock, and what is to be compared is latency.

Each repetition goes through all combinations in an order of its own (`--sweep-seed`): a drift of the
machine then does not look like an effect of a setting.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from benchmarks.cases import Case, passing, run_cases
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.results import Outcome, Row, draw_table, size_name, summarise
from benchmarks.spec import MAX_FRAME_SIZE_BYTES

COLUMNS: Final = (
    "rate_per_s",
    "cpu_us",
    "broker_busy",
    "confirm_p50_ms",
    "confirm_p99_ms",
    "delivery_p50_ms",
    "delivery_p99_ms",
    "rss_mb",
)
RECORDED_AS: Final = "publish and consume"
# A stamp takes eight bytes, and a stamped message must fit in one frame with everything around it.
_STAMPED_BYTES_MIN: Final = 8
_STAMPED_BYTES_MAX: Final = MAX_FRAME_SIZE_BYTES - 512


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination; None leaves a setting as the broker has it."""

    size_bytes: int
    queue_credit: int | None
    window: int | None
    credit: int | None

    @property
    def name(self) -> str:
        """How tables call it."""
        queue = "" if self.queue_credit is None else f", queue credit {self.queue_credit}"
        return f"credit {self.credit}, window {self.window}{queue}, {size_name(self.size_bytes)}"


@dataclass(frozen=True, slots=True)
class Grid:
    """What is combined."""

    credits: tuple[int, ...]
    windows: tuple[int, ...]
    queue_credits: tuple[int | None, ...]
    sizes: tuple[int, ...]

    def cells(self) -> list[Cell]:
        """Return every combination, in the order of the tables."""
        return [Cell(*one) for one in product(self.sizes, self.queue_credits, self.windows, self.credits)]

    @classmethod
    def of(cls, context: Context) -> Grid:
        """Return what the command line asks for."""
        options, quick = context.options, context.quick
        return cls(
            tuple(options.sweep_credits or ([10, 170, 1000] if quick else [10, 50, 170, 500, 1000, 4000])),
            tuple(options.sweep_windows or ([50, 400] if quick else [50, 400, 2000, 10_000])),
            tuple(options.sweep_queue_credits or [None]),
            tuple(options.sweep_sizes or ([100] if quick else [100, 10 * 1024])),
        )


OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    # What is combined, and how.
    "rate": (0.0, "messages a second, by the clock; 0: as fast as it goes"),
    "sweep_seed": (1, "of the order within each repetition"),
    **{
        f"sweep_{name}": ([], text)
        for name, text in {
            "credits": "max_link_credit (10 50 170 500 1000 4000)",
            "windows": "max_incoming_window (50 400 2000 10000)",
            "queue_credits": "max_queue_credit (the broker's own alone)",
            "sizes": "bytes in a message (100 10240)",
        }.items()
    },
}


def case_of(context: Context, cell: Cell) -> Case:
    """Return the case of one combination."""
    rate: float = context.options.rate
    # Stamps cost the generator a little; without a recording or a rate nobody asks for their latencies.
    wanted = context.recording is not None or rate > 0
    stamp = wanted and _STAMPED_BYTES_MIN <= cell.size_bytes <= _STAMPED_BYTES_MAX
    settings = context.settings(max_link_credit=None)
    case = passing(context, cell.name, size_bytes=cell.size_bytes, rate_per_s=rate, stamp=stamp)
    return replace(
        case,
        settings=replace(
            settings,
            max_link_credit=cell.credit,
            max_incoming_window=cell.window,
            max_queue_credit=cell.queue_credit or settings.max_queue_credit,
        ),
        floor=None,
        duration_s=context.options.duration or (0.7 if context.quick else 1.5),
        recorded_as=RECORDED_AS,
    )


def measure(context: Context, cells: list[Cell], repetitions: int, seed: int) -> list[Row]:
    """Measure combinations, each repetition in an order of its own; return the samples.

    Raises:
        MeasureError: the broker runs already, so that its settings are not ours to change.
    """
    if not context.own:
        raise MeasureError(
            "a sweep sets the broker's credits and windows, so it starts it: leave out --target"
        )
    context.warmup_s = min(context.warmup_s, 0.4)
    context.repetitions = repetitions
    return run_cases(context, [case_of(context, cell) for cell in cells], random.Random(seed))


def run(context: Context) -> Outcome:
    """Measure every combination."""
    grid = Grid.of(context)
    cells = grid.cells()
    # A recording is made to compare settings, which takes repetitions; a table may do with one.
    standard = (2 if context.quick else 3) if context.recording is not None else 1
    samples = measure(context, cells, context.options.repetitions or standard, context.options.sweep_seed)
    rows = rows_of(samples, cells)
    return Outcome(
        COLUMNS,
        context.described_settings()
        | {"credits": grid.credits, "windows": grid.windows, "sizes": grid.sizes}
        | {"queue_credits": grid.queue_credits},
        samples,
        rows,
        _tables(rows, grid),
    )


def rows_of(samples: list[Row], cells: list[Cell]) -> list[Row]:
    """Return the medians of each combination, in the order of the cells."""
    by_case = {row["case"]: row for row in summarise(samples, COLUMNS)}
    return [
        by_case[cell.name]
        | {"credit": cell.credit, "window": cell.window, "size_bytes": cell.size_bytes}
        | {"queue_credit": cell.queue_credit}
        for cell in cells
    ]


def _group_name(size_bytes: int, queue_credit: int | None) -> str:
    return size_name(size_bytes) + ("" if queue_credit is None else f", queue credit {queue_credit}")


def _tables(rows: list[Row], grid: Grid) -> list[str]:
    """Draw messages a second, one line a window, one column a credit; one table a size and queue credit."""
    tables = []
    for size, queue_credit in product(grid.sizes, grid.queue_credits):
        rates = {
            (row["window"], row["credit"]): "-" if row["rate_per_s"] is None else f"{row['rate_per_s']:,.0f}"
            for row in rows
            if (row["size_bytes"], row["queue_credit"]) == (size, queue_credit)
        }
        name = _group_name(size, queue_credit)
        headings = [f"{name}: messages/s", *(f"credit {credit}" for credit in grid.credits)]
        lines = [
            [f"window {window}", *(rates[window, credit] for credit in grid.credits)]
            for window in grid.windows
        ]
        tables.append(draw_table(headings, lines))
    return tables


BENCHMARK = Benchmark("sweep", "Which credit and which window are worth having?", run, options(**OPTIONS))
