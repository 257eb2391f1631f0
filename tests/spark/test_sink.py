"""The sink inside Spark: batch and streaming writes, their message-ids, and what is said when they fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from amqp10broker.client.blocking import connect
from amqp10broker.spark.session import register
from tests.support.broker_process import BrokerProcess
from tests.support.spark_driver import started
from tests.support.spark_rows import declare, publish, url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("deadline")


def taken(broker: BrokerProcess, queue: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with connect(broker.host, broker.port, user="guest", password="guest") as client:
        receiver = client.receiver(f"/queues/{queue}", credit=0)
        while deliveries := receiver.fetch(500, timeout_s=0):
            for delivery in deliveries:
                message = delivery.message()
                assert message.properties.message_id not in found
                found[message.properties.message_id] = message.body
            receiver.accept(deliveries)
    return found


def writer(broker: BrokerProcess, table: DataFrame, **more: Any) -> Any:
    return table.write.format("amqp10").option("url", url(broker)).options(**more).mode("append")


def test_a_batch_write_names_every_row(spark: SparkSession, broker: BrokerProcess, queue: str) -> None:
    register(spark)
    for name in ("even", "odd"):
        declare(broker, f"{queue}-{name}", "classic")
    table = spark.range(0, 1000, numPartitions=2).select(
        f.col("id").cast("string").alias("body"),
        f.lit("").alias("exchange"),
        f.when(f.col("id") % 2 == 0, f"{queue}-even").otherwise(f"{queue}-odd").alias("routingKey"),
        f.create_map(f.lit("n"), f.col("id")).alias("applicationProperties"),
    )
    writer(broker, table).save()
    even, odd = taken(broker, f"{queue}-even"), taken(broker, f"{queue}-odd")
    assert {int(each) for each in even.values()} == set(range(0, 1000, 2))
    assert {int(each) for each in odd.values()} == set(range(1, 1000, 2))
    names = {re.fullmatch(r"([0-9a-f]{32})-([01])-(\d+)", name) for name in even | odd}
    assert None not in names
    assert len({found[1] for found in names if found}) == 1


def test_from_queue_to_queue(spark: SparkSession, broker: BrokerProcess, queue: str, tmp_path: Path) -> None:
    """A streaming query copies every message once; its ids name query, batch and row."""
    register(spark)
    for name in ("in", "out"):
        declare(broker, f"{queue}-{name}", "quorum")
    publish(broker, f"{queue}-in", 500)
    copied = (
        spark.readStream.format("amqp10")
        .option("url", url(broker))
        .option("queue", f"{queue}-in")
        .option("spoolLocation", str(tmp_path / "spool"))
        .option("maxMessagesPerTrigger", 200)
        .load()
        .select("body", "subject", f.col("messageId").alias("correlationId"))
        .writeStream.format("amqp10")
        .option("url", url(broker))
        .option("address", f"/queues/{queue}-out")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = started(copied.start)
    query.awaitTermination()
    found = taken(broker, f"{queue}-out")
    sizes = {batch: 200 if batch < 2 else 100 for batch in range(3)}
    assert set(found) == {
        f"{query.id}-{batch}-0-{row}" for batch, size in sizes.items() for row in range(size)
    }
    assert sorted(int(each.split()[0]) for each in found.values()) == list(range(500))


def test_what_is_wrong_is_said(spark: SparkSession, broker: BrokerProcess, queue: str) -> None:
    register(spark)
    declare(broker, queue, "classic")
    address = f"/queues/{queue}"
    table = spark.range(3).select(f.col("id").cast("string").alias("body"))
    for columns, more, words in (
        (
            table.withColumnRenamed("body", "value"),
            {"address": address},
            "column value is no part of a message",
        ),
        (table, {}, "option address is missing"),
        (table, {"address": f"{address}-no"}, "declare it first, or correct the address"),
        (table, {"address": address, "adress": "x"}, "option adress is unknown; did you mean address?"),
        (table, {"exchange": "amq.direct", "routingKey": queue}, "released row 0 of this partition"),
    ):
        with pytest.raises(PySparkException, match=re.escape(words)):
            writer(broker, columns, **more).save()
    with pytest.raises(PySparkException, match="a queue can only be added to"):
        writer(broker, table, address=address).mode("overwrite").save()
    assert taken(broker, queue) == {}
