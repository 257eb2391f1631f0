"""Every frame script in this directory gives exactly the trace that is written in it.

``REWRITE_SCRIPTS=1`` writes the traces anew; look at the difference before you believe it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.script import ScriptRunner

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_trace_is_the_one_in_the_script(path: Path) -> None:
    """The broker's frames, and their order, are those of the scenario."""
    text = path.read_text()
    actual = ScriptRunner().run(text)
    if os.environ.get("REWRITE_SCRIPTS"):
        path.write_text(actual)
    else:
        assert actual.splitlines() == text.splitlines()


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_trace_does_not_depend_on_how_the_socket_cuts_the_bytes(path: Path, chunk: int) -> None:
    """Frames that come in pieces are handled as frames that come whole, in any wake."""
    text = path.read_text()
    if "any-cut: no" in text:
        pytest.skip("the script says why")
    assert ScriptRunner(chunk=chunk).run(text).splitlines() == text.splitlines()


def test_every_rule_has_a_script() -> None:
    """F1 to F14 each name their scripts."""
    numbers = {path.stem[:3] for path in SCRIPTS}
    assert numbers >= {f"f{number:02}" for number in range(1, 15)}
