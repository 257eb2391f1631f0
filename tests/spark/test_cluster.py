"""Through a standalone cluster of two workers, each an executor in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process_family import Listening
from tests.support.spark_cluster import SparkCluster, spark_cluster
from tests.support.spark_process import spark_driver


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One for all tests of this file; each test's application has it alone."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def beyond_loopback(listening: list[Listening]) -> list[Listening]:
    """Those that another machine could reach."""
    return [each for each in listening if not each.address.is_loopback]


def test_both_workers_compute(cluster: SparkCluster, tmp_path: Path) -> None:
    """One executor on each, and Python workers in both."""
    with spark_driver(
        tmp_path / "driver", "range", rows=10_000, master=cluster.url, conf=cluster.conf
    ) as one:
        assert one.outcome() == {"outcome": "ended", "rows": 10_000, "executors": 2}, cluster.logs()
