"""A broker that is killed under queries: they go on when it is back, or say what is the matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.cluster_process import free_ports
from tests.support.spark_process import DriverProcess, Query, batches, spark_driver, stream_query
from tests.support.spark_rows import declare, publish, tally, url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.long]

COUNT: Final = 2400
BATCH: Final = 300
GIVE_UP_S: Final = 2
NAMES: Final = ("s", "q")


@contextmanager
def lives(tmp_path: Path, port: int) -> Iterator[BrokerProcess]:
    """Run a broker that keeps its data for one life; kill it at the end."""
    folder = tmp_path / f"broker{len(list(tmp_path.glob('broker*')))}"
    folder.mkdir()
    broker = BrokerProcess(folder, "--data-dir", str(tmp_path / "data"), "--port", str(port))
    try:
        yield broker
    finally:
        broker.kill()


def queries(tmp_path: Path, broker: BrokerProcess, retry_s: float) -> dict[str, Query]:
    at = {"url": url(broker), "retryTimeout": retry_s}
    stream = at | {"stream": "s", "maxOffsetsPerTrigger": BATCH}
    queue = at | {"queue": "q", "maxMessagesPerTrigger": BATCH, "spoolLocation": tmp_path / "spool"}
    slow: dict[str, Any] = {"slow_ms": 100}
    return {
        "s": stream_query(stream, tmp_path / "s", **slow),
        "q": stream_query(queue, tmp_path / "q", **slow),
    }


def wait_for_more(driver: DriverProcess, tmp_path: Path, before: dict[str, int]) -> None:
    for name in NAMES:
        driver.wait_for_batches(tmp_path / name / "checkpoint", before.get(name, 0) + 1)


def test_queries_outlive_their_broker(spark: SparkSession, tmp_path: Path) -> None:
    """The first ones give up in time with a reason; the next wait for the broker, go on, and finish."""
    port = free_ports(1)
    with lives(tmp_path, port) as broker:
        for name, kind in {"s": "stream", "q": "quorum"}.items():
            declare(broker, name, kind)
            publish(broker, name, COUNT)
        with spark_driver(tmp_path / "first", queries(tmp_path, broker, GIVE_UP_S)) as driver:
            wait_for_more(driver, tmp_path, {})
            broker.kill()
            errors = {name: driver.error(name) for name in NAMES}
    for error in errors.values():
        assert f"BrokerUnreachable: 127.0.0.1:{port} does not answer (tried" in error
        assert "start the broker" in error
    before = {name: batches(tmp_path / name / "checkpoint") for name in NAMES}
    with (
        lives(tmp_path, port) as broker,
        spark_driver(tmp_path / "second", queries(tmp_path, broker, 60)) as driver,
    ):
        wait_for_more(driver, tmp_path, before)
        broker.kill()
        with lives(tmp_path, port):
            for name in NAMES:
                assert driver.rows(name) > 0
    found = tally(spark.read.parquet(str(tmp_path / "s" / "sink")), COUNT, offsets=True)
    assert found.exactly_once, found
    found = tally(spark.read.parquet(str(tmp_path / "q" / "sink")), COUNT, offsets=False)
    assert found.nothing_lost, found
    assert len(found.twice) <= 2 * BATCH, found
