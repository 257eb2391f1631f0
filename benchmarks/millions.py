"""How much room do a million queued messages take, and how fast does a broker start with them?

A queue is filled, looked at, the broker is ended in order and started again, killed and started again, and
the queue is emptied; then the data folder is looked at once more: what was consumed must not stay on the
disk. Each kind has a fresh broker and a fresh folder. Classic queues have a second, longer case.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import durability, spec
from benchmarks.broker_process import OwnBroker
from benchmarks.cases import QUEUE
from benchmarks.durability import Kind
from benchmarks.errors import BenchmarkError, MeasureError
from benchmarks.measure import Benchmark, Context, carry_through, options, preload
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row

COLUMNS: Final = (
    "messages",
    "fill_per_s",
    "fill_cpu_us",
    "rss_mb",
    "disk_mb",
    "start_accept_s",
    "start_answer_s",
    "crash_accept_s",
    "crash_answer_s",
    "restart_rss_mb",
    "drain_per_s",
    "drain_cpu_us",
    "empty_rss_mb",
    "empty_disk_mb",
)
# A queue that has just been filled or emptied may still be writing or cleaning; so long it is left alone.
SETTLE_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 0.02


_ASKED: Final = (
    "classic, transient, in memory",
    "classic, transient",
    "classic, persistent",
    "quorum",
    "stream",
)
KINDS: Final = tuple(kind for kind in durability.KINDS if kind.name in _ASKED)
LONG: Final = "classic, persistent"
"""The kind that has a second case, with more messages."""


def _fill(context: Context, broker: OwnBroker, kind: Kind, count: int) -> Row:
    """Publish with confirms, and say what that took and what it left."""
    address = context.address(QUEUE)
    done = preload(broker, (address,), count, size_bytes=context.size_bytes, durable=kind.durable)
    time.sleep(SETTLE_S)
    row: Row = {
        "messages": count,
        "fill_per_s": count / done.seconds,
        "fill_cpu_us": done.cpu_s / count * 1e6,
    }
    return row | _room(broker, "rss_mb", "disk_mb")


def _room(broker: OwnBroker, rss: str, disk: str) -> Row:
    rss_bytes, disk_bytes = broker.rss_bytes(), broker.disk_bytes()
    return {
        rss: None if rss_bytes is None else rss_bytes / 1e6,
        disk: None if disk_bytes is None else disk_bytes / 1e6,
    }


def _drain(context: Context, broker: OwnBroker, count: int) -> Row:
    """Consume everything, and say what that took and what it left."""
    group = spec.Consume((context.address(QUEUE),), credit=context.options.credit)
    done = carry_through(broker, (spec.connection(group),), count, "delivered", name="drain")
    time.sleep(SETTLE_S)
    row: Row = {"drain_per_s": count / done.seconds, "drain_cpu_us": done.cpu_s / count * 1e6}
    return row | _room(broker, "empty_rss_mb", "empty_disk_mb")


def _started(broker: OwnBroker, name: str, count: int) -> Row:
    """Say when a broker that was just started took its first connection, and when its queue answered.

    Raises:
        MeasureError: the queue has another number of messages than it ought to have.
    """
    # Entering the broker has taken `open_s` already: what the queue takes longer is counted from there.
    began = time.monotonic() - broker.open_s
    found = _asked(broker)
    while found is None:
        if time.monotonic() - began > ANSWER_TIMEOUT_S:
            raise MeasureError(f"the queue did not answer in {ANSWER_TIMEOUT_S:g} s after a {name}")
        time.sleep(_LOOK_S)
        found = _asked(broker)
    answered_s = time.monotonic() - began
    if found != count:
        raise MeasureError(f"{found} messages are there after a {name}, of {count}")
    return {f"{name}_accept_s": broker.accept_s, f"{name}_answer_s": answered_s}


def _asked(broker: OwnBroker) -> int | None:
    """Return how many messages the queue says it has; None if it does not answer yet."""
    try:
        with Queues(broker.endpoint) as known:
            return known.counts((QUEUE,))[QUEUE]
    except (BenchmarkError, OSError):
        return None


def _measured(context: Context, kind: Kind, count: int) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="amqp10broker-", dir=context.options.data_root))
    try:
        return _one(context, kind, count, folder if kind.data else None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one(context: Context, kind: Kind, count: int, folder: Path | None) -> Row:
    settings = replace(context.settings(), data_root=None)
    row: Row = {"case": f"{count:,} x {context.size_bytes} B: {kind.name}", "target": "broker"}

    def broker() -> OwnBroker:
        return OwnBroker(settings, context.options.python, folder=folder)

    if not kind.survives:
        with broker() as running:
            _declare(running, kind)
            row |= _fill(context, running, kind, count)
            row |= _drain(context, running, count)
        return row
    with broker() as running:
        _declare(running, kind)
        row |= _fill(context, running, kind, count)
    with broker() as running:
        row |= _started(running, "start", count)
        running.kill()
    with broker() as running:
        row |= _started(running, "crash", count)
        row["restart_rss_mb"] = (running.rss_bytes() or 0) / 1e6
        if kind.queue_type != "stream":
            row |= _drain(context, running, count)
    return row


def _declare(broker: OwnBroker, kind: Kind) -> None:
    with Queues(broker.endpoint) as known:
        known.declare({QUEUE: kind.queue_type})


def run(context: Context) -> Outcome:
    """Fill, restart and empty each kind of queue."""
    options = context.options
    context.repetitions = options.repetitions or 1
    count: int = options.millions_count or (100_000 if context.quick else 1_000_000)
    long_count: int | None = options.millions_long_count
    if long_count is None:
        long_count = 0 if context.quick else 10_000_000
    wanted = [(kind, count) for kind in KINDS if options.millions_kind in kind.name]
    if long_count:
        wanted += [(kind, long_count) for kind, _ in wanted if kind.name == LONG]
    outcome = Outcome(COLUMNS, context.described_settings())
    for _ in range(context.repetitions):
        for kind, messages in wanted:
            outcome.samples.append(_told(context, kind, messages))
    return outcome


def _told(context: Context, kind: Kind, count: int) -> Row:
    case = f"{count:,} x {context.size_bytes} B: {kind.name}"
    try:
        row = _measured(context, kind, count)
    except BenchmarkError as error:
        context.say(f"{case}: failed: {error}")
        return {"case": case, "target": "broker", "failed": str(error)}
    shown = ", ".join(f"{key} {value:,.2f}" for key, value in row.items() if isinstance(value, float))
    context.say(f"{case}: {shown}")
    return row


BENCHMARK = Benchmark(
    "millions",
    "How much room do millions of queued messages take, and how long does a start?",
    run,
    options(
        millions_count=(int, "messages (default 1 000 000, with --quick 100 000)"),
        millions_long_count=(int, "messages of the long case (default 10 000 000, with --quick and 0 none)"),
        millions_kind=("", "only kinds with this text in their name; default: all"),
    ),
)
