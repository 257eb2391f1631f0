"""Is the broker slower than it was?

The broker of another checkout (`--against DIR`) and that of this one do the same work in turns, loaded by
this generator: transient messages, classic queues and no data folder, unless `--durable`, `--queue-type` and
`--data` say otherwise. The order changes from repetition to repetition, so that a drift of the machine falls
on both alike; what is compared is processor time. On a machine that is shared with others it differs by a
fourth from run to run: ``--bytecodes`` compares the bytecodes that the broker carries out for a message
instead, which differ by a hundredth. They leave out what is written in C: the codec's `struct`, the kernel.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.cases import Case, consuming, passing, publishing, ratios, run_cases
from benchmarks.errors import BenchmarkError
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context, options
from benchmarks.results import Outcome, Row, size_name
from benchmarks.spec import Settle

BEFORE: Final = "before"
NOW: Final = "now"


def works(context: Context) -> list[Case]:
    """Return what both do."""
    count: int = context.options.versus_count
    sizes: list[int] = context.options.versus_sizes
    if sizes:
        return [
            passing(context, f"both, {size_name(size)}{name}", size_bytes=size, amqp091=amqp091)
            for size in sizes
            for amqp091, name in ((False, ""), (True, ", AMQP 0-9-1"))
        ]
    return [
        publishing(context, "publish settled", settled=True, count_max=count),
        publishing(context, "publish unsettled", count_max=count),
        publishing(context, "publish, one in flight", in_flight_max=1),
        publishing(context, "publish unsettled, AMQP 0-9-1", count_max=count, amqp091=True),
        consuming(context, "consume, settle range", count=count),
        passing(context, "both, settle range"),
        passing(context, "both, settle each", settle=Settle.EACH),
        passing(context, "both, settle each, AMQP 0-9-1", settle=Settle.EACH, amqp091=True),
    ]


def run(context: Context) -> Outcome:
    """Measure both revisions in turns."""
    tree: Path | None = context.options.against
    cost = "bytecodes" if context.options.bytecodes else "cpu_us"
    columns = (
        ("bytecodes", "ratio_before") if context.options.bytecodes else (*STANDARD_COLUMNS, "ratio_before")
    )
    outcome = Outcome(columns, context.described_settings())
    if tree is None:
        outcome.notes.append("Not measured: --against DIR names a checkout of the revision to compare with.")
        return outcome
    if not (tree / "amqp10broker").is_dir():
        raise BenchmarkError(f"{tree} is no checkout of the broker: it has no folder amqp10broker")
    context.warmup_s = min(context.warmup_s, 0.5)
    repetitions, context.repetitions = context.repetitions, 1
    settings = replace(context.settings(), count_bytecodes=context.options.bytecodes)
    trees = [(BEFORE, tree.resolve()), (NOW, settings.tree)]
    chosen = works(context)
    for _ in range(repetitions):
        samples: list[Row] = []
        for work in chosen:
            cases = [
                replace(work, name=f"{work.name}: {when}", settings=replace(settings, tree=where), floor=None)
                for when, where in trees
            ]
            samples += run_cases(context, cases)
            trees.reverse()
        outcome.samples += samples
        outcome.samples += ratios(samples, [work.name for work in chosen], NOW, BEFORE, "ratio_before", cost)
        trees.reverse()
    return outcome


BENCHMARK = Benchmark(
    "versus",
    "Is the broker slower than it was?",
    run,
    options(
        against=(Path, "checkout of the revision to compare with"),
        versus_count=(1_000_000, "messages published at most"),
        bytecodes=(
            False,
            "compare the bytecodes that a message costs the broker, and not the processor time",
        ),
        versus_sizes=([], "bytes in a message: publish and consume of these sizes, and nothing else"),
    ),
)
