"""What the demonstration prints while a command of it prints nothing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "spark_demo.py"
CHILD = """
import pathlib, sys, time
print("first", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("last", file=sys.stderr, flush=True)
"""


@pytest.fixture
def demo() -> Any:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("spark_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_silent_command_is_said_to_be_at_work(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """And all that it prints, on both of its streams, is passed on in order."""
    go_on = tmp_path / "go on"
    said: list[str] = []

    def say(text: str, **options: object) -> None:
        said.append(text)
        go_on.touch()

    monkeypatch.setattr(demo, "SILENT_S", 0.2)
    monkeypatch.setattr(demo, "print", say, raising=False)
    command = [sys.executable, "-c", CHILD, str(go_on)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        demo.pass_on(process)
    assert process.returncode == 0
    assert said
    assert all(text.startswith("... at work for ") for text in said)
    assert capfdbinary.readouterr().out == b"first\nlast\n"


def test_a_command_that_fails_is_said(demo: Any) -> None:
    """With its exit code."""
    with pytest.raises(demo.StepFailed, match="ended with 3"):
        demo.run("-c", "raise SystemExit(3)")
