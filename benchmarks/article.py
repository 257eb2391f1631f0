"""What the two benchmarks of the flow-control article have in common.

RabbitMQ's article "Ten benefits of AMQP 1.0 flow control" (2 September 2024) compares AMQP 0-9-1 with
AMQP 1.0 over four queues, one fast and one slow for each protocol. The slow ones are quorum queues, as
there: with a data folder, whose syncs can be made slower (fault injection of the broker's test mode). The
other way, which needs no disk, delays the confirms of the slow queue by its name. This module owns the runs:
with the slow neighbour, alone, and, if asked for, with the neighbour on a connection of its own.
`article_tables` makes tables and sentences of them.

A protocol is a `Half`. The article ran both halves at the same time; here each has the broker to itself, so
that neither takes the other's processor time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from benchmarks import spec
from benchmarks.article_tables import HalfResult, join
from benchmarks.broker_process import BrokerSettings, Target
from benchmarks.errors import MeasureError
from benchmarks.measure import Context, Window, preload, window
from benchmarks.queues091 import Queues
from benchmarks.recording import RecordedRun, whole_or_nothing
from benchmarks.results import Outcome, Row
from benchmarks.stream import Counts

BODY_BYTES: Final = len(b"some payload")
DURATION_S: Final = 10.0
AMQP_10: Final = "AMQP 1.0"
AMQP_091: Final = "AMQP 0-9-1"
PROTOCOLS: Final = {"1.0": (AMQP_10,), "0-9-1": (AMQP_091,), "both": (AMQP_091, AMQP_10)}
FAST_TYPE: Final = "classic"
SLOW_TYPE: Final = "quorum"
BY_SYNC: Final = "sync"
BY_CONFIRM: Final = "confirm"
TRANSIENT: Final = "transient"
# Each has the broker's own credit, and gets it anew at each sync: one alone would fill for minutes at 50 ms.
PRELOAD_LINKS: Final = 64
PERSISTENT: Final = "persistent"


class Neighbour(Enum):
    """Where the slow queue's publisher is."""

    WITH = "with slow neighbour"
    """On the same session or channel."""
    ALONE = "alone"
    """There is none."""
    APART = "slow neighbour apart"
    """On a connection of its own: it shares the broker's processor and nothing else."""


@dataclass(frozen=True, slots=True)
class Half:
    """One protocol's side of an article benchmark."""

    protocol: str
    fast_queue: str
    slow_queue: str
    connection: Callable[[Context, str | None, str | None], spec.Connection]
    """Makes the connection from the addresses of the fast queue and the slow one (None: leave it out)."""
    fast_count: Callable[[Counts], int]
    """Which counter of stream 0 says how the fast link fares; stream 1 counts the slow link."""
    consumes: bool = False
    """The fast link takes messages out of a queue that was filled beforehand."""
    preload: int = 0
    """Messages put into the fast queue beforehand."""

    @property
    def amqp091(self) -> bool:
        """Whether this is the AMQP 0-9-1 half."""
        return self.protocol == AMQP_091

    def fast_left(self, counts: Counts) -> int:
        """Return the messages in the fast queue afterwards, for brokers that do not tell."""
        return self.preload - counts.settled if self.consumes else self.preload + counts.published


def add_arguments(parser: argparse.ArgumentParser, name: str, fast: str) -> None:
    """Add what can be varied, prefixed by the benchmark's name so that `all` can tell them apart.

    Args:
        parser: of one benchmark, or of all.
        name: of the benchmark.
        fast: which messages it puts into the fast queue if the command line does not say.
    """
    prefix = f"--{name}"
    group = parser.add_argument_group(f"{name} (as in the article, unless said otherwise)")
    group.add_argument(f"{prefix}-protocol", choices=PROTOCOLS, default="both", help="default %(default)s")
    group.add_argument(f"{prefix}-seconds", type=float, help=f"default {DURATION_S:g}, with --quick 2")
    group.add_argument(
        f"{prefix}-body", type=int, default=BODY_BYTES, help="bytes in a message (%(default)s)"
    )
    group.add_argument(
        f"{prefix}-delay-ms",
        type=float,
        nargs="+",
        default=[0.0, 5.0, 50.0],
        help="milliseconds that are added to each sync, or to the slow queue's confirms, each measured "
        "(%(default)s)",
    )
    group.add_argument(
        f"{prefix}-delay",
        choices=(BY_SYNC, BY_CONFIRM),
        default=BY_SYNC,
        help="what is late: syncs of a data folder, or, in memory, confirms of the slow queue (%(default)s)",
    )
    group.add_argument(
        f"{prefix}-fast",
        choices=(TRANSIENT, PERSISTENT),
        default=fast,
        help="messages of the fast queue; persistent ones wait for the sync, as those of a quorum queue do "
        "(%(default)s)",
    )
    group.add_argument(
        f"{prefix}-window", type=int, default=5000, help="the client's incoming-window (%(default)s)"
    )
    group.add_argument(
        f"{prefix}-apart",
        action="store_true",
        help="measure also with the slow neighbour on a connection of its own",
    )


