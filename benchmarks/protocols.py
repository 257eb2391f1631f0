"""What does AMQP 0-9-1 cost beside AMQP 1.0?

The same work in both protocols, in turns in one run: publish, consume, and both at once, with and without
confirms, with automatic and manual acknowledgement. Messages have the same body, and both ends the same
limits: prefetch-count and credit, unconfirmed messages and `max-link-credit`. What is compared is the
broker's processor time a message, which depends least on what else the machine is doing.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.cases import Case, consuming, passing, publishing, ratios, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context, options
from benchmarks.results import Outcome
from benchmarks.spec import Settle

AMQP_091: Final = "AMQP 0-9-1"
AMQP_10: Final = "AMQP 1.0"

_LIKE_CLIENTS: Final = {"durable": True, "sections": True}
"""Durable, and with the properties that client libraries add."""
_WORK: Final[dict[str, dict[str, Any]]] = {
    "publish, no confirms": {"settled": True},
    "publish, confirms": {},
    "publish, no confirms, two queues": {"settled": True, "queues": 2},
    "consume, automatic": {"settle": Settle.PRESETTLED},
    "consume, each": {"settle": Settle.EACH},
    "consume, range": {"settle": Settle.RANGE},
    "both, no confirms, automatic": {"settled": True, "settle": Settle.PRESETTLED},
    "both, confirms, each": {"settle": Settle.EACH},
    "both, confirms, range": {"settle": Settle.RANGE},
    "both, confirms, each, prefetch 200": {"settle": Settle.EACH, "credit": 200},
    "both, confirms, range, as clients send": {"settle": Settle.RANGE, **_LIKE_CLIENTS},
    "both, confirms, range, mixed sizes": {"settle": Settle.RANGE, "mixed": True},
}


def _case(context: Context, work: str, protocol: str) -> Case:
    name, what = f"{work}: {protocol}", _WORK[work] | {"amqp091": protocol == AMQP_091}
    if work.startswith("publish"):
        return publishing(context, name, count_max=context.options.work_publish_max, **what)
    if work.startswith("consume"):
        count = context.options.work_consume_count or (800_000 if context.quick else 2_000_000)
        return consuming(context, name, count=count, **what)
    return passing(context, name, **what)


def run(context: Context) -> Outcome:
    """Measure every work in both protocols, and the ratio of their costs."""
    context.warmup_s = min(context.warmup_s, 0.3)
    chosen = [work for work in _WORK if context.options.work in work]
    samples = run_cases(
        context, [_case(context, work, one) for work in chosen for one in (AMQP_091, AMQP_10)]
    )
    outcome = Outcome((*STANDARD_COLUMNS, "ratio_091"), context.described_settings(), samples)
    outcome.samples += ratios(samples, chosen, AMQP_091, AMQP_10, "ratio_091")
    return outcome


BENCHMARK = Benchmark(
    "protocols",
    "What does AMQP 0-9-1 cost beside AMQP 1.0?",
    run,
    options(
        work=("", "only what has this text in its name; default: all"),
        work_publish_max=(
            2_000_000,
            "stop a publish case at so many queued messages, for the sake of memory",
        ),
        work_consume_count=(int, "messages to fill a queue with (default 2 000 000, with --quick 800 000)"),
    ),
)
