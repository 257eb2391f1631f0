"""The faults of `scripts/raft/planted_faults.toml`, which are planted into the room `raft` one at a time."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.raft_modules import Patch

_FAULTS: Final = Path(__file__).parents[1] / "scripts" / "raft" / "planted_faults.toml"


@dataclass(frozen=True)
class Mutant:
    """A fault; `script` is the interaction script that shows it."""

    name: str
    what: str
    patches: tuple[Patch, ...]
    script: str
    rare: bool = False
    seed: int = 0


def _read(fault: dict[str, Any]) -> Mutant:
    return Mutant(**fault | {"patches": tuple(Patch(**each) for each in fault["patches"])})


MUTANTS: Final = tuple(map(_read, tomllib.loads(_FAULTS.read_text(encoding="utf-8"))["fault"]))
