"""pika for tests: connections to a broker process, and what its blocking channel delivers, collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import turn_until

SOCKET_S: Final = 30.0
_TURN_S: Final = 0.02

Properties = pika.BasicProperties


class Listening(Protocol):
    host: str
    port: int


def parameters(
    broker: Listening, *, user: str = "guest", password: str = "guest", **options: Any
) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        host=broker.host,
        port=broker.port,
        credentials=pika.PlainCredentials(user, password),
        socket_timeout=SOCKET_S,
        stack_timeout=SOCKET_S,
        **options,
    )


class Connect(Protocol):
    """The type of the fixture `connect`."""

    def __call__(self, to: BrokerProcess | None = None, **options: Any) -> BlockingConnection:
        """Connect with these parameters; without a broker to the shared one."""


@pytest.fixture
def connect(broker: BrokerProcess, deadline: None) -> Iterator[Connect]:
    """Open blocking connections, which are closed at the end of the test."""
    opened: list[BlockingConnection] = []

    def connect_to(to: BrokerProcess | None = None, **options: Any) -> BlockingConnection:
        connection = BlockingConnection(parameters(to or broker, **options))
        opened.append(connection)
        return connection

    yield connect_to
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect: Connect) -> BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: BlockingConnection) -> BlockingChannel:
    return connection.channel()


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message that a consumer was given, or that was returned."""

    method: Any
    properties: pika.BasicProperties
    body: bytes

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)

    @property
    def text(self) -> str:
        return self.body.decode()


class Inbox:
    """A consumer that keeps the messages that it is given, in order."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.messages: list[Delivered] = []
        self._taken = 0
        self.tag: str = channel.basic_consume(queue, self._on_message, **options)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.messages.append(Delivered(method, properties, body))

    def take(self, count: int = 1) -> list[Delivered]:
        wanted = self._taken + count
        until(self.channel, lambda: len(self.messages) >= wanted, f"{count} more messages from {self.tag}")
        taken = self.messages[self._taken : wanted]
        self._taken = wanted
        return taken

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]


def until(channel: BlockingChannel, condition: Callable[[], Any], what: str) -> Any:
    """Process the channel's connection until the condition holds."""
    return turn_until(lambda: channel.connection.process_data_events(_TURN_S), condition, what)


def settle_down(channel: BlockingChannel) -> None:
    """Handle all that the broker sent before now, since it answers in order."""
    channel.basic_qos(prefetch_count=0)
    channel.connection.process_data_events(0)


def get(channel: BlockingChannel, queue: str, **options: Any) -> Delivered:
    method, properties, body = channel.basic_get(queue, **options)
    assert method is not None, f"nothing in '{queue}'"
    assert properties is not None
    assert body is not None
    return Delivered(method, properties, body)


def get_all(channel: BlockingChannel, queue: str) -> list[str]:
    texts = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return texts
        texts.append(body.decode())


def put(channel: BlockingChannel, queue: str, *texts: str, **options: Any) -> None:
    for text in texts:
        channel.basic_publish("", queue, text.encode(), **options)
