"""Recommends settings for an aim, with reasons and the weaknesses of the evidence.

Of all settings whose mean is within `TOLERANCE` of the best, the smallest are recommended: a larger credit or
window that adds no speed costs memory, and makes one link wait for another. A recording of a broker in use is
an experiment only if its load was constant, as its first note says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from statistics import fmean
from typing import Final, Literal

from amqp10broker.dataclass import dataclass
from amqp10broker.tools.analysis.cells import Estimate, Scatter, estimate, scatter
from amqp10broker.tools.analysis.figures import (
    DEFAULTS,
    SETTINGS,
    ConfigurationFigures,
    Settings,
    describe_group,
    describe_settings,
)

Measured = tuple[Settings, tuple[float, ...]]
"""Settings and the figure of each repetition."""

_NAMED_MAX: Final = 4
# Share of link time from which on a reason is reported.
_MUCH: Final = 0.25
_HELD_BY: Final = {
    ("publishers", "credit withheld"): "max_link_credit",
    ("publishers", "no credit"): "max_link_credit",
    ("publishers", "peer window closed"): "max_incoming_window",
    ("consumers", "queue credit in flight"): "max_queue_credit",
}


def weaknesses(
    pool: Sequence[Measured],
    chosen: Settings,
    best: Settings,
    *,
    tried: Sequence[Settings],
    highest: bool,
    tolerance: float,
) -> list[str]:
    """Return the weaknesses as sentences, the gravest first."""
    values = dict(pool)
    known = scatter([each for _, each in pool])
    found = _repetitions(pool)
    found += _noise(known, tolerance)
    found += _hidden(pool, chosen, values[best], known, tolerance, highest=highest)
    return found + _edges(tried, chosen, best, told_apart=_apart(values[chosen], values[best], known))


def unproven(pool: Sequence[Measured], best: Settings) -> str | None:
    """Return why no setting is shown to be worse than the best; None if one is."""
    known = scatter([values for _, values in pool])
    if known is None:
        return "each setting was measured once, which shows no difference"
    own = dict(pool)[best]
    if any(_apart(values, own, known) for _, values in pool):
        return None
    return (
        f"repetitions scatter by {known.noise:.0%} of their mean, which hides differences below "
        f"{known.typical:.0%}, and no setting is further than that from the best"
    )


def _apart(one: Sequence[float], other: Sequence[float], known: Scatter | None) -> bool:
    return known is not None and _distance(one, other) > known.visible(len(one), len(other))


def _repetitions(pool: Sequence[Measured]) -> list[str]:
    single = sum(len(values) == 1 for _, values in pool)
    if single == len(pool):
        return ["each setting was measured once: there is no interval, and a lucky run looks like a good one"]
    if single:
        return [f"{single} of {len(pool)} settings were measured once: they have no interval"]
    return []


def _noise(known: Scatter | None, tolerance: float) -> list[str]:
    if known is None or known.typical <= tolerance:
        return []
    text = (
        f"repetitions scatter by {known.noise:.1%} of their mean, which hides differences below "
        f"{known.typical:.1%} (the choice allows {tolerance:.0%}): measure more repetitions, or on a "
        "quieter machine"
    )
    return [text]


def _hidden(
    pool: Sequence[Measured],
    chosen: Settings,
    best: tuple[float, ...],
    known: Scatter | None,
    tolerance: float,
    *,
    highest: bool,
) -> list[str]:
    # Settings that are behind by more than the tolerance, and by less than the repetitions can show.
    sign = 1 if highest else -1
    bound = sign * fmean(best) * (1 - sign * tolerance)
    alike = [
        (settings, _distance(values, best))
        for settings, values in pool
        if settings != chosen
        and sign * fmean(values) < bound
        # a single repetition is reported separately
        and known is not None
        and len(values) > 1
        and not _apart(values, best, known)
    ]
    if not alike:
        return []
    names = named([(describe_settings(one), f"{apart:.0%} behind in the mean") for one, apart in alike])
    return [f"noise hides whether these are as good as the best, too: {names}"]


def named(found: Sequence[tuple[str, str]]) -> str:
    """List the first few names with their remarks: ``170 / 400 / 256 (8%) and 3 more``."""
    names = ", ".join(f"{name} ({said})" for name, said in found[:_NAMED_MAX])
    return f"{names} and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else names


def held_back(
    swept: Sequence[Settings], chosen: Settings, waits: Mapping[tuple[str, str], float]
) -> list[str]:
    """Report settings that the links of the choice wait for, and that the sweep did not vary."""
    found = []
    for (side, reason), name in _HELD_BY.items():
        share, place = waits.get((side, reason), 0.0), SETTINGS.index(name)
        if share >= _MUCH and len({settings[place] for settings in swept}) == 1:
            found.append(
                f"{side} wait {share:.0%} of the time ({reason}), and {name} was {chosen[place]} in all "
                "runs: vary it, too"
            )
    return found


def _distance(values: Sequence[float], best: Sequence[float]) -> float:
    return abs(fmean(values) / fmean(best) - 1) if fmean(best) else 0.0


def _edges(swept: Sequence[Settings], chosen: Settings, best: Settings, *, told_apart: bool) -> list[str]:
    found = []
    for place, name in enumerate(SETTINGS):
        tried = sorted({value for settings in swept if (value := settings[place]) is not None})
        if len(tried) < 2:
            continue
        if chosen[place] == tried[-1]:
            found.append(f"{name} {tried[-1]} is the largest that was tried: widen the sweep upwards")
        elif told_apart and best[place] == tried[-1]:
            found.append(
                f"the best has {name} {tried[-1]}, the largest that was tried: widen the sweep upwards "
                "if the last few percent matter"
            )
        if chosen[place] == tried[0]:
            found.append(
                f"{name} {tried[0]} is the smallest that was tried, and smaller may do: "
                "widen the sweep downwards"
            )
        wide = [
            (low, high) for low, high in pairwise(tried) if high > 8 * low and chosen[place] in (low, high)
        ]
        if wide:
            low, high = wide[0]
            found.append(f"nothing was tried between {name} {low} and {high}")
    return found


# Share of the best that a smaller setting may give up.
TOLERANCE: Final = 0.05
# Of the requested rate, which counts as sustained: a window cuts the last messages off.
SUSTAINED: Final = 0.98
# The benchmark name of runs of a broker in use.
OWN_RECORDING: Final = "broker"
_ANY_LOAD: Final = (
    "the broker recorded any load, so that a difference may be one of the loads; to be sure, offer the same "
    "load with each setting: python -m benchmarks sweep --record DIR"
)
# A rate limit within this share of the requested one counts as that.
SAME_RATE: Final = 0.05
Kind = Literal["throughput", "latency", "memory"]


@dataclass(frozen=True, slots=True)
class Aim:
    """The goal. `kind`: most messages per second; lowest p99 among settings that sustain `rate_per_s`; least
    memory among settings that reach `keep` (0 to 1) of the best throughput.
    """

    kind: Kind = "throughput"
    rate_per_s: float | None = None
    keep: float = 0.95

    def describe(self) -> str:
        match self.kind:
            case "throughput":
                return "highest throughput"
            case "latency":
                return f"lowest p99 latency at {self.rate_per_s:,.0f} messages/s"
            case "memory":
                return f"least memory with {self.keep:.0%} of the highest throughput"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration of a group; the figures have one value per repetition."""

    settings: Settings
    throughput_per_s: tuple[float, ...]
    end_to_end_p99_ms: tuple[float, ...] = ()
    confirm_p99_ms: tuple[float, ...] = ()
    memory_bytes: tuple[float, ...] = ()
    rate_limit_per_s: float | None = None
    # Of the events of its worst run.
    dropped_share: float = 0.0
    complete: bool = True
    # Share of link time by side and reason.
    waits: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def name(self) -> str:
        return describe_settings(self.settings, self.rate_limit_per_s)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The settings recommended for one group. `figure`: what is compared. `unproven`: why the runs do not
    show that these settings are better than any other; None if they do.
    """

    group: str
    aim: str
    figure: str
    unit: str
    chosen: Candidate
    chosen_figure: Estimate
    best: Candidate
    best_figure: Estimate
    as_good: tuple[Candidate, ...]
    reasons: tuple[str, ...]
    weak: tuple[str, ...]
    unproven: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def command_line(self) -> str:
        return " ".join(["amqp10broker serve", *(f"--{n.replace('_', '-')} {v}" for n, v in self._known())])

    @property
    def toml(self) -> str:
        return "\n".join(f"{name} = {value}" for name, value in self._known())

    def _known(self) -> list[tuple[str, int]]:
        pairs = zip(SETTINGS, self.chosen.settings, strict=True)
        return [(name, value) for name, value in pairs if value is not None]


@dataclass(frozen=True, slots=True)
class NoRecommendation:
    group: str
    aim: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    unit: str
    values: Callable[[Candidate], tuple[float, ...]]
    highest: bool

    def mean(self, one: Candidate) -> float:
        return fmean(self.values(one))

    def estimate(self, one: Candidate) -> Estimate:
        found = estimate(self.values(one))
        assert found is not None, "candidates without values are left out before"
        return found


_THROUGHPUT: Final = _Figure("throughput", "messages/s", lambda one: one.throughput_per_s, True)
_MEMORY: Final = _Figure("resident memory", "MB", lambda one: tuple(v / 1e6 for v in one.memory_bytes), False)
_LATENCIES: Final = (
    _Figure("end-to-end p99", "ms", lambda one: one.end_to_end_p99_ms, False),
    _Figure("confirm p99", "ms", lambda one: one.confirm_p99_ms, False),
)


def recommend_all(
    groups: Iterable[Sequence[ConfigurationFigures]], aim: Aim
) -> list[Recommendation | NoRecommendation]:
    """Return one recommendation, or the reason for none, for each group."""
    found = []
    for members in groups:
        one = recommend(describe_group(members[0].group), [candidate_of(each) for each in members], aim)
        if isinstance(one, Recommendation) and members[0]["benchmark"] == OWN_RECORDING:
            one = replace(one, weak=(_ANY_LOAD, *one.weak))
        found.append(one)
    return found


def undecided(found: Iterable[Recommendation | NoRecommendation]) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, NoRecommendation):
            by_reason.setdefault(one.reason, []).append(one.group)
    return by_reason


def candidate_of(figures: ConfigurationFigures) -> Candidate:
    return Candidate(
        figures.settings,
        figures.values("throughput_per_s"),
        figures.values("end_to_end_p99_ms"),
        figures.values("confirm_p99_ms"),
        figures.values("memory_max_bytes"),
        figures["rate_limit_per_s"],
        max(run.dropped_share for run in figures.runs),
        all(run.complete for run in figures.runs),
        figures.stalls,
    )


def recommend(group: str, candidates: Sequence[Candidate], aim: Aim) -> Recommendation | NoRecommendation:
    """Recommend the smallest settings that serve the aim as well as the best."""
    measured = [one for one in candidates if one.throughput_per_s]
    if not measured:
        return NoRecommendation(group, aim.describe(), "no run of it has a throughput")
    settings = {one.settings for one in measured}
    if len(settings) == 1:
        reason = f"only {measured[0].name()} was measured, so there is nothing to choose from"
        return NoRecommendation(group, aim.describe(), reason)
    match aim.kind:
        case "throughput":
            pool, weak = _at_full_speed(measured)
            return _choose(group, aim, _THROUGHPUT, pool, measured, [], weak)
        case "latency":
            return _for_latency(group, measured, aim)
        case "memory":
            return _for_memory(group, measured, aim)


def _for_latency(group: str, measured: list[Candidate], aim: Aim) -> Recommendation | NoRecommendation:
    wanted = aim.rate_per_s or 0.0
    at_rate = [
        one
        for one in measured
        if one.rate_limit_per_s and abs(one.rate_limit_per_s - wanted) <= SAME_RATE * wanted
    ]
    sustain = [one for one in at_rate or measured if _THROUGHPUT.mean(one) >= SUSTAINED * wanted]
    able = _one_each(sustain, lambda one: abs((one.rate_limit_per_s or _THROUGHPUT.mean(one)) - wanted))
    unsure = _unsure_of_rate(at_rate or measured, wanted)
    if not able:
        top = max(_THROUGHPUT.mean(one) for one in at_rate or measured)
        reason = f"no setting sustains that rate; the most was {top:,.0f}/s"
        return NoRecommendation(group, aim.describe(), "; ".join([reason, *unsure]))
    figure = next((one for one in _LATENCIES if all(one.values(each) for each in able)), None)
    if figure is None:
        return NoRecommendation(group, aim.describe(), "latencies were not recorded for every setting")
    settings = {one.settings for one in at_rate or measured}
    reasons = [f"{len(able)} of {len(settings)} settings sustain {wanted:,.0f}/s"]
    weak = unsure
    if not at_rate:
        weak.append(
            f"no run was limited to {wanted:,.0f}/s: these latencies are those at full speed, where messages "
            "queue up; record runs at that rate"
        )
    return _choose(group, aim, figure, able, measured, reasons, weak)


def _for_memory(group: str, measured: list[Candidate], aim: Aim) -> Recommendation | NoRecommendation:
    pool, weak = _at_full_speed(measured)
    most = max(_THROUGHPUT.mean(one) for one in pool)
    backends = [one for one in pool if _THROUGHPUT.mean(one) >= aim.keep * most]
    reasons = [
        f"{len(backends)} of {len(pool)} settings keep {aim.keep:.0%} of the best {most:,.0f} messages/s"
    ]
    weak += _unsure_of_share(pool, most, aim.keep)
    if not all(one.memory_bytes for one in backends):
        weak.append("resident memory was not recorded for all of them: the smallest settings are taken")
        return _choose(group, aim, _THROUGHPUT, pool, measured, reasons, weak, give_up=1 - aim.keep)
    return _choose(group, aim, _MEMORY, backends, measured, reasons, weak)


def _unsure_of_rate(tried: Sequence[Candidate], wanted: float) -> list[str]:
    # By the scatter of each alone, not pooled: runs held at the rate by a limit do not scatter, and runs that
    # cannot follow do.
    bound = SUSTAINED * wanted
    unsure = []
    for one in tried:
        known = estimate(one.throughput_per_s)
        if known is not None and known.half_width is not None and abs(known.mean - bound) < known.half_width:
            unsure.append((one.name(), f"{known.mean:,.0f} ± {known.half_width:,.0f}/s"))
    return [f"noise hides whether these sustain {wanted:,.0f}/s: {named(unsure)}"] if unsure else []


def _unsure_of_share(pool: Sequence[Candidate], most: float, keep: float) -> list[str]:
    known = scatter([one.throughput_per_s for one in pool])
    if known is None:
        return []
    unsure = [
        (one.name(), f"{mean / most:.0%} of it")
        for one in pool
        # The best keeps all of its own throughput, however far it scatters.
        if (mean := _THROUGHPUT.mean(one)) < most and abs(mean / (keep * most) - 1) < known.typical
    ]
    text = f"noise hides whether these keep {keep:.0%} of the best throughput (it hides {known.typical:.1%})"
    return [f"{text}: {named(unsure)}"] if unsure else []


def _choose(
    group: str,
    aim: Aim,
    figure: _Figure,
    pool: list[Candidate],
    tried: list[Candidate],
    reasons: list[str],
    weak: list[str],
    give_up: float = TOLERANCE,
) -> Recommendation:
    sign = 1 if figure.highest else -1
    best = max(pool, key=lambda one: sign * figure.mean(one))
    best_mean = figure.mean(best)
    bound = sign * best_mean * (1 - sign * give_up)
    as_good = sorted((one for one in pool if sign * figure.mean(one) >= bound), key=size_of)
    chosen = as_good[0]
    own, top = written(figure.mean(chosen)), written(best_mean)
    if chosen is best:
        others = f"the smallest of {len(as_good)} within" if len(as_good) > 1 else "no other is within"
        reasons.append(f"it is the best, with {own} {figure.unit}, and {others} {give_up:.0%} of it")
    else:
        apart = abs(figure.mean(chosen) / best_mean - 1) if best_mean else 0.0
        reasons.append(
            f"its {own} {figure.unit} are {apart:.1%} from the best ({top} with {best.name()}), and it has "
            f"the smallest credits and windows of the {len(as_good)} settings within {give_up:.0%}"
        )
    if chosen.settings == DEFAULTS:
        reasons.append("these are the defaults: nothing has to be set")
    weak += weaknesses(
        [(one.settings, figure.values(one)) for one in pool],
        chosen.settings,
        best.settings,
        tried=[one.settings for one in tried],
        highest=figure.highest,
        tolerance=give_up,
    )
    if figure.highest:
        weak += held_back([one.settings for one in tried], chosen.settings, chosen.waits)
    weak += _gaps(pool)
    return Recommendation(
        group,
        aim.describe(),
        figure.name,
        figure.unit,
        chosen,
        figure.estimate(chosen),
        best,
        figure.estimate(best),
        tuple(as_good),
        tuple(reasons),
        tuple(weak),
        unproven([(one.settings, figure.values(one)) for one in pool], best.settings),
        tuple(_rules_of_thumb(chosen.settings)),
    )


def written(value: float) -> str:
    """Format a figure with three digits, or as an integer if it is large."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def size_of(candidate: Candidate) -> tuple[float, tuple[int, ...]]:
    """Return the sort key of settings by size: their product; then the link credit."""
    values = tuple(value or 0 for value in candidate.settings)
    return round(sum(math.log(value) for value in values if value > 0), 9), values


