"""What does it cost to take a message in?

One connection, one session, one sending link to one queue that nobody reads. Settled: fire and forget.
Unsettled: each message is confirmed, and the broker's credit is what limits the messages in flight.
"""

from __future__ import annotations

import argparse

from benchmarks import spec
from benchmarks.cases import QUEUE, Case, confirmed, published, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--publish-max",
        type=int,
        default=3_000_000,
        help="stop a publish case at so many queued messages, for the sake of memory (%(default)s)",
    )


def _case(context: Context, settled: bool) -> Case:
    count_max: int = context.options.publish_max

    def group(address: str) -> spec.Publish:
        return spec.Publish((address,), settled=settled, size_bytes=context.size_bytes, count_max=count_max)

    return Case(
        f"publish {'settled' if settled else 'unsettled'}",
        lambda address: ((spec.Session(publish=(group(address(QUEUE)),)),),),
        published if settled else confirmed,
        until=lambda counts: counts[0].published >= count_max,
    )


def run(context: Context) -> Outcome:
    """Measure settled and unsettled publishing."""
    context.warmup_s = min(context.warmup_s, 0.5)
    samples = run_cases(context, [_case(context, settled) for settled in (True, False)])
    return Outcome(STANDARD_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark("publish", "What does it cost to take a message in?", run, _add_arguments)
