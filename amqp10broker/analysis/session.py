"""The Spark session of the analysis: on this machine, with what it needs and no more."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from amqp10broker.analysis.errors import CannotStart
from amqp10broker.analysis.failures import spark_errors
from amqp10broker.spark.errors import JavaNotFound, MissingExtraError
from amqp10broker.spark.register import require
from amqp10broker.spark.session import local_session, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLUSTER_PARTITIONS: Final = 4


def analysis_session(master: str, memory: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session.

    Args:
        master: ``local[*]``, ``local[N]`` or ``spark://127.0.0.1:PORT``.
        memory: of the JVM, as Spark writes it: ``2g``.
        more: settings of Spark that go before ours.

    Raises:
        CannotStart: Java, pyspark, matplotlib or jinja2 is missing, or Java does not start.
        SparkSourceError: the master is not one of these.
    """
    check_installed()
    conf = {
        "spark.driver.memory": memory,
        # Files of recordings are small: several in one task, and the task's end is not waited for long.
        "spark.sql.files.openCostInBytes": str(1 << 20),
        # A recording has a folder for each run; to list them is no work for a job of Spark, of a task each.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    }
    if not master.startswith("local"):
        # Spark's 200 are for tables; here they would be 200 tasks of a few cells, and as many files of state.
        conf["spark.sql.shuffle.partitions"] = str(_CLUSTER_PARTITIONS)
    try:
        session = local_session("amqp10broker analyse", cores=master, conf={**conf, **(more or {})})
    except (MissingExtraError, JavaNotFound) as error:
        raise CannotStart(f"the analysis needs more than is installed: {error}") from error
    except spark_errors() as error:
        raise _not_started(error, memory) from error
    return session


def check_installed() -> None:
    """Look for the packages that the analysis needs; Java is not looked for.

    Raises:
        CannotStart: one is missing; the message says how to install it.
    """
    try:
        require_spark()
        require("matplotlib", "jinja2")
    except MissingExtraError as error:
        raise CannotStart(f"the analysis needs more than is installed: {error}") from error


def _not_started(error: Exception, memory: str) -> CannotStart:
    """What Spark throws when Java does not start, with advice."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "it has said nothing")
    return CannotStart(
        f"Spark does not start with --memory {memory}: {said}; give it less memory, or look at what Java has "
        "said before this"
    )


@contextmanager
def command_session(master: str, memory: str) -> Iterator[SparkSession]:
    """`analysis_session` for a process that does nothing else; ctrl-C ends it without a word from Spark.

    Raises:
        CannotStart, SparkSourceError: as `analysis_session`.
    """
    # py4j logs each call that is interrupted, with a traceback, by the root logger; Spark logs each error
    # that it throws, with a trace, and we tell it in words.
    logging.getLogger().addHandler(logging.NullHandler())
    quiet = {"spark.driver.extraJavaOptions": "-Damqp10broker.log.level=off"}
    # Whoever ends us with SIGTERM, as service managers do, is heard like ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spark = analysis_session(master, memory, quiet)
    # pyspark's own handler calls the JVM in the middle of a call to the JVM. What runs there ends with us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    except Exception:
        spark.stop()
        raise
    spark.stop()