def _at_full_speed(measured: list[Candidate]) -> tuple[list[Candidate], list[str]]:
    free = [one for one in measured if one.rate_limit_per_s is None]
    if free:
        return free, []
    fastest = _one_each(measured, lambda one: -_THROUGHPUT.mean(one))
    return fastest, ["every run was limited to a rate: none shows the highest throughput"]


def _one_each(pool: Iterable[Candidate], cost: Callable[[Candidate], float]) -> list[Candidate]:
    # Of candidates that differ only in their rate limit, the cheapest.
    kept: dict[Settings, Candidate] = {}
    for one in pool:
        rival = kept.get(one.settings)
        if rival is None or cost(one) < cost(rival):
            kept[one.settings] = one
    return list(kept.values())


def _gaps(pool: Sequence[Candidate]) -> list[str]:
    found = []
    worst = max(one.dropped_share for one in pool)
    if worst > 0:
        found.append(
            f"up to {worst:.2%} of the events of a run were dropped (the recorder's buffers were full): "
            "counts are too low; record with a larger --record-every"
        )
    if not all(one.complete for one in pool):
        found.append("a run was still being recorded")
    return found


def _rules_of_thumb(settings: Sequence[int | None]) -> list[str]:
    link, window, _ = settings
    if link is None or window is None or 2 * link <= window:
        return []
    text = (
        f"one link with {link} credits can fill a window of {window} alone, and other links of its "
        "session then wait: for several links, keep twice max_link_credit below it"
    )
    return [text]


