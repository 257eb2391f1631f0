"""The two benchmarks of the flow-control article: what they ask, and how they are run.

RabbitMQ's article "Ten benefits of AMQP 1.0 flow control" (2 September 2024) compares AMQP 0-9-1 with
AMQP 1.0 over four queues, one fast and one slow for each protocol. The slow ones are quorum queues, as
there: with a data folder, whose syncs can be made slower (fault injection of the broker's test mode). The
other way, which needs no disk, delays the confirms of the slow queue by its name. Each runs with the slow
neighbour, alone, and, if asked for, with the neighbour on a connection of its own; ten seconds later the
messages in the queues are counted. `article_tables` makes tables, ratios and sentences of the runs.

`two_senders`: does a slow queue slow down another link of the same session? One connection, one session,
two links on which pre-settled 12-byte messages are sent as fast as credit allows, one to a fast queue and
one to a slow one; and the same over one AMQP 0-9-1 channel, on which two endless loops publish without
confirms. Published for RabbitMQ on a laptop: 1 089 075 and 148 580 messages; over one AMQP 0-9-1 channel
159 077 and 155 782.

`one_sender_one_receiver`: does a sender without credit hold up a receiver of the same session? A fast queue
is filled with a million messages; then, on one connection and one session, a link receives them with credit
200 and accepts each singly, while another link publishes to a slow queue in batches of 10 000 unconfirmed
messages and waits for all confirms of a batch; and the same over one AMQP 0-9-1 channel in confirm mode with
a prefetch-count of 200. Published for RabbitMQ on a laptop: 336 229 messages left of a million, 130 000 in
the slow queue; over one AMQP 0-9-1 channel 990 932 and 172 800.

The article ran both protocols at the same time; here each has the broker to itself, so that neither takes
the other's processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from typing import Any, Final

from benchmarks import spec
from benchmarks.article_tables import HalfResult, join
from benchmarks.broker_process import BrokerSettings, Target
from benchmarks.cluster import ClusterTarget, own_cluster
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, Window, options, preload, window
from benchmarks.queues091 import Queues
from benchmarks.recording import RecordedRun, whole_or_nothing
from benchmarks.results import Outcome, Row
from benchmarks.stream import Counts

AMQP_091: Final = "AMQP 0-9-1"
AMQP_10: Final = "AMQP 1.0"
BODY_BYTES: Final = len(b"some payload")
DURATION_S: Final = 10.0
PROTOCOLS: Final = {"1.0": (AMQP_10,), "0-9-1": (AMQP_091,), "both": (AMQP_091, AMQP_10)}
FAST_TYPE: Final = "classic"
SLOW_TYPE: Final = "quorum"
BY_SYNC: Final = "sync"
BY_CONFIRM: Final = "confirm"
TRANSIENT: Final = "transient"
PERSISTENT: Final = "persistent"
SYNCED: Final = "synced"
WRITTEN: Final = "written"
# Each has the broker's own credit, and gets it anew at each sync: one alone would fill for minutes at 50 ms.
PRELOAD_LINKS: Final = 64

Groups = tuple[list[spec.Publish], list[spec.Consume]]


class Neighbour(Enum):
    """Where the slow queue's publisher is."""

    WITH = "with slow neighbour"
    """On the same session or channel."""
    ALONE = "alone"
    """There is none."""
    APART = "slow neighbour apart"
    """On a connection of its own: it shares the broker's processor and nothing else."""


@dataclass(frozen=True, slots=True)
class Question:
    """One of the two benchmarks."""

    name: str
    fast: str
    """Which messages it puts into the fast queue if the command line does not say."""
    consumes: bool
    """The fast link takes messages out of a queue that was filled beforehand."""
    groups: Callable[[Context, Question, str | None, str | None], Groups]
    """What sends and what receives, given the addresses of the fast queue and the slow one (None: left out).
    Stream 0 is the fast link, stream 1 the slow one."""

    def option(self, context: Context, key: str) -> Any:
        """Return one of the options that carry the benchmark's name, so that `all` can tell them apart."""
        return getattr(context.options, f"{self.name}_{key}")

    def fast_durable(self, context: Context) -> bool:
        """Return whether the fast queue's messages are persistent."""
        return bool(self.option(context, "fast") == PERSISTENT)

    def by_sync(self, context: Context) -> bool:
        """Return whether syncs are late; else confirms are."""
        return bool(self.option(context, "delay") == BY_SYNC)

    def fast_count(self, counts: Counts) -> int:
        """Return the counter of stream 0 that says how the fast link fares."""
        return counts.settled if self.consumes else counts.published


