"""What a quorum queue does depends on its commands alone: nothing in it differs between two members.

Members compare their states as bytes. The order of a set is that of its hashes, which differ from process
to process for what is no number; floats round as the machine does; clocks, chance and addresses of objects
are nobody's but one's own.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import amqp10broker.queues.quorum

OF_ONE_MEMBER = {
    "durability.py",
    "log_store.py",
    "bodies.py",
    "records.py",
    "state_transfer.py",
}
"""What one member has on its disk, and knows of other nodes: no part of the replicated state."""
FOLDER = Path(amqp10broker.queues.quorum.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name not in OF_ONE_MEMBER)
CALLS = {"set", "frozenset", "hash", "id", "float", "vars", "dir", "round"}
METHODS = {"popitem", "intersection", "difference", "symmetric_difference", "union"}
MODULES = {"time", "random", "secrets", "uuid", "datetime", "os", "weakref", "math", "statistics"}
SETS = {
    # Only asked what is in it, and no part of the state.
    ("messages.py", "self._handed_out"),
    # Places of one page that are emptied, in whatever order.
    ("bodies.py", "self.dropped"),
}


def faults_of(source: str, name: str) -> list[str]:
    """What in this code may differ between two members, with its line."""
    tree = ast.parse(source)
    allowed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and (name, ast.unparse(node.target)) in SETS and node.value:
            allowed.add(id(node.value))
    found: list[str] = []
    for node in ast.walk(tree):
        fault = None
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in CALLS and id(node) not in allowed:
                fault = f"{called}()"
            case ast.Call(func=ast.Attribute(attr=called)) if called in METHODS:
                fault = f".{called}()"
            case ast.Set() | ast.SetComp():
                fault = "a set"
            case ast.Constant(value=float()):
                fault = "a float"
            case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
                fault = "a division that makes a float"
            case ast.Import(names=names) if any(each.name.split(".")[0] in MODULES for each in names):
                fault = "a module of the process's own"
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                fault = "a module of the process's own"
        if fault is not None:
            assert isinstance(node, ast.expr | ast.stmt)
            found.append(f"{name}:{node.lineno}: {fault}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_differs_between_two_members(path: Path) -> None:
    assert faults_of(path.read_text(), path.name) == []


@pytest.mark.parametrize(
    "line",
    [
        "for each in set(x): pass",
        "y = {1, 2}",
        "y = {a for a in x}",
        "y = 0.5",
        "y = a / b",
        "y /= 2",
        "y = hash(x)",
        "y = x.popitem()",
        "import time",
        "from random import choice",
    ],
)
def test_what_would_differ_is_found(line: str) -> None:
    assert len(faults_of(line, "quorum.py")) == 1
