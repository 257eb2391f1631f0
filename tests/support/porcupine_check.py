"""Histories of metadata as porcupine judges them, a checker of linearizability that others keep.

`tests/support/porcupine` is a program around it, with the model that `tests.support.linearizable` has:
changes in one order, and a copy at each node that is a beginning of it. It is built where it is needed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final

from tests.support.linearizable import Operation

SOURCES: Final = Path(__file__).parent / "porcupine"
SECONDS: Final = 60.0
"""So long may a name take."""


@cache
def built() -> str:
    """Build the program; its path.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be; says why.
    """
    go = shutil.which("go") or "go"
    program = SOURCES / "target" / "porcupine_check"
    command = [go, "build", "-mod=readonly", "-buildvcs=false", "-o", str(program), "."]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=SOURCES)
    return str(program)


def judge(histories: Mapping[str, Sequence[Operation]]) -> dict[str, tuple[str, list[int]]]:
    """Ask for the verdict on each name.

    Returns:
        ``Ok``, ``Illegal``, or ``Unknown`` for no verdict in time; and the places of the operations that the
        longest explanation of a part leaves out.
    """
    lines = "".join(json.dumps(line) + "\n" for line in _lines(histories))
    done = subprocess.run([built(), str(SECONDS)], input=lines, check=True, capture_output=True, text=True)
    delivery_outcomes = map(json.loads, done.stdout.splitlines())
    return {each["name"]: (each["verdict"], each["unexplained"]) for each in delivery_outcomes}


def check(histories: Mapping[str, Sequence[Operation]]) -> None:
    """Fail with the first operations that porcupine does not explain."""
    delivery_outcomes = judge(histories)
    assert delivery_outcomes.keys() == histories.keys()
    for name, (delivery_outcome, unexplained) in delivery_outcomes.items():
        lines = "\n".join(str(histories[name][place]) for place in unexplained[:8])
        assert delivery_outcome != "Illegal", (
            f"porcupine does not explain what was seen of '{name}':\n{lines}"
        )
        assert delivery_outcome == "Ok", f"porcupine has no verdict on '{name}' in {SECONDS:.0f} s"


def _lines(histories: Mapping[str, Sequence[Operation]]) -> Iterator[dict[str, Any]]:
    for name, operations in histories.items():
        for each in operations:
            yield {
                "name": name,
                "kind": each.kind.name,
                "node": each.node,
                "value": each.value,
                "began": _nanoseconds(each.began),
                "ended": None if each.ended == inf else _nanoseconds(each.ended),
                "answer": each.answer.name,
            }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
