"""The check of the recommendation, with planted rates in the place of a broker."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recommendation, sweep
from benchmarks.errors import MeasureError
from benchmarks.measure import Context
from benchmarks.recommendation import Advice, Aim, cell_of, read_advice, rivals_of, verdict_of
from benchmarks.results import Outcome, Row
from benchmarks.sweep import Cell
from benchmarks.verdict import Finding

RATE = Aim("throughput", "rate_per_s", highest=True)
CELLS = [Cell(size, None, 400, credit) for size in (100, 10240) for credit in (10, 170, 1000)]
SMALL = {cell.credit: cell for cell in CELLS if cell.size_bytes == 100}
TABLE = """group,message_size_bytes,max_link_credit,max_incoming_window,max_queue_credit,mean,command_line,\
reasons,weak
"sweep, 100 B, 1 publisher",100,170,400,256,5.5,amqp10broker serve,because,noise
"sweep, 10,240 B, 1 publisher",10240,,,,,,no run,
"""
OPTIONS: dict[str, Any] = {
    "quick": True,
    "repetitions": None,
    "duration": None,
    "warmup": None,
    "size": 100,
    "credit": 1000,
    "no_floor": True,
    "record_every": 50,
    "target": None,
    "max_link_credit": None,
    "max_incoming_window": None,
    "max_queue_credit": None,
    "broker_arg": [],
    "data": False,
    "data_root": Path("/disk"),
    "sync_delay_ms": 0,
    "sweep_credits": [10, 170, 1000],
    "sweep_windows": [400],
    "sweep_queue_credits": None,
    "sweep_sizes": [100],
    "sweep_seed": 1,
    "rate": 0.0,
    "aim": "throughput",
    "rivals": 2,
    "held_out_repetitions": 6,
}


def advice(link_credit: int | None = 170, window: int = 400, queue_credit: int = 256) -> Advice:
    """Return what the analysis says of 100 bytes."""
    settings = None if link_credit is None else (link_credit, window, queue_credit)
    return Advice(100, settings, 1.0, "because", "")


def test_the_table_of_the_analysis_is_read(tmp_path: Path) -> None:
    """Size and settings are found in it; a group without a recommendation says why."""
    (tmp_path / "recommendations.csv").write_text(TABLE)
    assert read_advice(tmp_path / "recommendations.csv") == [
        Advice(100, (170, 400, 256), 5.5, "because", "noise"),
        Advice(10240, None, None, "no run", ""),
    ]


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [(",100,", ",,", "message_size_bytes"), ("link_credit", "credit", "max_link_credit")],
)
def test_a_table_that_is_not_as_expected_is_refused(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    """Nothing is guessed."""
    (tmp_path / "recommendations.csv").write_text(TABLE.replace(before, after))
    with pytest.raises(MeasureError, match=problem):
        read_advice(tmp_path / "recommendations.csv")


def test_the_recommended_combination_is_found_by_its_settings() -> None:
    """A combination that names no queue credit has the broker's own."""
    assert cell_of(advice(170), CELLS, 256) == SMALL[170]
    third = Cell(100, 64, 400, 170)
    assert cell_of(advice(170, queue_credit=64), [*CELLS, third], 256) == third


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (advice(None), "recommends nothing"),
        (advice(171), "not measured"),
        (advice(170, queue_credit=64), "not measured"),
    ],
)
def test_without_a_measured_combination_there_is_no_check(told: Advice, problem: str) -> None:
    """No recommendation, or one that the sweep does not hold, is a failure and says so."""
    with pytest.raises(MeasureError, match=problem):
        cell_of(told, CELLS, 256)


def test_rivals_are_the_best_of_the_same_size() -> None:
    """By the sweep's own medians; what failed, other sizes, and the recommended itself are left out."""
    rows: list[Row] = [
        {"case": cell.name, "rate_per_s": rate}
        for cell, rate in zip(CELLS, [1.0, 2.0, 3.0, 99.0, 98.0, 97.0], strict=True)
    ]
    assert rivals_of(rows, CELLS, SMALL[170], RATE, 5) == [SMALL[1000], SMALL[10]]
    assert rivals_of(rows, CELLS, SMALL[1000], RATE, 1) == [SMALL[170]]
    lowest = Aim("latency", "rate_per_s", highest=False)
    assert rivals_of(rows, CELLS, SMALL[170], lowest, 1) == [SMALL[10]]
    rows[2]["rate_per_s"] = None
    assert rivals_of(rows, CELLS, SMALL[170], RATE, 5) == [SMALL[10]]


