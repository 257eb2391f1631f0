"""The libraries of AMQP 0-9-1 for Python behind one interface: a scenario runs through each of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import aio_pika
import amqp
import pika
from aio_pika.exceptions import DeliveryError
from aiormq import exceptions as aiormq_errors
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ProbableAuthenticationError,
    UnroutableError,
)

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import WAIT_S, turn_until
from tests.support.pika_client import parameters

T = TypeVar("T")

_TURN_S: Final = 0.02


class LoginRefused(Exception):
    """The broker accepted neither the login nor the virtual host."""


class Unroutable(Exception):
    """A mandatory message was returned. The argument is its body."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message that the library delivered, and ``handle``, by which the library settles it."""

    body: bytes
    redelivered: bool
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    handle: Any


@dataclass(slots=True)
class Consumer:
    """The messages of a consumer in the order of their delivery."""

    tag: str = ""
    messages: list[Received] = field(default_factory=list)
    cancelled: bool = False


PROPERTIES: Final[Mapping[str, Any]] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "message_id": "m",
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
}
"""The properties whose Python types are the same in all libraries."""


class WaitingChannel(ABC):
    """A channel that waits for what the broker sends."""

    @abstractmethod
    def step(self) -> None:
        """Handle what the broker has sent, for a moment."""

    def take(self, consumer: Consumer, count: int) -> list[Received]:
        """Wait until a consumer has this many messages in total and return them."""
        turn_until(self.step, lambda: len(consumer.messages) >= count, f"{count} messages")
        return list(consumer.messages)


class BlockingChannel(WaitingChannel):
    """What the channels of pika and py-amqp have in common."""

    _channel: Any

    def delete_queue(self, name: str) -> None:
        self._channel.queue_delete(name)

    def declare_exchange(self, name: str, kind: str) -> None:
        self._channel.exchange_declare(name, kind, auto_delete=True)

    def acknowledge(self, message: Received) -> None:
        self._channel.basic_ack(message.handle)

    def reject(self, message: Received, *, requeue: bool) -> None:
        self._channel.basic_reject(message.handle, requeue)

    def cancel(self, consumer: Consumer) -> None:
        self._channel.basic_cancel(consumer.tag)

    def begin_transaction(self) -> None:
        self._channel.tx_select()

    def commit(self) -> None:
        self._channel.tx_commit()

    def roll_back(self) -> None:
        self._channel.tx_rollback()


