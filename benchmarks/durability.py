"""What does durability cost?

The same work (publish with confirms, consume, both at once) with transient messages in memory, which is
where nothing is promised, and with all that a data folder can be asked to keep: persistent messages of a
classic queue, a quorum queue, a stream. Publishing has 2 000 messages in flight; of quorum queues and
persistent messages the time until a confirm is compared with that of one fdatasync of the same disk,
measured in the same run while nothing else is done to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.cases import STREAM, Case, consuming, passing, publishing, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context, options
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

    @property
    def survives(self) -> bool:
        """Whether its messages are there after a restart."""
        return self.durable and self.data


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


def cases_of(context: Context) -> list[Case]:
    """Return every case that was asked for."""
    asked = context.options
    kinds = [kind for kind in KINDS if asked.kind in kind.name]
    synced = [kind for kind in kinds if kind.survives]
    count = asked.promise_consume_count or (300_000 if context.quick else 1_000_000)

    def publish(name: str, in_flight: int = IN_FLIGHT, amqp091: bool = False) -> Case:
        limit: int = asked.promise_publish_max
        return publishing(context, name, count_max=limit, in_flight_max=in_flight, amqp091=amqp091)

    works = (publish("publish"), consuming(context, "consume", count=count), passing(context, "both"))
    cases = [_of_kind(context, kind, work) for work in works for kind in kinds]
    for work in (publish("publish, AMQP 0-9-1", amqp091=True), publish("publish, 1 in flight", 1)):
        cases += [_of_kind(context, kind, work) for kind in synced]
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
        if row.get("confirm_p50_ms") and any(kind == one.name and one.survives for one in KINDS):
            row["confirm_syncs"] = row["confirm_p50_ms"] / sync.p50_ms


def _sync_row(name: str, sync: SyncTime) -> Row:
    return {"case": name, "target": "floor", "fdatasync_p50_ms": sync.p50_ms, "fdatasync_p99_ms": sync.p99_ms}


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


BENCHMARK = Benchmark(
    "durability",
    "What does durability cost?",
    run,
    options(
        kind=("", "only kinds with this text in their name; default: all"),
        promise_publish_max=(2_000_000, "stop a publish case at so many queued messages"),
        promise_consume_count=(int, "messages to fill a queue with (1 000 000, with --quick 300 000)"),
    ),
)
