"""Medians, tables and report."""

from __future__ import annotations

import pytest

from benchmarks import report, results
from benchmarks.load import Latency


def sample(case: str, cost: float | None, target: str = "broker") -> results.Row:
    """Return a sample with a rate and a cost."""
    return {"case": case, "target": target, "cpu_us": cost, "rate_per_s": 1e6 / (cost or 1.0)}


def document(name: str, rows: list[results.Row]) -> dict[str, object]:
    return {
        "benchmark": name,
        "label": "local",
        "question": "Why?",
        "date": "2026-01-01T00:00:00+00:00",
        "command": f"python -m benchmarks {name}",
        "revision": None,
        "machine": {"cpu": "x", "cores": 2, "kernel": "6", "python": "3.11", "load_average_1_min": 0.1},
        "columns": ["rate_per_s", "cpu_us"],
        "rows": rows,
        "tables": [],
        "notes": ["A note."],
    }


def test_rows_are_medians_with_their_range() -> None:
    """Floor and broker are different rows of one case."""
    samples = [sample("a", 3.0), sample("a", 1.0), sample("a", 2.0), sample("a", 0.1, "floor")]
    first, second = results.summarise(samples, ["cpu_us"])
    assert (first["target"], first["cpu_us"], first["cpu_us_range"]) == ("broker", 2.0, [1.0, 3.0])
    assert (second["target"], second["cpu_us"]) == ("floor", 0.1)


def test_percentiles_are_those_of_the_sorted_samples() -> None:
    """One sample in a hundred lies above the 99th."""
    latency = Latency.of([number * 1_000_000 for number in range(100)])
    assert latency is not None
    assert (latency.p50_ms, latency.p99_ms, latency.max_ms, latency.samples) == (50.0, 99.0, 99.0, 100)
    assert Latency.of([]) is None


@pytest.mark.parametrize(("cost", "delivery_outcome"), [(4.9, "yes"), (5.1, "**no**")])
def test_a_target_is_judged_by_the_brokers_row(cost: float, delivery_outcome: str) -> None:
    rows = [sample("publish unsettled", 0.1, "floor"), sample("publish unsettled", cost)]
    lines = report.target_lines([document("publish", rows)])
    (line,) = [one for one in lines if one[0].startswith("publish: publish, unsettled")]
    assert line[2] == delivery_outcome