def option(context: Context, name: str, key: str) -> int:
    """Return one of the whole-number options of `add_arguments`."""
    value: int | None = getattr(context.options, f"{name}_{key}")
    return value or 0


def fast_durable(context: Context, name: str) -> bool:
    """Return whether the fast queue's messages are persistent."""
    return bool(getattr(context.options, f"{name}_fast") == PERSISTENT)


def run_halves(context: Context, name: str, halves: Sequence[Half]) -> Outcome:
    """Measure the halves that were asked for at each delay; return tables, ratios and what to say of them."""
    options = context.options
    seconds: float = getattr(options, f"{name}_seconds") or (2.0 if context.quick else DURATION_S)
    delays: list[float] = getattr(options, f"{name}_delay_ms")
    wanted = PROTOCOLS[getattr(options, f"{name}_protocol")]
    # A ratio of two rates is noisier than a cost: more repetitions than elsewhere.
    context.repetitions = options.repetitions or (2 if context.quick else 5)
    columns = ("rate_per_s", "slow_per_s", "cpu_us", "helper_cpu_us", "broker_busy", "isolation", "together")
    outcome = Outcome((*columns, "slow_to_fast", "rss_mb", "disk_mb"), context.described_settings())
    for delay_ms in delays:
        results = [
            _run_half(context, name, half, delay_ms, seconds) for half in halves if half.protocol in wanted
        ]
        what = "syncs" if _by_sync(context, name) else "confirms"
        fast = PERSISTENT if fast_durable(context, name) else TRANSIENT
        join(outcome, results, f"{FAST_TYPE}, {fast}", f"{SLOW_TYPE}, {what} +{delay_ms:g} ms")
    return outcome


def _by_sync(context: Context, name: str) -> bool:
    return bool(getattr(context.options, f"{name}_delay") == BY_SYNC)


def _run_half(context: Context, name: str, half: Half, delay_ms: float, seconds: float) -> HalfResult:
    """Measure a half with its slow neighbour and without, in turns."""
    result = HalfResult(half.protocol, f"{half.protocol}, +{delay_ms:g} ms", half.consumes, half.preload)
    order = [Neighbour.WITH, Neighbour.ALONE]
    if getattr(context.options, f"{name}_apart"):
        order.insert(1, Neighbour.APART)
    for _ in range(context.repetitions):
        rows: dict[str, Row] = {}
        for neighbour in order:
            row = _one_run(context, name, half, neighbour, delay_ms, seconds)
            row["case"] = f"{result.title}: {neighbour.value}"
            context.say_row(row)
            rows[neighbour.name] = row
        result.add(rows)
        # with, alone, alone, with ...: a steady drift of the machine then falls on both alike.
        order.reverse()
    return result


def _settings(context: Context, name: str, half: Half, delay_ms: float) -> BrokerSettings:
    """Return the broker's settings: its own defaults, as in the article, and what makes a queue slow."""
    settings = context.settings(max_link_credit=None)
    if _by_sync(context, name):
        return replace(settings, data_root=context.options.data_root, sync_delay_ms=round(delay_ms))
    delays = ((half.slow_queue, delay_ms),) if delay_ms else ()
    return replace(settings, confirm_delays_ms=delays)


def _connections(
    context: Context, half: Half, neighbour: Neighbour, fast: str, slow: str
) -> spec.Connections:
    if neighbour is Neighbour.APART:
        return half.connection(context, fast, None), half.connection(context, None, slow)
    return (half.connection(context, fast, slow if neighbour is Neighbour.WITH else None),)


def _one_run(
    context: Context, name: str, half: Half, neighbour: Neighbour, delay_ms: float, seconds: float
) -> Row:
    settings = _settings(context, name, half, delay_ms)
    late = "syncs" if _by_sync(context, name) else "confirms"
    run = context.new_run(f"{neighbour.value}, {late} +{delay_ms:g} ms")
    with whole_or_nothing(run):
        what, taken, row = _taken(context, name, half, neighbour, settings, seconds, run)
        if run is not None:
            more = {"slow_queue_type": SLOW_TYPE, "streams": ["fast", "slow"]}
            durable = fast_durable(context, name)
            run.write(
                what, taken.result.recorded, settings, row, queue_type=FAST_TYPE, durable=durable, more=more
            )
    return row


