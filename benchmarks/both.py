"""What does a message cost from publish to settlement?

One connection publishes unsettled to a queue, another receives from it and settles, at the same time and
in step: at most a few thousand messages are under way, so that the queue stays short. Further cases settle
in other ways, or send other messages: with the sections that client libraries add, and of sizes that
change from message to message, so that nothing about a message can be foretold from the one before.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.cases import QUEUE, Case, delivered, publish_and_consume, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome
from benchmarks.spec import Settle

CASES: Final[dict[str, dict[str, Any]]] = {
    "unsettled, settle range": {},
    "unsettled, settle each": {"settle": Settle.EACH},
    "settled, presettled": {"settle": Settle.PRESETTLED, "settled": True},
    "unsettled, settle range, durable": {"durable": True},
    "unsettled, settle range, all sections": {"durable": True, "sections": True},
    "unsettled, settle range, mixed sizes": {"mixed": True},
}


def _case(context: Context, name: str, what: dict[str, Any]) -> Case:
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
    )


def run(context: Context) -> Outcome:
    """Measure publish + deliver + settle."""
    cases = [_case(context, name, what) for name, what in CASES.items()]
    return Outcome(STANDARD_COLUMNS, context.described_settings(), run_cases(context, cases))


BENCHMARK = Benchmark("both", "What does a message cost from publish to settlement?", run)
