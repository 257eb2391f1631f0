"""The stream source inside Spark: batch and streaming queries against the real broker process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from amqp10broker.client.message import Message, Properties
from amqp10broker.spark.session import register
from tests.support.broker_process import BrokerProcess
from tests.support.spark_driver import started
from tests.support.spark_streams import body, declare, fill, publish, url_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("deadline")

COUNT = 1000
Load = Callable[..., Any]


@pytest.fixture
def stream(broker: BrokerProcess, queue: str) -> str:
    declare(broker, queue)
    fill(broker, queue, COUNT)
    return queue


@pytest.fixture
def load(spark: SparkSession, broker: BrokerProcess) -> Load:
    register(spark)

    def read(stream: str, **more: Any) -> DataFrame:
        reader = spark.read.format("amqp10").option("url", url_of(broker)).option("stream", stream)
        return reader.options(**more).load()

    return read


@pytest.fixture
def to_parquet(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Load:
    register(spark)

    def run(stream: str, checkpoint: str = "checkpoint", **more: Any) -> Any:
        writer = (
            spark.readStream.format("amqp10")
            .option("url", url_of(broker))
            .option("stream", stream)
            .options(**more)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
        )
        query = started(writer.start)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query

    return run


def written(spark: SparkSession, tmp_path: Path) -> list[int]:
    return sorted(row.offset for row in spark.read.parquet(str(tmp_path / "out")).select("offset").collect())


def said(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


def test_batch_rows(load: Load, stream: str) -> None:
    """All columns arrive in Spark with their values, from more than one task."""
    table = load(stream, minPartitions=2)
    assert [name for name, _ in table.dtypes] == [
        "stream", "offset", "enqueuedTime", "messageId", "subject", "body", "applicationProperties"
    ]  # fmt: skip
    found = table.orderBy("offset").collect()
    assert [bytes(row.body) for row in found] == [body(number) for number in range(COUNT)]
    assert table.rdd.getNumPartitions() == 2


def test_columns_with_values(load: Load, broker: BrokerProcess, queue: str) -> None:
    """Times are the broker's timestamps, and properties are a map that SQL can read."""
    declare(broker, queue)
    before = time.time_ns() // 1_000_000
    publish(
        broker,
        queue,
        (
            Message(
                b"x",
                Properties(message_id=f"m{n}", subject="s", creation_time=1_700_000_000_000 + n),
                {"n": n, "region": "EU" if n % 2 else "US"},
            )
            for n in range(20)
        ),
    )
    after = time.time_ns() // 1_000_000
    table = load(queue).where("applicationProperties['region'] = 'EU'")
    found = table.select(
        f.unix_millis("enqueuedTime").alias("ms"), f.expr("int(applicationProperties['n'])").alias("n")
    ).orderBy("n")
    rows = found.collect()
    assert [row.n for row in rows] == list(range(1, 20, 2))
    assert all(before - 1000 <= row.ms <= after + 1000 for row in rows)


