"""The proofs of replication are proved: each fault of `tests/scripts/planted_faults.toml` fails its test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.planted_fault import FAULTS


@pytest.mark.parametrize(
    "number", range(len(FAULTS)), ids=lambda number: FAULTS[number]["what"].replace(" ", "_")
)
def test_a_planted_fault_is_caught(number: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.planted_fault", str(number)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "1 failed" in run.stdout, run.stdout + run.stderr
