"""The scripts behind the Makefile say in plain words what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"


def run(script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(CI / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False)


def fake_python(folder: Path, body: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_good_python_is_found() -> None:
    found = run("find_python.sh", sys.executable, PATH=os.environ["PATH"])
    assert found.stdout.strip() == sys.executable


def test_no_python_at_all(tmp_path: Path) -> None:
    found = run("find_python.sh", PATH=str(tmp_path))
    assert found.returncode == 1
    assert "No Python 3.11 or newer was found." in found.stderr
    assert "make PYTHON=" in found.stderr


def test_an_old_python_is_named(tmp_path: Path) -> None:
    fake_python(tmp_path, 'case "$2" in *print*) echo 3.9;; *) exit 1;; esac')
    found = run("find_python.sh", PATH=str(tmp_path))
    assert found.returncode == 1
    assert "python3 is Python 3.9." in found.stderr


def test_a_python_without_venv_is_told_from_none(tmp_path: Path) -> None:
    fake_python(tmp_path, 'case "$2" in *print*) echo 3.12;; *ensurepip*) exit 1;; esac')
    found = run("find_python.sh", PATH=str(tmp_path))
    assert found.returncode == 1
    assert "without its venv module: python3 (Python 3.12)" in found.stderr
    assert "apt install python3-venv" in found.stderr


def test_the_python_that_was_asked_for_is_not_replaced_by_another() -> None:
    found = run("find_python.sh", "no-such-python", PATH=os.environ["PATH"])
    assert found.returncode == 1
    assert found.stdout == ""
    assert "PYTHON=no-such-python is not a Python 3.11 or newer" in found.stderr


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler -O2", "A C compiler is missing: 'no-such-compiler' is not there."),
        ("sh", "If pip could not reach a package index"),
    ],
)
def test_why_the_test_tools_do_not_install(tmp_path: Path, compiler: str, message: str) -> None:
    (tmp_path / "Python.h").touch()
    python = fake_python(tmp_path, f"echo {tmp_path}")
    said = run("explain_test_install.sh", python, CC=compiler, PATH=os.environ["PATH"])
    assert said.returncode == 0
    assert message in said.stdout


def test_missing_headers_of_python_are_named(tmp_path: Path) -> None:
    python = fake_python(tmp_path, f"echo {tmp_path}")
    said = run("explain_test_install.sh", python, CC="sh", PATH=os.environ["PATH"])
    assert f"there is no {tmp_path}/Python.h" in said.stdout


REAL = "tests/integration/test_pika_publish.py::test_a"


@pytest.mark.parametrize(
    ("failed", "answer"),
    [
        ([REAL, "tests/spark/test_demo.py::test_b[1, 2]"], f"{REAL}, tests/spark/test_demo.py::test_b[1, 2]"),
        (
            [REAL, "tests/unit/test_alarms.py::test_c"],
            "tests/unit/test_alarms.py::test_c is the same each time",
        ),
        (["tests/integration/test_pika_publish.py"], "test_pika_publish.py is the same each time"),
        ([f"{REAL}{number}" for number in range(6)], "6 tests failed: at most 5 have a second try"),
        ([], "the run itself broke off"),
        (None, "the run itself broke off"),
    ],
)
def test_what_ci_tries_again(tmp_path: Path, failed: list[str] | None, answer: str) -> None:
    record = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    record.parent.mkdir(parents=True)
    if failed is not None:
        record.write_text(json.dumps(dict.fromkeys(failed, True)))
    command = [sys.executable, str(CI / "failed_tests.py")]
    asked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    again = answer.startswith(REAL)
    assert asked.returncode == (0 if again else 1)
    assert answer in (asked.stdout if again else asked.stderr)
