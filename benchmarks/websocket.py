"""What does AMQP over WebSocket cost beside AMQP over TCP?

The same work over both, in turns in one run, at the port of AMQP. What is compared is the broker's
processor time a message. A message of the generator's WebSocket holds what there is to send at the time, up
to 128 KiB; with one message in flight each transfer and each disposition has one of its own, the dearest use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from benchmarks.cases import Case, passing, ratios, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context, options
from benchmarks.results import Outcome
from benchmarks.spec import Settle

TCP: Final = "TCP"
WEBSOCKET: Final = "WebSocket"

_WORK: Final[dict[str, dict[str, Any]]] = {
    "settle range": {"settle": Settle.RANGE},
    "settle each": {"settle": Settle.EACH},
    "pre-settled": {"settled": True, "settle": Settle.PRESETTLED},
    "64 KiB": {"settle": Settle.RANGE, "size_bytes": 65_536},
    "one in flight": {"settle": Settle.EACH, "in_flight_max": 1, "outstanding": 1, "credit": 1},
}


def _case(context: Context, work: str, transport: str) -> Case:
    settings = context.settings()
    settings = replace(settings, extra=(*settings.extra, "--websocket-on-port"))
    case = passing(context, f"{work}: {transport}", **_WORK[work])
    return replace(case, settings=settings, floor=None, websocket=transport == WEBSOCKET)


def run(context: Context) -> Outcome:
    """Measure every work over both, and the ratio of their costs."""
    context.warmup_s = min(context.warmup_s, 0.5)
    chosen = [work for work in _WORK if context.options.websocket_work in work]
    samples = run_cases(context, [_case(context, work, each) for work in chosen for each in (TCP, WEBSOCKET)])
    outcome = Outcome((*STANDARD_COLUMNS, "ratio_tcp"), context.described_settings(), samples)
    outcome.samples += ratios(samples, chosen, WEBSOCKET, TCP, "ratio_tcp")
    return outcome


BENCHMARK = Benchmark(
    "websocket",
    "What does AMQP over WebSocket cost beside AMQP over TCP?",
    run,
    options(websocket_work=("", "only what has this text in its name; default: all")),
)
