"""Cases: the common shape of most questions, and the loads they share.

A question is a list of cases. Each repetition goes through all of them, each with a fresh broker, so
that a slow drift of the machine meets every case alike; the floor peer is measured once a case.
`publishing`, `consuming` and `passing` make the cases of the three kinds of work, in either protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from benchmarks import spec
from benchmarks.broker_process import BrokerSettings
from benchmarks.errors import BenchmarkError, MeasureError
from benchmarks.floor_counts import ENDLESS
from benchmarks.measure import Context, Window, preload, window
from benchmarks.queues091 import Queues
from benchmarks.recording import RecordedRun, whole_or_nothing
from benchmarks.results import Row
from benchmarks.stream import Counts

QUEUE: Final = "bench"
STREAM: Final = "stream"
"""The type of queue whose messages stay when they have been read."""
# Whoever receives is kept supplied by this many messages beyond what has been delivered: four times
# the usual credit, so that credit and not supply is what limits.
OUTSTANDING: Final = 4000
OUTSTANDING_BYTES_MAX: Final = 32 * 1024 * 1024
IN_FLIGHT_091: Final = 1000
"""What AMQP 1.0 allows with the link credit that benchmarks grant; 0-9-1 has no limit of its own."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a question's table."""

    name: str
    connections: Callable[[Callable[[str], str]], spec.Connections]
    """Makes the load, given how queue names are written as addresses."""
    counter: str = "delivered"
    """The counter of stream 0 by which rate and cost are divided: `published`, `confirmed` or `delivered`.
    Of unsettled messages those published are within one flight of those confirmed."""
    preload: int = 0
    until: Callable[[tuple[Counts, ...]], bool] | None = None
    settings: BrokerSettings | None = None
    floor: tuple[str, ...] | None = ()
    """Arguments for the floor peer; None where the floor cannot play this case."""
    floor_queue: str = QUEUE
    """Prefix of addresses at the floor: messages of `endless` need no preload."""
    duration_s: float | None = None
    amqp091: bool = False
    """The load speaks AMQP 0-9-1: queues are declared and named plainly, messages preloaded over it."""
    queue_type: str = ""
    """Another type than classic is declared over AMQP 0-9-1; a classic queue comes into being when it is
    attached to. Empty: the type that the command line gives."""
    durable: bool = False
    """Send all messages as durable, those of the preload too; `--durable` does the same for every case."""
    recorded_as: str = ""
    """What a recording calls it, if the name tells settings of the broker as well."""


# --- the three kinds of work ----------------------------------------------------------------------


def publishing(
    context: Context,
    name: str,
    *,
    settled: bool = False,
    count_max: int = 0,
    in_flight_max: int | None = None,
    amqp091: bool = False,
) -> Case:
    """Return the case that publishes alone, over one link or loop.

    Args:
        context: the run.
        name: of the case.
        settled: nothing is confirmed; else those confirmed count.
        count_max: it is over when so many have been published; 0: never.
        in_flight_max: unconfirmed messages; None: as many as AMQP 1.0 allows with the usual credit.
        amqp091: the protocol.
    """

    def connections(address: Callable[[str], str]) -> spec.Connections:
        group = spec.Publish(
            (address(QUEUE),),
            settled=settled,
            size_bytes=context.size_bytes,
            count_max=count_max,
            in_flight_max=in_flight_max or (IN_FLIGHT_091 if amqp091 else 10_000),
        )
        return (spec.connection(group, amqp091=amqp091),)

    return Case(
        name,
        connections,
        "published" if settled else "confirmed",
        until=(lambda counts: counts[0].published >= count_max) if count_max else None,
        amqp091=amqp091,
    )


def consuming(
    context: Context,
    name: str,
    *,
    count: int,
    settle: spec.Settle = spec.Settle.RANGE,
) -> Case:
    """Return the case that empties a queue, which was filled beforehand.

    Args:
        context: the run.
        name: of the case.
        count: messages beforehand. The last twentieth is left out: a queue about to run empty is another
            question.
        settle: how.
    """

    def connections(address: Callable[[str], str]) -> spec.Connections:
        group = spec.Consume(
            (address(QUEUE),),
            credit=context.options.credit,
            settle=settle,
            size_bytes=context.size_bytes,
        )
        return (spec.connection(group),)

    return Case(
        name,
        connections,
        preload=count,
        until=lambda counts: counts[0].delivered >= count * 0.95,
        floor=("--size", str(context.size_bytes)),
        floor_queue=ENDLESS,
    )


def passing(context: Context, name: str, *, amqp091: bool = False, **of_load: Any) -> Case:
    """Return the case in which messages are published, delivered and settled.

    Args:
        context: the run.
        name: of the case.
        amqp091: the protocol.
        **of_load: arguments of `publish_and_consume`.
    """
    of_load = {"size_bytes": context.size_bytes, "credit": context.options.credit} | of_load
    if amqp091:
        of_load.setdefault("in_flight_max", IN_FLIGHT_091)
    return Case(
        name,
        lambda address: publish_and_consume(address(QUEUE), amqp091=amqp091, **of_load),
        amqp091=amqp091,
    )


