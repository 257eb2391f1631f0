"""Is what the analysis recommends as good as the best?

A full sweep is recorded; `amqp10broker analyse` recommends settings from the recording. Then the
recommended settings and the sweep's best candidates are measured again, several times and in turns: runs
that the analysis has not seen. `verdict` says whether the recommended settings come within 5 % of the best
of them, or do not, or whether noise hides it.

The rivals are chosen from the tables of the sweep, which know nothing of the analysis, so that a mistake
there cannot choose its own judges.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from amqp10broker.analysis.configurations import SETTINGS
from benchmarks import sweep
from benchmarks.broker_process import REPOSITORY
from benchmarks.errors import BenchmarkError, MeasureError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.questions import size_name
from benchmarks.recording import Recording
from benchmarks.results import Outcome, Row, draw_table, median_of
from benchmarks.sweep import Cell, Grid
from benchmarks.verdict import Finding, Verdict, judge

SWEEP: Final = "sweep"
HELD_OUT: Final = "held-out"
"""Folders of the two recordings."""
NAME: Final = "recommendation"
RIVALS: Final = 3
HELD_OUT_REPETITIONS: Final = 10
_ANALYSE_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Aim:
    """What the settings are to be good for."""

    name: str
    figure: str
    """The column of the samples that is compared."""
    highest: bool

    @classmethod
    def of(cls, options: argparse.Namespace) -> Aim:
        """Return the aim that the command line names.

        Raises:
            MeasureError: latency without a rate says nothing: at full speed messages queue up; throughput
                at a rate is the rate.
        """
        if options.aim == "throughput":
            if options.rate:
                raise MeasureError("--rate belongs to --aim latency: the throughput at a rate is that rate")
            return cls("throughput", "rate_per_s", highest=True)
        if not options.rate:
            raise MeasureError("the aim latency needs --rate: at full speed messages wait for each other")
        return cls("latency", "delivery_p99_ms", highest=False)


@dataclass(frozen=True, slots=True)
class Advice:
    """What the analysis says of one message size."""

    size_bytes: int
    settings: tuple[int, int, int] | None
    """max_link_credit, max_incoming_window, max_queue_credit; None if it recommends nothing."""
    mean: float | None
    """Of the figure it compared, over the repetitions of the sweep."""
    reasons: str
    weak: str


def read_advice(table: Path) -> list[Advice]:
    """Read the table of recommendations that the analysis has written.

    Raises:
        MeasureError: a line is not as expected.
    """
    with table.open(encoding="utf-8", newline="") as lines:
        return [_advice_of(line) for line in csv.DictReader(lines)]


def _advice_of(line: Mapping[str, str]) -> Advice:
    size = line.get("message_size_bytes")
    if not size:
        raise MeasureError(f"the analysis names no message_size_bytes for {line['group']!r}")
    settings = None
    if line["command_line"]:
        missing = [name for name in SETTINGS if not line.get(name)]
        if missing:
            raise MeasureError(f"the analysis recommends no {missing[0]} for {line['group']!r}")
        settings = tuple(int(line[name]) for name in SETTINGS)
    return Advice(
        int(size),
        settings,  # type: ignore[arg-type]  # as many as there are names
        float(line["mean"]) if line["mean"] else None,
        line["reasons"],
        line["weak"],
    )


def cell_of(advice: Advice, cells: Sequence[Cell], default_queue_credit: int) -> Cell:
    """Return the combination of the sweep that was recommended.

    Raises:
        MeasureError: nothing was recommended, or what was not measured.
    """
    if advice.settings is None:
        raise MeasureError(
            f"{size_name(advice.size_bytes)}: the analysis recommends nothing: {advice.reasons}"
        )
    for cell in cells:
        settings = (cell.credit, cell.window, cell.queue_credit or default_queue_credit)
        if (cell.size_bytes, settings) == (advice.size_bytes, advice.settings):
            return cell
    raise MeasureError(f"{advice.settings} were recommended, which the sweep has not measured")


def rivals_of(rows: Sequence[Row], cells: Sequence[Cell], chosen: Cell, aim: Aim, count: int) -> list[Cell]:
    """Return the best other combinations of the same size, by the medians of the sweep's own tables."""
    figures: dict[str, float] = {
        row["case"]: row[aim.figure] for row in rows if row.get(aim.figure) is not None
    }
    others = [
        cell
        for cell in cells
        if cell.size_bytes == chosen.size_bytes and cell != chosen and cell.name in figures
    ]
    return sorted(others, key=lambda cell: figures[cell.name], reverse=aim.highest)[:count]


def verdict_of(
    samples: Sequence[Row], measured: int, chosen: Cell, rivals: Sequence[Cell], aim: Aim
) -> Verdict:
    """Judge held-out samples.

    Args:
        samples: of all repetitions, one behind the other.
        measured: samples of each repetition.
        chosen: what was recommended.
        rivals: what it is compared with; a repetition in which a run of these failed is left out.
        aim: what is compared.

    Raises:
        MeasureError: no repetition is whole.
    """
    names = [chosen.name, *(cell.name for cell in rivals)]
    figures: dict[str, list[float]] = {name: [] for name in names}
    for start in range(0, len(samples), measured):
        block = samples[start : start + measured]
        found: dict[str, float] = {row["case"]: row[aim.figure] for row in block if row.get(aim.figure)}
        if found.keys() >= set(names):
            for name in names:
                figures[name].append(found[name])
    if not figures[chosen.name]:
        raise MeasureError(f"no held-out repetition of {chosen.name} and its rivals is whole: no verdict")
    return judge(
        figures[chosen.name], {cell.name: figures[cell.name] for cell in rivals}, highest=aim.highest
    )


