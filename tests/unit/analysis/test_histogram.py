"""The log-histogram at its edges; its laws are in tests/property/test_log_histogram.py."""

from __future__ import annotations

import pytest

from amqp10broker.tools.analysis.cells import RATIO, ZERO_BUCKET, lower_edge_ns, quantile, quantiles


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
