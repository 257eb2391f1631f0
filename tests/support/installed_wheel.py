"""The wheel in an environment of its own, with nothing but what it requires."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.broker_process import REPOSITORY

# Without the folder that it is run in, which has the sources.
PROGRAM = ("-I", "-m", "amqp10broker")


def run(*words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=REPOSITORY,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    """Make the wheel as `python -m build` does: the source package first, and the wheel from that.

    Without isolation, which would fetch hatchling from an index.
    """
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (made,) = folder.glob("*.whl")
    return made


def needed(requires: Iterable[str], extra: str = "") -> dict[str, Distribution]:
    """Return the packages that requirements name with an extra, and their dependencies."""
    found: dict[str, Distribution] = {}
    left = [(requires, extra)]
    while left:
        some, extra = left.pop()
        for requirement in map(Requirement, some):
            meant = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            if meant and requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                left.append((found[requirement.name].requires or (), ""))
    return found


class Installed:
    """An environment with the wheel, and nothing but what that requires."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.python = folder / "bin" / "python"
        pip = ("-m", "pip", "--python", self.python, "install", "--quiet")
        run(sys.executable, *pip, "--no-index", "--no-deps", "--no-compile", wheel)
        self.packages = Path(run(self.python, "-c", "import site; print(site.getsitepackages()[0])").strip())
        self.have()

    def have(self, extra: str = "", *others: str) -> None:
        """Link the packages that it requires, with an extra, and others, without an index."""
        (itself,) = distributions(path=[str(self.packages)], name="amqp10broker")
        for found in (needed(itself.requires or (), extra) | needed(others)).values():
            for top in {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                place, here = self.packages / top, Path(str(found.locate_file(top)))
                if here.exists() and not place.exists():
                    place.symlink_to(here)

    def __call__(self, *words: object) -> str:
        return run(self.folder / "bin" / "amqp10broker", *words)