@dataclass(frozen=True, slots=True)
class Half:
    """One protocol's side of a benchmark."""

    question: Question
    protocol: str
    preload: int = 0
    """Messages put into the fast queue beforehand."""
    confirm: str = SYNCED
    """When the broker's classic queues confirm persistent messages."""

    @property
    def amqp091(self) -> bool:
        """Whether this is the AMQP 0-9-1 half."""
        return self.protocol == AMQP_091

    @property
    def queues(self) -> tuple[str, str]:
        """The fast queue and the slow one, named as in the article."""
        protocol = "amqp-091" if self.amqp091 else "amqp-10"
        return f"classic-queue-{protocol}", f"quorum-queue-{protocol}"

    def connection(self, context: Context, fast: str | None, slow: str | None) -> spec.Connection:
        """Return the connection to the fast queue and the slow one (None: leave it out)."""
        publish, consume = self.question.groups(context, self.question, fast, slow)
        if not self.amqp091:
            window: int = self.question.option(context, "window")
            return (spec.Session(tuple(publish), tuple(consume), window),)
        like_the_article = [replace(one, mandatory=True, content_type="text/plain") for one in publish]
        if not self.question.consumes:
            turn: int = context.options.turn
            like_the_article = [replace(one, burst=turn) for one in like_the_article]
        return (spec.Channel(tuple(like_the_article), tuple(consume)),)

    def connections(self, context: Context, neighbour: Neighbour, fast: str, slow: str) -> spec.Connections:
        """Return the load with a neighbour at this place."""
        if neighbour is Neighbour.APART:
            return self.connection(context, fast, None), self.connection(context, None, slow)
        return (self.connection(context, fast, slow if neighbour is Neighbour.WITH else None),)


def _two_senders(context: Context, question: Question, fast: str | None, slow: str | None) -> Groups:
    """The slow queue's messages are persistent in any case."""
    durable = (question.fast_durable(context), True)
    groups = [
        spec.Publish((queue,), stream, True, question.option(context, "body"), durable=durable[stream])
        for stream, queue in enumerate((fast, slow))
        if queue is not None
    ]
    return groups, []


def _sender_and_receiver(context: Context, question: Question, fast: str | None, slow: str | None) -> Groups:
    body, batch = question.option(context, "body"), context.options.batch
    sending = spec.Publish((slow or "",), 1, size_bytes=body, durable=True, batch=batch, in_flight_max=batch)
    credit: int = context.options.article_credit
    receiving = spec.Consume((fast or "",), 0, credit, spec.Settle.EACH, size_bytes=body)
    return [sending] if slow is not None else [], [receiving] if fast is not None else []


TWO_SENDERS: Final = Question("two_senders", TRANSIENT, consumes=False, groups=_two_senders)
SENDER_AND_RECEIVER: Final = Question(
    "one_sender_one_receiver", PERSISTENT, consumes=True, groups=_sender_and_receiver
)


def halves(question: Question, preloaded: int = 0, confirm: str = SYNCED) -> list[Half]:
    """Return both sides of a benchmark."""
    return [Half(question, protocol, preloaded, confirm) for protocol in PROTOCOLS["both"]]


# --- running ----------------------------------------------------------------------------------------------


def _run(context: Context, question: Question) -> Outcome:
    """Measure the halves that were asked for at each delay; return tables, ratios and what to say of them."""
    seconds: float = question.option(context, "seconds") or (2.0 if context.quick else DURATION_S)
    count = (context.options.preload or (600_000 if context.quick else 1_000_000)) if question.consumes else 0
    # A ratio of two rates is noisier than a cost: more repetitions than elsewhere.
    context.repetitions = context.options.repetitions or (2 if context.quick else 5)
    columns = ("rate_per_s", "slow_per_s", "cpu_us", "helper_cpu_us", "broker_busy", "isolation", "together")
    outcome = Outcome((*columns, "slow_to_fast", "rss_mb", "disk_mb"), context.described_settings())
    late = "syncs" if question.by_sync(context) else "confirms"
    wanted = PROTOCOLS[question.option(context, "protocol")]
    settings = product(question.option(context, "delay_ms"), question.option(context, "confirm"))
    for delay_ms, confirm in settings:
        results = [
            _run_half(context, half, delay_ms, seconds)
            for half in halves(question, count, confirm)
            if half.protocol in wanted
        ]
        fast = PERSISTENT if question.fast_durable(context) else TRANSIENT
        if confirm != SYNCED:
            fast += f", confirmed when {confirm}"
        join(outcome, results, f"{FAST_TYPE}, {fast}", f"{SLOW_TYPE}, {late} +{delay_ms:g} ms")
    return outcome


