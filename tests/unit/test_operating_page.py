"""docs/operating.md says the truth: its checklist is doctor's, and what it tells to type is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docs" / "operating" / "amqp10broker.service"


def test_the_unit_is_one_to_systemd(tmp_path: Path) -> None:
    """With a program that is there in place of the broker's."""
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/amqp10broker/bin/amqp10broker", sys.executable))
    done = subprocess.run([verify, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
