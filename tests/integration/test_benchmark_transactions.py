"""The benchmark `transactions` against the real broker: what it says was published was, both ways."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import transactions
from benchmarks.measure import Context
from tests.integration.test_benchmark_millions import OPTIONS

SHORT = {"duration": 0.1, "warmup": 0.0, "credit": 1000, "durable": False, "user": None, "password": None}


def test_both_ways_are_measured_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classic queue and a stream in one commit; a ratio stands for each repetition."""
    monkeypatch.setattr(transactions, "_WORK", {"mixed": ("classic", "stream")})
    options = argparse.Namespace(**OPTIONS | SHORT, data_root=tmp_path)
    outcome = transactions.run(Context(options))
    plain, transacted, ratio = outcome.samples
    assert [row.get("failed") for row in outcome.samples] == [None] * 3
    assert [row["case"] for row in outcome.samples] == [
        *("mixed: plain", "mixed: transacted", "mixed: transacted / plain"),
    ]
    assert plain["messages"] % transactions.MESSAGES == transacted["messages"] % transactions.MESSAGES == 0
    assert transacted["commits_per_s"] > 0
    assert ratio["ratio_plain"] > 0
