"""A message that goes to many queues: what one step of its session or channel does is bounded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from amqp10broker.protocols.amqp10.performatives import Flow
from amqp10broker.routing.exchange_types import Binding, Destination
from amqp10broker.runtime import mailbox
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.queues.queue_task import QueueTask
from tests.support.declaring import bind, declare
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import connect
from tests.support.trioclient091 import connect091, message

QUEUES, MOST = 50, 16


class Steps(trio.abc.Instrument):
    """How many letters each step of a task has posted to queues."""

    def __init__(self) -> None:
        self.posted: Counter[int] = Counter()
        self.number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps()
    post_all = QueueTask.post_all

    def counted(self: QueueTask, commands: Any) -> None:
        steps.posted[steps.number] += 1
        post_all(self, commands)

    monkeypatch.setattr(QueueTask, "post_all", counted)
    monkeypatch.setattr(mailbox, "SENT_A_STEP_MAX", MOST)
    return steps


def ready(broker: Broker) -> list[int]:
    vhost = broker.catalog.lookup_vhost("/")
    return [vhost.lookup(f"q{number}").handle.ready for number in range(QUEUES)]


def bind_queues(broker: Broker) -> None:
    for number in range(QUEUES):
        declare(broker.catalog, "/", f"q{number}")
        bind(broker.catalog, "/", Binding("amq.fanout", Destination("queue", f"q{number}")))


@pytest.mark.parametrize("protocol", ["1.0", "0-9-1"])
async def test_a_fanout_is_posted_in_bounded_steps(broker: Broker, steps: Steps, protocol: str) -> None:
    bind_queues(broker)
    trio.lowlevel.add_instrument(steps)
    if protocol == "0-9-1":
        client = await connect091(broker).open()
        await client.send(1, message(1, "", b"one", "amq.fanout"))
    else:
        other = await connect(broker).open()
        await other.call(Flow, attach_sender(0, "/exchanges/amq.fanout"))
        await other.send(transfer(0, 0, b"one"))
    await trio.sleep(1)
    assert ready(broker) == [1] * QUEUES
    trio.lowlevel.remove_instrument(steps)
    assert max(steps.posted.values()) == MOST
