"""The Spark session of the analysis on this machine, and its errors, each with a remedy.

A folder that is not a recording is an `observe.recording.RecordingError`.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import unquote

from amqp10broker.errors import BrokerError
from amqp10broker.spark.errors import JavaNotFound, MissingExtraError
from amqp10broker.spark.session import local_session, require, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AnalysisError(BrokerError):
    """The analysis cannot be made; the message contains the remedy."""


class _Placed(AnalysisError):
    # `problem`: a clause, or a text of the system or of Spark; `advice` replaces the usual remedy.

    what: ClassVar[str] = ""
    advice: ClassVar[str] = ""

    def __init__(self, path: str, problem: str, advice: str | None = None) -> None:
        super().__init__(f"{path}: {self.what}{problem}; {advice or self.advice}")
        self.path = path


class NothingToAnalyse(_Placed):
    advice = "record for longer, or analyse it when the run is over"


class OutputNotWritable(_Placed):
    what = "cannot be written: "
    advice = "name another folder with --output"


class SparkFailed(_Placed):
    """Spark could not process the recording, or the file in the message."""

    what = "Spark has given up: "
    advice = "if the file is damaged, move it away and analyse again"


class FollowFailed(_Placed):
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


_CLUSTER_PARTITIONS: Final = 4


def analysis_session(master: str, memory: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session. `master`: ``local[*]``, ``local[N]`` or ``spark://127.0.0.1:PORT``. Raises
    `CannotStart`.
    """
    check_installed()
    conf = {
        "spark.driver.memory": memory,
        # Files of recordings are small: several share a task, to save the cost of tasks.
        "spark.sql.files.openCostInBytes": str(1 << 20),
        # A recording has a folder for each run; listing them by a job of Spark would need a task each.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    }
    if not master.startswith("local"):
        # Spark's default would be 200 tasks of a few cells, and as many files of state.
        conf["spark.sql.shuffle.partitions"] = str(_CLUSTER_PARTITIONS)
    try:
        session = local_session("amqp10broker record analyse", cores=master, conf={**conf, **(more or {})})
    except (MissingExtraError, JavaNotFound) as error:
        raise CannotStart(f"the analysis needs more than is installed: {error}") from error
    except spark_errors() as error:
        raise _not_started(error, memory) from error
    return session


def check_installed() -> None:
    """Raise `CannotStart` if a Python package is missing; the message explains how to install it. Java is not
    checked.
    """
    try:
        require_spark()
        require("jinja2")
    except MissingExtraError as error:
        raise CannotStart(f"the analysis needs more than is installed: {error}") from error


def _not_started(error: Exception, memory: str) -> CannotStart:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "it has said nothing")
    return CannotStart(
        f"Spark does not start with --memory {memory}: {said}; give it less memory, or look at what Java has "
        "said before this"
    )


@contextmanager
def command_session(master: str, memory: str) -> Iterator[SparkSession]:
    """Provide `analysis_session` to a process with no other task; ctrl-C ends it without output of Spark."""
    # py4j logs each interrupted call with a traceback to the root logger; Spark logs each error that it
    # throws, and the analysis reports it in words.
    logging.getLogger().addHandler(logging.NullHandler())
    quiet = {"spark.driver.extraJavaOptions": "-Damqp10broker.log.level=off"}
    # SIGTERM, as service managers send it, acts like ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spark = analysis_session(master, memory, quiet)
    # pyspark's own handler calls the JVM in the middle of a call to the JVM. Jobs in the JVM end with this
    # process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    except Exception:
        spark.stop()
        raise
    spark.stop()
