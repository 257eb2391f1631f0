"""How fast is a lone publisher that waits for every confirm?

One message in flight: the rate is one over the round trip, and batching helps nobody. This is what a
simple program sees that sends a message and blocks until it is safe.
"""

from __future__ import annotations

from benchmarks import spec
from benchmarks.cases import QUEUE, Case, confirmed, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context
from benchmarks.results import Outcome


def run(context: Context) -> Outcome:
    """Measure one publisher with one message in flight."""

    def group(address: str) -> spec.Publish:
        return spec.Publish((address,), size_bytes=context.size_bytes, in_flight_max=1)

    case = Case(
        "one message in flight",
        lambda address: ((spec.Session(publish=(group(address(QUEUE)),)),),),
        confirmed,
    )
    return Outcome(STANDARD_COLUMNS, context.described_settings(), run_cases(context, [case]))


BENCHMARK = Benchmark("sync_publisher", "How fast is a lone publisher that waits for every confirm?", run)
