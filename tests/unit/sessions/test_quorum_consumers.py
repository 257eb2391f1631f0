"""Consumers of AMQP 0-9-1 on a real quorum queue: attempts that count, time-outs, ends of channels."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicReject,
    ChannelClose,
    Method,
)
from tests.support.channel_world import Got, QueueBox, World, WorldChannel, contents, properties_of, tags
from tests.support.clocked_queue import ClockedQueue
from tests.support.declaring import declare


class QuorumWorld(World):
    """Its queues are quorum queues."""

    def start_queue(self, queue: QueueSpec) -> QueueBox:
        box = super().start_queue(queue)
        box.queue = ClockedQueue(queue)  # type: ignore[assignment]
        return box

    def wait(self, queue: str, ms: int) -> None:
        """Time passes for a queue, and what comes of it arrives."""
        box = self.box(queue)
        clocked: Any = box.queue
        clocked.wait(ms)
        box.run(0)
        self.rest()


@pytest.fixture
def channel() -> WorldChannel:
    """A channel in a virtual host with a quorum queue `q`."""
    world = QuorumWorld()
    declare(world.catalog, world.vhost, "q", arguments={"x-queue-type": "quorum", "x-consumer-timeout": 500})
    return world.channel()


def counts(got: list[Got]) -> tuple[Any, Any]:
    """x-acquired-count and x-delivery-count of the one message that came."""
    (content,) = contents(got)
    headers = properties_of(content).headers or {}
    return headers.get("x-acquired-count"), headers.get("x-delivery-count")


@pytest.mark.rabbitmq("amqp_client_SUITE", "delivery_count_amqpl_reject_nack_quorum_queue")
@pytest.mark.parametrize(
    ("method", "attempts"), [(BasicNack(1, False, True), 0), (BasicReject(1, True), 1)], ids=str
)
def test_reject_counts_as_a_failed_attempt_and_nack_does_not(
    channel: WorldChannel, method: Method, attempts: int
) -> None:
    channel.publish("q", b"m")
    channel.consume("q")
    assert counts(channel.say(method)) == (1, attempts)


def test_the_end_of_a_channel_is_a_failed_attempt(channel: WorldChannel) -> None:
    """Whoever gets the message next sees so."""
    channel.publish("q", b"m")
    channel.consume("q")
    other = channel.world.channel()
    assert other.consume("q", "d") == []
    channel.call(ChannelClose(200, "", 0, 0))
    assert counts(other.take()) == (1, 1)


@pytest.mark.rabbitmq("consumer_timeout_SUITE", "consumer_timeout_with_basic_cancel_capability")
def test_a_consumer_that_holds_a_message_too_long_is_cancelled(channel: WorldChannel) -> None:
    """Another gets the message; it is no failed attempt."""
    channel.publish("q", b"m")
    assert tags(channel.consume("q")) == [1]
    world = channel.world
    assert isinstance(world, QuorumWorld)
    world.wait("q", 600)
    assert channel.take() == [BasicCancel("c", True)]
    consumed, delivered = channel.say(BasicConsume("q", "d"))
    assert consumed == BasicConsumeOk("d")
    assert counts([delivered]) == (1, 0)
    assert channel.say(BasicAck(1)) == [], "the late acknowledgement means nothing"
    assert world.counts("q") == (0, 1)
    channel.say(BasicAck(2))
    assert world.counts("q") == (0, 0)


@pytest.mark.rabbitmq("consumer_timeout_SUITE", "consumer_timeout_no_basic_cancel_capability")
@pytest.mark.parametrize("fetched", [False, True])
def test_otherwise_the_channel_ends(fetched: bool) -> None:
    """consumer_timeout_no_basic_cancel_capability, consumer_timeout_basic_get: 406, the message is ready."""
    world = QuorumWorld()
    declare(world.catalog, world.vhost, "q", arguments={"x-queue-type": "quorum", "x-consumer-timeout": 500})
    channel = world.channel(capabilities=() if not fetched else ("consumer_cancel_notify",))
    channel.publish("q", b"m")
    if fetched:
        channel.say(BasicGet("q"))
    else:
        channel.consume("q")
    world.wait("q", 600)
    (closed,) = channel.take()
    assert isinstance(closed, ChannelClose)
    assert closed.reply_code == 406
    assert "timed out. Timeout value used: 500 ms" in closed.reply_text
    assert world.counts("q") == (1, 0)
