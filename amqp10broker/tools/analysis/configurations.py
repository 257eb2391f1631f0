"""Combines the runs of one configuration, and compares configurations.

A configuration's figure is the mean over its repetitions with Student's interval; its latency histogram is
the sum of theirs. A *group* contains comparable configurations, which differ only in the three settings of
flow control and in the rate limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import CONFIGURATION
from amqp10broker.tools.analysis.figures import Configuration, Measured, RunStats, Stall
from amqp10broker.tools.analysis.statistics import Estimate, estimate, merge, scatter

SETTINGS: Final = ("max_link_credit", "max_incoming_window", "max_queue_credit")
Settings = tuple[int | None, ...]
"""Values of `SETTINGS`; None if unknown."""
DEFAULTS: Final = (170, 400, 256)
"""The broker's defaults for the three of `SETTINGS`."""
GROUP: Final = tuple(name for name in CONFIGURATION if name not in (*SETTINGS, "rate_limit_per_s"))
METRICS: Final = tuple(each.name for each in fields(RunStats) if str(each.type).endswith("| None"))
"""Figures of a run that are estimated over repetitions."""


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
        """Return the difference as a share of the best."""
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
    """Compare each configuration with the best, the best first.

    Intervals use the scatter of all configurations compared.
    """
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
    """Return one value of a configuration in words; empty if unknown."""
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
    """Return the three settings, abbreviated: ``170 / 400 / 256``."""
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