def _analyse(context: Context, recording: Path, aim: Aim) -> list[Advice]:
    """Let the analysis recommend, in a process of its own: no JVM is left when the measuring goes on.

    Raises:
        BenchmarkError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "amqp10broker", "analyse", str(recording), "--aim", aim.name]
        command += ["--output", folder]
        if aim.name == "latency":
            command += ["--rate", f"{context.options.rate:g}"]
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=_ANALYSE_TIMEOUT_S, check=False
        )
        table = next(Path(folder).rglob("recommendations.csv"), None)
        if table is None:
            raise BenchmarkError(
                f"amqp10broker analyse ended with {done.returncode} and recommends nothing: "
                f"{(done.stderr or done.stdout)[-2000:]}"
            )
        return read_advice(table)


def _recording(context: Context, folder: Path, name: str) -> Recording:
    """Return a new recording for one part of the work.

    Raises:
        MeasureError: there is one already; its runs would be taken for ours.
    """
    where = folder / name
    if where.exists():
        raise MeasureError(f"{where} is there already: name a new folder with --record")
    return Recording(where, NAME, context.options.record_every)


def run(context: Context) -> Outcome:
    """Sweep, let the analysis recommend, measure again, judge."""
    aim = Aim.of(context.options)
    with ExitStack() as stack:
        folder: Path | None = context.options.record
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amqp10broker-")))
        return _run(context, aim, folder)


def _run(context: Context, aim: Aim, folder: Path) -> Outcome:
    options, quick = context.options, context.quick
    context.recording = _recording(context, folder, SWEEP)
    context.recording.check()
    cells = Grid.of(context).cells()
    swept = sweep.measure(context, cells, options.repetitions or (2 if quick else 3), options.sweep_seed)
    rows = sweep.rows_of(swept, cells)
    context.say("the analysis reads the recording")
    advice = _analyse(context, folder / SWEEP, aim)
    chosen = [cell_of(one, cells, default_queue_credit(context)) for one in advice]
    rivals = [rivals_of(rows, cells, cell, aim, options.rivals) for cell in chosen]
    context.recording = _recording(context, folder, HELD_OUT)
    again = [cell for one, others in zip(chosen, rivals, strict=True) for cell in (one, *others)]
    repetitions: int = options.held_out_repetitions or (4 if quick else HELD_OUT_REPETITIONS)
    held_out = sweep.measure(context, again, repetitions, options.sweep_seed + 1)
    outcome = Outcome(
        (*sweep.COLUMNS, "to_best", "to_best_low"),
        context.described_settings() | {"aim": aim.name, "held_out_repetitions": repetitions},
        [{**row, "part": SWEEP} for row in swept] + [{**row, "part": HELD_OUT} for row in held_out],
        sweep.rows_of(held_out, again),
    )
    for one, cell, others in zip(advice, chosen, rivals, strict=True):
        verdict = verdict_of(held_out, len(again), cell, others, aim)
        _tell(outcome, one, cell, verdict, swept, aim)
    return outcome


def _tell(
    outcome: Outcome, told: Advice, cell: Cell, verdict: Verdict, swept: Sequence[Row], aim: Aim
) -> None:
    """Add one verdict to what is printed and kept; the gravest decides over the exit status."""
    lines = [
        [
            one.rival,
            *("-" if figure is None else f"{figure:.3f}" for figure in (one.ratio, one.low, one.high)),
        ]
        for one in verdict.ratios
    ]
    outcome.tables.append(draw_table([f"{cell.name} / rival", "ratio", "from", "to"], lines))
    outcome.notes.append(f"Recommended for {size_name(cell.size_bytes)}: {cell.name}. {told.reasons}")
    if told.weak:
        outcome.notes.append(f"Weak: {told.weak}")
    outcome.notes.append(verdict.describe())
    row = next(row for row in outcome.rows if row["case"] == cell.name)
    row |= {"to_best": verdict.ratio, "to_best_low": verdict.low}
    outcome.settings.setdefault("verdicts", []).append(
        {
            **asdict(verdict),
            "finding": verdict.finding.name,
            "recommended": cell.name,
            "cell": asdict(cell),
            "analysis_mean": told.mean,
            "sweep_median": median_of(row.get(aim.figure) for row in swept if row["case"] == cell.name),
            "reasons": told.reasons,
            "weak": told.weak,
        }
    )
    gravity = (Finding.WITHIN.status, Finding.HIDDEN.status, Finding.NOT_WITHIN.status)
    outcome.status = max(outcome.status, verdict.finding.status, key=gravity.index)


def default_queue_credit(context: Context) -> int:
    """Return the max_queue_credit of combinations that name none."""
    from amqp10broker.config import FlowSettings

    return context.settings().max_queue_credit or FlowSettings().queue_credit


BENCHMARK = Benchmark(
    NAME,
    "Is what the analysis recommends as good as the best?",
    run,
    options(
        **sweep.OPTIONS,
        aim=("throughput", "default", ("throughput", "latency")),
        rivals=(RIVALS, "so many of the sweep's best are measured again beside the recommended"),
        held_out_repetitions=(int, f"default {HELD_OUT_REPETITIONS}, with --quick 4"),
    ),
    in_all=False,
)