def publish_and_consume(
    queue: str,
    *,
    size_bytes: int,
    credit: int = 1000,
    settle: spec.Settle = spec.Settle.RANGE,
    stamp: bool = False,
    amqp091: bool = False,
    **of_publish: Any,
) -> spec.Connections:
    """Return the load of publish + deliver + settle: one connection sends, another receives.

    The sender keeps a fixed number of messages ahead of what was delivered (within a few megabytes), so that
    as many come in as go out and the queue's length stays what it was. What else is given goes to
    `spec.Publish`.
    """
    ahead = max(8, min(OUTSTANDING, OUTSTANDING_BYTES_MAX // max(1, size_bytes)))
    of_publish = {"follow": 0, "outstanding": ahead} | of_publish
    sender = spec.Publish((queue,), size_bytes=size_bytes, stamp=stamp, **of_publish)
    receiver = spec.Consume((queue,), credit=credit, settle=settle, size_bytes=size_bytes, stamp=stamp)
    return spec.connection(sender, amqp091=amqp091), spec.connection(receiver, amqp091=amqp091)


# --- measuring ------------------------------------------------------------------------------------


def run_cases(context: Context, cases: Sequence[Case], random_source: Random | None = None) -> list[Row]:
    """Measure every case, `repetitions` times; return the samples.

    A case that fails leaves a sample that says why, so that the other cases are still measured.

    Args:
        context: the run.
        cases: what is measured.
        random_source: shuffles the cases anew for each repetition; None keeps their order.
    """
    samples: list[Row] = []
    if context.with_floor:
        samples += [_measured(context, case, "floor") for case in cases if case.floor is not None]
    for _ in range(context.repetitions):
        order = list(cases)
        if random_source is not None:
            random_source.shuffle(order)
        samples += [_measured(context, case, "broker") for case in order]
    return samples


def ratios(
    samples: Sequence[Row], works: Sequence[str], over: str, under: str, key: str, cost: str = "cpu_us"
) -> list[Row]:
    """Return a sample for each repetition of each work: one case's cost divided by another's.

    Args:
        samples: of cases named "work: variant"; one that failed, or has no such cost, has no ratio.
        works: what comes before the colon.
        over: the variant that is divided.
        under: the variant by which it is divided.
        key: what the ratio is called.
        cost: the column that is divided.
    """
    costs: dict[str, list[float | None]] = {}
    for sample in samples:
        if sample.get("target") != "floor":
            costs.setdefault(sample["case"], []).append(sample.get(cost))
    return [
        {"case": f"{work}: {over} / {under}", "target": "broker"} | {key: one / other}
        for work in works
        for one, other in zip(
            costs.get(f"{work}: {over}", ()), costs.get(f"{work}: {under}", ()), strict=False
        )
        if one is not None and other
    ]


def _measured(context: Context, case: Case, target: str) -> Row:
    try:
        row = _at_broker(context, case) if target == "broker" else _at_floor(context, case)
    except BenchmarkError as error:
        context.say(f"{target:6} {case.name:32} failed: {error}")
        return {"case": case.name, "target": target, "failed": str(error)}
    context.say_row(row)
    return row


def _at_floor(context: Context, case: Case) -> Row:
    warmup_s, duration_s = context.floor_window_s()
    with context.floor(*(case.floor or ())) as floor:
        connections = case.connections(lambda queue: queue.replace(QUEUE, case.floor_queue, 1))
        what = spec.Load(floor.endpoint, spec.varied(connections, unlimited=True), name=case.name)
        taken = window(floor, what, warmup_s=warmup_s, duration_s=duration_s)
        return taken.row(case.name, "floor", getattr(taken.counts[0], case.counter))


def _at_broker(context: Context, case: Case) -> Row:
    run = context.new_run(case.recorded_as or case.name)
    queue_type, durable = case.queue_type or context.queue_type, case.durable or context.durable
    with whole_or_nothing(run):
        what, taken, row = _taken(context, case, queue_type, durable, run)
        if run is not None:
            settings = case.settings or context.settings()
            run.write(what, taken.result.recorded, settings, row, queue_type=queue_type, durable=durable)
    return row


def _taken(
    context: Context, case: Case, queue_type: str, durable: bool, run: RecordedRun | None
) -> tuple[spec.Load, Window, Row]:
    """Measure a case; return its load, its window and its sample. The broker has ended then."""
    address: Callable[[str], str] = str if case.amqp091 else context.address
    with context.target(case.settings, queues=(QUEUE,), amqp091=case.amqp091, run=run) as target:
        if case.amqp091 or queue_type != "classic":
            with Queues(target.endpoint) as known:
                known.declare({QUEUE: queue_type})
        preload(
            target,
            [address(QUEUE)],
            case.preload,
            size_bytes=context.size_bytes,
            durable=durable,
            amqp091=case.amqp091,
        )
        before = target.rss_bytes()
        # Who attaches to a stream without saying where gets nothing of what lies in it already.
        from_first = queue_type == STREAM and case.preload > 0
        connections = spec.varied(case.connections(address), durable=durable, from_first=from_first)
        what = spec.Load(target.endpoint, connections, name=case.name)
        taken = window(
            target,
            what,
            warmup_s=context.warmup_s,
            duration_s=case.duration_s or context.duration_s,
            until=case.until,
            record=run is not None,
        )
        if taken.counts[0].refused:
            raise MeasureError(f"{case.name}: the broker refused {taken.counts[0].refused} messages")
        row = taken.row(case.name, "broker", getattr(taken.counts[0], case.counter))
        row["rss_before_mb"] = None if before is None else before / 1e6
        return what, taken, row
