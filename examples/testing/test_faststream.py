"""FastStream: an application with a subscriber, in a test of anyio's plugin."""

import anyio
import pytest
from faststream.rabbit import RabbitBroker


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_a_subscriber_hears_of_an_order(amqp_broker):
    broker = RabbitBroker(amqp_broker.url, logger=None)
    heard = anyio.Event()

    @broker.subscriber("orders")
    async def handle(order: str) -> None:
        assert order == "tea"
        heard.set()

    async with broker:
        await broker.start()
        await broker.publish("tea", "orders")
        with anyio.fail_after(10):
            await heard.wait()
    amqp_broker.assert_drained("orders")
