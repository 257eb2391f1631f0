"""Does a slow queue slow down another link of the same session?

The article's first benchmark, AMQP 1.0 half: one connection, one session, two links on which pre-settled
12-byte messages are sent as fast as credit allows, one to a fast queue and one to a slow one. Ten seconds
later the messages in both queues are counted. The same run without the slow link gives the isolation
ratio: rate to the fast queue with the slow neighbour / alone. Published for RabbitMQ on a laptop:
1 089 075 and 148 580 messages; over one AMQP 0-9-1 channel 159 077 and 155 782.
"""

from __future__ import annotations

import argparse

from benchmarks import spec
from benchmarks.article import Half, add_arguments, option, run_halves
from benchmarks.measure import Benchmark, Context
from benchmarks.results import Outcome

NAME = "two_senders"


def _session(context: Context, fast: str, slow: str | None) -> spec.Session:
    body = int(option(context, NAME, "body") or 0)
    groups = [
        spec.Publish((address,), stream=stream, settled=True, size_bytes=body, durable=True)
        for stream, address in enumerate((fast, slow))
        if address is not None
    ]
    window = int(option(context, NAME, "window") or 0)
    return spec.Session(publish=tuple(groups), incoming_window=window)


AMQP_10 = Half(
    "AMQP 1.0",
    "classic-queue-amqp-10",
    "quorum-queue-amqp-10",
    _session,
    fast_count=lambda counts: counts.published,
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, NAME)


def run(context: Context) -> Outcome:
    """Measure the AMQP 1.0 half."""
    return run_halves(context, NAME, (AMQP_10,))


BENCHMARK = Benchmark(
    NAME, "Does a slow queue slow down another link of the same session?", run, _add_arguments
)
