"""Does a sender without credit hold up a receiver of the same session?

The article's second benchmark: a fast queue is filled with a million messages; then, on one connection and
one session, a link receives them with credit 200 and accepts each singly, while another link publishes to a
slow queue in batches of 10 000 unconfirmed messages and waits for all confirms of a batch; and the same over
one AMQP 0-9-1 channel in confirm mode with a prefetch-count of 200. Ten seconds later the messages in the
queues are counted. The same run without the sender gives the isolation ratio: consumption with the sender /
alone. Published for RabbitMQ on a laptop: 336 229 messages left of a million, 130 000 in the slow queue;
over one AMQP 0-9-1 channel 990 932 and 172 800.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks import spec
from benchmarks.article import AMQP_091, AMQP_10, PERSISTENT, Half, add_arguments, option, run_halves
from benchmarks.measure import Benchmark, Context
from benchmarks.results import Outcome

NAME = "one_sender_one_receiver"


def _groups(
    context: Context, fast: str | None, slow: str | None
) -> tuple[tuple[spec.Publish, ...], tuple[spec.Consume, ...]]:
    """Return what both protocols do: the sending group and the receiving one, as far as they are wanted."""
    options = context.options
    body = option(context, NAME, "body")
    batch: int = options.batch
    sending: tuple[spec.Publish, ...] = ()
    receiving: tuple[spec.Consume, ...] = ()
    if slow is not None:
        one = spec.Publish((slow,), stream=1, size_bytes=body, durable=True, batch=batch, in_flight_max=batch)
        sending = (one,)
    if fast is not None:
        credit: int = options.article_credit
        receiving = (spec.Consume((fast,), credit=credit, settle=spec.Settle.EACH, size_bytes=body),)
    return sending, receiving


def _session(context: Context, fast: str | None, slow: str | None) -> spec.Connection:
    sending, receiving = _groups(context, fast, slow)
    window = option(context, NAME, "window")
    return (spec.Session(publish=sending, consume=receiving, incoming_window=window),)


def _channel(context: Context, fast: str | None, slow: str | None) -> spec.Connection:
    sending, receiving = _groups(context, fast, slow)
    like_the_article = tuple(replace(one, mandatory=True, content_type="text/plain") for one in sending)
    return (spec.Channel(publish=like_the_article, consume=receiving),)


HALVES = (
    Half(
        AMQP_091,
        "classic-queue-amqp-091",
        "quorum-queue-amqp-091",
        _channel,
        fast_count=lambda counts: counts.settled,
        consumes=True,
    ),
    Half(
        AMQP_10,
        "classic-queue-amqp-10",
        "quorum-queue-amqp-10",
        _session,
        fast_count=lambda counts: counts.settled,
        consumes=True,
    ),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, NAME, PERSISTENT)
    parser.add_argument("--preload", type=int, help="messages beforehand (1 000 000, with --quick 600 000)")
    parser.add_argument("--article-credit", type=int, default=200, help="of the receiver (%(default)s)")
    parser.add_argument(
        "--batch", type=int, default=10_000, help="messages until all are confirmed (%(default)s)"
    )


def run(context: Context) -> Outcome:
    """Measure both halves."""
    count = context.options.preload or (600_000 if context.quick else 1_000_000)
    return run_halves(context, NAME, [replace(half, preload=count) for half in HALVES])


BENCHMARK = Benchmark(
    NAME, "Does a sender without credit hold up a receiver of the same session?", run, _add_arguments
)