def _run_half(context: Context, half: Half, delay_ms: float, seconds: float) -> HalfResult:
    """Measure a half with its slow neighbour and without, in turns."""
    question = half.question
    title = f"{half.protocol}, +{delay_ms:g} ms" + ("" if half.confirm == SYNCED else f", {half.confirm}")
    result = HalfResult(half.protocol, title, question.consumes, half.preload)
    order = [Neighbour.WITH, Neighbour.ALONE]
    if question.option(context, "apart"):
        order.insert(1, Neighbour.APART)
    for _ in range(context.repetitions):
        rows: dict[str, Row] = {}
        for neighbour in order:
            row = _one_run(context, half, neighbour, delay_ms, seconds)
            row["case"] = f"{result.title}: {neighbour.value}"
            context.say_row(row)
            rows[neighbour.name] = row
        result.add(rows)
        # with, alone, alone, with ...: a steady drift of the machine then falls on both alike.
        order.reverse()
    return result


def _settings(context: Context, half: Half, delay_ms: float) -> BrokerSettings:
    """Return the broker's settings: its own defaults, as in the article, and what makes a queue slow."""
    settings = context.settings(max_link_credit=None)
    if half.question.by_sync(context):
        if half.confirm != SYNCED:
            settings = replace(settings, extra=(*settings.extra, "--classic-confirm", half.confirm))
        return replace(settings, data_root=context.options.data_root, sync_delay_ms=round(delay_ms))
    return replace(settings, confirm_delays_ms=((half.queues[1], delay_ms),) if delay_ms else ())


def _one_run(context: Context, half: Half, neighbour: Neighbour, delay_ms: float, seconds: float) -> Row:
    settings = _settings(context, half, delay_ms)
    late = "syncs" if half.question.by_sync(context) else "confirms"
    run = context.new_run(f"{neighbour.value}, {late} +{delay_ms:g} ms")
    with whole_or_nothing(run):
        what, taken, row = _taken(context, half, neighbour, settings, seconds, run)
        if run is not None:
            more = {"slow_queue_type": SLOW_TYPE, "streams": ["fast", "slow"]}
            durable = half.question.fast_durable(context)
            run.write(
                what, taken.result.recorded, settings, row, queue_type=FAST_TYPE, durable=durable, more=more
            )
    return row


@contextmanager
def _target(
    context: Context, half: Half, settings: BrokerSettings, run: RecordedRun | None
) -> Iterator[Target]:
    """Give a broker; or three nodes, of which the one that is loaded has the classic queue and the leader."""
    if not half.question.option(context, "cluster"):
        with context.target(settings, queues=half.queues, amqp091=half.amqp091, run=run) as target:
            yield target
        return
    if run is not None or not context.own:
        raise MeasureError("a cluster is one of this repository's broker, and is not recorded")
    with own_cluster(context, settings) as cluster:
        yield ClusterTarget(cluster, 0)


def _taken(
    context: Context,
    half: Half,
    neighbour: Neighbour,
    settings: BrokerSettings,
    seconds: float,
    run: RecordedRun | None,
) -> tuple[spec.Load, Window, Row]:
    """Measure once; return the load, its window and its sample. The broker has ended then."""
    question, queues = half.question, half.queues
    with _target(context, half, settings, run) as target:
        if half.amqp091 or context.own:
            # The article's programs declare all their queues over AMQP 0-9-1.
            with Queues(target.endpoint) as known:
                known.declare(dict(zip(queues, (FAST_TYPE, SLOW_TYPE), strict=True)))
        fast, slow = queues if half.amqp091 else [context.address(queue) for queue in queues]
        preload(
            target,
            (fast,) * PRELOAD_LINKS,
            half.preload,
            size_bytes=question.option(context, "body"),
            durable=question.fast_durable(context),
            amqp091=half.amqp091,
        )
        connections = half.connections(context, neighbour, fast, slow)
        what = spec.Load(target.endpoint, connections, streams=2, name=question.name)
        limit = half.preload * 0.95
        # The article counts everything from the start, so that warm-up is a part of the run's seconds.
        warmup_s = min(context.warmup_s, 0.5, seconds / 4)
        seen = _Seen()
        taken = window(
            target,
            what,
            warmup_s=warmup_s,
            duration_s=seconds - warmup_s,
            until=(lambda counts: question.fast_count(counts[0]) >= limit) if limit else None,
            at_end=lambda: seen.look(target, half),
            record=run is not None,
        )
        counts = seen.counts or target.queue_counts()
    row = _row(half, neighbour, taken, counts, seen)
    row["run_seconds"] = warmup_s + taken.seconds
    row["ended_early"] = warmup_s + taken.seconds < 0.95 * seconds
    return what, taken, row


