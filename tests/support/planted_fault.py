"""Run tests with one fault in the package: ``python -m tests.support.planted_fault N``; N counts from 0."""

from __future__ import annotations

import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import pytest

FAULTS: Final[list[dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parents[1] / "scripts" / "planted_faults.toml").read_text(encoding="utf-8")
)["fault"]


class _Loader(SourceFileLoader):
    changes: Sequence[Sequence[str]]

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for old, new in self.changes:
            assert source.count(old) == 1, f"{self.path} has {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, changes: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._changes:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec.origin is not None
        spec.loader = loader = _Loader(fullname, spec.origin)
        loader.changes = self._changes[fullname]
        return spec


def main(fault: dict[str, Any]) -> int:
    """Run the fault's test with it; return pytest's exit code, 1 if the test fails."""
    old, new = ([each] if isinstance(each, str) else each for each in (fault["old"], fault["new"]))
    files = [fault["file"]] * len(old) if isinstance(fault["file"], str) else fault["file"]
    changes = defaultdict(list)
    for file, *change in zip(files, old, new, strict=True):
        changes["amqp10broker." + file.removesuffix(".py").replace("/", ".")].append(change)
    sys.meta_path.insert(0, _Finder(changes))
    # pytest's rewriting of assertions would import the package itself, which has a plugin of pytest.
    options = ["-q", "-x", "--assert=plain", "-p", "no:cacheprovider", "--tb=no"]
    return int(pytest.main([*options, fault["test"]]))


if __name__ == "__main__":
    sys.exit(main(FAULTS[int(sys.argv[1])]))
