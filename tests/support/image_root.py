"""The root file system of the image, made without an engine: the steps of its Containerfile in a chroot.

In place of the base image, which an engine fetches, a stage begins with the Python that runs the tests, the
programs that the steps use, and the libraries that these load. In place of a package index, pip gets wheels
that are packed of what is installed here. All other steps are carried out as they are written.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from packaging.tags import sys_tags

from tests.support.broker_process import REPOSITORY
from tests.support.installed_wheel import needed

PROGRAMS = ("sh", "env", "install", "ln", "mkdir", "useradd", "cat")
ACCOUNTS = {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n", "shadow": "root:*:1::::::\n"}
WHEELS = "/wheels"
SEARCH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


class Stage:
    """A root file system, and what the steps have set for its process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": SEARCH}
        self.folder, self.user = "/", 0
        self.command: list[str] = []
        self.health: list[str] = []

    def path(self, inside: str) -> Path:
        return self.root / os.path.join(self.folder, inside).lstrip("/")

    def start(self, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in the root file system, as its user, with its environment only."""

        def enter() -> None:
            os.chroot(self.root)
            os.chdir(self.folder)
            os.setgroups([])
            os.setgid(self.user)
            os.setuid(self.user)

        program = self.which(words[0])
        return subprocess.Popen([program, *words[1:]], preexec_fn=enter, env=self.environment, **options)

    def run(self, words: list[str], **environment: str) -> str:
        """Run a program that must succeed; return its output."""
        before, self.environment = self.environment, {**self.environment, **environment}
        try:
            process = self.start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        finally:
            self.environment = before
        said = process.communicate()[0].decode()
        assert process.returncode == 0, said
        return said

    def which(self, name: str) -> str:
        """Return the path of a program on the image's search path."""
        places = [f"{folder}/{name}" for folder in self.environment["PATH"].split(":")]
        return name if "/" in name else next(each for each in places if os.path.lexists(self.path(each)))


def steps() -> list[tuple[str, str]]:
    """Return the Containerfile's instructions and their arguments, in order."""
    text = (REPOSITORY / "docs" / "operating" / "Containerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def make_image(folder: Path) -> Stage:
    """Carry out all steps; the last stage is the image."""
    named: dict[str, Stage] = {}
    stage = Stage(folder)
    for number, (instruction, rest) in enumerate(steps()):
        match instruction:
            case "FROM":
                stage = Stage(folder / f"stage{number}")
                named[rest.partition(" AS ")[2]] = stage
                _base(stage)
            case "WORKDIR":
                stage.path(rest).mkdir(parents=True)
                stage.folder = rest
            case "COPY":
                source, words = REPOSITORY, rest.split()
                if words[0].startswith("--from="):
                    source = named[words.pop(0).removeprefix("--from=")].root
                for each in words[:-1]:
                    _copy(source / each.lstrip("/"), stage.path(words[-1]))
            case "RUN":
                stage.run(["sh", "-c", rest], PIP_NO_INDEX="1", PIP_FIND_LINKS=WHEELS)
            case "USER":
                stage.user = int(rest)
            case "ENV":
                for pair in shlex.split(rest):
                    name, _, value = pair.partition("=")
                    stage.environment[name] = value.replace("$PATH", stage.environment["PATH"])
            case "CMD":
                stage.command = json.loads(rest)
            case "HEALTHCHECK":
                stage.health = json.loads(rest.partition("CMD ")[2])
            case "VOLUME" | "EXPOSE" | "STOPSIGNAL":
                continue  # for an engine
            case _:
                raise AssertionError(f"the step {instruction} is not known here")
    return stage


def _base(stage: Stage) -> None:
    for name in ("dev", "etc", "tmp", "usr/local/bin", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"):
        stage.path(name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):  # as in every Debian
        stage.path(name).symlink_to(f"usr/{name}")
    stage.path("tmp").chmod(0o1777)
    os.mknod(stage.path("dev/null"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    stage.path("dev/null").chmod(0o666)
    for name, text in ACCOUNTS.items():
        stage.path(f"etc/{name}").write_text(text, encoding="utf-8")
    library = Path(sys.base_prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    binary = Path(sys.base_prefix) / "bin" / library.name
    shutil.copytree(
        library, stage.path("usr/local/lib") / library.name, symlinks=True,
        ignore=shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "config-*", "idlelib"),
    )  # fmt: skip
    for name in ("python", "python3", library.name):
        shutil.copy2(binary, stage.path("usr/local/bin") / name)
    programs = [Path(found) for found in map(shutil.which, PROGRAMS) if found]
    for program in programs:
        _copy_file(stage, program)
    extensions = [*library.glob("lib-dynload/*.so"), *_extensions()]
    listed = subprocess.run(
        ["ldd", binary, *programs, *extensions], capture_output=True, text=True, check=False
    ).stdout
    for name in sorted(set(_LIBRARY.findall(listed))):
        _copy_file(stage, Path(name))
    _pack_wheels(stage.path(WHEELS))


def _copy_file(stage: Stage, path: Path) -> None:
    place = stage.path(str(path))
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__") if source.is_relative_to(REPOSITORY) else None
        shutil.copytree(source, target, symlinks=True, ignore=ignored)
    else:
        shutil.copy2(source, target)


def _wanted() -> dict[str, Distribution]:
    described = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    project = described["project"]
    extra = project["optional-dependencies"]["oauth2"]
    return needed([*project["dependencies"], *extra, *described["build-system"]["requires"]])


def _extensions() -> list[Path]:
    files = [(each, file) for each in _wanted().values() for file in each.files or ()]
    return [Path(str(each.locate_file(file))) for each, file in files if file.suffix == ".so"]


def _pack_wheels(folder: Path) -> None:
    """Build a wheel of every package that is needed, from its installed files."""
    folder.mkdir()
    here = {str(tag) for tag in sys_tags()}
    for each in _wanted().values():
        tags = [line.partition("Tag: ")[2] for line in (each.read_text("WHEEL") or "").splitlines()]
        name = re.sub(r"[-_.]+", "_", each.metadata["Name"])
        tag = next(filter(here.__contains__, tags), "py3-none-any")
        with zipfile.ZipFile(folder / f"{name}-{each.version}-{tag}.whl", "w") as archive:
            for file in each.files or ():
                where = Path(str(each.locate_file(file)))
                if ".." not in file.parts and file.suffix != ".pyc" and where.exists():
                    archive.write(where, str(file))
