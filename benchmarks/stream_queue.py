"""What does a stream cost?

Publishing into a stream, and reading it from its first message: over one link, over two at once (each gets
every message), and in AMQP 0-9-1, where a message is converted. A stream keeps what was read, so a window
may last as long as there are messages that were not.
"""

from __future__ import annotations

import argparse

from benchmarks import spec
from benchmarks.cases import (
    QUEUE,
    STREAM,
    Case,
    confirmed,
    delivered,
    publish_and_consume,
    published,
    run_cases,
)
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stream-count",
        type=int,
        default=0,
        help="messages to fill the stream with (default 2 000 000, with --quick 600 000)",
    )


def _publish(context: Context, settled: bool) -> Case:
    group = spec.Publish((context.address(QUEUE),), settled=settled, size_bytes=context.size_bytes)
    return Case(
        f"publish {'settled' if settled else 'unsettled'}",
        lambda address: ((spec.Session(publish=(group,)),),),
        published if settled else confirmed,
        floor=None,
        queue_type=STREAM,
    )


def _read(context: Context, settle: spec.Settle, links: int = 1) -> Case:
    count: int = context.options.stream_count or (600_000 if context.quick else 2_000_000)
    credit: int = context.options.credit

    def connections(address: str) -> spec.Connections:
        group = spec.Consume(
            (address,), credit=credit, settle=settle, size_bytes=context.size_bytes, offset="first"
        )
        return tuple((spec.Session(consume=(group,)),) for _ in range(links))

    return Case(
        f"read, settle {settle.value}" + (f", {links} links" if links > 1 else ""),
        lambda address: connections(address(QUEUE)),
        delivered,
        preload=count,
        preload_size_bytes=context.size_bytes,
        until=lambda counts: counts[0].delivered >= count * links * 0.95,
        floor=None,
        queue_type=STREAM,
    )


def _live(context: Context) -> Case:
    return Case(
        "publish and read at the end",
        lambda address: publish_and_consume(
            [address(QUEUE)], [address(QUEUE)], size_bytes=context.size_bytes, credit=context.options.credit
        ),
        delivered,
        floor=None,
        queue_type=STREAM,
    )


def _live_091(context: Context) -> Case:
    return Case(
        "the same in AMQP 0-9-1",
        lambda address: publish_and_consume(
            [address(QUEUE)],
            [address(QUEUE)],
            size_bytes=context.size_bytes,
            credit=context.options.credit,
            amqp091=True,
        ),
        delivered,
        floor=None,
        amqp091=True,
        queue_type=STREAM,
    )


def run(context: Context) -> Outcome:
    """Measure publishing, reading, and both."""
    context.warmup_s = min(context.warmup_s, 0.3)
    cases = [
        _publish(context, settled=True),
        _publish(context, settled=False),
        _read(context, spec.Settle.PRESETTLED),
        _read(context, spec.Settle.RANGE),
        _read(context, spec.Settle.PRESETTLED, links=2),
        _live(context),
        _live_091(context),
    ]
    return Outcome(STANDARD_COLUMNS, context.described_settings(), run_cases(context, cases))


BENCHMARK = Benchmark("streams", "What does a stream cost?", run, _add_arguments)
