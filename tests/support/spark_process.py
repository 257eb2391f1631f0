"""A Spark driver as a process that a test starts, watches through its checkpoint, kills and starts again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.broker_process import REPOSITORY
from tests.support.process_family import Family, family, parent_of, wait_until

RUN_S: Final = 240.0
_LOG_TAIL_CHARS: Final = 6000


@dataclass(frozen=True, slots=True)
class DriverProcess:
    """A driver that runs one query; `spark_driver` starts it.

    Attributes:
        family: its processes: Python, the JVM and, with a local master, the Python workers.
        directory: its logs.
    """

    family: Family
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def ended(self) -> bool:
        """Whether the program is over."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL to all of it at once, as if the machine had stopped."""
        self.family.kill()
        self.process.wait()

    def kill_part(self, part: str) -> None:
        """SIGKILL to a part of it, which Spark then finds missing.

        Args:
            part: ``driver``, all of it; ``worker``, the Python processes that run tasks at this moment, or
                the next; ``source``, the Python process of a streaming query that asks for offsets.
        """
        match part:
            case "driver":
                self.kill()
            case "worker":
                self.wait_for(lambda: kill_python_workers(self.family), "a Python worker to be killed")
            case "source":
                assert self.family.kill("python_streaming_source_runner"), self.logs()
            case _:
                raise AssertionError(part)

    def outcome(self) -> dict[str, Any]:
        """Wait for the end, and return what the program said of it."""
        try:
            self.process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end within {RUN_S:g} s\n{self.logs()}") from None
        lines = (self.directory / "stdout").read_text().splitlines()
        assert self.process.returncode == 0, self.logs()
        assert lines, self.logs()
        outcome: dict[str, Any] = json.loads(lines[-1])
        return outcome

    def rows(self) -> int:
        """Wait for an end without failure; how many rows the program counted."""
        outcome = self.outcome()
        assert outcome["outcome"] == "ended", f"{outcome.get('error')}\n{self.logs()}"
        return int(outcome["rows"])

    def error(self) -> str:
        """Wait for an end by failure, and return its text."""
        outcome = self.outcome()
        assert outcome["outcome"] == "failed", outcome
        return str(outcome["error"])

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for something while the driver runs."""

        def holds() -> Any:
            value = condition()
            assert value or not self.ended, f"the driver ended before: {what}\n{self.logs()}"
            return value

        return wait_until(holds, what, timeout_s=RUN_S, explain=self.logs)

    def wait_for_batches(self, checkpoint: Path, number: int) -> None:
        """Wait until so many batches of the checkpoint are committed."""
        self.wait_for(lambda: batches(checkpoint) >= number, f"{number} batches in {checkpoint.name}")

    def logs(self) -> str:
        """The end of what it wrote, for messages of failing tests."""
        texts = (
            f"--- {name}\n{(self.directory / name).read_text(errors='replace')[-_LOG_TAIL_CHARS:]}"
            for name in ("stdout", "stderr")
        )
        return "\n".join(texts)


def batches(checkpoint: Path) -> int:
    """How many batches of a streaming query are committed."""
    folder = checkpoint / "commits"
    return sum(1 for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else 0


def kill_python_workers(members: Family) -> int:
    """SIGKILL to the Python processes that run tasks, not to the daemon that they are forked from."""
    daemons = members.members("pyspark.daemon")
    return sum(members.kill_one(pid) for pid in daemons if parent_of(pid) in daemons)


@contextmanager
def spark_driver(
    directory: Path, run: str, *, java_home: Path | None = None, **plan: Any
) -> Iterator[DriverProcess]:
    """Start a driver; all of it is ended behind the block.

    Args:
        directory: new, for its logs.
        run: one of `tests.support.spark_driver.RUNS`.
        java_home: of the Java to run; None for the one that `local_session` finds.
        plan: what that reads. ``master`` and ``conf`` may be left out.
    """
    scratch = directory / "tmp"
    scratch.mkdir(parents=True)
    java = {} if java_home is None else {"JAVA_HOME": str(java_home)}
    conf = {
        # It lives for seconds, and what it leaves when it is killed is to be where tests leave things.
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={scratch}",
        "spark.local.dir": str(scratch),
        **plan.pop("conf", {}),
    }
    path = directory / "plan.json"
    path.write_text(json.dumps({"run": run, "master": "local[2]", **plan, "conf": conf}, default=str))
    with (
        family() as members,
        (directory / "stdout").open("wb") as stdout,
        (directory / "stderr").open("wb") as stderr,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark_driver", str(path)],
            cwd=REPOSITORY,
            # `local_session` finds Java and the package by itself.
            env={**os.environ, **java, **members.environment, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        driver = DriverProcess(members, directory, process)
        try:
            yield driver
        finally:
            driver.kill()
