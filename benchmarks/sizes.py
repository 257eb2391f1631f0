"""How do cost and throughput depend on the size of a message?

Publish, deliver and settle at sizes from 12 bytes to 1 MiB. A message larger than the max-frame-size
(128 KiB on the generator's side) goes in several frames both ways, and each frame takes one unit of the
session window.
"""

from __future__ import annotations

import argparse

from benchmarks.cases import QUEUE, Case, delivered, publish_and_consume, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[12, 100, 1024, 10 * 1024, 100 * 1024, 1024 * 1024],
        help="bytes in a message (%(default)s)",
    )


def size_name(size_bytes: int) -> str:
    """Write a size the way people say it."""
    for unit, name in ((1024 * 1024, "MiB"), (1024, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def _case(context: Context, size_bytes: int) -> Case:
    return Case(
        size_name(size_bytes),
        lambda address: publish_and_consume(
            (address(QUEUE),),
            (address(QUEUE),),
            size_bytes=size_bytes,
            credit=context.options.credit,
        ),
        delivered,
    )


def run(context: Context) -> Outcome:
    """Measure each size."""
    sizes: list[int] = context.options.sizes
    samples = run_cases(context, [_case(context, size) for size in sizes])
    by_name = {size_name(size): size for size in sizes}
    for row in samples:
        if "rate_per_s" in row:
            row["bytes_per_s_mb"] = row["rate_per_s"] * by_name[row["case"]] / 1e6
    columns = (STANDARD_COLUMNS[0], "bytes_per_s_mb", *STANDARD_COLUMNS[1:])
    return Outcome(columns, context.described_settings(), samples)


BENCHMARK = Benchmark("sizes", "How do cost and throughput depend on message size?", run, _add_arguments)
