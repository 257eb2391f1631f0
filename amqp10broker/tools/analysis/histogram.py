"""Log-histograms: latencies as counts by bucket, so that parts can be added in any order.

Bucket b holds the values from 2^(b/16) ns up to, not including, 2^((b+1)/16) ns. A quantile of the histogram
lies in the same bucket as the exact one, so its error is at most a factor of `RATIO` (4.4 %) in either
direction. Values below 1 ns (clocks that disagree) have a bucket of their own and read as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

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
