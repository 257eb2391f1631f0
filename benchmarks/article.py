"""What the two benchmarks of the flow-control article have in common.

RabbitMQ's article "Ten benefits of AMQP 1.0 flow control" (2 September 2024) compares AMQP 0-9-1 with
AMQP 1.0 over four queues, one fast and one slow for each protocol. The slow ones were quorum queues on a
consumer disk; here a queue is slow because the broker delays its confirms (fault injection of its test
mode). This module owns the queues' names, the alternation of runs with and without the slow neighbour,
and the table. A protocol is a `Half`; AMQP 0-9-1 is one more.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks import spec
from benchmarks.broker_process import BrokerSettings
from benchmarks.errors import MeasureError
from benchmarks.load import Counts
from benchmarks.measure import Context, preload, window
from benchmarks.results import Outcome, Row, draw_table

BODY_BYTES: Final = len(b"some payload")
DURATION_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Half:
    """One protocol's side of an article benchmark."""

    protocol: str
    fast_queue: str
    slow_queue: str
    session: Callable[[Context, str, str | None], spec.Session]
    """Makes the session from the fast queue's address and the slow one's (None: leave it out)."""
    fast_count: Callable[[Counts], int]
    """Which counter of stream 0 says how the fast link fares; stream 1 counts the slow link."""
    preload: int = 0
    """Messages put into the fast queue beforehand."""
    fast_left: Callable[[Counts, int], int] = lambda counts, preloaded: preloaded + counts.published
    """Messages in the fast queue afterwards, for brokers that do not tell."""


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add what can be varied, prefixed by the benchmark's name so that `all` can tell them apart."""
    prefix = f"--{name}"
    group = parser.add_argument_group(f"{name} (as in the article, unless said otherwise)")
    group.add_argument(f"{prefix}-seconds", type=float, help=f"default {DURATION_S:g}, with --quick 2")
    group.add_argument(
        f"{prefix}-body", type=int, default=BODY_BYTES, help="bytes in a message (%(default)s)"
    )
    group.add_argument(
        f"{prefix}-delay-ms",
        type=float,
        default=100.0,
        help="delay of the slow queue's confirms in milliseconds (%(default)g)",
    )
    group.add_argument(
        f"{prefix}-window", type=int, default=5000, help="the client's incoming-window (%(default)s)"
    )


def option(context: Context, name: str, key: str) -> float | int | None:
    """Return one of the options of `add_arguments`."""
    value: float | int | None = getattr(context.options, f"{name}_{key}")
    return value


def _settings(context: Context, half: Half, delay_ms: float) -> BrokerSettings:
    """Return the broker's settings: its own defaults, as in the article, and the slow queue's delay."""
    delays = ((half.slow_queue, delay_ms),) if delay_ms else ()
    return replace(context.settings(max_link_credit=None), confirm_delays_ms=delays)


def run_half(context: Context, name: str, half: Half) -> Outcome:
    """Measure a half alone and with its slow neighbour, in turns; return table and isolation ratio."""
    seconds = option(context, name, "seconds") or (2.0 if context.quick else DURATION_S)
    # A ratio of two rates is noisier than a cost: more repetitions than elsewhere.
    context.repetitions = context.options.repetitions or (2 if context.quick else 5)
    outcome = Outcome(
        ("rate_per_s", "slow_per_s", "cpu_us", "broker_busy", "isolation", "rss_mb"),
        context.described_settings(),
    )
    ratios: list[float] = []
    table = ""
    for repetition in range(context.repetitions):
        # with, alone, alone, with ...: a steady drift of the machine then falls on both alike.
        order = (True, False) if repetition % 2 == 0 else (False, True)
        rates: dict[bool, float] = {}
        for with_slow in order:
            row, drawn = _one_run(context, name, half, with_slow, seconds)
            outcome.samples.append(row)
            rates[with_slow] = row["rate_per_s"]
            context.say_row(row)
            if with_slow:
                table = drawn
        ratios.append(rates[True] / rates[False])
        outcome.samples.append(
            {"case": f"{half.protocol}: with / alone", "target": "broker", "isolation": ratios[-1]}
        )
    outcome.tables.append(table)
    shares = [
        row["slow_per_s"] / (row["slow_per_s"] + row["rate_per_s"])
        for row in outcome.samples
        if row.get("slow_per_s")
    ]
    share = statistics.median(shares) if shares else 0.0
    outcome.notes.append(
        f"{half.protocol}: isolation ratio {statistics.median(ratios):.3f} (median of {len(ratios)}, "
        f"{min(ratios):.3f} to {max(ratios):.3f}). The slow link carried {share:.1%} of the messages: so "
        "much a single-core broker must lose on the fast link by sharing its processor, whatever its flow "
        "control does."
    )
    early = [row["run_seconds"] for row in outcome.samples if row.get("ended_early")]
    if early:
        outcome.notes.append(
            f"{half.protocol}: {len(early)} of {2 * context.repetitions} runs ended early, after "
            f"{min(early):.1f} s at the least, as 95 % of the {half.preload:,} messages had been consumed."
        )
    return outcome


