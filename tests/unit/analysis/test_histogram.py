"""The log-histogram at its edges; its laws are in tests/property/test_log_histogram.py."""

from __future__ import annotations

import pytest

from amqp10broker.tools.analysis.histogram import (
    RATIO,
    ZERO_BUCKET,
    lower_edge_ns,
    merge,
    quantile,
    quantiles,
)


def test_nothing_counted_has_no_quantile() -> None:
    """None, and not 0."""
    assert quantile({}, 0.5) is None
    assert quantiles({4: 0}, (0.1, 0.9)) == [None, None]


def test_sixteen_buckets_double_a_value() -> None:
    """Edges are powers of two every sixteen buckets."""
    assert lower_edge_ns(0) == 1
    assert lower_edge_ns(16 * 20) == 2**20
    assert pytest.approx(2) == RATIO**16


def test_latencies_of_clocks_that_disagree_read_as_zero() -> None:
    """They are counted, and below all others."""
    assert quantiles({ZERO_BUCKET: 3, 160: 1}, (0.5, 1.0)) == [0.0, pytest.approx(2**10 * RATIO)]


def test_a_quantile_is_interpolated_inside_its_bucket() -> None:
    """Half of one bucket is at its middle, on the logarithmic scale."""
    assert quantile({160: 10}, 0.5) == pytest.approx(2**10 * RATIO**0.5)
    assert quantile({160: 10}, 1.0) == pytest.approx(2**10 * RATIO)
    assert quantile({160: 10}, 0.0) == pytest.approx(2**10)


def test_shares_are_answered_in_the_order_they_were_asked_in() -> None:
    """And the same share twice."""
    counts = {160: 50, 320: 50}
    high, low, again = quantiles(counts, (0.99, 0.1, 0.99))
    assert high == again
    assert low is not None
    assert high is not None
    assert low < 2**11 < 2**20 <= high


def test_merging_adds_counts() -> None:
    """Bucket by bucket."""
    assert merge([{1: 2, 3: 4}, {}, {3: 1, 5: 1}]) == {1: 2, 3: 5, 5: 1}
