"""The room `raft`, as it is or with a fault planted in its sources.

A mutant is the room's own text with a few places replaced, loaded under another name: so any line can be made
wrong without a switch in the code, and the room itself stays as it is for the other tests.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import amqp10broker.raft

FOLDER = Path(amqp10broker.raft.__file__).parent
# In the order in which they import each other.
MODULES = ("messages", "leader", "core")


@dataclass(frozen=True)
class Patch:
    module: str
    old: str
    """Stands exactly once in the module."""
    new: str


class RaftModules:
    """What the room exports, by name: ``room.Raft``, ``room.Append``."""

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        self.names: dict[str, Any] = {}
        for module in modules:
            self.names |= {name: value for name, value in vars(module).items() if not name.startswith("_")}

    def __getattr__(self, name: str) -> Any:
        return self.names[name]


def raft_modules() -> RaftModules:
    return mutant("raft_modules", ())


def mutant(name: str, patches: Sequence[Patch]) -> RaftModules:
    package = f"amqp10broker.raft_{name}" if patches else "amqp10broker.raft"
    modules = []
    for module in MODULES:
        source = (FOLDER / f"{module}.py").read_text(encoding="utf-8")
        for patch in patches:
            if patch.module == module:
                assert source.count(patch.old) == 1, f"{name}: {module}.py has not exactly one {patch.old!r}"
                source = source.replace(patch.old, patch.new)
        source = source.replace("amqp10broker.raft.", f"{package}.")
        modules.append(load(f"{package}.{module}", source, "amqp10broker.raft."))
    return RaftModules(modules)


def load(name: str, source: str, real: str) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None:
        return known
    if name.startswith(real):
        __import__(name)
        return sys.modules[name]
    spec = spec_from_loader(name, loader=None)
    module = module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module
