"""A Spark driver as a process that a test starts, watches through its checkpoints, kills and starts again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.broker_process import REPOSITORY
from tests.support.process_tree import Family, family, wait_until

RUN_S: Final = 300.0
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For what lives for seconds: the second compiler and parallel collectors cost more than they gain."""
QUICK_SPARK: Final = {"SPARK_SUBMIT_OPTS": QUICK_JAVA, "SPARK_LAUNCHER_OPTS": QUICK_JAVA}
"""The same as environment, for programs that are run as they are and for what reads their command lines."""
_LOG_TAIL_CHARS: Final = 6000

Query = dict[str, Any]
"""What one query does, as `spark_driver` reads it.

``run`` is a name of its table RUNS. For ``stream``: ``source`` (options), ``checkpoint``, ``trigger``, and
one of ``sink`` (a Parquet folder), ``copies`` (a folder; with ``stop_in``, a batch) and ``to`` (options of a
sink); ``slow_ms`` keeps Python workers busy so long for each batch of rows; ``attempts`` starts it again if
it fails.
"""


def stream_query(source: Mapping[str, Any], place: Path, **more: Any) -> Query:
    """Return a streaming query that ends after reading all, into ``place/sink`` by default."""
    places = {"checkpoint": place / "checkpoint", "sink": place / "sink"}
    options = {name: str(value) for name, value in source.items()}
    return {"run": "stream", "source": options, "trigger": {"availableNow": True}, **places, **more}


@dataclass(frozen=True, slots=True)
class DriverProcess:
    """A driver that runs queries; `spark_driver` starts it.

    Attributes:
        family: its processes: Python, the JVM and, with a local master, the Python workers.
        directory: its logs and notes.
    """

    family: Family
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    # --- killing ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL all its processes at once, as if the machine had stopped."""
        self.family.kill()
        self.process.wait()

    def kill_worker(self, query: str, of: Family | None = None) -> None:
        """SIGKILL the Python process in the middle of a task of a query with ``slow_ms``."""
        marks = self.directory / "marks" / query
        members = of or self.family
        self.wait_for(
            lambda: any(members.kill_one(int(mark.name)) for mark in marks.iterdir()),
            f"a Python worker at work for {query}",
        )

    # --- waiting ----------------------------------------------------------------------------------

    def outcome(self, query: str) -> dict[str, Any]:
        """Wait for the end of a query, and return its recorded outcome."""
        outcome: dict[str, Any] = json.loads(self._wait_for_note(query).read_text())
        return outcome

    def rows(self, query: str) -> int:
        """Wait for a successful end; return how many rows this start read."""
        outcome = self.outcome(query)
        assert outcome["outcome"] == "ended", f"{query}: {outcome.get('error')}\n{self.logs()}"
        return int(outcome["rows"])

    def error(self, query: str, attempt: int = 1) -> str:
        """Wait for the failure of an attempt, and return its text."""
        path = self._wait_for_note(f"{query}.{attempt}", unless=query)
        return str(json.loads(path.read_text())["error"])

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:

        def holds() -> Any:
            ended = self.ended  # before it is asked: what it did last counts
            value = condition()
            assert value or not ended, f"the driver ended before: {what}\n{self.logs()}"
            return value

        return wait_until(holds, what, timeout_s=RUN_S, explain=self.logs)

    def wait_for_batches(self, checkpoint: Path, number: int) -> None:
        """Wait until this many batches of the checkpoint are committed."""
        self.wait_for(lambda: batches(checkpoint) >= number, f"{number} batches in {checkpoint}")

    def wait_ended(self) -> None:
        wait_until(lambda: self.ended, "the end of the driver", timeout_s=RUN_S, explain=self.logs)
        assert self.process.returncode == 0, self.logs()

    def _wait_for_note(self, name: str, unless: str = "") -> Path:
        folder = self.directory / "outcomes"

        def noted() -> bool:
            over = bool(unless) and (folder / unless).exists()
            there = (folder / name).exists()
            assert there or not over, f"{unless} ended before {name}: {(folder / unless).read_text()}"
            return there

        self.wait_for(noted, f"{name} in the notes of the driver")
        return folder / name

    def logs(self) -> str:
        text = (self.directory / "log").read_text(errors="replace")
        return f"--- log of the driver\n{text[-_LOG_TAIL_CHARS:]}"


def batches(checkpoint: Path) -> int:
    folder = checkpoint / "commits"
    return sum(1 for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else 0


@contextmanager
def spark_driver(
    directory: Path,
    queries: Mapping[str, Query],
    *,
    master: str = "local[4]",
    conf: Mapping[str, str] | None = None,
    java_home: Path | None = None,
) -> Iterator[DriverProcess]:
    """Start a driver; all its processes are ended after the block."""
    scratch = directory / "tmp"
    for folder in (scratch, directory / "outcomes", *(directory / "marks" / name for name in queries)):
        folder.mkdir(parents=True)
    plan = {
        "master": master,
        "outcomes": directory / "outcomes",
        "queries": {name: {"marks": directory / "marks" / name, **query} for name, query in queries.items()},
        "conf": {
            "spark.sql.shuffle.partitions": "1",
            # What a killed driver leaves is to be where tests leave things.
            "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Djava.io.tmpdir={scratch}",
            "spark.local.dir": str(scratch),
            **(conf or {}),
        },
    }
    (directory / "plan").write_text(json.dumps(plan, default=str))
    java = {} if java_home is None else {"JAVA_HOME": str(java_home)}
    with family() as members, (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark_driver", str(directory / "plan")],
            cwd=REPOSITORY,
            # `local_session` finds Java and the package by itself.
            env={**os.environ, **QUICK_SPARK, **java, **members.environment, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        driver = DriverProcess(members, directory, process)
        try:
            yield driver
        finally:
            driver.kill()
