"""Intervals of few repetitions, against tables and by hand."""

from __future__ import annotations

import math

import pytest

from amqp10broker.tools.analysis.cells import estimate, scatter


def test_an_interval_is_students() -> None:
    """10, 12, 14: deviation 2, t with two degrees of freedom 4.303."""
    known = estimate([10.0, 12.0, 14.0])
    assert known is not None
    assert known.mean == 12
    assert known.deviation == pytest.approx(2)
    assert known.half_width == pytest.approx(4.3026527297 * 2 / math.sqrt(3))
    assert known.low == pytest.approx(12 - known.half_width)  # type: ignore[operator]


def test_what_the_scatter_hides_is_that_of_a_worked_example() -> None:
    """Two settings that scatter by 14.1 % with two degrees of freedom: t is 4.303, sqrt(1/2 + 1/2) is 1."""
    known = scatter([[90, 110], [900, 1100], [7]])
    assert known is not None
    assert (known.noise, known.freedom) == (pytest.approx(math.sqrt(0.02)), 2)
    assert known.visible(2, 2) == pytest.approx(4.3026527297 * math.sqrt(0.02))
    assert known.visible(4, 4) == pytest.approx(known.visible(2, 2) / math.sqrt(2))


def test_noise_is_pooled_over_settings_as_a_share_of_each_mean() -> None:
    """Two settings that scatter by 10 % around very different means."""
    known = scatter([[90, 110], [900, 1100], [7]])
    assert known is not None
    assert known.noise == pytest.approx(math.sqrt(2 * 0.01))
    assert known.freedom == 2
    assert scatter([[0.0, 0.0], []]) is None
