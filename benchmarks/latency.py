"""How long does a message take at a given rate?

Messages are published at a fixed rate by the clock, each carrying the time at which it was due; the
receiver reads it. A broker that pauses is charged for every message that was due meanwhile. The load
process spins on the clock, so that its own waking up is not in the figures; both clocks are one.
"""

from __future__ import annotations

import argparse

from benchmarks import spec
from benchmarks.cases import QUEUE, Case, delivered, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        default=[1_000.0, 10_000.0, 50_000.0],
        help="messages a second (%(default)s)",
    )


def _case(context: Context, rate_per_s: float) -> Case:
    def connections(address: str) -> tuple[tuple[spec.Session, ...], ...]:
        size: int = context.size_bytes
        sending = spec.Publish((address,), size_bytes=size, rate_per_s=rate_per_s, stamp=True)
        receiving = spec.Consume((address,), credit=context.options.credit, stamp=True, size_bytes=size)
        return (spec.Session(publish=(sending,)),), (spec.Session(consume=(receiving,)),)

    return Case(
        f"{rate_per_s:,.0f} msgs/s",
        lambda address: connections(address(QUEUE)),
        delivered,
        floor=("--keep",),
        duration_s=max(context.duration_s, 2.0 if context.quick else 5.0),
    )


def run(context: Context) -> Outcome:
    """Measure end-to-end and confirm latency at each rate."""
    samples = run_cases(context, [_case(context, rate) for rate in context.options.rates])
    return Outcome(STANDARD_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark("latency", "How long does a message take at a given rate?", run, _add_arguments)
