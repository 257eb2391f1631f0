"""Means, confidence intervals and differences of few repetitions. Pure.

Repetitions are few (three to ten) and their spread is not known beforehand, so intervals are Student's.
Whether two settings differ is judged by the scatter of all that are compared (`Scatter`). Student's quantile
is computed from the regularised incomplete beta function (continued fraction, DLMF 8.17.22), which spares a
dependency.
One repetition has no spread: its interval is None, never zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.95
_STEPS: Final = 200
_TINY: Final = 1e-300


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
    half = student_quantile(0.5 + confidence / 2, count - 1) * deviation / math.sqrt(count)
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
    """

    noise: float
    freedom: int

    def visible(self, one: float, other: float) -> float:
        """The smallest difference of two settings that their repetitions show, as a share of the better mean.

        Args:
            one: repetitions of one setting.
            other: of the other.
        """
        quantile = student_quantile(0.5 + CONFIDENCE / 2, self.freedom)
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
    noise = relative_noise(groups)
    if noise is None:
        return None
    freedom = sum(len(values) - 1 for values in groups if len(values) > 1 and statistics.fmean(values))
    return Scatter(noise, freedom)


def relative_noise(groups: Sequence[Sequence[float]]) -> float | None:
    """How far one repetition lies from its mean, as a share of it, pooled over settings.

    Args:
        groups: the repetitions of each setting; those with one repetition or a mean of 0 say nothing.
    """
    squares, freedom = 0.0, 0
    for values in groups:
        mean = statistics.fmean(values) if values else 0.0
        if len(values) > 1 and mean:
            squares += sum((value / mean - 1) ** 2 for value in values)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def student_quantile(probability: float, freedom: float) -> float:
    """The value below which Student's t lies with the probability.

    Args:
        probability: between 0 and 1, exclusively.
        freedom: degrees of freedom, above 0.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 0 < probability < 1 or freedom <= 0:
        raise ValueError(f"no quantile of Student's t for {probability} with {freedom} degrees of freedom")
    if probability < 0.5:
        return -student_quantile(1 - probability, freedom)
    high = 1.0
    while student_probability(high, freedom) < probability:
        high *= 2
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if student_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_probability(value: float, freedom: float) -> float:
    """The probability that Student's t is below the value."""
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value)) / 2
    return 1 - tail if value > 0 else tail


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The fraction converges fast below the mean of the distribution; above, its mirror image does.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Lentz's way through the continued fraction: numerators and denominators from the front."""
    numerator, denominator = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = denominator
    for step in range(1, _STEPS):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            denominator = 1 / _away_from_zero(1 + term * denominator)
            numerator = _away_from_zero(1 + term / numerator)
            value *= denominator * numerator
        if abs(denominator * numerator - 1) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
