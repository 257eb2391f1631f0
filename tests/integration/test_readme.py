"""README's commands, as they stand there, from top to bottom, against a broker on another port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amqp10broker.cli.main import build_parser, homes
from tests.support.broker_process import REPOSITORY

ELSEWHERE = ("make ", "pip install ", ". .venv/bin/activate", "export AMQP10BROKER_URL=")
"""What the test does in their place: the environment of the tests is there, and so is the broker's URL."""
BARE = "amqp10broker"
"""It serves until it is stopped, at the usual port: `test_first_use.py` runs it."""
STOPPED = "amqp10broker storage check "
"""What is done while the broker is stopped."""


def commands() -> list[str]:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines), "a block of commands is nothing but commands"
    return [line.removeprefix("$ ") for line in lines]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The commands write into this folder, which is laid out like the repository's root."""
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", ""), ("amqp10broker", "-m amqp10broker ")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        program.chmod(0o755)
    return tmp_path


def test_the_commands_of_the_readme_work_from_top_to_bottom(home: Path) -> None:
    """Each exits with 0; the broker's port is not 5672, and its URL is given once."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMQP10BROKER_")}
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    environment |= {"XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(REPOSITORY)}
    path = f"{home / '.venv' / 'bin'}:{environment['PATH']}"
    serve = [sys.executable, "-m", "amqp10broker", "serve", "--port", "0", "--data-dir", "data"]
    broker = subprocess.Popen(
        [*serve, "--log-format", "json"], cwd=home, env=environment, stderr=subprocess.PIPE, text=True
    )
    done: list[str] = []
    try:
        port = listening_port(broker)
        environment |= {"PATH": path, "AMQP10BROKER_URL": f"amqp://guest:guest@127.0.0.1:{port}"}
        for command in commands():
            if command.startswith(ELSEWHERE) or command.partition("#")[0].strip() == BARE:
                continue
            if command.startswith(STOPPED):
                broker.send_signal(signal.SIGTERM)
                broker.communicate(timeout=30)
            result = subprocess.run(
                ["bash", "-c", command], cwd=home, env=environment, capture_output=True, text=True, timeout=60
            )
            assert result.returncode == 0, (command, result.stdout, result.stderr)
            done.append(command)
    finally:
        broker.kill()
        broker.communicate()
    assert len(done) >= 19
    for words in ("status", "publish", "examples/", "user add", STOPPED):
        assert any(words in command for command in done), words


def listening_port(broker: subprocess.Popen[str]) -> int:
    for line in broker.stderr:
        found = re.search(r'"addresses": "127\.0\.0\.1:(\d+)', line)
        if found:
            return int(found[1])
    raise AssertionError("the broker has stopped")


def test_every_option_and_command_that_the_readme_names_exists() -> None:
    """This includes commands that no test here runs."""
    known = sorted(homes(), key=len, reverse=True)
    for command in commands():
        for typed in re.findall(r"amqp10broker ([a-z][^|;#`]+)", command):
            name = next(name for name in known if f"{typed} ".startswith(f"{name} "))
            parser = build_parser(name.split())
            for option in re.findall(r" (--[a-z-]+)", typed):
                assert option in parser._all_options(), (name, option)
