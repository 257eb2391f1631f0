"""aio-pika and the aiormq below it: confirms by default, topologies, RPC patterns, and reconnecting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aio_pika
import pytest
from aio_pika import Message
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import MessageProcessError
from aio_pika.patterns import RPC

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import WAIT_S

pytestmark = pytest.mark.usefixtures("deadline")

T = TypeVar("T")
Scene = Callable[[AbstractConnection], Awaitable[T]]


def url(broker: BrokerProcess, user: str = "guest", password: str = "guest", query: str = "") -> str:
    return f"amqp://{user}:{password}@{broker.host}:{broker.port}/{query}"


@asynccontextmanager
async def connected(broker: BrokerProcess, query: str = "") -> AsyncIterator[AbstractConnection]:
    async with await aio_pika.connect(url(broker, query=query)) as connection:
        yield connection


def play(broker: BrokerProcess, scene: Scene[T], query: str = "") -> T:
    """Run a coroutine function with a connection, in an event loop of its own."""

    async def run() -> T:
        async with asyncio.timeout(WAIT_S), connected(broker, query) as connection:
            return await scene(connection)

    return asyncio.run(run())


def test_request_and_reply_by_the_rpc_pattern(broker: BrokerProcess, queue: str) -> None:
    """Reply queues, headers exchange for dead letters, many calls at once."""

    async def scene(connection: AbstractConnection) -> None:
        rpc = await RPC.create(await connection.channel())

        async def multiply(*, x: int, y: int) -> int:
            return x * y

        await rpc.register(queue, multiply, auto_delete=True)
        results = await asyncio.gather(*(rpc.call(queue, {"x": n, "y": n}) for n in range(50)))
        assert results == [n * n for n in range(50)]
        with pytest.raises(MessageProcessError, match="returned"):
            await rpc.call(queue + "-missing", {})
        await rpc.close()

    play(broker, scene)


def test_a_robust_connection_comes_back_with_its_topology(broker: BrokerProcess, queue: str) -> None:
    """After its socket is lost it declares, binds and consumes again."""

    async def run() -> None:
        connection = await aio_pika.connect_robust(url(broker), reconnect_interval=0.05)
        async with asyncio.timeout(WAIT_S), connection:
            channel = await connection.channel()
            declared = await channel.declare_queue(queue, auto_delete=True, durable=True)
            await declared.bind("amq.direct", queue)
            inbox: asyncio.Queue[bytes] = asyncio.Queue()

            async def on_message(message: AbstractIncomingMessage) -> None:
                async with message.process():
                    await inbox.put(message.body)

            await declared.consume(on_message)
            exchange = await channel.get_exchange("amq.direct")
            await exchange.publish(Message(b"before"), queue)
            assert await inbox.get() == b"before"
            back = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: back.set())
            below: Any = connection.transport.connection
            await below.close(ConnectionError("lost"))
            await back.wait()
            await exchange.publish(Message(b"after"), queue)
            assert await inbox.get() == b"after"

    asyncio.run(run())
