"""A standalone Spark cluster on loopback: a master and workers as processes, with logs in a folder.

pyspark from PyPI has no scripts that start one, but `bin/spark-class` starts the classes they would start.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from amqp10broker.spark.session import LOOPBACK, spark_environment
from tests.support.process_tree import Family, family, wait_until
from tests.support.spark_process import QUICK_JAVA, QUICK_SPARK

EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""In the command line of an executor."""
WORKER_MEMORY: Final = "700m"
EXECUTOR_MEMORY: Final = "512m"
START_S: Final = 90.0
_LOG_TAIL_CHARS: Final = 6000
_SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A running cluster.

    Attributes:
        url: the master, for `SparkSession.builder.master`.
        family: its processes, executors and their Python workers included.
        directory: logs, and what the workers write.
    """

    url: str
    family: Family
    directory: Path

    @property
    def conf(self) -> dict[str, str]:
        """Return settings that give an application one executor on each worker."""
        return {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": QUICK_JAVA,
        }

    def executors(self) -> list[int]:
        return self.family.members(EXECUTOR)

    def logs(self) -> str:
        return log_tails(self.directory)


def log_tails(directory: Path) -> str:
    files = sorted(path for path in directory.rglob("*") if path.name in ("log", "stderr") and path.is_file())
    return "\n".join(
        f"--- {path.relative_to(directory)}\n{path.read_text(errors='replace')[-_LOG_TAIL_CHARS:]}"
        for path in files
    )


@contextmanager
def spark_cluster(
    directory: Path, *, workers: int = 2, java_home: Path | None = None
) -> Iterator[SparkCluster]:
    """Start a master and workers of one core each; every process of theirs is ended behind the block.

    Args:
        directory: for logs and whatever else they write.
        workers: how many.
        java_home: of the Java to run; None for the one that `local_session` would take.
    """
    java = {} if java_home is None else {"JAVA_HOME": str(java_home)}
    scratch = directory / "tmp"
    scratch.mkdir(parents=True)
    with ExitStack() as started, family() as members:
        environment = {
            **os.environ,
            **QUICK_SPARK,
            **spark_environment({**os.environ, **java}),
            **members.environment,
            "SPARK_PUBLIC_DNS": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Djava.io.tmpdir={scratch}",
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
        }

        def start(name: str, *arguments: str) -> None:
            # Waited for behind the end of the family, which ends it.
            started.enter_context(_start(directory / name, environment, *arguments))

        start("master", "master.Master", "--port", "0", "--webui-port", "0")
        url = _wait_for(directory, "master", r"Starting Spark master at (spark://\S+)")
        names = [f"worker{number}" for number in range(workers)]
        for name in names:
            options = ["--cores", "1", "--memory", WORKER_MEMORY, "--webui-port", "0"]
            start(
                name,
                *("worker.Worker", "--port", "0", *options),
                *("--work-dir", str(directory / name / "work"), url),
            )
        for name in names:
            _wait_for(directory, name, r"(Successfully registered with master)")
        yield SparkCluster(url, members, directory)


def _start(
    directory: Path, environment: dict[str, str], name: str, *arguments: str
) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True)
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [str(_SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", LOOPBACK, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_for(directory: Path, name: str, pattern: str) -> str:
    path = directory / name / "log"
    found: re.Match[str] = wait_until(
        lambda: re.search(pattern, path.read_text(errors="replace")),
        f"{pattern!r} in the log of the {name}",
        timeout_s=START_S,
        explain=lambda: log_tails(directory),
    )
    return found[1]
