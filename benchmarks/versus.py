"""Is the broker slower than it was?

The broker of another checkout (`--against DIR`) and that of this one do the same work in turns, loaded by
this generator: transient messages, classic queues, no data folder. The order changes from repetition to
repetition, so that a drift of the machine falls on both alike; what is compared is processor time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks import spec
from benchmarks.cases import QUEUE, Case, confirmed, delivered, publish_and_consume, published, run_cases
from benchmarks.errors import BenchmarkError
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome, Row
from benchmarks.spec import Settle

BEFORE: Final = "before"
NOW: Final = "now"
# What AMQP 1.0 allows with the link credit that benchmarks grant; 0-9-1 has no limit of its own.
IN_FLIGHT_091: Final = 1000


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("versus")
    group.add_argument("--against", type=Path, metavar="DIR", help="checkout of the revision to compare with")
    group.add_argument(
        "--versus-count", type=int, default=1_000_000, help="messages published at most (%(default)s)"
    )


def _publish(context: Context, *, settled: bool, amqp091: bool = False) -> Case:
    count_max: int = context.options.versus_count

    def group(address: str) -> spec.Publish:
        return spec.Publish(
            (address,),
            settled=settled,
            size_bytes=context.size_bytes,
            count_max=count_max,
            in_flight_max=IN_FLIGHT_091 if amqp091 else 10_000,
        )

    name = f"publish {'settled' if settled else 'unsettled'}"
    return Case(
        f"{name}, AMQP 0-9-1" if amqp091 else name,
        lambda address: (
            ((spec.Channel(publish=(group(address(QUEUE)),)),),)
            if amqp091
            else ((spec.Session(publish=(group(address(QUEUE)),)),),)
        ),
        published if settled else confirmed,
        until=lambda counts: counts[0].published >= count_max,
        amqp091=amqp091,
    )


def _consume(context: Context) -> Case:
    count: int = context.options.versus_count
    group_of: dict[str, Any] = {"credit": context.options.credit, "size_bytes": context.size_bytes}
    return Case(
        "consume, settle range",
        lambda address: ((spec.Session(consume=(spec.Consume((address(QUEUE),), **group_of),)),),),
        delivered,
        preload=count,
        preload_size_bytes=context.size_bytes,
        until=lambda counts: counts[0].delivered >= count * 0.95,
    )


def _both(context: Context, name: str, **what: Any) -> Case:
    return Case(
        name,
        lambda address: publish_and_consume(
            (address(QUEUE),),
            (address(QUEUE),),
            size_bytes=context.size_bytes,
            credit=context.options.credit,
            **what,
        ),
        delivered,
        amqp091=bool(what.get("amqp091")),
    )


def works(context: Context) -> list[Case]:
    """Return what both do."""
    return [
        _publish(context, settled=True),
        _publish(context, settled=False),
        _publish(context, settled=False, amqp091=True),
        _consume(context),
        _both(context, "both, settle range"),
        _both(context, "both, settle each", settle=Settle.EACH),
        _both(
            context,
            "both, settle each, AMQP 0-9-1",
            settle=Settle.EACH,
            amqp091=True,
            in_flight_max=IN_FLIGHT_091,
        ),
    ]


def ratios(samples: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return one sample a work of one repetition: its cost now divided by its cost before."""
    costs = {row["case"]: row.get("cpu_us") for row in samples}
    found: list[Row] = []
    for name in names:
        now, before = costs.get(f"{name}: {NOW}"), costs.get(f"{name}: {BEFORE}")
        if now is not None and before:
            found.append({"case": f"{name}: now / before", "target": "broker", "ratio_before": now / before})
    return found


def run(context: Context) -> Outcome:
    """Measure both revisions in turns."""
    tree: Path | None = context.options.against
    outcome = Outcome((*STANDARD_COLUMNS, "ratio_before"), context.described_settings())
    if tree is None:
        outcome.notes.append("Not measured: --against DIR names a checkout of the revision to compare with.")
        return outcome
    if not (tree / "amqp10broker").is_dir():
        raise BenchmarkError(f"{tree} is no checkout of the broker: it has no folder amqp10broker")
    context.warmup_s = min(context.warmup_s, 0.5)
    repetitions, context.repetitions = context.repetitions, 1
    settings = replace(context.settings(), data_root=None, sync_delay_ms=0)
    trees = [(BEFORE, tree.resolve()), (NOW, settings.tree)]
    chosen = works(context)
    for _ in range(repetitions):
        samples: list[Row] = []
        for work in chosen:
            cases = [
                replace(work, name=f"{work.name}: {when}", settings=replace(settings, tree=where), floor=None)
                for when, where in trees
            ]
            samples += run_cases(context, cases)
            trees.reverse()
        outcome.samples += [*samples, *ratios(samples, [work.name for work in chosen])]
        trees.reverse()
    return outcome


BENCHMARK = Benchmark("versus", "Is the broker slower than it was?", run, _add_arguments)
