"""Means, confidence intervals and differences of few repetitions. Pure.

Repetitions are few (three to ten) and their spread is not known beforehand, so intervals are Student's.
Whether two settings differ is judged by the scatter of all that are compared (`Scatter`).
One repetition has no spread: its interval is None, never zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from amqp10broker.dataclass import dataclass

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions and, from two on, the interval in which the true mean lies."""

    mean: float
    low: float | None
    high: float | None
    repetitions: int
    deviation: float | None = None
    """Standard deviation of one repetition; None if there is only one."""

    @property
    def half_width(self) -> float | None:
        """Half the interval: ``mean ± half_width``."""
        return None if self.high is None else self.high - self.mean


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Mean and interval of repetitions; None if there is no value.

    Args:
        values: one a repetition.
        confidence: share of such intervals that contain the true mean, between 0 and 1.
    """
    if not values:
        return None
    mean = statistics.fmean(values)
    count = len(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    deviation = statistics.stdev(values, mean)
    half = _student_quantile(confidence, count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, deviation)


def estimate_ratio(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """The mean of ratios, 1 for alike, with Student's interval.

    Ratios are multiplied, not added: half as fast and twice as fast is no difference. So it is their
    logarithms that have a mean and an interval; the deviation is left out, as it would be one of logarithms.

    Args:
        ratios: one a repetition, above 0; of none there is no estimate.
        confidence: as in `estimate`.

    Raises:
        ValueError: a ratio is not above 0.
    """
    known = estimate([math.log(each) for each in ratios], confidence)
    if known is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (known.low, known.high))
    return Estimate(math.exp(known.mean), low, high, known.repetitions)


@dataclass(frozen=True, slots=True)
class Scatter:
    """How repetitions scatter, pooled over the settings that are compared; see `scatter`.

    Attributes:
        noise: how far one repetition lies from its mean, as a share of it.
        freedom: degrees of freedom of that.
        repetitions: of a setting that has several, in the mean.
    """

    noise: float
    freedom: int
    repetitions: float

    @property
    def typical(self) -> float:
        """The smallest difference that two settings with so many repetitions show; what noise hides."""
        return self.visible(self.repetitions, self.repetitions)

    def visible(self, one: float, other: float) -> float:
        """The smallest difference of two settings that their repetitions show, as a share of the better mean.

        Args:
            one: repetitions of one setting.
            other: of the other.
        """
        quantile = _student_quantile(CONFIDENCE, self.freedom)
        return quantile * self.noise * math.sqrt(1 / one + 1 / other)


def scatter(groups: Sequence[Sequence[float]]) -> Scatter | None:
    """The scatter of repetitions, taken as the same share of the mean for each setting.

    Two or three repetitions alone know their own scatter so badly that nearly nothing could be told apart,
    or, where they lie close together by chance, anything. Everything that says whether two settings differ
    goes by this one figure.

    Args:
        groups: the repetitions of each setting; those with one repetition or a mean of 0 say nothing.

    Returns:
        None if no setting has two.
    """
    squares, freedom = 0.0, 0
    for values in groups:
        mean = statistics.fmean(values) if values else 0.0
        if len(values) > 1 and mean:
            squares += sum((value / mean - 1) ** 2 for value in values)
            freedom += len(values) - 1
    if not freedom:
        return None
    repeated = [len(values) for values in groups if len(values) > 1]
    return Scatter(math.sqrt(squares / freedom), freedom, sum(repeated) / len(repeated))


def _student_quantile(confidence: float, freedom: int) -> float:
    """Half the width of the interval in which Student's t lies with the confidence."""
    from scipy.special import stdtrit  # loads in a tenth of a second: not for who only reads an estimate

    return float(stdtrit(freedom, 0.5 + confidence / 2))
