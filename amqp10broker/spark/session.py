"""Starts a Spark session on this machine alone: finds Java, listens on loopback only, logs little.

For the analysis, the examples and the tests. A program with its own session needs only
`amqp10broker.spark.register.register`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.children import environment
from amqp10broker.spark.errors import SparkSourceError
from amqp10broker.spark.java import java_home
from amqp10broker.spark.register import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
_LOG_SETTINGS: Final = Path(__file__).resolve().with_name("log4j2.properties")
_MASTER: Final = re.compile(
    r"local(?:\[(?P<cores>\*|\d+)(?:,\d+)?\])?|spark://(?:127\.0\.0\.1|localhost):\d+"
)
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def local_session(
    app_name: str,
    *,
    cores: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """Start a session, or return the one that this process has (whose settings then stay).

    The session's time zone is UTC and Arrow is on. The environment of this process is unchanged when it
    returns.

    Args:
        cores: the master: ``local[N]``, ``local[*]`` or ``spark://127.0.0.1:PORT``.
        conf: further settings of Spark, which override the defaults; Java options are added.

    Raises:
        JavaNotFound: there is no Java 17 or newer.
        SparkSourceError: the master is on another machine; build the session with SparkSession.builder.
    """
    require_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(cores)
    for name, value in session_settings(cores, conf or {}, quiet=quiet).items():
        builder = builder.config(name, value)
    with _environment(spark_environment()), _no_orphan():
        return builder.getOrCreate()


def require_spark() -> None:
    """Import the packages of the extra ``spark``. Raises `MissingExtraError` if one is missing."""
    require("pyspark", "pyarrow", "pandas")


def session_settings(cores: str, conf: Mapping[str, str], *, quiet: bool) -> dict[str, str]:
    """Return Spark's settings for `local_session`."""
    master = _MASTER.fullmatch(cores)
    if master is None:
        raise SparkSourceError(
            f"the master {cores!r} is not local[N], local[*] or spark://127.0.0.1:PORT; for a cluster, "
            "make the session with SparkSession.builder and call amqp10broker.spark.register.register(spark)"
        )
    ours = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if cores.startswith("local"):
        # Spark's default of 200 is for clusters: here each would be a task of a few rows.
        ours["spark.sql.shuffle.partitions"] = str(_cores(master["cores"]))
    options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    options += f" -Damqp10broker.log.level={'error' if quiet else 'warn'}"
    given = dict(conf)
    if more := given.pop(_JAVA_OPTIONS, ""):
        options += f" {more}"
    return {**ours, **given, _JAVA_OPTIONS: options}


def spark_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables with which a process of Spark finds Java, this Python and this package."""
    variables = {
        "JAVA_HOME": str(java_home(environ)),
        "SPARK_LOCAL_IP": LOOPBACK,
        # Spark would take python3 from the path, which may be another one.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # As -P: workers find no modules in their current folder.
        "PYTHONSAFEPATH": "1",
    }
    # Workers have to import the package even if it is not installed, as in a checkout.
    found = environment(environ).get("PYTHONPATH")
    if found != environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] = str(found)
    return variables


def _cores(text: str | None) -> int:
    if text is None:
        return 1
    return os.cpu_count() or 1 if text == "*" else max(1, int(text))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    # Only while the JVM starts; it keeps its copy.
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_orphan() -> Iterator[None]:
    # pyspark (4.3) loses track of a JVM whose start is interrupted, which then waits for ever for a file in a
    # folder that pyspark has removed. Once the connection to it exists, it ends with this process.
    from pyspark import SparkContext, java_gateway

    started: list[subprocess.Popen[bytes]] = []

    def remember(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, **options))
        return started[-1]

    before = java_gateway.Popen
    java_gateway.Popen = remember
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for process in started:
                process.kill()
                process.wait()
        raise
    finally:
        java_gateway.Popen = before
