"""What does it cost to give a message out?

A queue is filled first; then one receiving link empties it, settling by range (one disposition for a
socket read), each singly, or not at all (pre-settled). The window ends before the queue is empty.
"""

from __future__ import annotations

import argparse

from benchmarks import spec
from benchmarks.cases import QUEUE, Case, delivered, run_cases
from benchmarks.floor_counts import ENDLESS
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--consume-count",
        type=int,
        default=0,
        help="messages to fill the queue with (default 2 000 000, with --quick 600 000)",
    )


def _case(context: Context, settle: spec.Settle) -> Case:
    count: int = context.options.consume_count or (600_000 if context.quick else 2_000_000)

    credit: int = context.options.credit

    def connections(address: str) -> tuple[tuple[spec.Session, ...], ...]:
        group = spec.Consume((address,), credit=credit, settle=settle, size_bytes=context.size_bytes)
        return ((spec.Session(consume=(group,)),),)

    return Case(
        f"consume, settle {settle.value}",
        lambda address: connections(address(QUEUE)),
        delivered,
        preload=count,
        preload_size_bytes=context.size_bytes,
        # The last twentieth is left out: a queue about to run empty is another question.
        until=lambda counts: counts[0].delivered >= count * 0.95,
        floor=("--size", str(context.size_bytes)),
        floor_queue=ENDLESS,
    )


def run(context: Context) -> Outcome:
    """Measure the three ways to settle."""
    context.warmup_s = min(context.warmup_s, 0.3)
    samples = run_cases(context, [_case(context, settle) for settle in spec.Settle])
    return Outcome(STANDARD_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark("consume", "What does it cost to give a message out?", run, _add_arguments)
