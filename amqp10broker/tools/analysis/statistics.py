"""Means, confidence intervals and differences of few repetitions (three to ten).

Intervals are Student's, because the spread is unknown beforehand; one repetition has None, never zero.
Whether two settings differ is judged by the scatter of all that are compared (`Scatter`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from amqp10broker.dataclass import dataclass

BUCKETS_AN_OCTAVE: Final = 16
RATIO: Final = 2 ** (1 / BUCKETS_AN_OCTAVE)
"""Upper edge of a bucket divided by its lower edge: the bound of the error of a quantile."""
ZERO_BUCKET: Final = -1

Counts = Mapping[int, int]


def lower_edge_ns(bucket: int) -> float:
    return 0.0 if bucket <= ZERO_BUCKET else 2.0 ** (bucket / BUCKETS_AN_OCTAVE)


def merge(parts: Iterable[Counts]) -> dict[int, int]:
    whole: dict[int, int] = {}
    for part in parts:
        for bucket, count in part.items():
            whole[bucket] = whole.get(bucket, 0) + count
    return whole


def quantiles(counts: Counts, shares: Sequence[float]) -> list[float | None]:
    """Return the quantile in ns for each share from 0 to 1; None if nothing was counted."""
    filled = sorted((bucket, count) for bucket, count in counts.items() if count > 0)
    total = sum(count for _, count in filled)
    if not total:
        return [None] * len(shares)
    found: dict[float, float] = {}
    below, place = 0, 0
    for share in sorted(set(shares)):
        rank = share * total
        while below + filled[place][1] < rank and place < len(filled) - 1:
            below += filled[place][1]
            place += 1
        bucket, count = filled[place]
        # The values of a bucket are assumed to be evenly spread, on the logarithmic scale.
        inside = min(max((rank - below) / count, 0.0), 1.0)
        found[share] = lower_edge_ns(bucket) * RATIO**inside
    return [found[share] for share in shares]


def quantile(counts: Counts, share: float) -> float | None:
    return quantiles(counts, (share,))[0]


CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions and, from two on, the interval that contains the true mean.

    `deviation` is the standard deviation of one repetition; None if there is only one.
    """

    mean: float
    low: float | None
    high: float | None
    repetitions: int
    deviation: float | None = None

    @property
    def half_width(self) -> float | None:
        return None if self.high is None else self.high - self.mean


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return mean and interval of repetitions, None if there are none.

    `confidence` is the share of such intervals that contain the true mean, between 0 and 1.
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


@dataclass(frozen=True, slots=True)
class Scatter:
    """The scatter of repetitions, pooled over the settings that are compared. `noise`: deviation of one
    repetition from its mean, as a share of it.
    """

    noise: float
    freedom: int
    repetitions: float

    @property
    def typical(self) -> float:
        """Return the smallest difference that two settings with this mean number of repetitions show."""
        return self.visible(self.repetitions, self.repetitions)

    def visible(self, one: float, other: float) -> float:
        """Return the smallest difference, as a share of the better mean, that two settings show with so many
        repetitions.
        """
        quantile = _student_quantile(CONFIDENCE, self.freedom)
        return quantile * self.noise * math.sqrt(1 / one + 1 / other)


def scatter(groups: Sequence[Sequence[float]]) -> Scatter | None:
    """Return the scatter of repetitions, modelled as the same share of the mean for each setting.

    Two or three repetitions alone estimate their own scatter so badly that nearly no difference could be
    shown, or, where they are close by accident, any. All statements on differences use this one figure.

    Args:
        groups: the repetitions of each setting; those with one repetition or a mean of 0 do not count.

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
    # Imported here because it takes a tenth of a second, unnecessary for readers of an estimate.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))
