"""Writers of the Spark sink as plain objects against a real broker: what arrives, and what is said if not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from amqp10broker.client.blocking import connect
from amqp10broker.spark import sink as sink
from amqp10broker.spark.errors import BrokerUnreachable, NotDelivered, SparkSourceError
from amqp10broker.spark.options import SinkOptions, parse_sink
from amqp10broker.spark.sink import Sent, SinkStreamWriter, SinkWriter
from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.usefixtures("deadline")

BODY = StructType([StructField("body", BinaryType())])
ROUTED = StructType(
    [
        StructField("body", StringType()),
        StructField("exchange", StringType()),
        StructField("routingKey", StringType()),
    ]
)


@dataclass
class Task:
    """What a writer asks of Spark's TaskContext."""

    partition: int = 0
    properties: dict[str, str] = field(default_factory=dict)

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    context = Task(3, {"sql.streaming.queryId": "query", "streaming.sql.batchId": "17"})
    monkeypatch.setattr(sink, "_context", lambda: context)
    return context


def options(broker: BrokerProcess, *, port: int = 0, **given: str) -> SinkOptions:
    url = f"amqp://guest:guest@{broker.host}:{port or broker.port}"
    return parse_sink({"url": url, **given}, streaming=False)


def batches(*bodies: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    for each in bodies:
        yield pa.RecordBatch.from_arrays([pa.array(list(each), pa.binary())], ["body"])


def declared(channel: BlockingChannel, queue: str, kind: str = "classic", **arguments: Any) -> str:
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})
    return f"/queues/{queue}"


def taken(broker: BrokerProcess, queue: str) -> list[tuple[str | None, bytes]]:
    """Return message-ids and bodies of the queue's messages, which are removed."""
    found: list[tuple[str | None, bytes]] = []
    with connect(broker.host, broker.port, user="guest", password="guest") as client:
        receiver = client.receiver(f"/queues/{queue}", credit=0)
        while deliveries := receiver.fetch(1000, timeout_s=0):
            for message in (delivery.message() for delivery in deliveries):
                found.append((message.properties.message_id, message.body))
            receiver.accept(deliveries)
    return found


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_rows_arrive_in_order_with_ids_that_name_them(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task, kind: str
) -> None:
    address = declared(channel, queue, kind)
    writer = SinkStreamWriter(options(broker, address=address), BODY, overwrite=False)
    bodies = [b"%d" % number for number in range(2500)]
    assert writer.write(batches(bodies[:2000], [], bodies[2000:])) == Sent(2500, 0)
    if kind == "stream":
        return
    assert taken(broker, queue) == [(f"query-17-3-{row}", body) for row, body in enumerate(bodies)]


def test_a_released_row_fails_the_task(broker: BrokerProcess, queue: str, task: Task) -> None:
    given = options(broker, exchange="amq.direct", routingKey=queue)
    with pytest.raises(
        NotDelivered, match="released row 0 of this partition for /exchanges/amq.direct.*no queue"
    ):
        SinkWriter(given, BODY, overwrite=False).write(batches([b"x"]))


def test_released_rows_are_counted_and_reported_if_not_mandatory(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    declared(channel, queue)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x"] * 3), pa.array([""] * 3), pa.array([queue, "nowhere", queue])], ROUTED.names
    )
    writer = SinkWriter(options(broker, mandatory="false"), ROUTED, overwrite=False)
    sent = writer.write(iter([batch]))
    assert sent == Sent(2, 1)
    writer.commit([sent, Sent(4, 0)])
    (record,) = caplog.records
    assert record.getMessage().startswith("1 of 7 messages of the job were released")


def test_a_rejected_row_fails_the_task_with_the_brokers_reason(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    """This holds also if not mandatory; a full queue rejects them."""
    address = declared(channel, queue, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    writer = SinkWriter(options(broker, address=address, mandatory="false"), BODY, overwrite=False)
    with pytest.raises(NotDelivered, match="rejected row 2 of this partition"):
        writer.write(batches([b"0", b"1", b"2"]))


# --- what is wrong is said before a job starts --------------------------------------------------------


def test_slow_outcomes_are_waited_for_as_long_as_some_come(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    """The time limit applies to silence, not to the total: 90 messages take 50 ms each."""
    slow = f"slow-{queue}"
    address = declared(channel, slow)
    given = options(broker, address=address, idleTimeout="4000ms", maxInFlight="1")
    writer = SinkStreamWriter(given, BODY, overwrite=False)
    assert writer.write(batches([b"%d" % number for number in range(90)])).accepted == 90


# --- a broker that goes away --------------------------------------------------------------------------


@pytest.mark.parametrize("from_broker", [False, True], ids=["client cut", "broker cut"])
@pytest.mark.parametrize("count", [200, 3000, 40_000])
def test_lost_connections_lose_nothing_and_duplicates_have_the_same_id(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task, from_broker: bool, count: int
) -> None:
    """The connection is lost three times, each after a number of bytes; all rows arrive."""
    address = declared(channel, queue)
    with CuttingProxy(broker.port) as proxy:
        # Logging in and attaching, some 900 bytes each way, are not what is tried here.
        limits = (None, 900 + count // 100) if from_broker else (2000 + count, None)
        proxy.cut_after = [limits] * 3
        writer = SinkStreamWriter(
            options(broker, port=proxy.port, address=address, maxInFlight="100"), BODY, overwrite=False
        )
        bodies = [b"%050d" % number for number in range(3000)]
        assert writer.write(batches(bodies)).accepted == 3000
        # How many bytes the broker answers with is its affair: it may have been cut less often.
        assert proxy.connections in ((2, 3, 4) if from_broker else (4,))
    found = taken(broker, queue)
    rows = {f"query-17-3-{row}": body for row, body in enumerate(bodies)}
    assert dict(found) == rows
    assert all(rows[str(name)] == body for name, body in found)
    assert len(found) <= 3000 + 3 * 100


def test_a_broker_that_stays_away_fails_the_task_in_time(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    address = declared(channel, queue)
    with CuttingProxy(broker.port) as proxy:
        given = options(broker, port=proxy.port, address=address, retryTimeout="300ms")

        def rows() -> Iterator[pa.RecordBatch]:
            yield from batches([b"one"])
            proxy.__exit__(None, None, None)
            yield from batches([b"two"])

        writer = SinkStreamWriter(given, BODY, overwrite=False)
        with pytest.raises(BrokerUnreachable, match="does not answer .tried"):
            writer.write(rows())


def test_no_credit_is_told_apart_from_silence(start_broker: StartBroker, queue: str, task: Task) -> None:
    """A broker with a memory alarm grants no credit; the error suggests a look at the broker."""
    own = start_broker()
    assert own.run_command("alarm", "set", "memory", "on").returncode == 0
    writer = SinkStreamWriter(options(own, address=queue, idleTimeout="300ms"), BODY, overwrite=False)
    with pytest.raises((NotDelivered, SparkSourceError), match="amqp10broker status"):
        writer.write(batches([b"x"]))
