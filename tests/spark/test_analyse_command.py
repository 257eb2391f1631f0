"""``amqp10broker record analyse`` as people start it: a process of its own, with a JVM of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import synthetic
from tests.support.spark_process import QUICK_SPARK

pytestmark = pytest.mark.long

_LIMIT_S = 600.0


def test_the_command_recommends_and_writes_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    plants = synthetic.sweep(credits=(10, 50, 170, 500), windows=(50, 400), events=5_000, repetitions=2)
    synthetic.write(folder, plants)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "amqp10broker", "record", "analyse", str(folder), "--master", "local[1]"],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, **QUICK_SPARK, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "amqp10broker serve --max-link-credit 170 --max-incoming-window 400 --max-queue-credit 256" in said
    report = folder / "analysis" / "report.html"
    assert said.splitlines()[-1] == f"report: {report}"
    assert "Why links wait" in report.read_text("utf-8")
    told = [line.partition("] ")[2] for line in done.stderr.splitlines()]
    assert [told[0], *told[3:]] == ["starting Spark", "9 tables and the report written"]
    assert told[1].startswith("16 runs, 16 files, ")
    assert told[2].endswith(" events counted")
