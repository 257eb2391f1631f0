"""Does the cost of a message depend on the number of links on one queue?

1 to 1000 links to one queue, on the sending side, on the receiving side, or on both, at most 250 to a
session. Senders take turns; a turn is `--bursts` messages on one link. A burst of 1 is the worst case
for any batching, as successive frames always belong to different links; 32 is what many busy clients
on one connection look like. The queue hands out in turns as well, by its own rules.
"""

from __future__ import annotations

import argparse

from benchmarks.cases import QUEUE, Case, delivered, publish_and_consume, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--links", type=int, nargs="+", default=[1, 10, 100, 1000], help="links (%(default)s)"
    )
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=("sending", "receiving", "both"),
        default=["sending", "receiving", "both"],
        help="where there are many links (%(default)s)",
    )
    parser.add_argument("--bursts", type=int, nargs="+", default=[32], help="messages a turn (%(default)s)")


def _case(context: Context, links: int, side: str, burst: int) -> Case:
    sending = links if side in ("sending", "both") else 1
    receiving = links if side in ("receiving", "both") else 1
    return Case(
        f"1 link, burst {burst}" if links == 1 else f"{links} links {side}, burst {burst}",
        lambda address: publish_and_consume(
            (address(QUEUE),) * sending,
            (address(QUEUE),) * receiving,
            size_bytes=context.size_bytes,
            credit=context.options.credit,
            burst=burst,
        ),
        delivered,
    )


def run(context: Context) -> Outcome:
    """Measure each number of links, side and burst."""
    options = context.options
    cases = [
        _case(context, links, side, burst)
        for burst in options.bursts
        for side in options.sides
        for links in options.links
    ]
    # One link is the same case on every side: measured once, compared with all.
    once = list({case.name: case for case in cases}.values())
    return Outcome(STANDARD_COLUMNS, context.described_settings(), run_cases(context, once))


BENCHMARK = Benchmark(
    "links", "Does the cost of a message depend on the number of links?", run, _add_arguments
)
