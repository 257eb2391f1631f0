"""Does a sender without credit hold up a receiver of the same session?

The article's second benchmark, AMQP 1.0 half: a fast queue is filled with a million messages; then, on one
connection and one session, a link receives them with credit 200 and accepts each singly, while another
link publishes to a slow queue in batches of 10 000 unconfirmed messages and waits for all confirms of a
batch. Ten seconds later the messages in both queues are counted. The same run without the sender gives the
isolation ratio: consumption with the sender / alone. Published for RabbitMQ on a laptop: 336 229 messages
left of a million, 130 000 in the slow queue; over one AMQP 0-9-1 channel 990 932 and 172 800.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks import spec
from benchmarks.article import Half, add_arguments, option, run_halves
from benchmarks.measure import Benchmark, Context
from benchmarks.results import Outcome

NAME = "one_sender_one_receiver"


def _session(context: Context, fast: str, slow: str | None) -> spec.Session:
    options = context.options
    body = int(option(context, NAME, "body") or 0)
    receiving = spec.Consume((fast,), credit=options.article_credit, settle=spec.Settle.EACH, size_bytes=body)
    batch: int = options.batch
    sending: tuple[spec.Publish, ...] = ()
    if slow is not None:
        sending = (
            spec.Publish((slow,), stream=1, size_bytes=body, durable=True, batch=batch, in_flight_max=batch),
        )
    window = int(option(context, NAME, "window") or 0)
    return spec.Session(publish=sending, consume=(receiving,), incoming_window=window)


AMQP_10 = Half(
    "AMQP 1.0",
    "classic-queue-amqp-10",
    "quorum-queue-amqp-10",
    _session,
    fast_count=lambda counts: counts.settled,
    fast_left=lambda counts, preloaded: preloaded - counts.settled,
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, NAME)
    parser.add_argument("--preload", type=int, help="messages beforehand (1 000 000, with --quick 600 000)")
    parser.add_argument("--article-credit", type=int, default=200, help="of the receiver (%(default)s)")
    parser.add_argument(
        "--batch", type=int, default=10_000, help="messages until all are confirmed (%(default)s)"
    )


def run(context: Context) -> Outcome:
    """Measure the AMQP 1.0 half."""
    count = context.options.preload or (600_000 if context.quick else 1_000_000)
    return run_halves(context, NAME, (replace(AMQP_10, preload=count),))


BENCHMARK = Benchmark(
    NAME, "Does a sender without credit hold up a receiver of the same session?", run, _add_arguments
)
