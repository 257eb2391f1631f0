"""What does AMQP 0-9-1 cost beside AMQP 1.0?

The same work in both protocols, in turns in one run: publish, consume, and both at once, with and without
confirms, with automatic and manual acknowledgement. Messages have the same body, and both ends the same
limits: prefetch-count and credit, unconfirmed messages and `max-link-credit`. What is compared is the
broker's processor time a message, which depends least on what else the machine is doing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import spec
from benchmarks.cases import QUEUE, Case, confirmed, delivered, publish_and_consume, published, run_cases
from benchmarks.floor_counts import ENDLESS
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome, Row
from benchmarks.spec import Settle

AMQP_091: Final = "AMQP 0-9-1"
AMQP_10: Final = "AMQP 1.0"
# What AMQP 1.0 allows with the link credit that benchmarks grant; 0-9-1 has no limit of its own.
IN_FLIGHT_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class _Work:
    """One thing to do in both protocols."""

    name: str
    kind: str
    """ "publish", "consume" or "both"."""
    settled: bool = False
    settle: Settle = Settle.EACH
    credit: int | None = None
    """None takes the command line's."""
    like_clients: bool = False
    """Durable, and with the properties that client libraries add."""
    mixed: bool = False
    """Of sizes that change from message to message."""
    queues: int = 1
    """Publish to so many, message by message in turns: no two like publishes follow each other."""


_WORK: Final = (
    _Work("publish, no confirms", "publish", settled=True),
    _Work("publish, confirms", "publish"),
    _Work("publish, no confirms, two queues", "publish", settled=True, queues=2),
    _Work("consume, automatic", "consume", settle=Settle.PRESETTLED),
    _Work("consume, each", "consume", settle=Settle.EACH),
    _Work("consume, range", "consume", settle=Settle.RANGE),
    _Work("both, no confirms, automatic", "both", settled=True, settle=Settle.PRESETTLED),
    _Work("both, confirms, each", "both", settle=Settle.EACH),
    _Work("both, confirms, range", "both", settle=Settle.RANGE),
    _Work("both, confirms, each, prefetch 200", "both", settle=Settle.EACH, credit=200),
    _Work("both, confirms, range, as clients send", "both", settle=Settle.RANGE, like_clients=True),
    _Work("both, confirms, range, mixed sizes", "both", settle=Settle.RANGE, mixed=True),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work", metavar="TEXT", default="", help="only what has this text in its name (default: all)"
    )
    parser.add_argument(
        "--work-publish-max",
        type=int,
        default=2_000_000,
        help="stop a publish case at so many queued messages, for the sake of memory (%(default)s)",
    )
    parser.add_argument(
        "--work-consume-count",
        type=int,
        default=0,
        help="messages to fill the queue with (default 2 000 000, with --quick 800 000)",
    )


def _unit(amqp091: bool, **groups: Any) -> spec.Connections:
    """Return one connection with one channel or session."""
    return ((spec.Channel(**groups),),) if amqp091 else ((spec.Session(**groups),),)


def _publish_case(context: Context, work: _Work, name: str, amqp091: bool) -> Case:
    count_max: int = context.options.work_publish_max
    queues = (QUEUE, *(f"{QUEUE}-{number}" for number in range(1, work.queues)))

    def group(addresses: tuple[str, ...]) -> spec.Publish:
        return spec.Publish(
            addresses,
            settled=work.settled,
            size_bytes=context.size_bytes,
            burst=1024 if len(addresses) == 1 else 1,
            count_max=count_max,
            in_flight_max=IN_FLIGHT_MAX if amqp091 else 10_000,
        )

    return Case(
        name,
        lambda address: _unit(amqp091, publish=(group(tuple(map(address, queues))),)),
        published if work.settled else confirmed,
        queues=queues,
        until=lambda counts: counts[0].published >= count_max,
        amqp091=amqp091,
    )


def _consume_case(context: Context, work: _Work, name: str, amqp091: bool) -> Case:
    count: int = context.options.work_consume_count or (800_000 if context.quick else 2_000_000)
    credit: int = work.credit or context.options.credit

    def group(address: str) -> spec.Consume:
        return spec.Consume((address,), credit=credit, settle=work.settle, size_bytes=context.size_bytes)

    return Case(
        name,
        lambda address: _unit(amqp091, consume=(group(address(QUEUE)),)),
        delivered,
        preload=count,
        preload_size_bytes=context.size_bytes,
        # The last twentieth is left out: a queue about to run empty is another question.
        until=lambda counts: counts[0].delivered >= count * 0.95,
        floor=("--size", str(context.size_bytes)),
        floor_queue=ENDLESS,
        amqp091=amqp091,
    )


def _both_case(context: Context, work: _Work, name: str, amqp091: bool) -> Case:
    return Case(
        name,
        lambda address: publish_and_consume(
            (address(QUEUE),),
            (address(QUEUE),),
            size_bytes=context.size_bytes,
            credit=work.credit or context.options.credit,
            settle=work.settle,
            settled=work.settled,
            durable=work.like_clients,
            sections=work.like_clients,
            mixed=work.mixed,
            in_flight_max=IN_FLIGHT_MAX if amqp091 else 10_000,
            amqp091=amqp091,
        ),
        delivered,
        amqp091=amqp091,
    )


_CASES: Final = {"publish": _publish_case, "consume": _consume_case, "both": _both_case}


def ratios(samples: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return a sample for each repetition of each work: processor time of 0-9-1 divided by that of 1.0."""
    costs: dict[str, list[float | None]] = {}
    for sample in samples:
        if sample["target"] == "broker":
            costs.setdefault(sample["case"], []).append(sample.get("cpu_us"))
    found: list[Row] = []
    for name in names:
        ours, theirs = costs.get(f"{name}: {AMQP_091}", []), costs.get(f"{name}: {AMQP_10}", [])
        found += [
            {"case": f"{name}: 0-9-1 / 1.0", "target": "broker", "ratio_091": one / other}
            for one, other in zip(ours, theirs, strict=True)
            if one is not None and other
        ]
    return found


def run(context: Context) -> Outcome:
    """Measure every work in both protocols, and the ratio of their costs."""
    context.warmup_s = min(context.warmup_s, 0.3)
    chosen = [work for work in _WORK if context.options.work in work.name]
    cases = [
        _CASES[work.kind](context, work, f"{work.name}: {protocol}", protocol == AMQP_091)
        for work in chosen
        for protocol in (AMQP_091, AMQP_10)
    ]
    samples = run_cases(context, cases)
    outcome = Outcome((*STANDARD_COLUMNS, "ratio_091"), context.described_settings(), samples)
    outcome.samples += ratios(samples, [work.name for work in chosen])
    return outcome


BENCHMARK = Benchmark("protocols", "What does AMQP 0-9-1 cost beside AMQP 1.0?", run, _add_arguments)
