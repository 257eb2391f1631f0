"""Does the cost of a message depend on how many lie in the queue?

The queue is filled with 10 to 1 000 000 messages; then as many are published as are delivered and
settled, so that its length stays the same while every message in it passes. Resident memory before the
traffic, less that of the shortest queue, gives the bytes a queued message takes.
"""

from __future__ import annotations

import argparse

from benchmarks.cases import QUEUE, Case, delivered, publish_and_consume, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome, median_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backlogs", type=int, nargs="+", default=[10, 1000, 100_000, 1_000_000], help="(%(default)s)"
    )


def _case(context: Context, backlog: int) -> Case:
    return Case(
        f"{backlog} queued",
        lambda address: publish_and_consume(
            (address(QUEUE),),
            (address(QUEUE),),
            size_bytes=context.size_bytes,
            credit=context.options.credit,
        ),
        delivered,
        preload=backlog,
        preload_size_bytes=context.size_bytes,
        # The floor keeps no messages: a backlog means nothing to it.
        floor=None,
    )


def run(context: Context) -> Outcome:
    """Measure each backlog."""
    backlogs: list[int] = sorted(context.options.backlogs)
    samples = run_cases(context, [_case(context, backlog) for backlog in backlogs])
    outcome = Outcome(STANDARD_COLUMNS, context.described_settings(), samples)

    def resting_mb(backlog: int) -> float | None:
        case = f"{backlog} queued"
        return median_of(row.get("rss_before_mb") for row in samples if row["case"] == case)

    low, high = resting_mb(backlogs[0]), resting_mb(backlogs[-1])
    if low is not None and high is not None and backlogs[-1] > backlogs[0]:
        each = (high - low) * 1e6 / (backlogs[-1] - backlogs[0])
        outcome.notes.append(
            f"A queued message of {context.size_bytes} bytes takes {each:.0f} bytes of resident memory "
            f"({high:.0f} MB with {backlogs[-1]} queued, {low:.0f} MB with {backlogs[0]})."
        )
    return outcome


BENCHMARK = Benchmark("backlog", "Does the cost depend on how many lie in the queue?", run, _add_arguments)
