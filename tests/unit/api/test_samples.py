"""Rates and histories by looks."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.api import samples as module
from amqp10broker.api.samples import RateSamples, Series, Span

INTERVAL_MS = 5_000


def looked(*looks: tuple[int, int]) -> Series:
    """An object with a value x, by looks at it: milliseconds and the value."""
    samples = RateSamples(INTERVAL_MS)
    for now_ms, value in looks:
        series = samples.look("key", now_ms, {"x": value})
    return series


def rate(*looks: tuple[int, int]) -> float:
    return float(looked(*looks).details("x", None)["rate"])


def test_a_rate_is_what_changed_between_two_looks() -> None:
    assert rate((0, 100)) == 0.0
    assert rate((0, 100), (5_000, 150)) == 10.0
    assert rate((0, 100), (5_000, 150), (35_000, 90)) == -2.0


def test_looks_within_an_interval_are_one() -> None:
    """A page that asks every second does not hear of every second."""
    assert rate((0, 0), (1_000, 50)) == 0.0
    assert rate((0, 0), (5_000, 50), (6_000, 1_000), (9_900, 2_000)) == 10.0


def test_a_history_has_the_samples_newest_first() -> None:
    series = looked(*((number * 5_000, number * 10) for number in range(5)))
    found = series.details("x", Span(10_000, 5_000))
    assert found == {
        "rate": 2.0,
        "samples": [
            {"sample": 40, "timestamp": 20_000},
            {"sample": 30, "timestamp": 15_000},
            {"sample": 20, "timestamp": 10_000},
        ],
        "avg": 30.0,
        "avg_rate": 2.0,
    }
    assert len(series.details("x", Span(3_600_000, 5_000))["samples"]) == 5
    assert looked((0, 7)).details("x", Span(60_000, 5_000)) == {
        "rate": 0.0,
        "samples": [{"sample": 7, "timestamp": 0}],
        "avg": 7.0,
        "avg_rate": 0.0,
    }


def test_objects_that_nobody_looks_at_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OBJECTS_MAX", 3)
    monkeypatch.setattr(module, "MANY", 2)
    samples = RateSamples(INTERVAL_MS)
    for now_ms in range(0, 5 * INTERVAL_MS, INTERVAL_MS):
        for key in "abcd":
            samples.look(key, now_ms, {"x": now_ms})
    assert set(samples._series) == {"b", "c", "d"}
    series = samples.look("d", 10 * INTERVAL_MS, {"x": 0})
    assert len(series._samples) == 2
    samples.forget()
    assert not samples._series


@pytest.mark.parametrize(
    ("query", "span"),
    [
        ({"lengths_age": "60", "lengths_incr": "5"}, Span(60_000, 5_000)),
        ({"lengths_age": "60"}, None),
        ({"lengths_age": "60", "lengths_incr": "0"}, None),
        ({"lengths_age": "x", "lengths_incr": "5"}, None),
        ({"msg_rates_age": "60", "msg_rates_incr": "5"}, None),
    ],
)
def test_a_history_is_asked_for_by_age_and_step(query: dict[str, str], span: Any) -> None:
    assert Span.read(query, "lengths") == span
