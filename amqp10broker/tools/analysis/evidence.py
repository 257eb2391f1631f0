"""Finds weaknesses of the evidence for a choice: repetitions, noise, and the edges of the sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

from amqp10broker.tools.analysis.configurations import SETTINGS, Settings, describe_settings
from amqp10broker.tools.analysis.statistics import Scatter, scatter

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
    """Return the weaknesses as sentences, the gravest first; empty if there are none."""
    values = dict(pool)
    known = scatter([each for _, each in pool])
    found = _repetitions(pool)
    found += _noise(known, tolerance)
    found += _hidden(pool, chosen, values[best], known, tolerance, highest=highest)
    return found + _edges(tried, chosen, best, told_apart=_apart(values[chosen], values[best], known))


def unproven(pool: Sequence[Measured], best: Settings) -> str | None:
    """Return why no setting is shown to be worse than the best, as a sentence; None if one is."""
    known = scatter([values for _, values in pool])
    if known is None:
        return "each setting was measured once, which shows of none that it is better than another"
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


def beside_bound(mean: float, bound: float) -> float:
    return abs(mean / bound - 1) if bound else math.inf


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
