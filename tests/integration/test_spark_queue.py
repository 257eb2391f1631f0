"""Readers of the Spark queue source as plain objects against a real broker, files and all."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.datasource import InputPartition

from amqp10broker.client import blocking
from amqp10broker.client.message import data_message
from amqp10broker.protocols.amqp10.performatives import Attach
from amqp10broker.spark.errors import BrokerUnreachable, SpoolError
from amqp10broker.spark.options import QueueOptions, parse_source
from amqp10broker.spark.queue_source import QueueLink, QueueReader, QueueStreamReader
from amqp10broker.spark.stream_source import OFFSET_SPEC
from tests.support.broker_process import BrokerProcess
from tests.support.cutting_proxy import CuttingProxy
from tests.support.spark_streams import publish

pytestmark = pytest.mark.usefixtures("deadline")

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])
Offset = dict[str, Any]


class Query:
    """What Spark does with a reader: plans batches, reads them, commits the one before."""

    def __init__(self, options: QueueOptions, start: Offset | None = None) -> None:
        self.reader = QueueStreamReader(options)
        self.offset = self.reader.initialOffset() if start is None else start
        self.before: Offset | None = None
        _QUERIES.append(self)

    def batch(self, limit: Any = None) -> list[str]:
        end = self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())
        if end == self.offset:
            return []
        rows = read(self.reader, self.reader.partitions(self.offset, end))
        if self.before is not None:
            self.reader.commit(self.offset)
        self.before, self.offset = self.offset, end
        return rows

    def all(self, limit: Any = None) -> list[str]:
        found: list[str] = []
        while some := self.batch(limit):
            found += some
        return found


_QUERIES: list[Query] = []


@pytest.fixture(autouse=True)
def stopped_queries() -> Iterator[None]:
    """Stop the queries that a test has left open."""
    yield
    while _QUERIES:
        _QUERIES.pop().reader.stop()


def read(reader: QueueReader | QueueStreamReader, parts: Iterable[InputPartition]) -> list[str]:
    copy = pickle.loads(pickle.dumps(reader))
    return [
        body.decode()
        for part in parts
        for batch in copy.read(pickle.loads(pickle.dumps(part)))
        for body in batch.column("body").to_pylist()
    ]


@pytest.fixture
def options(broker: BrokerProcess, queue: str, tmp_path: Path) -> Callable[..., QueueOptions]:
    def make(*, port: int = 0, **given: str) -> QueueOptions:
        url = f"amqp://guest:guest@{broker.host}:{port or broker.port}"
        spool = {"spoolLocation": str(tmp_path / "spool")}
        found = parse_source({"url": url, "queue": queue, **spool, **given}, streaming=True)
        assert isinstance(found, QueueOptions)
        return found

    return make


def declared(channel: BlockingChannel, queue: str, kind: str = "classic", **arguments: Any) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})


def fill(broker: BrokerProcess, queue: str, bodies: Sequence[str]) -> None:
    publish(broker, queue, [data_message(body.encode()) for body in bodies])


def numbers(start: int, stop: int) -> list[str]:
    return [str(number) for number in range(start, stop)]


@KINDS
def test_messages_come_in_order_in_batches_of_at_most_so_many(
    broker: BrokerProcess,
    channel: BlockingChannel,
    queue: str,
    options: Callable[..., QueueOptions],
    kind: str,
) -> None:
    declared(channel, queue, kind)
    fill(broker, queue, numbers(0, 2500))
    query = Query(options(maxMessagesPerTrigger="1000"))
    assert query.batch() == numbers(0, 1000)
    assert query.batch() == numbers(1000, 2000)
    assert query.batch() == numbers(2000, 2500)
    assert query.batch() == []
    broker.wait_for_counts(queue, ready=0)
    fill(broker, queue, numbers(2500, 2510))
    assert query.batch() == numbers(2500, 2510)


def test_a_range_is_always_the_same_rows(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, options: Callable[..., QueueOptions]
) -> None:
    """This holds in another process too, and whatever has been published meanwhile."""
    declared(channel, queue)
    fill(broker, queue, numbers(0, 100))
    reader = QueueStreamReader(options(maxMessagesPerTrigger="60"))
    start = reader.initialOffset()
    middle = reader.latestOffset(start, reader.getDefaultReadLimit())
    end = reader.latestOffset(middle, reader.getDefaultReadLimit())
    first = read(reader, reader.partitions(start, middle))
    assert read(reader, reader.partitions(start, middle)) == first == numbers(0, 60)
    reader.stop()
    fill(broker, queue, numbers(100, 200))
    again = QueueStreamReader(options(maxMessagesPerTrigger="1"))
    assert read(again, again.partitions(start, middle)) == first
    assert read(again, again.partitions(start, end)) == numbers(0, 100)
    assert list(again.partitions(end, end)) == []
    again.stop()


def test_a_segment_that_spark_does_not_know_is_the_next_batch(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, options: Callable[..., QueueOptions]
) -> None:
    """After a crash between latestOffset and Spark's log its messages are settled and must not be lost."""
    declared(channel, queue)
    fill(broker, queue, numbers(0, 30))
    reader = QueueStreamReader(options(maxMessagesPerTrigger="20"))
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.stop()
    assert Query(options(maxMessagesPerTrigger="20"), start).all() == numbers(0, 30)


