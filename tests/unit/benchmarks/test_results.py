"""Medians, tables and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report, results
from benchmarks.load import Latency


def sample(case: str, cost: float | None, target: str = "broker") -> results.Row:
    """Return a sample with a rate and a cost."""
    return {"case": case, "target": target, "cpu_us": cost, "rate_per_s": 1e6 / (cost or 1.0)}


def document(name: str, rows: list[results.Row]) -> dict[str, object]:
    """Return a result file's content."""
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


def test_a_table_is_drawn_like_the_articles() -> None:
    """Box characters, a rule between lines."""
    drawn = results.draw_table(("name", "messages"), [("classic", "7"), ("slow", "12")], ruled=True, left=2)
    assert drawn.splitlines() == [
        "┌─────────┬──────────┐",
        "│ name    │ messages │",
        "├─────────┼──────────┤",
        "│ classic │ 7        │",
        "├─────────┼──────────┤",
        "│ slow    │ 12       │",
        "└─────────┴──────────┘",
    ]


def test_percentiles_are_those_of_the_sorted_samples() -> None:
    """One sample in a hundred lies above the 99th."""
    latency = Latency.of([number * 1_000_000 for number in range(100)])
    assert latency is not None
    assert (latency.p50_ms, latency.p99_ms, latency.max_ms, latency.samples) == (50.0, 99.0, 99.0, 100)
    assert Latency.of([]) is None


@pytest.mark.parametrize(("cost", "delivery_outcome"), [(4.9, "yes"), (5.1, "**no**")])
def test_a_target_is_judged_by_the_brokers_row(cost: float, delivery_outcome: str) -> None:
    """The floor's row does not count."""
    rows = [sample("publish unsettled", 0.1, "floor"), sample("publish unsettled", cost)]
    lines = report.target_lines([document("publish", rows)])
    (line,) = [one for one in lines if one[0].startswith("publish: publish, unsettled")]
    assert line[2] == delivery_outcome


def test_isolation_is_judged_by_amqp_10_and_likeness_by_0_9_1() -> None:
    """That the other half does what the article shows of it is no target missed."""
    rows: list[results.Row] = [
        {"case": "AMQP 0-9-1, +5 ms: with / alone", "isolation": 0.02, "slow_to_fast": 0.97},
        {"case": "AMQP 1.0, +5 ms: with / alone", "isolation": 0.96, "slow_to_fast": 0.1},
    ]
    for row in rows:
        row["target"] = "broker"
    lines = [one for one in report.target_lines([document("two_senders", rows)]) if "two_senders" in one[0]]
    assert [(one[1], one[2]) for one in lines] == [
        ("0.96 (local)", "yes"),
        ("3 % apart at worst (local)", "yes"),
    ]


def test_a_target_without_a_result_is_shown_as_not_measured() -> None:
    """Nothing is left out in silence."""
    lines = report.target_lines([])
    assert len(lines) == len(report.TARGETS)
    assert {one[1] for one in lines} == {"not measured"}


def test_the_report_is_made_of_every_result_with_the_label(tmp_path: Path) -> None:
    """Quick runs are left out unless they are asked for."""
    outcome = results.Outcome(("cpu_us",), {}, [sample("a", 1.0)], [sample("a", 1.0)])
    results.save("both", "Why?", "local", outcome, tmp_path)
    results.save("publish", "Why?", "quick", outcome, tmp_path)
    text = report.write(tmp_path, None).read_text(encoding="utf-8")
    assert "| both (local, " in text
    assert "| publish (" not in text


def test_the_latest_result_of_a_question_is_shown_and_every_missed_target() -> None:
    """An older result that misses stays in the table of targets; its figures are in its file."""
    old = document("publish", [sample("publish unsettled", 6.0)]) | {"label": "old", "date": "2025-01-01"}
    new = document("publish", [sample("publish unsettled", 4.0), sample("publish unsettled", 1.0, "floor")])
    text = report.render([new, old])
    assert "6 µs (old)" in text
    assert "yes, **no**" in text
    (line,) = [one for one in text.splitlines() if one.startswith("| publish (")]
    assert line == "| publish (local, unknown) | publish unsettled | 250,000 | 1,000,000 | 4.00 |"


def test_what_is_compared_stands_beside_what_it_is_compared_with() -> None:
    """One line a ratio."""
    rows = [sample("both: now", 3.0), sample("both: before", 2.0)]
    rows += [{"case": "both: now / before", "target": "broker", "ratio_before": 1.5}]
    lines = report.render([document("versus", rows)]).splitlines()
    (line,) = [one for one in lines if one.startswith("| versus (")]
    assert line.endswith("| both | now / before | 333,333/s, 3.00 µs | 500,000/s, 2.00 µs | 1.50 |")


def test_a_neighbour_apart_is_compared_with_itself() -> None:
    """The article's benchmarks have two ratios a work, if they are asked for."""
    costs = {"with slow neighbour": 4.0, "alone": 2.0, "slow neighbour apart": 3.0}
    rows = [sample(f"AMQP 1.0: {variant}", cost) for variant, cost in costs.items()]
    for what, ratio in (("alone", 0.5), ("apart", 0.75)):
        rows.append({"case": f"AMQP 1.0: with / {what}", "target": "broker", "isolation": ratio})
    lines = report.render([document("two_senders", rows)]).splitlines()
    found = [one.split(" | ")[2:] for one in lines if one.startswith("| two_senders (")]
    assert found == [
        ["with slow neighbour / alone", "250,000/s, 4.00 µs", "500,000/s, 2.00 µs", "0.500 |"],
        ["with slow neighbour / slow neighbour apart", "250,000/s, 4.00 µs", "333,333/s, 3.00 µs", "0.750 |"],
    ]
