"""Writers of the Spark sink as plain objects against a real broker: what arrives, and what is said if not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from amqp10broker.client.blocking import connect
from amqp10broker.spark.errors import (
    BrokerRefused,
    BrokerUnreachable,
    NotDelivered,
    OptionError,
    QueueUnusable,
    SparkSourceError,
)
from amqp10broker.spark.options import SinkOptions, parse_sink
from amqp10broker.spark.sink import writer as sink
from amqp10broker.spark.sink.writer import Sent, SinkStreamWriter, SinkWriter
from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.cutting_proxy import CuttingProxy

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

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
    """The task in which writers write."""
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
    """Message-ids and bodies of what is in a queue, which is then empty."""
    found: list[tuple[str | None, bytes]] = []
    with connect(broker.host, broker.port, user="guest", password="guest") as client:
        receiver = client.receiver(f"/queues/{queue}", credit=0)
        while deliveries := receiver.fetch(1000, timeout_s=0):
            for message in (delivery.message() for delivery in deliveries):
                assert message.properties is not None
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


def test_a_batch_that_is_written_again_has_the_same_ids(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    address = declared(channel, queue)
    for _ in range(2):
        writer = SinkStreamWriter(options(broker, address=address), BODY, overwrite=False)
        writer.write(batches([b"a", b"b"]))
    assert [name for name, _ in taken(broker, queue)] == ["query-17-3-0", "query-17-3-1"] * 2


def test_tasks_of_a_job_have_ids_of_the_job(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    """Made once on the driver: pickled copies have the same, another writer has another."""
    address = declared(channel, queue)
    writer = SinkWriter(options(broker, address=address), BODY, overwrite=False)
    for partition in (0, 0, 1):
        task.partition = partition
        pickle.loads(pickle.dumps(writer)).write(batches([b"x"]))
    SinkWriter(options(broker, address=address), BODY, overwrite=False).write(batches([b"x"]))
    first, again, other, another_job = (str(name) for name, _ in taken(broker, queue))
    assert first == again
    assert first.endswith("-0-0")
    assert other == first[:-4] + "-1-0"
    assert another_job[:-4] != other[:-4]


def test_a_stream_task_without_query_is_refused(broker: BrokerProcess, queue: str, task: Task) -> None:
    task.properties.clear()
    writer = SinkStreamWriter(options(broker, address=f"/queues/{queue}"), BODY, overwrite=False)
    with pytest.raises(SparkSourceError, match="Spark does not say which query and batch"):
        writer.write(batches([b"x"]))


def test_each_row_goes_where_it_says(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    for key in ("red", "green"):
        declared(channel, f"{queue}-{key}")
        channel.queue_bind(f"{queue}-{key}", "amq.direct", f"{queue}/{key}")
    rows = [(f"{number}", f"{queue}/{'red' if number % 3 else 'green'}") for number in range(300)]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([body for body, _ in rows]),
            pa.array(["amq.direct"] * 300),
            pa.array([key for _, key in rows]),
        ],
        ["body", "exchange", "routingKey"],
    )
    writer = SinkWriter(options(broker), ROUTED, overwrite=False)
    assert writer.write(iter([batch])) == Sent(300, 0)
    for key in ("red", "green"):
        found = [body.decode() for _, body in taken(broker, f"{queue}-{key}")]
        assert found == [body for body, its_key in rows if its_key.endswith(key)]


def test_a_released_row_fails_the_task(broker: BrokerProcess, queue: str, task: Task) -> None:
    """mandatory is the default."""
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
    """Also if not mandatory. A full queue that rejects."""
    address = declared(channel, queue, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    writer = SinkWriter(options(broker, address=address, mandatory="false"), BODY, overwrite=False)
    with pytest.raises(NotDelivered, match="rejected row 2 of this partition"):
        writer.write(batches([b"0", b"1", b"2"]))


def test_a_message_that_is_too_large_names_its_row(start_broker: StartBroker, queue: str, task: Task) -> None:
    own = start_broker("--max-message-size-bytes", "1000")
    writer = SinkWriter(options(own, address=queue), BODY, overwrite=False)
    with pytest.raises(
        NotDelivered, match="row 1 of this partition: the message has 20.. bytes and the link"
    ):
        writer.write(batches([b"0", b"1" * 2000, b"2"]))


def test_nothing_in_flight_beyond_the_limit(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    """Even one at a time gets through."""
    address = declared(channel, queue)
    writer = SinkWriter(options(broker, address=address, maxInFlight="1"), BODY, overwrite=False)
    assert writer.write(batches([b"%d" % number for number in range(20)])).accepted == 20
    assert len(taken(broker, queue)) == 20


# --- what is wrong is said before a job starts --------------------------------------------------------


def test_overwrite_is_refused(broker: BrokerProcess, queue: str) -> None:
    with pytest.raises(
        OptionError, match=r'option mode is overwrite; a queue can only be added to: use mode\("app'
    ):
        SinkWriter(options(broker, address=f"/queues/{queue}"), BODY, overwrite=True)


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_an_address_that_is_not_there(broker: BrokerProcess, queue: str, kind: str) -> None:
    with pytest.raises(QueueUnusable, match=f"no {kind} '{queue}'.*declare it"):
        SinkWriter(options(broker, address=f"/{kind}s/{queue}"), BODY, overwrite=False)


def test_an_exchange_of_a_row_that_is_not_there(broker: BrokerProcess, queue: str, task: Task) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([queue]), pa.array(["k"])], ROUTED.names)
    with pytest.raises(
        NotDelivered, match=f"rejected row 0 of this partition with amqp:not-found: no exchange '{queue}"
    ):
        SinkWriter(options(broker), ROUTED, overwrite=False).write(iter([batch]))


def test_slow_outcomes_are_waited_for_as_long_as_some_come(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    """The time allowed is for silence, not for all of them: 90 messages that take 50 ms each."""
    slow = f"slow-{queue}"
    address = declared(channel, slow)
    given = options(broker, address=address, idleTimeout="4000ms", maxInFlight="1")
    writer = SinkStreamWriter(given, BODY, overwrite=False)
    assert writer.write(batches([b"%d" % number for number in range(90)])).accepted == 90


def test_a_wrong_password(broker: BrokerProcess, queue: str) -> None:
    given = parse_sink(
        {"url": broker.url, "username": "guest", "password": "wrong-one", "address": f"/queues/{queue}"},
        streaming=False,
    )
    with pytest.raises(BrokerRefused, match="does not let user 'guest' in") as raised:
        SinkWriter(given, BODY, overwrite=False)
    assert "wrong-one" not in str(raised.value)


# --- a broker that goes away --------------------------------------------------------------------------


@pytest.mark.parametrize("from_broker", [False, True], ids=["client cut", "broker cut"])
@pytest.mark.parametrize("count", [200, 3000, 40_000])
def test_lost_connections_lose_nothing_and_duplicates_have_the_same_id(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task, from_broker: bool, count: int
) -> None:
    """The connection is lost three times, each time after so many bytes; all rows arrive."""
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


def test_a_broker_that_is_killed_and_comes_back_has_every_row(queue: str, task: Task, tmp_path: Path) -> None:
    """With a data folder: what it accepted is there after the restart, and the rest is sent again."""
    folder = tmp_path / "broker"
    folder.mkdir()
    own = BrokerProcess(folder, "--data-dir", str(tmp_path / "data"))
    port = own.port
    own.run_command("declare", "queue", queue)
    started = [own]

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches([b"%d" % number for number in range(2000)])
        started[-1].kill()
        started.append(BrokerProcess(folder, "--data-dir", str(tmp_path / "data"), "--port", str(port)))
        yield from batches([b"%d" % number for number in range(2000, 4000)])

    writer = SinkStreamWriter(options(own, address=f"/queues/{queue}"), BODY, overwrite=False)
    try:
        assert writer.write(rows()).accepted == 4000
        with connect(own.host, port, user="guest", password="guest") as client:
            receiver = client.receiver(f"/queues/{queue}", credit=0)
            found = receiver.fetch(10_000, timeout_s=0)
            bodies = {bytes(delivery.message().body) for delivery in found}
    finally:
        started[-1].kill()
    assert bodies == {b"%d" % number for number in range(4000)}
    assert len(found) <= 4000 + 1000


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


def test_a_queue_that_is_deleted_meanwhile_fails_the_task(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, task: Task
) -> None:
    address = declared(channel, queue)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches([b"one"] * 600)
        channel.queue_delete(queue)
        yield from batches([b"two"])

    with pytest.raises((QueueUnusable, NotDelivered)):
        SinkStreamWriter(options(broker, address=address), BODY, overwrite=False).write(rows())


def test_no_credit_is_told_apart_from_silence(start_broker: StartBroker, queue: str, task: Task) -> None:
    """A broker with a memory alarm gives no credit; the error says to look."""
    own = start_broker()
    assert own.run_command("alarm", "memory", "on").returncode == 0
    writer = SinkStreamWriter(options(own, address=queue, idleTimeout="300ms"), BODY, overwrite=False)
    with pytest.raises((NotDelivered, SparkSourceError), match="amqp10broker status"):
        writer.write(batches([b"x"]))
