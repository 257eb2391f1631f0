"""Limits of users: what is over them is refused, and what ends makes room."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.catalog import CHANNELS
from amqp10broker.metadata.plan import UserLimits
from amqp10broker.protocols.amqp091.content import FRAME_MIN_SIZE, HEADER
from amqp10broker.protocols.amqp091.methods import FRAME_METHOD, ConnectionClose
from amqp10broker.protocols.amqp10 import connection
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.protocols.amqp10.performatives import End
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import set_user_limits
from tests.support.rawframes import begin, frame, login
from tests.support.trioclient import connect, settle_down
from tests.support.trioclient091 import connect091


async def test_a_session_over_the_users_limit_is_ended_and_one_that_ends_makes_room(broker: Broker) -> None:
    """Sessions count as channels: the second one is ended with resource-limit-exceeded."""
    client = await connect(broker).open(channels=1)
    set_user_limits(broker.catalog, "guest", UserLimits(max_channels=1))
    end = await client.call(End, begin(1))
    assert end.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    assert "user limit of (1)" in end.error.description
    await settle_down()
    assert broker.catalog.usage.counts[CHANNELS]["guest"] == 1
    await client.submit(frame(0, End()))
    assert broker.catalog.usage.counts[CHANNELS]["guest"] == 0


@pytest.mark.parametrize("size", [FRAME_MIN_SIZE + 1, 131_072, 2**32 - 1])
async def test_before_login_a_large_frame_of_amqp091_is_refused_by_its_header(
    broker: Broker, size: int
) -> None:
    """The 501 comes at once: no frame body is awaited or kept. Tokens of up to 8 KiB fit."""
    client = connect091(broker)
    await client.begin()
    await client.send_bytes(HEADER.pack(FRAME_METHOD, 0, size))
    assert (await client.until(ConnectionClose)).reply_code == 501


@pytest.mark.parametrize("header", [b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"])
@pytest.mark.parametrize("size", [connection.PRE_OPEN_FRAME_SIZE_MAX + 1, 131_072, 2**32 - 1])
async def test_before_open_a_large_frame_of_amqp10_is_refused_by_its_header(
    broker: Broker, header: bytes, size: int
) -> None:
    """In the SASL layer and after it, the connection ends without waiting for the frame."""
    client = connect(broker)
    sasl = header[4] == 3
    await client.submit(header if sasl else login() + header)
    await client.send(
        connection.FRAME_HEADER.pack(size, 2, connection.TYPE_SASL if sasl else connection.TYPE_AMQP, 0)
    )
    await client.rest()
    await settle_down()
    assert client.task is None
