"""The stream source with nothing but what RabbitMQ 4 has, too.

Set ``SPARK_TEST_BROKER_URL`` (``amqp://user:password@host:port``) to run this file against RabbitMQ 4 or
another broker; without it, this project's broker is asked. Only streams that the tests declare are used,
and they are deleted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from amqp10broker.client.management import Management
from amqp10broker.client.message import Message, Properties
from amqp10broker.client.outcomes import Accepted
from amqp10broker.spark.connection import open_client
from amqp10broker.spark.options import StreamOptions, parse_source
from amqp10broker.spark.stream.source import StreamReader, StreamStreamReader
from tests.support.broker_process import BrokerProcess
from tests.support.spark_streams import body, offsets, rows, url_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

COUNT = 2500


@pytest.fixture
def given(broker: BrokerProcess) -> Iterator[dict[str, str]]:
    """Options of a stream with the bodies 0 .. 2499, every fifth with the subject ``fifth``."""
    name = f"spark-test-{secrets.token_hex(4)}"
    options = {"url": os.environ.get("SPARK_TEST_BROKER_URL") or url_of(broker), "stream": name}
    with open_client(parsed(options).connection, purpose="test") as client:
        management = Management(client)
        declared = {"durable": True, "arguments": {"x-queue-type": "stream"}}
        status, said = management.ask("PUT", f"/queues/{name}", declared)
        assert status == 201, said
        outcomes = client.sender(f"/queues/{name}").send_many(
            Message(body(n), Properties(subject="other" if n % 5 else "fifth")) for n in range(COUNT)
        )
        assert set(map(type, outcomes)) == {Accepted}
        yield options
        management.ask("DELETE", f"/queues/{name}")


def parsed(options: dict[str, str], *, streaming: bool = False) -> StreamOptions:
    found = parse_source(options, streaming=streaming)
    assert isinstance(found, StreamOptions)
    return found


def test_batch(given: dict[str, str]) -> None:
    """All rows, in pieces; offsets ascend."""
    reader = StreamReader(parsed({**given, "minPartitions": "3", "linkCredit": "200"}))
    found = rows(reader, reader.partitions())
    assert [row["body"] for row in found] == [body(n) for n in range(COUNT)]
    assert offsets(found) == sorted(set(offsets(found)))


def test_streaming(given: dict[str, str]) -> None:
    """A range that is replayed gives the same rows."""
    reader = StreamStreamReader(parsed(given, streaming=True))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        first = rows(reader, reader.partitions(start, end))
        assert first == rows(reader, reader.partitions(start, end))
        assert len(first) == COUNT
    finally:
        reader.stop()
