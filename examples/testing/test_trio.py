"""A test of pytest-trio, with the client of this project."""

import pytest

from amqp10broker.client.options import ClientOptions
from amqp10broker.client.trio import connect


@pytest.mark.trio
async def test_a_message_is_sent(amqp_broker):
    amqp_broker.declare("q")
    options = ClientOptions(hostname=amqp_broker.hostname)
    where = amqp_broker.host, amqp_broker.port
    async with connect(*where, user="guest", password="guest", options=options) as client:
        sender = await client.sender("/queues/q")
        await sender.send(b"\x00Su\xa0\x02hi")
    assert amqp_broker.get("q").body == b"hi"