class PikaChannel(BlockingChannel):
    """A channel of pika's blocking connection."""

    def __init__(self, connection: BlockingConnection, *, confirms: bool) -> None:
        self._connection = connection
        self._channel = connection.channel()
        if confirms:
            self._channel.confirm_delivery()

    def declare_queue(self, name: str, *, passive: bool = False, exclusive: bool = False) -> tuple[str, int]:
        answer = self._channel.queue_declare(name, passive, durable=True, exclusive=exclusive).method
        return answer.queue, answer.message_count

    def bind(self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any]) -> None:
        self._channel.queue_bind(queue, exchange, key, dict(arguments))

    def publish(
        self,
        body: bytes,
        key: str,
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        given = pika.BasicProperties(headers=dict(headers or {}), **(properties or {}))
        try:
            self._channel.basic_publish(exchange, key, body, given, mandatory=True)
        except UnroutableError as error:
            raise Unroutable(error.messages[0].body) from None

    def get(self, queue: str, *, no_ack: bool = False) -> Received | None:
        method, properties, body = self._channel.basic_get(queue, no_ack)
        return None if method is None else self._received(method, properties, body)

    @staticmethod
    def _received(method: Any, properties: Any, body: Any) -> Received:
        found = {name: getattr(properties, name) for name in PROPERTIES}
        return Received(body, method.redelivered, properties.headers or {}, found, method.delivery_tag)

    def consume(self, queue: str, prefetch: int) -> Consumer:
        self._channel.basic_qos(prefetch_count=prefetch)
        consumer = Consumer()

        def on_cancel(frame: Any) -> None:
            consumer.cancelled = consumer.cancelled or frame.method.consumer_tag == consumer.tag

        self._channel.add_on_cancel_callback(on_cancel)
        consumer.tag = self._channel.basic_consume(
            queue, lambda _, *what: consumer.messages.append(self._received(*what))
        )
        return consumer

    def step(self) -> None:
        self._connection.process_data_events(_TURN_S)


class PikaClient:
    zone = UTC
    encodes_floats = False
    channel_errors = (ChannelClosedByBroker,)

    def __init__(self, broker: BrokerProcess, *, password: str = "guest", vhost: str = "/") -> None:
        try:
            self._connection = BlockingConnection(parameters(broker, password=password, virtual_host=vhost))
        except (AMQPConnectionError, ProbableAuthenticationError) as error:
            raise LoginRefused(repr(error)) from None

    def channel(self, *, confirms: bool = True) -> PikaChannel:
        return PikaChannel(self._connection, confirms=confirms)

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()

    def code(self, error: Any) -> int:
        return int(error.reply_code)


class PyAmqpChannel(BlockingChannel):
    def __init__(self, connection: amqp.Connection, *, confirms: bool) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self._publish = self._channel.basic_publish_confirm if confirms else self._channel.basic_publish
        self._returned: list[bytes] = []
        self._channel.events["basic_return"].add(lambda *what: self._returned.append(what[3].body))

    def declare_queue(self, name: str, *, passive: bool = False, exclusive: bool = False) -> tuple[str, int]:
        answer = self._channel.queue_declare(
            name, passive, durable=True, exclusive=exclusive, auto_delete=False
        )
        return answer.queue, answer.message_count

    def bind(self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any]) -> None:
        self._channel.queue_bind(queue, exchange, key, arguments=dict(arguments))

    def publish(
        self,
        body: bytes,
        key: str,
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._returned.clear()
        message = amqp.Message(body, application_headers=dict(headers or {}), **(properties or {}))
        self._publish(message, exchange=exchange, routing_key=key, mandatory=True)
        if self._returned:
            raise Unroutable(self._returned[0])

    def get(self, queue: str, *, no_ack: bool = False) -> Received | None:
        message = self._channel.basic_get(queue, no_ack=no_ack)
        return None if message is None else self._received(message)

    @staticmethod
    def _received(message: Any) -> Received:
        body = message.body.encode() if isinstance(message.body, str) else message.body
        found = {name: message.properties.get(name) for name in PROPERTIES}
        redelivered = message.delivery_info["redelivered"]
        return Received(body, redelivered, message.headers, found, message.delivery_tag)

    def consume(self, queue: str, prefetch: int) -> Consumer:
        self._channel.basic_qos(0, prefetch, False)
        consumer = Consumer()

        def on_cancel(tag: str) -> None:
            consumer.cancelled = True

        consumer.tag = self._channel.basic_consume(
            queue,
            callback=lambda message: consumer.messages.append(self._received(message)),
            on_cancel=on_cancel,
        )
        return consumer

    def step(self) -> None:
        try:
            self._connection.drain_events(timeout=_TURN_S)
        except TimeoutError:
            return


class PyAmqpClient:
    """py-amqp, the library below kombu and Celery."""

    zone = None
    encodes_floats = True
    channel_errors = (amqp.ChannelError,)

    def __init__(self, broker: BrokerProcess, *, password: str = "guest", vhost: str = "/") -> None:
        self._connection = amqp.Connection(
            f"{broker.host}:{broker.port}", userid="guest", password=password, virtual_host=vhost
        )
        try:
            self._connection.connect()
        except (amqp.AccessRefused, amqp.NotAllowed) as error:
            raise LoginRefused(str(error)) from None

    def channel(self, *, confirms: bool = True) -> PyAmqpChannel:
        return PyAmqpChannel(self._connection, confirms=confirms)

    def close(self) -> None:
        if self._connection.connected:
            self._connection.close()
        self._connection.collect()

    def code(self, error: Any) -> int:
        return int(error.reply_code)


class AioPikaChannel(WaitingChannel):
    """A channel of aio-pika; its coroutines run in the event loop of the client."""

    def __init__(self, runner: asyncio.Runner, connection: Any, *, confirms: bool) -> None:
        self._runner = runner

        async def open_it() -> Any:
            return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)

        self._channel: Any = self._run(open_it())
        self._consumers: list[tuple[Any, Consumer]] = []
        self._transaction: Any = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return run_in(self._runner, work)

    def _queue(self, name: str) -> Any:
        return self._run(self._channel.get_queue(name, ensure=False))

    def declare_queue(self, name: str, *, passive: bool = False, exclusive: bool = False) -> tuple[str, int]:
        found = self._run(
            self._channel.declare_queue(name, durable=True, passive=passive, exclusive=exclusive)
        )
        return found.name, found.declaration_result.message_count

    def delete_queue(self, name: str) -> None:
        self._run(self._channel.queue_delete(name))

    def declare_exchange(self, name: str, kind: str) -> None:
        self._run(self._channel.declare_exchange(name, kind, auto_delete=True))

    def bind(self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any]) -> None:
        self._run(self._queue(queue).bind(exchange, key, arguments=dict(arguments)))

    def publish(
        self,
        body: bytes,
        key: str,
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        message = aio_pika.Message(body, headers=dict(headers or {}), **(properties or {}))

        async def publish() -> None:
            to = self._channel.default_exchange
            if exchange:
                to = await self._channel.get_exchange(exchange, ensure=False)
            await to.publish(message, key)

        try:
            self._run(publish())
        except DeliveryError as error:
            returned: Any = error.message
            raise Unroutable(returned.body) from None

    def get(self, queue: str, *, no_ack: bool = False) -> Received | None:
        message = self._run(self._queue(queue).get(no_ack=no_ack, fail=False))
        return None if message is None else self._received(message)

    @staticmethod
    def _received(message: Any) -> Received:
        found = {name: getattr(message, name) for name in PROPERTIES}
        return Received(message.body, message.redelivered, message.headers, found, message)

    def acknowledge(self, message: Received) -> None:
        self._run(message.handle.ack())

    def reject(self, message: Received, *, requeue: bool) -> None:
        self._run(message.handle.reject(requeue))

    def consume(self, queue: str, prefetch: int) -> Consumer:
        self._run(self._channel.set_qos(prefetch_count=prefetch))
        consumer = Consumer()

        async def on_message(message: Any) -> None:
            consumer.messages.append(self._received(message))

        declared = self._queue(queue)
        consumer.tag = self._run(declared.consume(on_message))
        self._consumers.append((declared, consumer))
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        declared = next(queue for queue, each in self._consumers if each is consumer)
        self._run(declared.cancel(consumer.tag))

    def begin_transaction(self) -> None:
        async def begin() -> Any:
            transaction = self._channel.transaction()
            await transaction.select()
            return transaction

        self._transaction = self._run(begin())

    def commit(self) -> None:
        self._run(self._transaction.commit())

    def roll_back(self) -> None:
        self._run(self._transaction.rollback())

    def step(self) -> None:
        self._run(asyncio.sleep(_TURN_S))
        below: Any = self._run(self._channel.get_underlay_channel())
        # aiormq removes a consumer that the broker cancels and calls nothing.
        for _, consumer in self._consumers:
            consumer.cancelled = consumer.tag not in below.consumers


class AioPikaClient:
    zone = UTC
    encodes_floats = True
    channel_errors = (aiormq_errors.AMQPChannelError,)
    _CODES: Final = {
        aiormq_errors.ChannelAccessRefused: 403,
        aiormq_errors.ChannelNotFoundEntity: 404,
        aiormq_errors.ChannelLockedResource: 405,
        aiormq_errors.ChannelPreconditionFailed: 406,
    }

    def __init__(self, broker: BrokerProcess, *, password: str = "guest", vhost: str = "/") -> None:
        self._runner = asyncio.Runner()
        try:
            self._connection: Any = self._run(
                aio_pika.connect(
                    host=broker.host, port=broker.port, login="guest", password=password, virtualhost=vhost
                )
            )
        except (aiormq_errors.ProbableAuthenticationError, aiormq_errors.InvalidFrameError) as error:
            self._runner.close()
            raise LoginRefused(str(error)) from None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return run_in(self._runner, work)

    def channel(self, *, confirms: bool = True) -> AioPikaChannel:
        return AioPikaChannel(self._runner, self._connection, confirms=confirms)

    def close(self) -> None:
        if not self._connection.is_closed:
            self._run(self._connection.close())
        self._runner.close()

    def code(self, error: Any) -> int:
        return self._CODES[type(error)]


def run_in(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    async def in_time() -> T:
        async with asyncio.timeout(WAIT_S):
            return await work

    return runner.run(in_time())


Channel = PikaChannel | PyAmqpChannel | AioPikaChannel
"""One channel; without ``confirms`` it can begin a transaction.

Queues are durable; exchanges are transient, and deleted with their last binding; a consumer has a prefetch of
its own. `publish` publishes a mandatory message; with confirms it waits for the confirm, and raises
`Unroutable` if no queue took the message.
"""
Client = PikaClient | PyAmqpClient | AioPikaClient
"""A connection; to make one raises `LoginRefused` if the broker refuses the login or the virtual host.

Attributes:
    zone: the time zone of the timestamps that the library decodes.
    encodes_floats: the library can send floats in headers.
    channel_errors: the exceptions of the library for a channel that the broker closed; `code` returns the
        reply code of one.
"""
LIBRARIES: Final[Mapping[str, type[Client]]] = {
    "pika": PikaClient,
    "py-amqp": PyAmqpClient,
    "aio-pika": AioPikaClient,
}


def timestamp(client: Client) -> datetime:
    """Return a time as the library of the client decodes it."""
    return datetime(2026, 2, 3, 4, 5, 6, tzinfo=client.zone)
