"""Computes the figures of runs from their cells, and combines and compares them by configuration.

`docs/analysis.md` defines them, in the order of the fields here. A figure whose events were not recorded is
None, never 0. A configuration's figure is the mean over its repetitions with Student's interval; its latency
histogram is the sum of theirs. A *group* has configurations that differ only in the three settings of flow
control and in the rate limit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events import CONFIGURATION, GENERAL, NO_REASON, REASONS, EventKind
from amqp10broker.tools.analysis.cells import (
    STREAM_KINDS,
    Cell,
    Counts,
    Estimate,
    estimate,
    merge,
    quantiles,
    scatter,
)

Configuration = tuple[Any, ...]
"""The values of `CONFIGURATION`, which repetitions have in common."""
_Own = tuple[str, Configuration]

_SHARES: Final = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
CONFIRM: Final = "confirm"
END_TO_END: Final = "end to end"
SETTLE: Final = "settle"
# By the kind of event that reports the wait.
SIDES: Final = {
    EventKind.LINK_IN: "publishers",
    EventKind.LINK_OUT: "consumers",
    EventKind.CONNECTION_IN: "connections",
}
# The first that was recorded counts: a client measures the whole path.
CONFIRM_KINDS: Final = (EventKind.CLIENT_CONFIRM, EventKind.CONFIRM)
_NS: Final = 1e9
_MS: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """The figures of one run. Rates are messages per second, utilisations and shares 0 to 1. `complete`:
    False while it was still being recorded: it counts up to its last event.
    """

    run_id: str
    configuration: Configuration
    repetition: int
    complete: bool
    duration_s: float
    events: int
    events_dropped: int
    throughput_per_s: float | None
    throughput_source: str
    sent_per_s: float | None
    confirmed_per_s: float | None
    received_per_s: float | None
    broker_in_per_s: float | None
    broker_out_per_s: float | None
    confirm_source: str
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    confirm_p999_ms: float | None
    end_to_end_p50_ms: float | None
    end_to_end_p99_ms: float | None
    end_to_end_p999_ms: float | None
    publisher_link_s: float
    publisher_stall_share: float | None
    consumer_link_s: float
    consumer_stall_share: float | None
    credit_utilisation: float | None
    consumer_credit_utilisation: float | None
    window_utilisation: float | None
    queue_credit_utilisation: float | None
    unconfirmed_mean: float | None
    queue_depth_mean: float | None
    queue_depth_max: int | None
    write_buffer_max_bytes: int | None
    memory_max_bytes: int | None
    cpu_cores: float | None
    cpu_us_per_message: float | None

    @property
    def dropped_share(self) -> float:
        return self.events_dropped / max(1, self.events + self.events_dropped)


@dataclass(frozen=True, slots=True)
class Stall:
    """How long the links of one side of a run waited for one reason. `share`: of the time of all links of
    that side.
    """

    run_id: str
    configuration: Configuration
    side: str
    reason: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream of a load generator, such as the fast one of two_senders."""

    run_id: str
    configuration: Configuration
    stream: str
    sent_per_s: float | None
    confirmed_per_s: float | None
    received_per_s: float | None
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    end_to_end_p50_ms: float | None
    end_to_end_p99_ms: float | None

    @property
    def rate_per_s(self) -> float | None:
        rates = (self.received_per_s, self.confirmed_per_s, self.sent_per_s)
        return next((rate for rate in rates if rate is not None), None)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run. `histograms`: counts by bucket, for `CONFIRM`, `END_TO_END` and `SETTLE`, as
    far as recorded.
    """

    figures: RunStats
    stalls: tuple[Stall, ...]
    streams: tuple[StreamStats, ...]
    histograms: Mapping[str, Counts]


def measure(run: Mapping[str, Any], cells: Sequence[Cell]) -> Measured:
    began, ended = run["began_ns"], run["ended_ns"]
    last = max((cell.last_ns for cell in cells), default=began)
    duration_s = max((last if ended is None else ended) - began, 0) / _NS
    own = run["run_id"], tuple(run[name] for name in CONFIGURATION)
    sums = Sums(cells, duration_s)
    confirm = sums.first(*CONFIRM_KINDS)
    wanted = {CONFIRM: confirm, END_TO_END: EventKind.CLIENT_DELIVERY, SETTLE: EventKind.SETTLE}
    histograms = {name: counts for name, kind in wanted.items() if (counts := sums.counts(kind))}
    streams = tuple(_streams(own, _stream_names(run), cells, duration_s))
    stalls = tuple(_stalls(own, sums))
    throughput, source = _throughput(sums, streams)
    cores = sums.share(EventKind.PROCESS)
    # AMQP 0-9-1 has neither link credit nor session windows. A benchmark has one protocol for the whole run;
    # events of a broker in use distinguish them.
    granted = Sums([] if run["protocol"] == "amqp091" else [c for c in cells if not c.amqp091], duration_s)
    figures = RunStats(
        run_id=own[0],
        configuration=own[1],
        repetition=run["repetition"] or 0,
        complete=ended is not None,
        duration_s=duration_s,
        events=sum(cell.events for cell in cells),
        events_dropped=max(run["events_dropped"] or 0, sums.n(EventKind.DROPPED) or 0),
        throughput_per_s=throughput,
        throughput_source=source,
        sent_per_s=sums.rate(EventKind.CLIENT_SENT),
        confirmed_per_s=sums.rate(EventKind.CLIENT_CONFIRM),
        received_per_s=sums.rate(EventKind.CLIENT_RECEIVED),
        broker_in_per_s=sums.rate(EventKind.LINK_IN),
        broker_out_per_s=sums.rate(EventKind.LINK_OUT),
        confirm_source={EventKind.CLIENT_CONFIRM: "client", EventKind.CONFIRM: "broker", None: ""}[confirm],
        **percentiles("confirm", histograms.get(CONFIRM, {}), "p50", "p99", "p999"),
        **percentiles("end_to_end", histograms.get(END_TO_END, {}), "p50", "p99", "p999"),
        publisher_link_s=sums.elapsed_s(EventKind.LINK_IN),
        publisher_stall_share=_stall_share(stalls, SIDES[EventKind.LINK_IN]),
        consumer_link_s=sums.elapsed_s(EventKind.LINK_OUT),
        consumer_stall_share=_stall_share(stalls, SIDES[EventKind.LINK_OUT]),
        credit_utilisation=_used(granted.mean(EventKind.LINK_IN, "credit_s"), run["max_link_credit"]),
        consumer_credit_utilisation=_used(
            granted.mean(EventKind.LINK_OUT, "credit_s"), granted.top(EventKind.LINK_OUT, "link_credit_max")
        ),
        window_utilisation=_used(granted.mean(EventKind.LINK_IN, "window_s"), run["max_incoming_window"]),
        queue_credit_utilisation=_used(
            granted.mean(EventKind.LINK_OUT, "queue_credit_s"), run["max_queue_credit"]
        ),
        unconfirmed_mean=sums.mean(EventKind.LINK_IN, "queue_credit_s"),
        queue_depth_mean=sums.mean(EventKind.QUEUE, "depth_s"),
        queue_depth_max=sums.top(EventKind.QUEUE, "depth_max"),
        write_buffer_max_bytes=sums.top(EventKind.CONNECTION_OUT, "depth_max"),
        memory_max_bytes=sums.top(EventKind.PROCESS, "bytes_max"),
        cpu_cores=cores,
        cpu_us_per_message=cores / throughput * 1e6 if cores is not None and throughput else None,
    )
    return Measured(figures, stalls, streams, histograms)


class Sums:
    """Sums of cells by kind: those of a run, of one of its streams, or of one of its seconds."""

    def __init__(self, cells: Iterable[Cell], duration_s: float) -> None:
        self._cells: dict[int, list[Cell]] = {}
        for cell in cells:
            self._cells.setdefault(cell.kind, []).append(cell)
        self._duration_s = duration_s

    def _of(self, kind: EventKind | None) -> list[Cell]:
        return [] if kind is None else self._cells.get(kind, [])

    def first(self, *kinds: EventKind) -> EventKind | None:
        return next((kind for kind in kinds if self._of(kind)), None)

    def n(self, kind: EventKind | None) -> int | None:
        found = self._of(kind)
        return sum(cell.n for cell in found) if found else None

    def rate(self, *kinds: EventKind) -> float | None:
        """Return messages per second of the first kind recorded; None: none was, or no time passed."""
        count = self.n(self.first(*kinds))
        return None if count is None or self._duration_s <= 0 else count / self._duration_s

    def elapsed_s(self, kind: EventKind) -> float:
        return sum(cell.elapsed_ns for cell in self._of(kind)) / _NS

    def share(self, kind: EventKind) -> float | None:
        """Return the quotient of n in ns and elapsed time."""
        elapsed_s = self.elapsed_s(kind)
        return (self.n(kind) or 0) / _NS / elapsed_s if elapsed_s else None

    def mean(self, kind: EventKind, column: str) -> float | None:
        elapsed_s = self.elapsed_s(kind)
        total: float = sum(getattr(cell, column) for cell in self._of(kind))
        return total / elapsed_s if elapsed_s else None

    def top(self, kind: EventKind, column: str) -> int | None:
        return max((getattr(cell, column) for cell in self._of(kind)), default=None)

    def counts(self, kind: EventKind | None) -> Counts:
        return merge({cell.bucket: cell.n} for cell in self._of(kind) if cell.bucket is not None and cell.n)

    def waits(self, kind: EventKind) -> dict[int, int]:
        found: dict[int, int] = {}
        for cell in self._of(kind):
            reason = GENERAL.get(cell.reason, cell.reason)
            found[reason] = found.get(reason, 0) + cell.elapsed_ns
        return found


def _throughput(sums: Sums, streams: Iterable[StreamStats]) -> tuple[float | None, str]:
    # At the last stage that was recorded.
    received = sums.rate(EventKind.CLIENT_RECEIVED)
    if received is not None:
        return received, "messages that clients received"
    sent = [stream.rate_per_s for stream in streams if stream.rate_per_s is not None]
    if sent:
        return sum(sent), "messages that clients had confirmed (a stream without confirms: sent)"
    for kind, text in (
        (EventKind.LINK_OUT, "deliveries that the broker wrote"),
        (EventKind.LINK_IN, "deliveries in"),
    ):
        found = sums.rate(kind)
        if found is not None:
            return found, text
    return None, ""


def _used(left: float | None, most: int | None) -> float | None:
    if left is None or not most:
        return None
    return min(max(1 - left / most, 0.0), 1.0)


def percentiles(name: str, counts: Counts, *wanted: str) -> dict[str, float | None]:
    """Return quantiles by the names of the figures: ``confirm_p99_ms`` for "p99" of "confirm"."""
    values = in_milliseconds(quantiles(counts, [_SHARES[each] for each in wanted]))
    return {f"{name}_{each}_ms": value for each, value in zip(wanted, values, strict=True)}


def in_milliseconds(values_ns: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else value / _MS for value in values_ns]


def _streams(
    own: _Own, names: Mapping[int, str], cells: Sequence[Cell], duration_s: float
) -> Iterator[StreamStats]:
    kept = [cell for cell in cells if cell.kind in STREAM_KINDS]
    for number in sorted({cell.stream for cell in kept}):
        sums = Sums([cell for cell in kept if cell.stream == number], duration_s)
        yield StreamStats(
            own[0],
            own[1],
            names.get(number, str(number)),
            sums.rate(EventKind.CLIENT_SENT),
            sums.rate(EventKind.CLIENT_CONFIRM),
            sums.rate(EventKind.CLIENT_RECEIVED),
            **percentiles("confirm", sums.counts(EventKind.CLIENT_CONFIRM), "p50", "p99"),
            **percentiles("end_to_end", sums.counts(EventKind.CLIENT_DELIVERY), "p50", "p99"),
        )


def _stream_names(run: Mapping[str, Any]) -> dict[int, str]:
    # From its settings: ``{"streams": ["fast", "slow"]}``.
    try:
        settings = json.loads(run["settings"] or "{}")
    except ValueError:
        return {}
    names = settings.get("streams") if isinstance(settings, dict) else None
    return {number: str(name) for number, name in enumerate(names)} if isinstance(names, list) else {}


def _stalls(own: _Own, sums: Sums) -> Iterator[Stall]:
    for kind, side in SIDES.items():
        waits = sums.waits(kind)
        total = sum(waits.values())
        held = [(reason, ns) for reason, ns in sorted(waits.items()) if reason != NO_REASON and ns]
        if total and not held:
            # It was observed, and never waited: that is a figure, too.
            held = [(NO_REASON, 0)]
        for reason, elapsed in held:
            yield Stall(*own, side, reason_name(reason), elapsed / _NS, elapsed / total)


def reason_name(reason: int) -> str:
    """Return the text of a reason; an unknown number stays a number."""
    return REASONS.get(reason, f"reason {reason}").replace("-", " ")


def _stall_share(stalls: Iterable[Stall], side: str) -> float | None:
    shares = [stall.share for stall in stalls if stall.side == side]
    return sum(shares) if shares else None


SETTINGS: Final = ("max_link_credit", "max_incoming_window", "max_queue_credit")
Settings = tuple[int | None, ...]
"""Values of `SETTINGS`; None: unknown."""
DEFAULTS: Final = (170, 400, 256)
"""The broker's defaults of `SETTINGS`."""
GROUP: Final = tuple(name for name in CONFIGURATION if name not in (*SETTINGS, "rate_limit_per_s"))
METRICS: Final = tuple(each.name for each in fields(RunStats) if str(each.type).endswith("| None"))
"""Figures that are estimated over repetitions."""