def all_told(found: Sequence[Recommendation | NoRecommendation]) -> str:
    """Return all recommendations as text; groups without a recommendation for the same reason are joined."""
    texts = [told(one) for one in found if isinstance(one, Recommendation)]
    for reason, groups in undecided(found).items():
        texts.append("\n    ".join([f"no recommendation: {reason}:", *groups]))
    return "".join(f"{text}\n\n" for text in texts).rstrip("\n") + "\n"


def told(one: Recommendation | NoRecommendation) -> str:
    """Return one recommendation as text: settings, reason, certainty, and options to paste."""
    head = f"{one.group}\n  for the {one.aim}:"
    if isinstance(one, NoRecommendation):
        return f"{head} no recommendation: {one.reason}"
    known = one.chosen_figure
    half = known.half_width
    spread = "one repetition" if half is None else f"± {written(half)}, {known.repetitions} repetitions"
    lines = [f"{head} {one.figure} {written(known.mean)} {one.unit} ({spread})", f"    {one.command_line}"]
    if one.unproven:
        lines.append(f"    not proven: {one.unproven}; leave the settings as they are, or measure again")
    lines += [f"    because {reason}" for reason in one.reasons]
    lines += [f"    but {weak}" for weak in one.weak]
    lines += [f"    mind: {note}" for note in one.notes]
    return "\n".join(lines)
