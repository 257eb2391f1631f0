"""What the benchmark `recording` says about its pairs of windows."""

from __future__ import annotations

from typing import Any

from benchmarks.recording_cost import describe_intervals


def row(case: str, rate: float, cpu: float) -> dict[str, Any]:
    return {"case": case, "target": "broker", "rate_ratio": rate, "cpu_ratio": cpu}


def test_faster_and_slower_by_the_same_factor_is_no_difference() -> None:
    """Student's quantile for two windows is 12.706: the interval is as wide as two windows deserve."""
    samples = [row("a: on", 1.1, 1.2), {"case": "a: off", "target": "broker"}, row("a: on", 1 / 1.1, 1.2)]
    (told,) = describe_intervals(samples)
    # 1.1 to the power of 12.706: the deviation is sqrt(2) log 1.1, and the root of two windows divides it.
    words = "a: on: rate on / off 1.000 (0.298 to 3.357), CPU on / off 1.200 (1.200 to 1.200), with 95 %"
    assert told == f"{words}, from 2 windows"


def test_many_windows_that_agree_have_a_narrow_interval() -> None:
    samples = [row(case, ratio, 1 / ratio) for ratio in (0.99, 1.0, 1.01) * 4 for case in ("a: on", "b: on")]
    first, second = describe_intervals(samples)
    assert first.startswith("a: on: rate on / off 1.000 (0.995 to 1.005)")
    assert second.endswith("from 12 windows")


def test_one_window_says_nothing_about_the_next() -> None:
    assert describe_intervals([row("a: on", 1.0, 1.0)]) == []
    assert describe_intervals([{"case": "a: off", "target": "broker"}]) == []
