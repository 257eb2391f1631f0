"""The benchmark `millions` against the real broker, with few messages: what it says must be true."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from benchmarks import millions
from benchmarks.measure import Context

OPTIONS = {
    "quick": True,
    "repetitions": None,
    "duration": None,
    "warmup": None,
    "size": 100,
    "credit": 100,
    "no_floor": True,
    "record": None,
    "target": None,
    "python": sys.executable,
    "address": "{queue}",
    "max_link_credit": None,
    "max_incoming_window": None,
    "max_queue_credit": None,
    "broker_arg": [],
    "data": False,
    "sync_delay_ms": 0,
    "millions_count": 500,
    "millions_long_count": 0,
    "millions_kind": "classic, persistent",
}


def test_a_queue_is_filled_found_again_and_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is there, after an end in order and after a kill, and no folder is left."""
    monkeypatch.setattr(millions, "SETTLE_S", 0.0)
    outcome = millions.run(Context(argparse.Namespace(**OPTIONS, data_root=tmp_path)))
    (row,) = outcome.samples
    assert "failed" not in row
    assert [column for column in outcome.columns if row.get(column) is None] == []
    assert row["messages"] == 500
    assert row["disk_mb"] > 0
    assert list(tmp_path.iterdir()) == []
