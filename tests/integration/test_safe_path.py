"""No Python that we start takes modules from the folder that it happens to run in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from amqp10broker.children import environment
from amqp10broker.cli.cluster_launch import plan_nodes
from amqp10broker.spark import session
from amqp10broker.testing.servers import Process


@pytest.fixture(autouse=True)
def unsafe_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has a file with the name of a module of the standard library."""
    (tmp_path / "copy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    # How these tests themselves were started must not hide it.
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)


def test_nodes_that_run_cluster_starts(tmp_path: Path) -> None:
    (plan,) = plan_nodes(1, 5672, str(tmp_path), ["--help"])
    done = subprocess.run(plan.command, env=environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"--data-dir" in done.stdout


def test_the_broker_of_a_program_s_tests() -> None:
    broker = Process({}, 0, None)
    try:
        assert broker.alive
    finally:
        broker.stop()


def test_workers_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "java_home", lambda environ: Path("/some/java"))
    variables = session.spark_environment()
    program = "import copy, amqp10broker; copy.copy"
    command = [variables["PYSPARK_PYTHON"], "-c", program]
    done = subprocess.run(command, env={**environment(), **variables}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