# --- batch --------------------------------------------------------------------------------------------


def test_a_batch_that_was_interrupted_goes_on(
    broker: BrokerProcess,
    channel: BlockingChannel,
    queue: str,
    options: Callable[..., QueueOptions],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages that were settled before are in the spool and belong to the batch."""
    declared(channel, queue)
    fill(broker, queue, numbers(0, 250))
    given = options(maxMessagesPerTrigger="100")
    calls = 0
    receive = QueueLink.receive

    def failing(self: QueueLink, count: int, wait_s: float) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise BrokerUnreachable("gone")
        return receive(self, count, wait_s)

    monkeypatch.setattr(QueueLink, "receive", failing)
    with pytest.raises(BrokerUnreachable):
        QueueReader(given).partitions()
    monkeypatch.undo()
    reader = QueueReader(given)
    assert read(reader, reader.partitions()) == numbers(0, 250)


# --- what goes wrong ----------------------------------------------------------------------------------


class EchoingEnd(blocking.BulkEnd):
    """At a broker that says of every queue that it applies the filter of streams, as RabbitMQ does."""

    def on_attached(self, attach: Attach) -> None:
        super().on_attached(attach)
        self.filters_in_place = frozenset({OFFSET_SPEC})


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_management_says_what_kind_of_queue_it_is(
    broker: BrokerProcess,
    channel: BlockingChannel,
    queue: str,
    options: Callable[..., QueueOptions],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """A broker's list of applied filters may be a mere echo of the request."""
    monkeypatch.setattr(blocking, "BulkEnd", EchoingEnd)
    declared(channel, queue, kind)
    fill(broker, queue, numbers(0, 5))
    assert Query(options()).all() == numbers(0, 5)


def test_a_full_disk_leaves_the_messages_in_the_queue(
    broker: BrokerProcess,
    channel: BlockingChannel,
    queue: str,
    options: Callable[..., QueueOptions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared(channel, queue, "quorum")
    fill(broker, queue, numbers(0, 10))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("amqp10broker.storage.disk.Disk.rename", full)
    (tmp_path / "spool").mkdir()
    manifest = {"format": 1, "id": "00", "use": "stream", "queue": queue, "sealed": None}
    manifest |= {"broker": f"{broker.host}:{broker.port}", "vhost": ""}
    (tmp_path / "spool" / "spool.json").write_text(json.dumps(manifest))
    for _ in range(3):
        query = Query(options())
        with pytest.raises(SpoolError, match="No space left on device; what was not settled is still in the"):
            query.batch()
        query.reader.stop()
    monkeypatch.undo()
    query = Query(options())
    assert query.all() == numbers(0, 10)


def test_nothing_is_taken_where_there_is_no_room_for_it(
    broker: BrokerProcess,
    channel: BlockingChannel,
    queue: str,
    options: Callable[..., QueueOptions],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quorum queue drops messages that return too often, so none may be taken only to be returned."""
    declared(channel, queue, "quorum", **{"x-delivery-limit": 1})
    fill(broker, queue, numbers(0, 10))
    monkeypatch.setattr("amqp10broker.storage.disk.Disk.free_bytes", lambda *_: 1_000_000)
    query = Query(options())
    for _ in range(5):
        with pytest.raises(SpoolError, match="has 1 MB left, and a segment may need 83: make room"):
            query.batch()
    monkeypatch.undo()
    assert query.all() == numbers(0, 10)


@pytest.mark.parametrize("available_now", [False, True], ids=["endless", "available now"])
@pytest.mark.parametrize("from_broker", [False, True], ids=["client cut", "broker cut"])
def test_connections_lost_anywhere_lose_nothing(
    broker: BrokerProcess,
    channel: BlockingChannel,
    queue: str,
    options: Callable[..., QueueOptions],
    from_broker: bool,
    available_now: bool,
) -> None:
    """Each connection is lost some bytes later than the one before; all messages arrive in the end.
    Redeliveries do not count: a query that stops at the present end has read all of it.
    """
    declared(channel, queue)
    fill(broker, queue, numbers(0, 600))
    with CuttingProxy(broker.port) as proxy:
        steps = range(900, 4500, 180) if from_broker else range(300, 1500, 80)
        proxy.cut_after = [(None, step) if from_broker else (step, None) for step in steps]
        query = Query(options(port=proxy.port, maxMessagesPerTrigger="10", retryTimeout="60s"))
        if available_now:
            query.reader.prepareForTriggerAvailableNow()
        found = query.all()
        query.reader.stop()
        assert proxy.connections > 10
    assert set(found) == set(numbers(0, 600))
    twice = [body for body, times in Counter(found).items() if times > 1]
    assert len(twice) < 600
    broker.wait_for_counts(queue, ready=0)


def test_a_broker_that_stays_away_fails_the_query_in_time(
    channel: BlockingChannel, broker: BrokerProcess, queue: str, options: Callable[..., QueueOptions]
) -> None:
    declared(channel, queue)
    with CuttingProxy(broker.port) as proxy:
        query = Query(options(port=proxy.port, retryTimeout="300ms"))
        assert query.batch() == []
        proxy.__exit__(None, None, None)
        with pytest.raises(BrokerUnreachable, match="does not answer|went away"):
            query.batch()
