"""The connector against this broker, and against a RabbitMQ if AMQP10BROKER_TEST_RABBITMQ has its address.

``AMQP10BROKER_TEST_RABBITMQ=amqp://user:password@host:port`` names RabbitMQ 4.0 or newer, whose virtual
host ``/`` is used; what is declared there begins with ``amqp10broker.`` and is deleted. What the tests do by
themselves (declaring, publishing, counting) they do over AMQP 0-9-1 with pika, as users of both would.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqp10broker.spark.session import register
from tests.support.broker_process import BrokerProcess
from tests.support.spark_driver import started
from tests.support.spark_rows import body, message_id, tally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.long]

THEIRS: Final = os.environ.get("AMQP10BROKER_TEST_RABBITMQ")
COUNT: Final = 500


@dataclass(frozen=True, slots=True)
class Place:
    """A broker: its URL, pika's channel with confirms, and the prefix of names that are free."""

    url: str
    channel: BlockingChannel
    prefix: str

    def declare(self, kind: str) -> str:
        name = f"{self.prefix}.{kind}"
        self.channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        return name

    def publish(self, queue: str, count: int = COUNT, *, first: int = 0) -> None:
        """Publish messages N = first, ... and wait until each is confirmed."""
        for number in range(first, first + count):
            properties = pika.BasicProperties(
                message_id=message_id(number), delivery_mode=2, headers={"even": str(number % 2 == 0)}
            )
            self.channel.basic_publish("", queue, body(number), properties)

    def get_all(self, queue: str) -> list[tuple[Any, bytes]]:
        found = []
        while True:
            method, properties, content = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, content))


# Without an address there is nothing to run against, and nothing to skip either.
@pytest.fixture(params=["this broker", *(["RabbitMQ"] if THEIRS else [])])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yield each broker in turn; delete the test's queues and exchanges."""
    if request.param == "RabbitMQ":
        assert THEIRS
        address = THEIRS.rstrip("/")
    else:
        ours: BrokerProcess = request.getfixturevalue("broker")
        address = f"amqp://guest:guest@{ours.host}:{ours.port}"
    prefix = f"amqp10broker.{secrets.token_hex(4)}"
    # Nobody turns it while Spark works, which may take long: it could not keep a promise of heartbeats.
    with pika.BlockingConnection(pika.URLParameters(f"{address}/%2F?heartbeat=0")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield Place(address, channel, prefix)
        for kind in ("stream", "classic", "quorum"):
            channel.queue_delete(f"{prefix}.{kind}")
        channel.exchange_delete(f"{prefix}.exchange")


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def read(session: SparkSession, place: Place, **options: Any) -> DataFrame:
    given = {"url": place.url, **{name: str(value) for name, value in options.items()}}
    return session.read.format("amqp10").options(**given).load()


def into_parquet(session: SparkSession, place: Place, folder: Path, **options: Any) -> DataFrame:
    given = {"url": place.url, **{name: str(value) for name, value in options.items()}}
    frame = session.readStream.format("amqp10").options(**given).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.option("path", str(folder / "sink")).trigger(availableNow=True)
    query = started(writer.start)
    query.awaitTermination()
    return session.read.parquet(str(folder / "sink"))


def test_a_batch_of_a_stream(session: SparkSession, place: Place) -> None:
    stream = place.declare("stream")
    place.publish(stream)
    found = tally(read(session, place, stream=stream), COUNT, offsets=True)
    assert found.exactly_once, found
    part = read(
        session,
        place,
        stream=stream,
        startingOffsets=f'{{"{stream}": 100}}',
        endingOffsets=f'{{"{stream}": 250}}',
    )
    assert sorted(row.offset for row in part.select("offset").collect()) == list(range(100, 250))


def test_a_streaming_query_of_a_stream_goes_on_where_it_was(
    session: SparkSession, place: Place, tmp_path: Path
) -> None:
    stream = place.declare("stream")
    for run in range(2):
        place.publish(stream, first=run * COUNT)
        frame = into_parquet(session, place, tmp_path, stream=stream, maxOffsetsPerTrigger=200)
        found = tally(frame, (run + 1) * COUNT, offsets=True)
        assert found.exactly_once, found


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_streaming_query_of_a_queue_takes_all_out_of_it(
    session: SparkSession, place: Place, tmp_path: Path, kind: str
) -> None:
    queue = place.declare(kind)
    place.publish(queue)
    options = {"queue": queue, "spoolLocation": tmp_path / "spool", "maxMessagesPerTrigger": 200}
    found = tally(into_parquet(session, place, tmp_path, **options), COUNT, offsets=False)
    assert found.exactly_once, found
    assert place.get_all(queue) == []


def test_rows_go_to_a_queue(session: SparkSession, place: Place) -> None:
    queue = place.declare("quorum")
    rows = session.range(COUNT).selectExpr(
        "concat('m-', id) AS messageId",
        "CAST(id AS STRING) AS body",
        "map('parity', id % 2) AS applicationProperties",
    )
    rows.write.format("amqp10").mode("append").options(url=place.url, address=f"/queues/{queue}").save()
    found = {
        properties.message_id: (content, properties.headers["parity"], properties.delivery_mode)
        for properties, content in place.get_all(queue)
    }
    assert found == {message_id(each): (b"%d" % each, each % 2, 2) for each in range(COUNT)}


def test_rows_choose_exchange_and_routing_key(session: SparkSession, place: Place) -> None:
    """Each row has its own; a mandatory row that no queue takes fails the job."""
    queue, exchange = place.declare("classic"), f"{place.prefix}.exchange"
    place.channel.exchange_declare(exchange, "topic", durable=True)
    place.channel.queue_bind(queue, exchange, "even.#")
    rows = session.range(10).selectExpr(
        f"'{exchange}' AS exchange",
        "concat(if(id % 2 = 0, 'even', 'odd'), '.', id) AS routingKey",
        "CAST(id AS STRING) AS body",
    )
    writer = rows.write.format("amqp10").mode("append").option("url", place.url)
    writer.option("mandatory", "false").save()
    assert sorted(content for _, content in place.get_all(queue)) == [b"0", b"2", b"4", b"6", b"8"]
    with pytest.raises(Exception, match="mandatory"):
        writer.option("mandatory", "true").save()


def test_the_broker_filters_a_stream(session: SparkSession, place: Place) -> None:
    """The filter is SQL over application properties: RabbitMQ 4.2 and this broker have it."""
    stream = place.declare("stream")
    place.publish(stream)
    frame = read(session, place, stream=stream, filter="application_properties.even = 'True'")
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(0, COUNT, 2))
