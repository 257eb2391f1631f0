"""pika's asynchronous adapters: the select loop and asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.select_connection import SelectConnection

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Properties, parameters

pytestmark = pytest.mark.usefixtures("deadline")


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
        if self.connection.is_open:
            self.connection.close()

    def assert_done(self) -> None:
        """Check that the client closed the connection, and that nothing else ended it."""
        assert isinstance(self.ended, pika.exceptions.ConnectionClosedByClient), self.ended


def test_the_select_loop_publishes_and_consumes(broker: BrokerProcess, queue: str) -> None:
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
    """All 2047 are open at once and each answers; the client itself refuses the next."""
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