def _one_run(context: Context, name: str, half: Half, with_slow: bool, seconds: float) -> tuple[Row, str]:
    delay_ms = float(option(context, name, "delay_ms") or 0.0)
    queues = (half.fast_queue, half.slow_queue)
    with context.target(_settings(context, half, delay_ms), queues=queues) as target:
        fast, slow = (context.address(queue) for queue in queues)
        preload(
            target, (fast,), half.preload, size_bytes=int(option(context, name, "body") or 0), durable=True
        )
        session = half.session(context, fast, slow if with_slow else None)
        what = spec.Load(target.endpoint, ((session,),), streams=2, name=name)
        limit = half.preload * 0.95
        # The article counts everything from the start, so that warm-up is a part of the run's seconds.
        warmup_s = min(context.warmup_s, 0.5, seconds / 4)
        taken = window(
            target,
            what,
            warmup_s=warmup_s,
            duration_s=seconds - warmup_s,
            until=(lambda counts: half.fast_count(counts[0]) >= limit) if limit else None,
        )
        counts = target.queue_counts()
    case = f"{half.protocol}: {'with slow neighbour' if with_slow else 'alone'}"
    row = taken.row(case, "broker", half.fast_count(taken.counts[0]))
    total, slow_total = taken.result.counts
    if with_slow:
        row["slow_per_s"] = taken.counts[1].published / taken.seconds
        if taken.counts[1].published == 0 and slow_total.published == 0:
            raise MeasureError("the slow link never got credit")
    # The cost is that of both links' messages: they cannot be told apart from outside.
    everything = half.fast_count(taken.counts[0]) + taken.counts[1].published
    row["cpu_us"] = None if taken.cpu_s is None else taken.cpu_s / everything * 1e6
    known = counts or {}
    left = {
        half.fast_queue: known.get(half.fast_queue, half.fast_left(total, half.preload)),
        half.slow_queue: known.get(half.slow_queue, slow_total.published),
    }
    row |= {"queues": left, "queues_from": "status" if counts else "client counters"}
    row |= {"run_seconds": warmup_s + taken.seconds, "slow_confirmed": slow_total.confirmed}
    row["ended_early"] = warmup_s + taken.seconds < 0.95 * seconds
    return row, _draw(half, left, delay_ms)


def _draw(half: Half, left: dict[str, int], delay_ms: float) -> str:
    kinds = {half.fast_queue: "classic", half.slow_queue: f"classic, confirms +{delay_ms:g} ms"}
    lines = [(queue, kinds[queue], str(count)) for queue, count in left.items()]
    return draw_table(("name", "type", "messages"), lines, ruled=True, left=3)


def run_halves(context: Context, name: str, halves: Sequence[Half]) -> Outcome:
    """Measure every protocol's half and join the results."""
    outcomes = [run_half(context, name, half) for half in halves]
    first = outcomes[0]
    for other in outcomes[1:]:
        first.samples += other.samples
        first.tables += other.tables
        first.notes += other.notes
    return first
