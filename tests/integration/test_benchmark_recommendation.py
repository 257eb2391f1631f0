"""The check of the recommendation from end to end, as short as it can be: broker, recording, Spark, verdict.

Tests never time, and this machine may be doing anything else: whether the recommended settings really are
within 5 % of the best is not asserted here, and with so few and so short runs it would mostly be hidden by
noise. What must hold on any machine: the figures hang together, and the verdict is the one that they imply.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.recording.runs import Run, read_runs
from benchmarks.__main__ import main
from benchmarks.recommendation import HELD_OUT, SWEEP
from benchmarks.verdict import judge
from tests.support.spark_process import QUICK_SPARK

CREDITS = ["10", "170"]
REPETITIONS = 2
WINDOW_S = "2.2"
"""A window in which no message moves is a failed run: longer than a loaded machine lets a process stand."""
ARGUMENTS = [
    "recommendation",
    *("--sweep-credits", *CREDITS, "--sweep-windows", "400", "--sweep-sizes", "100", "--rivals", "1"),
    *("--duration", WINDOW_S, "--warmup", "0.1", "--repetitions", "2"),
    *("--held-out-repetitions", str(REPETITIONS), "--no-floor", "--label", "test"),
]


def throughput(run: Run) -> float:
    """Return a run's rate by what its load process has counted in its window."""
    (window,) = json.loads(run.settings)["streams_window"]
    assert run.ended_ns is not None
    delivered: int = window["delivered"]
    return delivered / (run.ended_ns - run.began_ns) * 1e9


def rates(result: dict[str, Any], part: str) -> dict[str, list[float]]:
    """Return the rates of the samples of one part by case, in the order of the repetitions."""
    found: dict[str, list[float]] = {}
    for sample in result["samples"]:
        if sample["part"] == part:
            found.setdefault(sample["case"], []).append(sample["rate_per_s"])
    return found


def test_the_verdict_is_the_one_that_the_figures_imply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From real runs through the analysis to the exit status."""
    for name, value in QUICK_SPARK.items():
        monkeypatch.setenv(name, value)
    recording, results = tmp_path / "recording", tmp_path / "results"
    status = main([*ARGUMENTS, "--record", str(recording), "--results", str(results)])
    result = json.loads((results / "recommendation-test.json").read_text())
    (verdict,) = result["settings"]["verdicts"]

    swept, held_out = read_runs(recording / SWEEP), read_runs(recording / HELD_OUT)
    assert sorted(str(run.max_link_credit) for run in swept) == sorted(CREDITS * 2)
    assert sorted(str(run.max_link_credit) for run in held_out) == sorted(CREDITS * REPETITIONS)
    assert not {run.run_id for run in swept} & {run.run_id for run in held_out}

    # The analysis has read from the events what the load processes have counted.
    credit = verdict["cell"]["credit"]
    counted = [throughput(run) for run in swept if run.max_link_credit == credit]
    assert verdict["analysis_mean"] == pytest.approx(statistics.fmean(counted), rel=1e-6)
    means = {
        credit: statistics.fmean(throughput(run) for run in swept if str(run.max_link_credit) == credit)
        for credit in CREDITS
    }
    assert means[str(credit)] >= 0.95 * max(means.values())

    again = rates(result, HELD_OUT)
    (rival,) = set(again) - {verdict["recommended"]}
    implied = judge(again[verdict["recommended"]], {rival: again[rival]})
    assert verdict["finding"] == implied.finding.name
    assert (verdict["ratio"], verdict["low"], verdict["high"]) == pytest.approx(
        (implied.ratio, implied.low, implied.high)
    )
    assert status == implied.finding.status
    assert any(implied.finding.describe(0.05) in note for note in result["notes"])
