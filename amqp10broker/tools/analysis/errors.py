"""Errors of the analysis; each contains a remedy.

A folder that is not a recording is a `observe.recording.errors.RecordingError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import unquote

from amqp10broker.errors import BrokerError


class AnalysisError(BrokerError):
    """The analysis cannot be made; the message contains the remedy."""


class _Placed(AnalysisError):
    # `problem` is a clause, or a text of the system ("Permission denied") or of Spark; `advice` replaces the
    # usual remedy.

    what: ClassVar[str] = ""
    advice: ClassVar[str] = ""

    def __init__(self, path: str, problem: str, advice: str | None = None) -> None:
        super().__init__(f"{path}: {self.what}{problem}; {advice or self.advice}")
        self.path = path
        self.problem = problem


class NothingToAnalyse(_Placed):
    """The recording has events, and none counts."""

    advice = "record for longer, or analyse it when the run is over"


class OutputNotWritable(_Placed):
    """The system does not allow writing in that folder."""

    what = "cannot be written: "
    advice = "name another folder with --output"


class SparkFailed(_Placed):
    """Spark could not process the recording, or the file in the message."""

    what = "Spark has given up: "
    advice = "if the file is damaged, move it away and analyse again"


class FollowFailed(_Placed):
    """A recording is no longer followed, because Spark has failed."""

    what = "Spark has given up: "
    advice = "start again: it goes on where it was, or, if a file is damaged, move that file away first"


class CannotStart(AnalysisError):
    """Java or a package is missing, or Java does not start."""


_FILE: Final = re.compile(r"file:(?://)?(/[^\s'\"]+?\.parquet)")
_MEMORY: Final = ("OutOfMemoryError", "Java heap space", "UNABLE_TO_ACQUIRE_MEMORY")
_PROBLEM_MAX: Final = 300


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an exception of Spark inside the context into `SparkFailed`."""
    try:
        yield
    except spark_errors() as error:
        raise explanation(folder, str(error)) from error


def spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def explanation(folder: Path, said: str) -> SparkFailed:
    where, problem = place_and_problem(folder, said)
    if any(word in said for word in _MEMORY):
        return SparkFailed(where, problem, "give it more with --memory")
    if where == str(folder):
        return SparkFailed(where, problem, "analyse it again; if that does not help, record anew")
    return SparkFailed(where, problem)


def place_and_problem(folder: Path, said: str) -> tuple[str, str]:
    """Return the file in the text, else the folder, and the cause in short."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    problem = lines[0] if lines else "it has said nothing"
    # py4j begins with a line that something was thrown; the exception comes next.
    if problem.startswith("An error occurred while calling") and len(lines) > 1:
        problem = lines[1].removeprefix(": ")
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    problem = (causes[-1] if causes else problem)[:_PROBLEM_MAX].rstrip(".")
    named = _FILE.search(said)
    return str(folder) if named is None else unquote(named[1]), problem