def test_a_repetition_in_which_a_run_failed_is_left_out_as_a_whole() -> None:
    """Figures of different repetitions are never compared with each other."""

    def repetition(chosen: float, rival: float | None) -> list[Row]:
        failed: Row = {"case": SMALL[10].name, "failed": "why"}
        other = failed if rival is None else {"case": SMALL[10].name, "rate_per_s": rival}
        return [other, {"case": SMALL[170].name, "rate_per_s": chosen}]

    samples = repetition(10.0, 20.0) + repetition(99.0, None) + repetition(30.0, 60.0)
    verdict = verdict_of(samples, 2, SMALL[170], [SMALL[10]], RATE)
    assert verdict.repetitions == 2
    assert verdict.ratio == pytest.approx(0.5)
    with pytest.raises(MeasureError, match="no verdict"):
        verdict_of(repetition(99.0, None), 2, SMALL[170], [SMALL[10]], RATE)


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    rates: dict[int, float],
    recommended: int,
    noise: float = 0.005,
) -> Outcome:
    """Run the check; brokers have these true rates by their max_link_credit."""
    chance = random.Random(5)

    def measure(context: Context, cells: list[Cell], repetitions: int, seed: int) -> list[Row]:
        assert context.recording is not None
        assert not context.recording.folder.exists()
        return [
            {
                "case": cell.name,
                "target": "broker",
                "rate_per_s": rates[cell.credit or 0] * chance.gauss(1, noise),
            }
            for _ in range(repetitions)
            for cell in chance.sample(cells, len(cells))
        ]

    monkeypatch.setattr(sweep, "measure", measure)
    monkeypatch.setattr(recommendation, "_analyse", lambda *_: [advice(recommended)])
    return recommendation.run(Context(argparse.Namespace(**OPTIONS, record=folder), recommendation.NAME))


@pytest.mark.parametrize(
    ("recommended", "noise", "finding"),
    [(170, 0.005, Finding.WITHIN), (10, 0.005, Finding.NOT_WITHIN), (170, 0.3, Finding.HIDDEN)],
)
def test_the_verdict_is_that_of_the_true_rates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recommended: int, noise: float, finding: Finding
) -> None:
    """A good recommendation is called good, a wrong one wrong, and a noisy machine says nothing."""
    rates = {10: 50_000.0, 170: 99_000.0, 1000: 100_000.0}
    outcome = run_with(monkeypatch, tmp_path, rates=rates, recommended=recommended, noise=noise)
    (verdict,) = outcome.settings["verdicts"]
    assert verdict["finding"] == finding.name
    assert outcome.status == finding.status
    assert verdict["recommended"] == SMALL[recommended].name
    assert any(finding.describe(0.05) in note for note in outcome.notes)
    assert {row["part"] for row in outcome.samples} == {recommendation.SWEEP, recommendation.HELD_OUT}
    assert len(outcome.rows) == 3
    lows = {row["case"]: row.get("to_best_low") for row in outcome.rows}
    assert lows.pop(SMALL[recommended].name) == verdict["low"]
    assert set(lows.values()) == {None}


def test_runs_of_another_time_are_never_taken_for_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder that holds a recording already is refused before anything is measured."""
    (tmp_path / recommendation.SWEEP).mkdir()
    with pytest.raises(MeasureError, match="name a new folder"):
        run_with(monkeypatch, tmp_path, rates={}, recommended=170)


def test_latency_needs_a_rate_and_throughput_has_none() -> None:
    """At full speed latency is the queue's length; at a rate, throughput is the rate."""
    with pytest.raises(MeasureError, match="--rate"):
        Aim.of(argparse.Namespace(aim="throughput", rate=9.0))
    assert Aim.of(argparse.Namespace(aim="throughput", rate=0.0)).highest
    with pytest.raises(MeasureError, match="--rate"):
        Aim.of(argparse.Namespace(aim="latency", rate=0.0))
    assert Aim.of(argparse.Namespace(aim="latency", rate=9.0)).figure == "delivery_p99_ms"