def _taken(
    context: Context,
    name: str,
    half: Half,
    neighbour: Neighbour,
    settings: BrokerSettings,
    seconds: float,
    run: RecordedRun | None,
) -> tuple[spec.Load, Window, Row]:
    """Measure once; return the load, its window and its sample. The broker has ended then."""
    queues = (half.fast_queue, half.slow_queue)
    with context.target(settings, queues=queues, amqp091=half.amqp091, run=run) as target:
        if half.amqp091 or context.own:
            # The article's programs declare all their queues over AMQP 0-9-1.
            with Queues(target.endpoint) as known:
                known.declare({half.fast_queue: FAST_TYPE, half.slow_queue: SLOW_TYPE})
        fast, slow = queues if half.amqp091 else [context.address(queue) for queue in queues]
        body = option(context, name, "body")
        preload(
            target,
            (fast,) * PRELOAD_LINKS,
            half.preload,
            size_bytes=body,
            durable=fast_durable(context, name),
            amqp091=half.amqp091,
        )
        connections = _connections(context, half, neighbour, fast, slow)
        what = spec.Load(target.endpoint, connections, streams=2, name=name)
        limit = half.preload * 0.95
        # The article counts everything from the start, so that warm-up is a part of the run's seconds.
        warmup_s = min(context.warmup_s, 0.5, seconds / 4)
        seen = _Seen()
        taken = window(
            target,
            what,
            warmup_s=warmup_s,
            duration_s=seconds - warmup_s,
            until=(lambda counts: half.fast_count(counts[0]) >= limit) if limit else None,
            at_end=lambda: seen.look(target, half),
            record=run is not None,
        )
        counts = seen.counts or target.queue_counts()
    row = _row(name, half, neighbour, taken, counts, seen)
    row["run_seconds"] = warmup_s + taken.seconds
    row["ended_early"] = warmup_s + taken.seconds < 0.95 * seconds
    return what, taken, row


def _row(
    name: str, half: Half, neighbour: Neighbour, taken: Window, counts: dict[str, int] | None, seen: _Seen
) -> Row:
    """Return what a window comes to."""
    row = taken.row(name, "broker", half.fast_count(taken.counts[0]))
    total, slow_total = taken.result.counts
    if neighbour is not Neighbour.ALONE:
        row["slow_per_s"] = taken.counts[1].published / taken.seconds
        if taken.counts[1].published == 0 and slow_total.published == 0:
            raise MeasureError("the slow link never got to send anything")
    # The cost is that of both links' messages: they cannot be told apart from outside.
    everything = half.fast_count(taken.counts[0]) + taken.counts[1].published
    row["cpu_us"] = None if taken.cpu_s is None else taken.cpu_s / everything * 1e6
    row["helper_cpu_us"] = None if taken.helper_cpu_s is None else taken.helper_cpu_s / everything * 1e6
    known_counts = counts or {}
    row["queues"] = {
        half.fast_queue: known_counts.get(half.fast_queue, half.fast_left(total)) + _unsettled(half, taken),
        half.slow_queue: known_counts.get(half.slow_queue, slow_total.published),
    }
    row |= {"queues_from": "broker" if counts else "client counters", "flow_seen": seen.flow}
    row["slow_confirmed"] = slow_total.confirmed
    return row


def _unsettled(half: Half, taken: Window) -> int:
    """Return the messages at the client, which a queue's count of ready ones leaves out."""
    if not (half.amqp091 and half.consumes):
        return 0
    counts = taken.result.counts[0]
    return counts.delivered - counts.settled


class _Seen:
    """What was seen of the broker at the end of the window, while the load was still on it.

    In 0-9-1 much that was published is still on its way at that moment, in sockets and behind the blocked
    reader; a count taken after the load's end would count it in.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] | None = None
        self.flow: bool | None = None
        """Whether the connection was in state `flow`; None if the broker does not tell."""

    def look(self, target: Target, half: Half) -> None:
        """Count the queues and ask for the connection's state (AMQP 0-9-1 half only)."""
        if not half.amqp091:
            return
        with Queues(target.endpoint) as known:
            self.counts = known.counts((half.fast_queue, half.slow_queue))
        states = target.connection_states()
        self.flow = None if states is None else "flow" in states
