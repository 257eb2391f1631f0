"""Programs for Qpid JMS, in Java: `tests/jms/`, compiled and run with what `.ci/install_jms.py` brings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from amqp10broker.spark.session import java_home
from tests.support.spark_process import QUICK_JAVA

INSTALLED: Final = Path(sys.prefix) / "jms"
COMPILER: Final = "org.eclipse.jdt.internal.compiler.batch.Main"
SOURCES: Final = Path(__file__).parents[1] / "jms"
_WAIT_S: Final = 300.0
"""How long Maven, the compiler or a program may take: longer than any machine needs."""


class Jms:
    def __init__(self, folder: Path) -> None:
        self._java = str(java_home() / "bin" / "java")
        self._classpath = os.pathsep.join([str(folder), *_jars("programs")])
        _run(
            *(self._java, "-cp", os.pathsep.join(_jars("compiler")), COMPILER),
            *("-17", "-proc:none", "-warn:-resource", "-failOnWarning"),
            *("-cp", self._classpath, "-d", str(folder), str(SOURCES)),
        )

    def run(
        self, program: str, port: int, prefix: str, *, scheme: str = "amqp", options: str = ""
    ) -> dict[str, str]:
        """Run a program against a broker on this host; return the result of each case."""
        java = (self._java, *QUICK_JAVA.split(), "-cp", self._classpath, program)
        said = _run(*java, f"{scheme}://127.0.0.1:{port}{options}", prefix)
        return dict(line.split("\t") for line in said.splitlines())


def _jars(configuration: str) -> list[str]:
    return sorted(map(str, (INSTALLED / configuration).glob("*.jar")))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_WAIT_S)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="session")
def jms(tmp_path_factory: pytest.TempPathFactory) -> Jms:
    if not (INSTALLED / "version").is_file() and "CI" not in os.environ:
        pytest.skip("no Qpid JMS is here: make test installs it where Java and a repository of Maven's are")
    return Jms(tmp_path_factory.mktemp("jms"))
