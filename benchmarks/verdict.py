"""Is what was recommended within a few percent of the best? A verdict, with its interval. Pure.

The recommended settings and their rivals, the best candidates of the sweep, are measured again, repetition
by repetition, each repetition going through all of them. Rates of one repetition are compared with each
other: a drift of the machine meets all of them alike and falls out of their ratio. The mean of the
logarithms of the ratios has Student's interval.

The best of the rivals is not known, only their measured means, and the highest of several noisy means is
too high. Hence one ratio a rival, each with an interval so wide that all of them hold together (Bonferroni),
and the verdict looks at the least of them: lower ends give its lower end, upper ends its upper end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from amqp10broker.analysis.statistics import estimate_ratio

TOLERANCE: Final = 0.05
CONFIDENCE: Final = 0.95


class Finding(Enum):
    """What the intervals imply, and the exit status that says so to a script."""

    WITHIN = "within {tolerance:.0%} of the best", 0
    NOT_WITHIN = "not within {tolerance:.0%} of the best", 3
    HIDDEN = "hidden by noise", 4

    @property
    def status(self) -> int:
        """The exit status; 1 and 2 mean failures, as ever."""
        return self.value[1]

    def describe(self, tolerance: float) -> str:
        """Return the finding in words."""
        return self.value[0].format(tolerance=tolerance)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How the recommended settings compare with one rival: 1 is alike, below 1 is worse."""

    rival: str
    ratio: float
    low: float | None
    """Ends of the interval; None if there was one repetition, which has no spread."""
    high: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding, and the least of all ratios, from which it follows."""

    finding: Finding
    ratio: float
    """To the best of all that were compared, the recommended settings among them: at most 1."""
    low: float | None
    high: float | None
    repetitions: int
    tolerance: float
    confidence: float
    ratios: tuple[Ratio, ...]

    def describe(self) -> str:
        """Return one sentence."""
        worst = min(self.ratios, key=lambda one: one.ratio)
        interval = "no interval" if self.low is None else f"{self.low:.3f} to {self.high:.3f}"
        return (
            f"{self.finding.describe(self.tolerance)}: {self.ratio:.3f} of the best ({interval} with "
            f"{self.confidence:.0%}, {self.repetitions} repetitions, {len(self.ratios)} rivals); "
            f"the strongest rival is {worst.rival}"
        )


def judge(
    recommended: Sequence[float],
    rivals: Mapping[str, Sequence[float]],
    *,
    highest: bool = True,
    tolerance: float = TOLERANCE,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """Compare held-out repetitions.

    Args:
        recommended: the figure of the recommended settings, one a repetition, above 0.
        rivals: the figures of the others in the same repetitions, by name.
        highest: the best is the highest figure (a rate), else the lowest (a latency).
        tolerance: share of the best that may be given up.
        confidence: probability with which all intervals hold together.

    Raises:
        ValueError: there is no rival or no repetition, repetitions do not match, or a figure is not above 0.
    """
    if not rivals or not recommended:
        raise ValueError("a verdict needs the recommended settings, a rival, and a repetition of both")
    # Each interval leaves out its share of what all of them together may leave out.
    each = 1 - (1 - confidence) / len(rivals)
    ratios = tuple(_ratio(name, recommended, values, highest, each) for name, values in rivals.items())
    lows = [one.low for one in ratios if one.low is not None]
    highs = [one.high for one in ratios if one.high is not None]
    # What was recommended is one of those that may be the best: nobody is better than the best.
    low = min(1.0, *lows) if lows else None
    high = min(1.0, *highs) if highs else None
    return Verdict(
        _finding(low, high, 1 - tolerance),
        min(1.0, *(one.ratio for one in ratios)),
        low,
        high,
        len(recommended),
        tolerance,
        confidence,
        ratios,
    )


def _finding(low: float | None, high: float | None, bound: float) -> Finding:
    if low is not None and low >= bound:
        return Finding.WITHIN
    if high is not None and high < bound:
        return Finding.NOT_WITHIN
    return Finding.HIDDEN


def _ratio(
    name: str, recommended: Sequence[float], rival: Sequence[float], highest: bool, confidence: float
) -> Ratio:
    if len(rival) != len(recommended):
        raise ValueError(f"{name}: {len(rival)} repetitions beside {len(recommended)} of the recommended")
    if min(*recommended, *rival) <= 0:
        raise ValueError(f"{name}: ratios need figures above 0")
    pairs = zip(recommended, rival, strict=True)
    known = estimate_ratio([one / other if highest else other / one for one, other in pairs], confidence)
    assert known is not None, "there is a repetition"
    return Ratio(name, known.mean, known.low, known.high)
