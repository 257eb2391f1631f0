"""The Spark session of the analysis, on this machine."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from amqp10broker.spark.errors import JavaNotFound, MissingExtraError
from amqp10broker.spark.register import require
from amqp10broker.spark.session import local_session, require_spark
from amqp10broker.tools.analysis.errors import CannotStart, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLUSTER_PARTITIONS: Final = 4


def analysis_session(master: str, memory: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session. `master`: ``local[*]``, ``local[N]`` or ``spark://127.0.0.1:PORT``. Raises
    `CannotStart` if java, pyspark or jinja2 is missing, or Java does not start.
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
        # Spark's default of 200 is for tables; here they would be 200 tasks of a few cells, and as many files
        # of state.
        conf["spark.sql.shuffle.partitions"] = str(_CLUSTER_PARTITIONS)
    try:
        session = local_session("amqp10broker record analyse", cores=master, conf={**conf, **(more or {})})
    except (MissingExtraError, JavaNotFound) as error:
        raise CannotStart(f"the analysis needs more than is installed: {error}") from error
    except spark_errors() as error:
        raise _not_started(error, memory) from error
    return session


def check_installed() -> None:
    """Check that the Python packages of the analysis are installed; Java is not checked. Raises `CannotStart`
    if one is missing; the message explains how to install it.
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
