"""Every interaction script in this directory gives exactly the trace that is written in it.

``REWRITE_SCRIPTS=1`` writes the traces anew; look at the difference before you believe it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.raft_modules import raft_modules
from tests.support.raft_script import ScriptRunner

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_trace_is_the_one_in_the_script(path: Path) -> None:
    """The members' messages, writes and applied entries have the order of the scenario."""
    text = path.read_text(encoding="utf-8")
    actual = ScriptRunner(raft_modules()).run(text)
    if os.environ.get("REWRITE_SCRIPTS"):
        path.write_text(actual, encoding="utf-8")
    else:
        assert actual.splitlines() == text.splitlines()
        assert "BROKEN" not in actual