def _row(half: Half, neighbour: Neighbour, taken: Window, counts: dict[str, int] | None, seen: _Seen) -> Row:
    """Return what a window comes to."""
    question, (fast_queue, slow_queue) = half.question, half.queues
    moved = question.fast_count(taken.counts[0])
    row = taken.row(question.name, "broker", moved)
    total, slow_total = taken.result.counts
    if neighbour is not Neighbour.ALONE:
        row["slow_per_s"] = taken.counts[1].published / taken.seconds
        if taken.counts[1].published == 0 and slow_total.published == 0:
            raise MeasureError("the slow link never got to send anything")
    # The cost is that of both links' messages: they cannot be told apart from outside.
    for cost in ("cpu_us", "helper_cpu_us"):
        if row[cost] is not None:
            row[cost] *= moved / (moved + taken.counts[1].published)
    # Messages at the client are left out by a queue's count of ready ones.
    unsettled = total.delivered - total.settled if half.amqp091 and question.consumes else 0
    known = counts or {}
    # For brokers that do not tell: what was there, less what was settled, or and what was published.
    left = half.preload + (-total.settled if question.consumes else total.published)
    row["queues"] = {
        fast_queue: known.get(fast_queue, left) + unsettled,
        slow_queue: known.get(slow_queue, slow_total.published),
    }
    row |= {"queues_from": "broker" if counts else "client counters", "flow_seen": seen.flow}
    row["slow_confirmed"] = slow_total.confirmed
    return row


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
            self.counts = known.counts(half.queues)
        states = target.connection_states()
        self.flow = None if states is None else "flow" in states


def _benchmark(question: Question, asks: str, **own: tuple[Any, ...]) -> Benchmark:
    """Return a benchmark with the options of both, which carry its name, and its own."""
    late = "milliseconds added to each sync, or to the slow queue's confirms, each measured"
    by = "what is late: syncs of a data folder, or, in memory, confirms of the slow queue"
    fast = "messages of the fast queue; persistent ones wait for the sync, as those of a quorum queue do"
    common = {
        "protocol": ("both", "as in the article, unless said otherwise; default", list(PROTOCOLS)),
        "seconds": (float, f"default {DURATION_S:g}, with --quick 2"),
        "body": (BODY_BYTES, "bytes in a message"),
        "delay-ms": ([0.0, 5.0, 50.0], late),
        "delay": (BY_SYNC, by, (BY_SYNC, BY_CONFIRM)),
        "fast": (question.fast, fast, (TRANSIENT, PERSISTENT)),
        "confirm": ([SYNCED], "when the classic queue confirms persistent messages", (SYNCED, WRITTEN)),
        "cluster": (False, "over three nodes; the quorum queue has a member on each"),
        "window": (5000, "the client's incoming-window"),
        "apart": (False, "measure also with the slow neighbour on a connection of its own"),
    }
    named = {f"{question.name}-{name}": what for name, what in common.items()}
    return Benchmark(question.name, asks, lambda context: _run(context, question), options(**named, **own))


BENCHMARKS: Final = (
    _benchmark(
        TWO_SENDERS,
        "Does a slow queue slow down another link of the same session?",
        turn=(1, "messages that each loop of the 0-9-1 channel publishes in its turn"),
    ),
    _benchmark(
        SENDER_AND_RECEIVER,
        "Does a sender without credit hold up a receiver of the same session?",
        preload=(int, "messages beforehand (1 000 000, with --quick 600 000)"),
        article_credit=(200, "of the receiver"),
        batch=(10_000, "messages until all are confirmed"),
    ),
)
