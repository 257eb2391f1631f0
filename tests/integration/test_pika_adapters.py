"""pika's asynchronous adapters: the select loop and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.select_connection import SelectConnection

from tests.support.broker_process import BrokerProcess
from tests.support.deadline import WAIT_S
from tests.support.pika_client import Properties, parameters

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


class Select:
    """A select connection that runs one scene.

    Attributes:
        ended: the error with which the connection ended.
    """

    def __init__(self, broker: BrokerProcess, scene: Callable[[Select], Any], **options: Any) -> None:
        self.ended: BaseException | None = None
        self._scene = scene
        self.connection = SelectConnection(
            parameters(broker, **options),
            on_open_callback=lambda _: self._scene(self),
            on_open_error_callback=self._on_ended,
            on_close_callback=self._on_ended,
        )
        try:
            self.connection.ioloop.start()
        finally:
            self.connection.ioloop.close()

    def _on_ended(self, connection: Any, error: BaseException) -> None:
        self.ended = error
        self.connection.ioloop.stop()

    def done(self, *_: Any) -> None:
        """Close the connection, which ends the loop."""
        if self.connection.is_open:
            self.connection.close()

    def assert_done(self) -> None:
        """The client closed the connection, and nothing else ended it."""
        assert isinstance(self.ended, pika.exceptions.ConnectionClosedByClient), self.ended


def test_the_select_loop_publishes_and_consumes(broker: BrokerProcess, queue: str) -> None:
    """Everything asynchronous on one channel: declare, bind, confirm, consume, acknowledge, cancel, close."""
    bodies: list[bytes] = []
    acked: list[int] = []
    count = 500

    def scene(select: Select) -> None:
        def on_channel(channel: Any) -> None:
            def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
                bodies.append(body)
                channel.basic_ack(method.delivery_tag)
                if len(bodies) == count:
                    channel.basic_cancel(tag, lambda frame: channel.close())

            def on_confirm_select(frame: Any) -> None:
                for number in range(count):
                    channel.basic_publish(queue, "", str(number).encode(), Properties(headers={"n": number}))

            channel.add_on_close_callback(lambda *_: select.done())
            channel.exchange_declare(queue, "fanout", auto_delete=True)
            channel.queue_declare(queue, exclusive=True)
            channel.queue_bind(queue, queue)
            channel.basic_qos(prefetch_count=10)
            tag = channel.basic_consume(queue, on_message)
            channel.confirm_delivery(
                lambda frame: acked.append(frame.method.delivery_tag), callback=on_confirm_select
            )

        select.connection.channel(on_open_callback=on_channel)

    Select(broker, scene).assert_done()
    assert bodies == [str(number).encode() for number in range(count)]
    assert max(acked) == count


def test_all_channels_that_tune_allows_are_opened(broker: BrokerProcess) -> None:
    """2047 at once; each answers; the next one the client itself refuses."""
    opened: list[int] = []

    def scene(select: Select) -> None:
        def on_channel(channel: Any) -> None:
            opened.append(channel.channel_number)
            if len(opened) == 2047:
                with pytest.raises(pika.exceptions.NoFreeChannels):
                    select.connection.channel()
                channel.basic_qos(prefetch_count=1, callback=select.done)

        for _ in range(2047):
            select.connection.channel(on_open_callback=on_channel)

    Select(broker, scene).assert_done()
    assert sorted(opened) == [*range(1, 2048)]


def test_a_channel_error_comes_without_being_waited_for(broker: BrokerProcess, queue: str) -> None:
    """on_close of the channel gets code and text; another channel goes on."""
    reasons: list[BaseException] = []

    def scene(select: Select) -> None:
        def on_closed(channel: Any, reason: BaseException) -> None:
            reasons.append(reason)
            select.connection.channel(on_open_callback=select.done)

        def on_channel(channel: Any) -> None:
            channel.add_on_close_callback(on_closed)
            channel.basic_publish(queue, "", b"no such exchange")
            channel.queue_declare(queue, exclusive=True, callback=lambda _: pytest.fail("answered"))

        select.connection.channel(on_open_callback=on_channel)

    Select(broker, scene).assert_done()
    assert isinstance(reasons[0], pika.exceptions.ChannelClosedByBroker)
    assert reasons[0].reply_text == f"NOT_FOUND - no exchange '{queue}' in vhost '/'"


def test_a_close_that_crosses_a_channel_error(broker: BrokerProcess, queue: str) -> None:
    """Client and broker close the channel at once: both closes are answered, and the number is free."""
    closed: list[BaseException] = []

    def scene(select: Select) -> None:
        def on_closed(channel: Any, reason: BaseException) -> None:
            closed.append(reason)
            if len(closed) == 20:
                select.done()
            else:
                # Not inside the callback, where pika still clears what it knows of this number.
                select.connection.ioloop.call_later(0, begin)

        def on_channel(channel: Any) -> None:
            channel.add_on_close_callback(on_closed)
            # The broker is still busy with the declaration, and the error behind it, when the close comes.
            channel.queue_declare(queue, exclusive=True)
            channel.queue_declare(queue, passive=True, callback=lambda _: None)
            channel.basic_publish(queue + "-none", "", b"x")
            channel.close()

        def begin() -> None:
            select.connection.channel(1, on_open_callback=on_channel)

        begin()

    Select(broker, scene).assert_done()
    assert len(closed) == 20


def test_a_connection_that_the_broker_closes(broker: BrokerProcess) -> None:
    """on_close gets the error of the connection."""

    def scene(select: Select) -> None:
        select.connection.channel(on_open_callback=lambda channel: channel.basic_qos(prefetch_size=1))

    ended = Select(broker, scene).ended
    assert isinstance(ended, pika.exceptions.ConnectionClosedByBroker)
    assert ended.reply_code == 540


def test_many_messages_of_all_sizes_on_channels_in_turn(broker: BrokerProcess, queue: str) -> None:
    """Frames of several channels interleave; every body is whole."""
    sizes = [0, 1, 1000, 9000, 50_000]
    received: dict[int, list[int]] = {}
    total = 20 * len(sizes)

    def scene(select: Select) -> None:
        def on_channel(channel: Any) -> None:
            number = channel.channel_number
            received[number] = []

            def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
                assert body == bytes([number]) * len(body)
                received[number].append(len(body))
                if sum(map(len, received.values())) == total:
                    select.done()

            name = f"{queue}-{number}"
            channel.queue_declare(name, exclusive=True)
            channel.basic_consume(name, on_message, auto_ack=True)
            for size in sizes:
                channel.basic_publish("", name, bytes([number]) * size)

        for _ in range(20):
            select.connection.channel(on_open_callback=on_channel)

    Select(broker, scene, frame_max=8192).assert_done()
    assert all(each == sizes for each in received.values())


def test_the_asyncio_adapter(broker: BrokerProcess, queue: str) -> None:
    """The same client inside asyncio.run."""

    async def run() -> list[bytes]:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        ended: asyncio.Future[BaseException] = loop.create_future()
        done: asyncio.Future[None] = loop.create_future()
        bodies: list[bytes] = []
        connection = AsyncioConnection(
            parameters(broker),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
            on_close_callback=lambda _, error: ended.set_result(error),
            custom_ioloop=loop,
        )
        async with asyncio.timeout(WAIT_S):
            await opened

            def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
                bodies.append(body)
                channel.basic_ack(method.delivery_tag)
                if len(bodies) == 100:
                    done.set_result(None)

            def on_channel(channel: Any) -> None:
                channel.queue_declare(queue, exclusive=True)
                channel.basic_consume(queue, on_message)
                for number in range(100):
                    channel.basic_publish("", queue, str(number).encode())

            connection.channel(on_open_callback=on_channel)
            await done
            connection.close()
            assert isinstance(await ended, pika.exceptions.ConnectionClosedByClient)
        return bodies

    assert asyncio.run(run()) == [str(number).encode() for number in range(100)]
