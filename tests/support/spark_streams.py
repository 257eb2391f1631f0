"""Streams for tests of the Spark source: declared, filled, and read by readers without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from amqp10broker.client.blocking import Client, Management, connect
from amqp10broker.client.links import Accepted
from amqp10broker.client.message import Message, data_message
from tests.support.broker_process import BrokerProcess

BODY_BYTES = 20


def url_of(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@{broker.host}:{broker.port}"


def client_of(broker: BrokerProcess) -> Client:
    return connect(broker.host, broker.port, user="guest", password="guest", timeout_s=20.0)


def declare(broker: BrokerProcess, name: str, **arguments: Any) -> None:
    """Declare a stream; argument names have _ in place of -, and no x."""
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    with client_of(broker) as client:
        status, body = Management(client).ask(
            "PUT", f"/queues/{name}", {"durable": True, "arguments": {"x-queue-type": "stream", **given}}
        )
        assert status == 201, body


def publish(broker: BrokerProcess, name: str, messages: Iterable[Message | bytes]) -> None:
    with client_of(broker) as client:
        outcomes = client.sender(f"/queues/{name}").send_many(messages)
        assert set(map(type, outcomes)) <= {Accepted}


def body(number: int) -> bytes:
    return (b"%d" % number).ljust(BODY_BYTES, b".")


def fill(broker: BrokerProcess, name: str, count: int, first: int = 0) -> None:
    publish(broker, name, (data_message(body(number)) for number in range(first, first + count)))


def rows(reader: Any, partitions: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return the rows of these partitions' tasks, each with a pickled copy of the reader, in order."""
    found: list[Mapping[str, Any]] = []
    for partition in partitions:
        copy, piece = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(piece):
            found += batch.to_pylist()
    return found


def offsets(found: Iterable[Mapping[str, Any]]) -> list[int]:
    return [row["offset"] for row in found]
