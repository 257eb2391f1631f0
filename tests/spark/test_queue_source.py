"""The queue source inside Spark: streaming queries with their checkpoints, batch queries, what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from amqp10broker.spark.session import register
from tests.support.broker_process import BrokerProcess
from tests.support.spark_driver import started
from tests.support.spark_rows import declare, publish, url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("deadline")

Start = Callable[..., Any]
START_S = 120.0


@pytest.fixture
def start(spark: SparkSession, broker: BrokerProcess, queue: str, tmp_path: Path) -> Start:
    register(spark)

    def begin(trigger: dict[str, Any], **more: Any) -> Any:
        writer = (
            spark.readStream.format("amqp10")
            .option("url", url(broker))
            .option("queue", queue)
            .option("spoolLocation", str(tmp_path / "spool"))
            .options(**more)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
        )
        return started(writer.start)

    return begin


def ids(spark: SparkSession, tmp_path: Path) -> list[int]:
    rows = spark.read.parquet(str(tmp_path / "out")).select("messageId").collect()
    return sorted(int(row.messageId.removeprefix("m-")) for row in rows)


def segments(tmp_path: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in (tmp_path / "spool").glob("*.arrow"))


def test_available_now_with_restarts(
    spark: SparkSession, broker: BrokerProcess, queue: str, start: Start, tmp_path: Path
) -> None:
    """Three runs share one checkpoint: each takes all available rows, in bounded batches, and ends."""
    declare(broker, queue, "quorum")
    for first, count in ((0, 250), (250, 100), (350, 0)):
        if count:
            publish(broker, queue, count, first=first)
        query = start({"availableNow": True}, maxMessagesPerTrigger=100)
        query.awaitTermination()
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == (
            [100] * (count // 100) + [count % 100] * (count % 100 > 0)
        )
        broker.wait_for_counts(queue, ready=0)
    assert ids(spark, tmp_path) == list(range(350))
    assert segments(tmp_path)[-1] == "000000000004"
    assert len(segments(tmp_path)) <= 2


def test_a_query_that_was_stopped_goes_on_in_the_same_session(
    spark: SparkSession, broker: BrokerProcess, queue: str, start: Start, tmp_path: Path
) -> None:
    """It releases the lock of the spool, and nothing is lost between the two."""
    declare(broker, queue, "classic")
    for first in (0, 200):
        publish(broker, queue, 200, first=first)
        query = start({"processingTime": "0 seconds"}, deduplicate="messageId")
        try:
            # Before it takes a message, Spark starts a process for the source, and plans.
            broker.wait_for_counts(queue, ready=0, timeout_s=START_S)
            query.processAllAvailable()
        finally:
            query.stop()
    assert ids(spark, tmp_path) == list(range(400))


def test_a_batch_query_can_be_asked_twice(
    spark: SparkSession, broker: BrokerProcess, queue: str, tmp_path: Path
) -> None:
    """Spark plans it anew for each action; the rows are those of the first time."""
    register(spark)
    declare(broker, queue, "classic")
    publish(broker, queue, 120)
    table: DataFrame = (
        spark.read.format("amqp10")
        .option("url", url(broker))
        .option("queue", queue)
        .option("spoolLocation", f"file://{tmp_path}/spool")
        .option("maxMessagesPerTrigger", 50)
        .load()
    )
    assert table.rdd.getNumPartitions() == 3
    assert table.count() == 120
    publish(broker, queue, 10, first=120)
    assert sorted(row.messageId for row in table.select("messageId").collect()) == sorted(
        f"m-{number}" for number in range(120)
    )
    broker.wait_for_counts(queue, ready=10)


def test_what_is_wrong_is_said(
    spark: SparkSession, broker: BrokerProcess, queue: str, start: Start, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="option spoolLocation is missing; give a folder"):
        spark.readStream.format("amqp10").option("url", url(broker)).option(
            "queue", queue
        ).load().writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().awaitTermination()
    query = start({"availableNow": True})
    with pytest.raises(StreamingQueryException, match="there is no queue or stream .*declare it first"):
        query.awaitTermination()
