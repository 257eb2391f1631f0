"""What does durability cost?

The same work (publish with confirms, consume, both at once) with transient messages in memory, which is
where nothing is promised, and with all that a data folder can be asked to keep: persistent messages of a
classic queue, a quorum queue, a stream. Publishing has 2 000 messages in flight; of quorum queues and
persistent messages the time until a confirm is compared with that of one fdatasync of the same disk,
measured in the same run while nothing else is done to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import spec
from benchmarks.cases import (
    QUEUE,
    STREAM,
    Case,
    confirmed,
    delivered,
    publish_and_consume,
    run_cases,
)
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.processes import SyncTime
from benchmarks.results import Outcome, Row

IN_FLIGHT: Final = 2000
BASE: Final = "classic, transient, in memory"
_COMMIT_BYTES: Final = 256 * 1024
"""About what 2 000 messages of 100 bytes come to in a journal."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is promised: a type of queue, a kind of message, a place to keep them."""

    name: str
    queue_type: str
    durable: bool
    data: bool


KINDS: Final = (
    Kind(BASE, "classic", durable=False, data=False),
    Kind("classic, persistent, in memory", "classic", durable=True, data=False),
    Kind("quorum, in memory", "quorum", durable=True, data=False),
    Kind("stream, in memory", STREAM, durable=True, data=False),
    Kind("classic, transient", "classic", durable=False, data=True),
    Kind("classic, persistent", "classic", durable=True, data=True),
    Kind("quorum", "quorum", durable=True, data=True),
    Kind("stream", STREAM, durable=True, data=True),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("durability")
    group.add_argument(
        "--kind", metavar="TEXT", default="", help="only kinds with this text in their name (default: all)"
    )
    group.add_argument(
        "--promise-publish-max",
        type=int,
        default=2_000_000,
        help="stop a publish case at so many queued messages (%(default)s)",
    )
    group.add_argument(
        "--promise-consume-count",
        type=int,
        default=0,
        help="messages to fill a queue with (default 1 000 000, with --quick 300 000)",
    )


def _of_kind(context: Context, kind: Kind, case: Case) -> Case:
    """Return a case for queue, messages and place of a kind."""
    settings = replace(
        context.settings(max_link_credit=IN_FLIGHT),
        data_root=context.options.data_root if kind.data else None,
        sync_delay_ms=context.options.sync_delay_ms if kind.data else 0,
    )
    return replace(
        case,
        name=f"{case.name}: {kind.name}",
        settings=settings,
        queue_type=kind.queue_type,
        durable=kind.durable,
        floor=None,
    )


def _publish(context: Context, *, in_flight: int = IN_FLIGHT, amqp091: bool = False) -> Case:
    count_max: int = context.options.promise_publish_max

    def connections(address: Callable[[str], str]) -> spec.Connections:
        group = spec.Publish(
            (address(QUEUE),),
            size_bytes=context.size_bytes,
            in_flight_max=in_flight,
            count_max=count_max,
        )
        part = spec.Channel(publish=(group,)) if amqp091 else spec.Session(publish=(group,))
        return ((part,),)  # type: ignore[return-value]  # one part is of one protocol

    name = "publish" if in_flight == IN_FLIGHT else f"publish, {in_flight} in flight"
    return Case(
        f"{name}, AMQP 0-9-1" if amqp091 else name,
        connections,
        confirmed,
        until=lambda counts: counts[0].published >= count_max,
        amqp091=amqp091,
    )


def _consume(context: Context) -> Case:
    count: int = context.options.promise_consume_count or (300_000 if context.quick else 1_000_000)
    credit: int = context.options.credit

    def connections(address: Callable[[str], str]) -> spec.Connections:
        group = spec.Consume((address(QUEUE),), credit=credit, size_bytes=context.size_bytes)
        return ((spec.Session(consume=(group,)),),)

    return Case(
        "consume",
        connections,
        delivered,
        preload=count,
        preload_size_bytes=context.size_bytes,
        # The last twentieth is left out: a queue about to run empty is another question.
        until=lambda counts: counts[0].delivered >= count * 0.95,
    )


def _both(context: Context) -> Case:
    return Case(
        "both",
        lambda address: publish_and_consume(
            (address(QUEUE),),
            (address(QUEUE),),
            size_bytes=context.size_bytes,
            credit=context.options.credit,
        ),
        delivered,
    )


def cases_of(context: Context) -> list[Case]:
    """Return every case that was asked for."""
    kinds = [kind for kind in KINDS if context.options.kind in kind.name]
    works = (_publish(context), _consume(context), _both(context))
    cases = [_of_kind(context, kind, work) for work in works for kind in kinds]
    synced = [kind for kind in kinds if kind.data and kind.durable]
    cases += [_of_kind(context, kind, _publish(context, amqp091=True)) for kind in synced]
    cases += [_of_kind(context, kind, _publish(context, in_flight=1)) for kind in synced]
    return cases


def compare(samples: Sequence[Row], sync: SyncTime) -> None:
    """Add to the samples of one repetition what they are to be compared with.

    Args:
        samples: each gets `cost_ratio`, its cost divided by that of the same work with transient messages in
            memory, and, if it was published into a data folder, `confirm_syncs`, the median time until a
            confirm in fdatasyncs.
        sync: how long one takes.
    """
    base = {row["case"].partition(":")[0]: row.get("cpu_us") for row in samples if row["case"].endswith(BASE)}
    for row in samples:
        work, _, kind = row["case"].partition(": ")
        if row.get("cpu_us") and base.get(work):
            row["cost_ratio"] = row["cpu_us"] / base[work]
        if row.get("confirm_p50_ms") and any(kind == one.name and one.data and one.durable for one in KINDS):
            row["confirm_syncs"] = row["confirm_p50_ms"] / sync.p50_ms


def _sync_row(name: str, sync: SyncTime) -> Row:
    return {
        "case": name,
        "target": "floor",
        "fdatasync_p50_ms": sync.p50_ms,
        "fdatasync_p99_ms": sync.p99_ms,
    }


def run(context: Context) -> Outcome:
    """Measure every kind at every work, and the disk before and after each repetition."""
    context.warmup_s = min(context.warmup_s, 0.5)
    cases = cases_of(context)
    folder: Path = context.options.data_root
    repetitions, context.repetitions = context.repetitions, 1
    columns = (*STANDARD_COLUMNS, "cost_ratio", "confirm_syncs", "fdatasync_p50_ms", "fdatasync_p99_ms")
    outcome = Outcome(columns, context.described_settings())
    outcome.settings["repetitions"] = repetitions
    for _ in range(repetitions):
        before = SyncTime.measure(folder)
        samples = run_cases(context, cases)
        after = SyncTime.measure(folder)
        sync = SyncTime((before.p50_ms + after.p50_ms) / 2, max(before.p99_ms, after.p99_ms))
        compare(samples, sync)
        large = SyncTime.measure(folder, _COMMIT_BYTES, 50)
        outcome.samples += [
            _sync_row("append 4 KiB and sync", sync),
            _sync_row("append 256 KiB and sync", large),
            *samples,
        ]
    return outcome


BENCHMARK = Benchmark("durability", "What does durability cost?", run, _add_arguments)
