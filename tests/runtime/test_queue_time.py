"""Time in a running broker: messages and queues expire by Trio's clock, nobody having to look."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from amqp10broker.config import Config
from amqp10broker.message.amqp10 import make_head
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.queues.commands import Publish
from amqp10broker.runtime.broker import Broker
from tests.support.askers import new_asker
from tests.support.declaring import declare as propose_declare

KINDS = ["classic", "quorum"]


def declare(broker: Broker, kind: str, name: str = "q", **arguments: Any) -> Any:
    vhost = broker.catalog.lookup_vhost("/")
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return propose_declare(broker.catalog, vhost, name, arguments={"x-queue-type": kind, **given})[0]


def publish(queue: Any, *bodies: str, ttl: int | None = None) -> None:
    head = make_head(Header(ttl=ttl), None, "", "q")
    messages = [(head, body.encode()) for body in bodies]
    queue.handle.post(Publish(new_asker().publisher(), range(len(bodies)), messages, True))


def ready(queue: Any) -> int:
    return int(queue.handle.figures().messages_ready)


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "tick_test")
@pytest.mark.parametrize("kind", KINDS)
async def test_messages_expire_when_their_time_has_come(kind: str) -> None:
    async with Broker(Config(port=0)) as broker:
        queue = declare(broker, kind, message_ttl=60_000)
        publish(queue, "short", ttl=5_000)
        publish(queue, "long")
        await trio.sleep(4.9)
        assert ready(queue) == 2
        await trio.sleep(0.2)
        assert ready(queue) == 1
        await trio.sleep(54.7)
        assert ready(queue) == 1
        await trio.sleep(0.3)
        assert ready(queue) == 0