@dataclass(frozen=True, slots=True)
class ConfigurationFigures:
    """All repetitions of one configuration."""

    configuration: Configuration
    runs: tuple[RunStats, ...]
    estimates: Mapping[str, Estimate]
    stalls: Mapping[tuple[str, str], float]
    histograms: Mapping[str, Mapping[int, int]]

    def __getitem__(self, name: str) -> Any:
        return self.configuration[CONFIGURATION.index(name)]

    @property
    def settings(self) -> Settings:
        return tuple(self[name] for name in SETTINGS)

    @property
    def group(self) -> tuple[Any, ...]:
        return tuple(self[name] for name in GROUP)

    def values(self, metric: str) -> tuple[float, ...]:
        found = (getattr(run, metric) for run in self.runs)
        return tuple(float(value) for value in found if value is not None)

    def mean(self, metric: str) -> float | None:
        known = self.estimates.get(metric)
        return None if known is None else known.mean


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration beside the best of its group and rate, in one figure."""

    configuration: Configuration
    best: Configuration
    metric: str
    mean: float
    best_mean: float
    difference: float
    low: float | None
    high: float | None
    distinguishable: bool | None
    repetitions: int

    @property
    def relative(self) -> float:
        """The difference as a share of the best."""
        return self.difference / self.best_mean if self.best_mean else 0.0


def configurations(measured: Iterable[Measured]) -> list[ConfigurationFigures]:
    members: dict[Configuration, list[Measured]] = {}
    for each in measured:
        members.setdefault(each.figures.configuration, []).append(each)
    return [_together(key, members[key]) for key in sorted(members, key=_sortable)]


def groups(found: Iterable[ConfigurationFigures]) -> list[list[ConfigurationFigures]]:
    apart: dict[tuple[Any, ...], list[ConfigurationFigures]] = {}
    for each in found:
        apart.setdefault(each.group, []).append(each)
    return list(apart.values())


def compare(members: Sequence[ConfigurationFigures], metric: str, *, highest: bool) -> list[Compared]:
    """Compare each configuration with the best, the best first, by the scatter of all of them."""
    by_rate: dict[float | None, list[ConfigurationFigures]] = {}
    for each in members:
        if each.values(metric):
            by_rate.setdefault(each["rate_limit_per_s"], []).append(each)
    return [one for rivals in by_rate.values() for one in _beside_best(rivals, metric, highest)]


def _beside_best(rivals: list[ConfigurationFigures], metric: str, highest: bool) -> list[Compared]:
    ordered = sorted(rivals, key=lambda each: each.estimates[metric].mean, reverse=highest)
    best = ordered[0]
    best_mean = best.estimates[metric].mean
    known = scatter([each.values(metric) for each in rivals])
    found = []
    for each in ordered:
        difference = each.estimates[metric].mean - best_mean
        own = each is best
        counts = len(each.values(metric)), len(best.values(metric))
        half = None
        if known is not None and not own and min(counts) > 1:
            half = known.visible(*counts) * abs(best_mean)
        found.append(
            Compared(
                each.configuration,
                best.configuration,
                metric,
                each.estimates[metric].mean,
                best_mean,
                difference,
                None if half is None else difference - half,
                None if half is None else difference + half,
                None if half is None else abs(difference) > half,
                len(each.values(metric)),
            )
        )
    return found


def describe_group(values: Sequence[Any]) -> str:
    parts = [written_value(name, value) for name, value in zip(GROUP, values, strict=True)]
    return ", ".join(part for part in parts if part)


def written_value(name: str, value: Any) -> str:
    """Return one value of a configuration in words; empty: unknown."""
    if value is None:
        return ""
    match name:
        case "protocol":
            return {"amqp10": "AMQP 1.0", "amqp091": "AMQP 0-9-1"}.get(value, str(value))
        case "queue_type":
            return f"{value} queue"
        case "message_size_bytes":
            return f"{value:,} B"
        case "publishers" | "consumers":
            return f"{value} {name if value != 1 else name[:-1]}"
        case "durable":
            return "durable" if value else "transient"
        case "rate_limit_per_s":
            return f"{value:,.0f}/s"
        case "max_link_credit" | "max_incoming_window" | "max_queue_credit":
            return f"{name} {value}"
        case _:
            return str(value)


def describe_settings(values: Sequence[int | None], rate_limit_per_s: float | None = None) -> str:
    """Return the three settings: ``170 / 400 / 256``."""
    text = " / ".join("-" if value is None else str(value) for value in values)
    return text if rate_limit_per_s is None else f"{text} at {rate_limit_per_s:,.0f}/s"


def _together(key: Configuration, members: Sequence[Measured]) -> ConfigurationFigures:
    runs = tuple(sorted((each.figures for each in members), key=lambda run: (run.repetition, run.run_id)))
    estimates = {}
    for metric in METRICS:
        known = estimate([float(value) for run in runs if (value := getattr(run, metric)) is not None])
        if known is not None:
            estimates[metric] = known
    names = sorted({name for each in members for name in each.histograms})
    return ConfigurationFigures(
        key,
        runs,
        estimates,
        _mean_stalls([each.stalls for each in members]),
        {name: merge(each.histograms.get(name, {}) for each in members) for name in names},
    )


def _mean_stalls(repetitions: Sequence[Sequence[Stall]]) -> dict[tuple[str, str], float]:
    # A reason that is absent from a repetition counts as 0 there, if that side was observed.
    observed = Counter(side for stalls in repetitions for side in {stall.side for stall in stalls})
    sums: dict[tuple[str, str], float] = {}
    for stalls in repetitions:
        for stall in stalls:
            key = (stall.side, stall.reason)
            sums[key] = sums.get(key, 0.0) + stall.share / observed[stall.side]
    return sums


def _sortable(configuration: Configuration) -> tuple[tuple[bool, float, str], ...]:
    return tuple(
        (value is not None, float(value) if isinstance(value, int | float) else 0.0, str(value))
        for value in configuration
    )
