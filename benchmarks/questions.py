"""The questions that are a list of cases and nothing more, and the answers' own columns and notes.

The function of each says what is asked and why it is measured so; those that compare, or that measure
something other than a load on a broker, have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from benchmarks.cases import Case, consuming, passing, publishing, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context, options
from benchmarks.results import Outcome
from benchmarks.spec import Settle

QUESTIONS: Final[list[Benchmark]] = []
_STOP: Final = "stop a publish case at so many queued messages, for the sake of memory"
_FILL: Final = "messages to fill it with (default 2 000 000, with --quick 600 000)"
_SIDES: Final = ["sending", "receiving", "both"]

_Cases = Callable[[Context], list[Case]]


def _question(
    name: str,
    question: str,
    *,
    warmup_max_s: float = 60.0,
    columns: tuple[str, ...] = STANDARD_COLUMNS,
    finish: Callable[[Context, Outcome], None] = lambda context, outcome: None,
    **known: tuple[Any, ...],
) -> Callable[[_Cases], _Cases]:
    """Make a question of a function that returns its cases.

    Args:
        name: what it is called.
        question: what it asks.
        warmup_max_s: of each case.
        columns: of its table.
        finish: adds to the answer.
        **known: options of the command line.
    """

    def made(cases: _Cases) -> _Cases:
        def run(context: Context) -> Outcome:
            context.warmup_s = min(context.warmup_s, warmup_max_s)
            outcome = Outcome(columns, context.described_settings(), run_cases(context, cases(context)))
            finish(context, outcome)
            return outcome

        QUESTIONS.append(Benchmark(name, question, run, options(**known)))
        return cases

    return made


@_question(
    "publish", "What does it cost to take a message in?", warmup_max_s=0.5, publish_max=(3_000_000, _STOP)
)
def _publish(context: Context) -> list[Case]:
    """One connection, one session, one sending link to one queue that nobody reads.

    Settled: fire and forget. Unsettled: each message is confirmed, and the broker's credit is what limits
    the messages in flight.
    """
    count_max: int = context.options.publish_max
    return [
        publishing(context, "publish settled", settled=True, count_max=count_max),
        publishing(context, "publish unsettled", count_max=count_max),
    ]


@_question(
    "consume", "What does it cost to give a message out?", warmup_max_s=0.3, consume_count=(int, _FILL)
)
def _consume(context: Context) -> list[Case]:
    """A queue is filled first; then one receiving link empties it.

    It settles by range (one disposition for a socket read), each singly, or not at all (pre-settled). The
    window ends before the queue is empty.
    """
    count = _count(context, context.options.consume_count)
    return [consuming(context, f"consume, settle {how.value}", count=count, settle=how) for how in Settle]


def _count(context: Context, asked: int) -> int:
    return asked or (600_000 if context.quick else 2_000_000)


_BOTH: Final[dict[str, dict[str, Any]]] = {
    "unsettled, settle range": {},
    "unsettled, settle each": {"settle": Settle.EACH},
    "settled, presettled": {"settle": Settle.PRESETTLED, "settled": True},
    "unsettled, settle range, durable": {"durable": True},
    "unsettled, settle range, all sections": {"durable": True, "sections": True},
    "unsettled, settle range, mixed sizes": {"mixed": True},
}


@_question("both", "What does a message cost from publish to settlement?")
def _both(context: Context) -> list[Case]:
    """One connection publishes unsettled to a queue, another receives from it and settles, in step.

    At most a few thousand messages are under way, so that the queue stays short. Further cases settle in
    other ways, or send other messages: with the sections that client libraries add, and of sizes that change
    from message to message, so that nothing about a message can be foretold from the one before.
    """
    return [passing(context, name, **what) for name, what in _BOTH.items()]


@_question(
    "latency",
    "How long does a message take at a given rate?",
    rates=([1_000.0, 10_000.0, 50_000.0], "messages a second"),
)
def _latency(context: Context) -> list[Case]:
    """Messages are published at a fixed rate by the clock, each carrying the time at which it was due.

    The receiver reads it. A broker that pauses is charged for every message that was due meanwhile. The load
    process spins on the clock, so that its own waking up is not in the figures; both clocks are one.
    """
    duration_s = max(context.duration_s, 2.0 if context.quick else 5.0)
    return [
        replace(
            passing(context, f"{rate:,.0f} msgs/s", rate_per_s=rate, stamp=True, follow=None),
            floor=("--keep",),
            duration_s=duration_s,
        )
        for rate in context.options.rates
    ]


@_question("sync_publisher", "How fast is a lone publisher that waits for every confirm?")
def _sync_publisher(context: Context) -> list[Case]:
    """One message in flight: the rate is one over the round trip, and batching helps nobody.

    This is what a simple program sees that sends a message and blocks until it is safe.
    """
    return [publishing(context, "one message in flight", in_flight_max=1)]
