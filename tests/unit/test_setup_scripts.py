"""The scripts behind the Makefile say in plain words what is missing."""

from __future__ import annotations

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
