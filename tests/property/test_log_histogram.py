"""The laws by which histograms of parts may stand for the whole."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.tools.analysis.cells import RATIO, ZERO_BUCKET, merge, quantile, quantiles

VALUES = st.lists(st.integers(min_value=0, max_value=10**13), min_size=1, max_size=300)
SHARES = st.floats(min_value=0.0, max_value=1.0)
_ROUNDING = 1 + 1e-9


def histogram(values: list[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for value in values:
        bucket = ZERO_BUCKET if value < 1 else math.floor(math.log2(value) * 16)
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


@given(values=VALUES, parts=st.integers(1, 7), seed=st.integers(0, 1000))
def test_parts_merged_are_the_whole(values: list[int], parts: int, seed: int) -> None:
    """However the values are dealt, and in whatever order the parts are merged."""
    random_source = random.Random(seed)
    dealt: list[list[int]] = [[] for _ in range(parts)]
    for value in values:
        random_source.choice(dealt).append(value)
    random_source.shuffle(dealt)
    assert merge(histogram(part) for part in dealt) == histogram(values)


@given(values=VALUES, share=SHARES)
def test_a_quantile_is_within_one_bucket_of_the_exact_one(values: list[int], share: float) -> None:
    """By numpy's definition: the smallest value that at least that share does not exceed."""
    exact = float(np.quantile(np.array(values), share, method="inverted_cdf"))
    found = quantile(histogram(values), share)
    assert found is not None
    if exact < 1:
        assert found == 0.0
    else:
        assert exact / RATIO / _ROUNDING <= found <= exact * RATIO * _ROUNDING


@given(values=VALUES, shares=st.lists(SHARES, min_size=2, max_size=6))
def test_a_larger_share_has_no_smaller_quantile(values: list[int], shares: list[float]) -> None:
    found = quantiles(histogram(values), sorted(shares))
    known = [value for value in found if value is not None]
    assert len(known) == len(shares)
    assert known == sorted(known)
