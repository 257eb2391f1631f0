"""aio-pika and the aiormq below it: confirms by default, topologies, RPC patterns, and reconnecting."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import pytest
from aio_pika import Message
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import MessageProcessError
from aio_pika.patterns import RPC

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import WAIT_S

pytestmark = pytest.mark.usefixtures("deadline")


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@{broker.host}:{broker.port}/"


def test_request_and_reply_by_the_rpc_pattern(broker: BrokerProcess, queue: str) -> None:
    """It uses reply queues, a headers exchange for dead letters, and many calls at once."""

    async def run() -> None:
        async with asyncio.timeout(WAIT_S), await aio_pika.connect(url(broker)) as connection:
            rpc = await RPC.create(await connection.channel())

            async def multiply(*, x: int, y: int) -> int:
                return x * y

            await rpc.register(queue, multiply, auto_delete=True)
            results = await asyncio.gather(*(rpc.call(queue, {"x": n, "y": n}) for n in range(50)))
            assert results == [n * n for n in range(50)]
            with pytest.raises(MessageProcessError, match="returned"):
                await rpc.call(queue + "-missing", {})
            await rpc.close()

    asyncio.run(run())


def test_a_robust_connection_comes_back_with_its_topology(broker: BrokerProcess, queue: str) -> None:
    """After its socket is lost, the library declares, binds and consumes again."""

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