def test_windows_with_a_watermark(
    spark: SparkSession, broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    """Rows without a publisher's time are all in the windows of the broker's time."""
    register(spark)
    given = {"url": url_of(broker), "stream": stream, "maxOffsetsPerTrigger": "400"}
    counted = (
        spark.readStream.format("amqp10")
        .options(**given)
        .load()
        .withWatermark("enqueuedTime", "1 hour")
        .groupBy(f.window("enqueuedTime", "1 day"))
        .count()
    )
    found: dict[Any, int] = {}

    def note(batch: DataFrame, number: int) -> None:
        found.update({row["window"]: row["count"] for row in batch.collect()})

    writer = (
        counted.writeStream.outputMode("update")
        .foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = started(writer.start)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    assert sum(found.values()) == COUNT


def test_available_now_and_restart_from_the_checkpoint(
    spark: SparkSession, to_parquet: Load, broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    """Each row comes once, over two runs and bounded batches; the second continues after the first."""
    first = to_parquet(stream, maxOffsetsPerTrigger=400)
    assert [size for each in first.recentProgress if (size := each["numInputRows"])] == [400, 400, 200]
    assert written(spark, tmp_path) == list(range(COUNT))
    fill(broker, stream, 30, first=COUNT)
    second = to_parquet(stream, maxOffsetsPerTrigger=400)
    (progress,) = [each for each in second.recentProgress if each["numInputRows"]]
    assert progress["numInputRows"] == 30
    assert json.loads(progress["sources"][0]["endOffset"])[stream] == COUNT + 30
    assert written(spark, tmp_path) == list(range(COUNT + 30))


def test_filters(spark: SparkSession, load: Load, broker: BrokerProcess, queue: str) -> None:
    """The broker's filter works; with pushdown, Spark's conditions give the same rows as without."""
    declare(broker, queue)
    publish(broker, queue, (Message(b"", Properties(subject=f"s{n % 5}")) for n in range(100)))
    assert load(queue, filter="p.subject = 's3'", minPartitions=2).count() == 20
    condition = "subject = 's2' and offset >= 50 and offset < 90 and body is not null"
    expected = [row.offset for row in load(queue).where(condition).orderBy("offset").collect()]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = load(queue, pushdown="true").where(condition).orderBy("offset").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert [row.offset for row in found] == expected == list(range(52, 90, 5))


def test_a_schema_of_the_users_own(spark: SparkSession, broker: BrokerProcess, stream: str) -> None:
    """The source's own schema is accepted; another one is refused with advice."""
    register(spark)
    reader = spark.read.format("amqp10").option("url", url_of(broker)).option("stream", stream)
    assert reader.schema(reader.load().schema).load().count() == COUNT
    with pytest.raises(PySparkException) as raised:
        reader.schema("offset bigint, body binary").load().collect()
    assert "leave .schema() out" in said(raised)


def test_sql(spark: SparkSession, broker: BrokerProcess, stream: str) -> None:
    """A view keeps its options; Spark does not pass on a table's, so they are given when it is read."""
    register(spark)
    options = f"(url '{url_of(broker)}', stream '{stream}')"
    spark.sql(f"CREATE TEMPORARY VIEW rows_of_a_view USING amqp10 OPTIONS {options}")
    spark.sql("CREATE TABLE rows_of_a_table USING amqp10")
    try:
        assert spark.sql("SELECT * FROM rows_of_a_view").count() == COUNT
        reader = spark.read.option("url", url_of(broker)).option("stream", stream)
        assert reader.table("rows_of_a_table").count() == COUNT
    finally:
        spark.sql("DROP VIEW rows_of_a_view")
        spark.sql("DROP TABLE rows_of_a_table")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"linkCredits": "5"}, "option linkcredits is unknown; did you mean linkCredit?"),
        ({"url": "amqp://guest:hunter2@{address}"}, "does not let user 'guest' in"),
        ({"url": "amqp://127.0.0.1:1", "retryTimeout": "50ms"}, "127.0.0.1:1 does not answer"),
        ({"stream": "missing"}, "there is no stream 'missing': declare it first"),
        ({"filter": "p.subject ="}, "does not apply the filter"),
    ],
)
def test_errors_say_what_to_do(
    load: Load, broker: BrokerProcess, stream: str, more: dict[str, str], message: str
) -> None:
    given = {key: value.format(address=f"{broker.host}:{broker.port}") for key, value in more.items()}
    with pytest.raises(PySparkException) as raised:
        load(given.pop("stream", stream), **given).collect()
    assert message in said(raised)
    assert "hunter2" not in said(raised)


def test_the_password_is_in_no_plan(load: Load, broker: BrokerProcess, stream: str, capsys: Any) -> None:
    load(stream).explain(True)
    assert "guest:guest" not in capsys.readouterr().out
