"""Limits of users: what is over them is refused, and what ends makes room."""

from __future__ import annotations

from trio.testing import MockClock

from amqp10broker.amqp10.errors import Condition
from amqp10broker.amqp10.performatives import End
from amqp10broker.catalog.limits import UserLimits
from tests.support.rawframes import begin, frame
from tests.support.trioclient import connect, running_broker, settle_down


async def test_a_session_over_the_users_limit_is_ended_and_one_that_ends_makes_room(
    autojump_clock: MockClock,
) -> None:
    """Sessions count as channels: the second of one is ended with resource-limit-exceeded."""
    async with running_broker() as broker:
        client = await connect(broker).open(channels=1)
        broker.catalog.users.set_limits("guest", UserLimits(max_channels=1))
        await client.send(begin(1))
        end = await client.until(End)
        assert end.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert "user limit of (1)" in end.error.description
        await settle_down()
        assert broker.catalog.usage.channels_of_user("guest") == 1
        await client.send(frame(0, End()))
        await settle_down()
        assert broker.catalog.usage.channels_of_user("guest") == 0
