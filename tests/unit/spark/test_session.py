"""Settings and environment of a local session, without starting one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import amqp10broker
from amqp10broker.errors import BrokerError
from amqp10broker.spark import session
from amqp10broker.spark.errors import MissingExtraError, SparkSourceError
from amqp10broker.spark.session import require_spark, session_settings, spark_environment

ROOT = str(Path(amqp10broker.__file__).resolve().parent.parent)


@pytest.fixture(autouse=True)
def some_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are not about Java."""
    monkeypatch.setattr(session, "java_home", lambda environ: Path("/some/java"))


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", "1"), ("local[2]", "2"), ("local[3,4]", "3"), ("local[*]", str(os.cpu_count()))],
)
def test_a_local_session_has_a_shuffle_partition_for_each_core(master: str, partitions: str) -> None:
    """And binds to loopback, without a web page."""
    settings = session_settings(master, {}, quiet=True)
    assert settings["spark.sql.shuffle.partitions"] == partitions
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_a_cluster_on_loopback_is_accepted() -> None:
    """Its number of shuffle partitions is Spark's business."""
    settings = session_settings("spark://127.0.0.1:7077", {}, quiet=True)
    assert "spark.sql.shuffle.partitions" not in settings


@pytest.mark.parametrize("master", ["", "yarn", "local[]", "local[2", "spark://10.0.0.1:7077", "k8s://x"])
def test_another_master_is_refused(master: str) -> None:
    """With loopback settings no other machine could answer."""
    with pytest.raises(SparkSourceError, match="SparkSession.builder"):
        session_settings(master, {}, quiet=True)


def test_given_settings_go_before_ours_and_java_options_are_added() -> None:
    """So that our log settings stay."""
    given = {"spark.sql.shuffle.partitions": "7", "spark.driver.extraJavaOptions": "-Xss2m -Dx=y"}
    settings = session_settings("local", given, quiet=True)
    assert settings["spark.sql.shuffle.partitions"] == "7"
    options = settings["spark.driver.extraJavaOptions"].split()
    assert options[1:] == ["-Damqp10broker.log.level=error", "-Xss2m", "-Dx=y"]
    log_settings = options[0].removeprefix("-Dlog4j2.configurationFile=file://")
    assert Path(log_settings).is_file()
    assert given["spark.driver.extraJavaOptions"] == "-Xss2m -Dx=y"


def test_not_quiet_logs_warnings() -> None:
    """The level is the only difference."""
    quiet, loud = (session_settings("local", {}, quiet=each) for each in (True, False))
    name = "spark.driver.extraJavaOptions"
    assert quiet[name].replace("level=error", "level=warn") == loud[name]
    assert {**quiet, name: ""} == {**loud, name: ""}


def test_workers_get_this_python_and_the_way_to_the_package() -> None:
    """What is on PYTHONPATH already stays behind it."""
    variables = spark_environment({"PYTHONPATH": "/one:/two"})
    assert variables["JAVA_HOME"] == "/some/java"
    assert variables["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert variables["PYTHONPATH"] == f"{ROOT}:/one:/two"
    assert spark_environment({})["PYTHONPATH"] == ROOT


def test_a_path_that_has_the_package_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is that of an installed package: its folder would hide the standard library's modules."""
    assert "PYTHONPATH" not in spark_environment({"PYTHONPATH": f"/one:{ROOT}"})
    monkeypatch.setattr(sysconfig, "get_path", lambda name: ROOT)
    assert "PYTHONPATH" not in spark_environment({})


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Instead of an ImportError from the middle of Spark."""
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
    """Once pyspark has the connection the JVM ends with this process, and may be used again before that."""
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


def test_a_start_that_succeeds_leaves_its_jvm_alone() -> None:
    """And pyspark as it was."""
    from pyspark import java_gateway

    before = java_gateway.Popen
    with session._no_orphan():
        process = java_gateway.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert java_gateway.Popen is before
    assert process.poll() is None
    process.kill()
    process.communicate()
