"""Does automatic credit do what a good fixed one does?

One publisher, one link, confirmed messages, in places where credit matters: with a round trip of 20 and 50 ms
(through a proxy that delays), with confirms that come 20 ms late, and with neither. In each the default,
`auto` (link credit and window) and a sweep of fixed limits with windows of twice their size, one after the
other in each repetition: ratios within a repetition mean something on a machine whose speed is not constant.

The client sends as fast as it may: a fixed limit that is large enough ends at the processor.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from benchmarks import spec
from benchmarks.cases import QUEUE
from benchmarks.delaying_proxy import DelayingProxy
from benchmarks.errors import BenchmarkError, MeasureError
from benchmarks.measure import Benchmark, Context, options, window
from benchmarks.results import Outcome, Row, median_of, summarise

COLUMNS: Final = (
    "rate_per_s",
    "to_default",
    "to_best",
    "cpu_us",
    "confirm_p50_ms",
    "confirm_p99_ms",
    "rss_mb",
)
DEFAULT: Final = "default"
AUTO: Final = "auto"
_IN_FLIGHT: Final = 100_000
_WARMUP_S: Final = 6.0
"""Of those with latency: in them `auto` finds its size, the others wait as long."""
_QUICK_WARMUP_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a link is."""

    name: str
    round_trip_ms: float = 0.0
    confirms_ms: float = 0.0

    @property
    def is_near(self) -> bool:
        """Whether nothing takes time."""
        return not (self.round_trip_ms or self.confirms_ms)


PLACES: Final = (
    Place("0 ms"),
    Place("round trip 20 ms", round_trip_ms=20),
    Place("round trip 50 ms", round_trip_ms=50),
    Place("confirms after 20 ms", confirms_ms=20),
)


def arguments(setting: str) -> tuple[str, ...]:
    """Return the broker's arguments for the default, ``auto``, or a number."""
    if setting == DEFAULT:
        return ()
    opened = AUTO if setting == AUTO else str(2 * int(setting))
    return ("--max-link-credit", setting, "--max-incoming-window", opened)


def compared(rows: list[Row]) -> None:
    """Add to the samples of one place and repetition what they are of the default's rate and of the best."""
    rates = {str(row["setting"]): float(row["rate_per_s"]) for row in rows if "rate_per_s" in row}
    fixed = [rate for setting, rate in rates.items() if setting != AUTO]
    for row in rows:
        if "rate_per_s" not in row:
            continue
        if DEFAULT in rates:
            row["to_default"] = row["rate_per_s"] / rates[DEFAULT]
        if fixed:
            row["to_best"] = row["rate_per_s"] / max(fixed)


def judged(samples: list[Row]) -> list[str]:
    """Return what of the aims is reached in each place, by medians over the repetitions."""
    notes = []
    for place in PLACES:
        mine = [row for row in samples if row["case"] == f"{place.name}, {AUTO}"]
        gain = median_of(row.get("to_default") for row in mine)
        best = median_of(row.get("to_best") for row in mine)
        if gain is None or best is None:
            continue
        aims = {f"{gain:.2f} of the default (>= 0.95)": gain >= 0.95}
        if not place.is_near:
            aims = {
                f"{gain:.2f} times the default (>= 2)": gain >= 2,
                f"{best:.2f} of the best fixed limit (>= 0.85)": best >= 0.85,
            }
        told = "; ".join(f"{text}: {'reached' if met else 'MISSED'}" for text, met in aims.items())
        notes.append(f"{place.name}, auto: {told}")
    return notes


def _measured(context: Context, place: Place, setting: str) -> Row:
    """Measure one broker in one place."""
    case = f"{place.name}, {setting}"
    delays = ((QUEUE, place.confirms_ms),) if place.confirms_ms else ()
    given = context.settings(max_link_credit=None)
    settings = replace(given, confirm_delays_ms=delays, extra=(*given.extra, *arguments(setting)))
    publish = spec.Publish(
        (context.address(QUEUE),),
        size_bytes=context.size_bytes,
        in_flight_max=_IN_FLIGHT,
    )
    warmup_s = _QUICK_WARMUP_S if context.quick else _WARMUP_S
    try:
        with ExitStack() as stack:
            target = stack.enter_context(context.target(settings))
            endpoint = target.endpoint
            if place.round_trip_ms:
                proxy = DelayingProxy(endpoint.port, place.round_trip_ms / 2000)
                endpoint = replace(endpoint, port=stack.enter_context(proxy).port)
            taken = window(
                target,
                spec.Load(endpoint, (spec.connection(publish),), name=case),
                warmup_s=context.warmup_s if place.is_near else warmup_s,
                duration_s=context.duration_s,
            )
            row = taken.row(case, "broker", taken.counts[0].confirmed)
    except BenchmarkError as error:
        context.say(f"broker {case:32} failed: {error}")
        return {"case": case, "target": "broker", "setting": setting, "failed": str(error)}
    row["setting"] = setting
    context.say_row(row)
    return row


def run(context: Context) -> Outcome:
    """Measure every place with every setting."""
    if not context.own:
        raise MeasureError("it starts brokers with settings of their own: leave out --target")
    asked: list[int] = context.options.adaptive_credits or [680, 2_720, 10_880]
    wanted = [place for place in PLACES if context.options.adaptive_place in place.name]
    samples: list[Row] = []
    for repetition in range(context.repetitions):
        for place in wanted:
            # Without latency the sweep says nothing: there is nothing to bridge.
            settings = [DEFAULT, AUTO, *([] if place.is_near else map(str, asked))]
            if repetition % 2:
                settings.reverse()
            rows = [_measured(context, place, setting) for setting in settings]
            compared(rows)
            samples += rows
    outcome = Outcome(COLUMNS, context.described_settings(), samples, notes=judged(samples))
    outcome.rows = summarise(samples, COLUMNS)
    return outcome


BENCHMARK: Final = Benchmark(
    "adaptive",
    "Does automatic credit do what a good fixed one does?",
    run,
    options(
        adaptive_credits=([], "fixed max_link_credit beside it (680 2720 10880)"),
        adaptive_place=("", "only where the name has this: '50 ms', 'confirms'"),
    ),
    in_all=False,
)
