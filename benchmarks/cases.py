"""Cases: the common shape of most questions, and the loads they share.

A question is a list of cases. Each repetition goes through all of them, each with a fresh broker, so
that a slow drift of the machine meets every case alike; the floor peer is measured once a case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks import spec
from benchmarks.broker_process import BrokerSettings
from benchmarks.errors import BenchmarkError, MeasureError
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


def published(taken: Window) -> int:
    """Count messages sent; for unsettled ones that is within one flight of those confirmed."""
    return taken.counts[0].published


def confirmed(taken: Window) -> int:
    """Count messages confirmed."""
    return taken.counts[0].confirmed


def delivered(taken: Window) -> int:
    """Count messages delivered."""
    return taken.counts[0].delivered


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a question's table."""

    name: str
    connections: Callable[[Callable[[str], str]], spec.Connections]
    """Makes the load, given how queue names are written as addresses."""
    messages: Callable[[Window], int]
    queues: tuple[str, ...] = (QUEUE,)
    preload: int = 0
    preload_size_bytes: int = 100
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


def run_cases(context: Context, cases: Sequence[Case], chance: Random | None = None) -> list[Row]:
    """Measure every case, `repetitions` times; return the samples.

    A case that fails leaves a sample that says why, so that the other cases are still measured.

    Args:
        context: the run.
        cases: what is measured.
        chance: shuffles the cases anew for each repetition; None keeps their order.
    """
    samples: list[Row] = []
    if context.with_floor:
        for case in cases:
            if case.floor is not None:
                samples.append(_measured(context, case, "floor"))
    for _ in range(context.repetitions):
        order = list(cases)
        if chance is not None:
            chance.shuffle(order)
        samples += [_measured(context, case, "broker") for case in order]
    return samples


def _measured(context: Context, case: Case, target: str) -> Row:
    try:
        row = _at_broker(context, case) if target == "broker" else _at_floor(context, case, case.floor or ())
    except BenchmarkError as error:
        context.say(f"{target:6} {case.name:32} failed: {error}")
        return {"case": case.name, "target": target, "failed": str(error)}
    context.say_row(row)
    return row


def _at_floor(context: Context, case: Case, arguments: tuple[str, ...]) -> Row:
    warmup_s, duration_s = context.floor_window_s()

    def address(queue: str) -> str:
        return queue.replace(QUEUE, case.floor_queue, 1)

    with context.floor(*arguments) as floor:
        connections = spec.without_count(case.connections(address))
        what = spec.Load(floor.endpoint, connections, name=case.name)
        taken = window(floor, what, warmup_s=warmup_s, duration_s=duration_s)
        return taken.row(case.name, "floor", case.messages(taken))


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
    address = _plain_name if case.amqp091 else context.address
    with context.target(case.settings, queues=case.queues, amqp091=case.amqp091, run=run) as target:
        if case.amqp091 or queue_type != "classic":
            with Queues(target.endpoint) as known:
                known.declare(dict.fromkeys(case.queues, queue_type))
        addresses = [address(queue) for queue in case.queues]
        preload(
            target,
            addresses,
            case.preload,
            size_bytes=case.preload_size_bytes,
            durable=durable,
            amqp091=case.amqp091,
        )
        before = target.rss_bytes()
        connections = spec.varied(
            case.connections(address),
            durable=durable,
            # Who attaches to a stream without saying where gets nothing of what lies in it already.
            from_first=queue_type == STREAM and case.preload > 0,
        )
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
        row = taken.row(case.name, "broker", case.messages(taken))
        row["rss_before_mb"] = None if before is None else before / 1e6
        return what, taken, row


def _plain_name(queue: str) -> str:
    return queue


def outstanding(size_bytes: int) -> int:
    """Return how many messages of a size may be under way, so that they stay within a few megabytes."""
    return max(8, min(OUTSTANDING, OUTSTANDING_BYTES_MAX // max(1, size_bytes)))


def publish_and_consume(
    sending: Sequence[str],
    receiving: Sequence[str],
    *,
    size_bytes: int,
    credit: int = 1000,
    settle: spec.Settle = spec.Settle.RANGE,
    settled: bool = False,
    burst: int = 1024,
    durable: bool = False,
    sections: bool = False,
    mixed: bool = False,
    in_flight_max: int = 10_000,
    amqp091: bool = False,
    rate_per_s: float = 0.0,
    stamp: bool = False,
) -> spec.Connections:
    """Return the load of publish + deliver + settle: one connection sends, another receives.

    The sender keeps a fixed number of messages ahead of what was delivered, so that as many come in as go
    out and the queue's length stays what it was. Links are spread over as few sessions as they fit in, and
    over as many channels with `amqp091`.
    """
    ahead = outstanding(size_bytes)
    senders = [
        spec.Publish(
            addresses,
            settled=settled,
            size_bytes=size_bytes,
            burst=burst,
            durable=durable,
            sections=sections,
            mixed=mixed,
            in_flight_max=in_flight_max,
            follow=0,
            outstanding=ahead,
            rate_per_s=rate_per_s,
            stamp=stamp,
        )
        for addresses in spec.spread(sending)
    ]
    receivers = [
        spec.Consume(addresses, credit=credit, settle=settle, size_bytes=size_bytes, stamp=stamp)
        for addresses in spec.spread(receiving)
    ]
    if amqp091:
        return (
            tuple(spec.Channel(publish=(group,)) for group in senders),
            tuple(spec.Channel(consume=(group,)) for group in receivers),
        )
    return (
        tuple(spec.Session(publish=(group,)) for group in senders),
        tuple(spec.Session(consume=(group,)) for group in receivers),
    )
