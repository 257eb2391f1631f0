"""What does a message cost when traffic is scattered over many queues?

1000 queues, each with one sending and one receiving link; successive messages go to successive queues.
A broker cannot batch then: each message wakes another queue. This is the worst case; most applications
have a few busy queues and many quiet ones.
"""

from __future__ import annotations

import argparse

from benchmarks.cases import QUEUE, Case, delivered, publish_and_consume, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queues", type=int, nargs="+", default=[1, 10, 100, 1000], help="(%(default)s)")


def _case(context: Context, count: int) -> Case:
    queues = tuple(f"{QUEUE}-{number}" for number in range(count))
    return Case(
        f"{count} queues",
        lambda address: publish_and_consume(
            [address(queue) for queue in queues],
            [address(queue) for queue in queues],
            size_bytes=context.size_bytes,
            credit=context.options.credit,
            burst=1 if count > 1 else 1024,
        ),
        delivered,
        queues=queues,
    )


def run(context: Context) -> Outcome:
    """Measure each number of queues."""
    samples = run_cases(context, [_case(context, count) for count in context.options.queues])
    return Outcome(STANDARD_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark("scatter", "What does a message cost over many queues?", run, _add_arguments)
