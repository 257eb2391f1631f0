"""Does a slow queue slow down another link of the same session?

The article's first benchmark: one connection, one session, two links on which pre-settled 12-byte messages
are sent as fast as credit allows, one to a fast queue and one to a slow one; and the same over one AMQP
0-9-1 channel, on which two endless loops publish without confirms. Ten seconds later the messages in the
queues are counted. The same run without the slow link gives the isolation ratio: rate to the fast queue
with the slow neighbour / alone. Published for RabbitMQ on a laptop: 1 089 075 and 148 580 messages; over one
AMQP 0-9-1 channel 159 077 and 155 782.
"""

from __future__ import annotations

import argparse

from benchmarks import spec
from benchmarks.article import (
    AMQP_091,
    AMQP_10,
    TRANSIENT,
    Half,
    add_arguments,
    fast_durable,
    option,
    run_halves,
)
from benchmarks.measure import Benchmark, Context
from benchmarks.results import Outcome

NAME = "two_senders"


def _durable(context: Context, stream: int) -> bool:
    """Return whether the messages of a link are persistent; the slow one's, stream 1, are in any case."""
    return stream == 1 or fast_durable(context, NAME)


def _session(context: Context, fast: str | None, slow: str | None) -> spec.Connection:
    groups = [
        spec.Publish(
            (address,),
            stream=stream,
            settled=True,
            size_bytes=option(context, NAME, "body"),
            durable=_durable(context, stream),
        )
        for stream, address in enumerate((fast, slow))
        if address is not None
    ]
    window = option(context, NAME, "window")
    return (spec.Session(publish=tuple(groups), incoming_window=window),)


def _channel(context: Context, fast: str | None, slow: str | None) -> spec.Connection:
    groups = [
        spec.Publish(
            (queue,),
            stream=stream,
            settled=True,
            size_bytes=option(context, NAME, "body"),
            durable=_durable(context, stream),
            mandatory=True,
            content_type="text/plain",
            burst=context.options.turn,
        )
        for stream, queue in enumerate((fast, slow))
        if queue is not None
    ]
    return (spec.Channel(publish=tuple(groups)),)


HALVES = (
    Half(
        AMQP_091,
        "classic-queue-amqp-091",
        "quorum-queue-amqp-091",
        _channel,
        fast_count=lambda counts: counts.published,
    ),
    Half(
        AMQP_10,
        "classic-queue-amqp-10",
        "quorum-queue-amqp-10",
        _session,
        fast_count=lambda counts: counts.published,
    ),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, NAME, TRANSIENT)
    parser.add_argument(
        "--turn",
        type=int,
        default=1,
        help="messages that each loop of the 0-9-1 channel publishes in its turn (%(default)s)",
    )


def run(context: Context) -> Outcome:
    """Measure both halves."""
    return run_halves(context, NAME, HALVES)


BENCHMARK = Benchmark(
    NAME, "Does a slow queue slow down another link of the same session?", run, _add_arguments
)
