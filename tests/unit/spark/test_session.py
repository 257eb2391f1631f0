"""Settings and environment of a local session, without starting one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amqp10broker.errors import BrokerError
from amqp10broker.spark import session
from amqp10broker.spark.errors import MissingExtraError, SparkSourceError
from amqp10broker.spark.session import require_spark, session_settings


@pytest.fixture(autouse=True)
def some_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "java_home", lambda environ: Path("/some/java"))


@pytest.mark.parametrize("master", ["", "yarn", "local[]", "local[2", "spark://10.0.0.1:7077", "k8s://x"])
def test_another_master_is_refused(master: str) -> None:
    with pytest.raises(SparkSourceError, match="SparkSession.builder"):
        session_settings(master, {}, quiet=True)


def test_given_settings_go_before_ours_and_java_options_are_added() -> None:
    given = {"spark.sql.shuffle.partitions": "7", "spark.driver.extraJavaOptions": "-Xss2m -Dx=y"}
    settings = session_settings("local", given, quiet=True)
    assert settings["spark.sql.shuffle.partitions"] == "7"
    options = settings["spark.driver.extraJavaOptions"].split()
    assert options[1:] == ["-Damqp10broker.log.level=error", "-Xss2m", "-Dx=y"]
    log_settings = options[0].removeprefix("-Dlog4j2.configurationFile=file://")
    assert Path(log_settings).is_file()
    assert given["spark.driver.extraJavaOptions"] == "-Xss2m -Dx=y"


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    require_spark()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        require_spark()
    assert str(caught.value) == (
        f"{package} is not installed; install it with: pip install 'amqp10broker[spark]'"
    )
    assert isinstance(caught.value, BrokerError)


@pytest.mark.parametrize("connected", [False, True])
def test_a_start_that_is_interrupted_ends_its_jvm(monkeypatch: pytest.MonkeyPatch, connected: bool) -> None:
    """Once pyspark has the connection the JVM ends with this process, and may be reused before that."""
    from pyspark import SparkContext, java_gateway

    monkeypatch.setattr(SparkContext, "_gateway", object() if connected else None)
    before = java_gateway.Popen
    started: list[subprocess.Popen[bytes]] = []

    def interrupted() -> None:
        with session._no_orphan():
            started.append(java_gateway.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert java_gateway.Popen is before
    (process,) = started
    assert process.poll() == (None if connected else -signal.SIGKILL)
    process.kill()
    process.communicate()
