"""AMQP 0-9-1, acknowledging: ack, nack, reject, recover; what comes back, where and how marked."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    ChannelClose,
    Method,
    QueueDeclare,
)
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, kinds, redelivered, tags


@pytest.fixture
def channel() -> ChannelEnds:
    """Return a channel that holds deliveries 1 to 5 of queue q; 6 and 7 are ready."""
    world = Harness()
    channel, other = world.channel(), world.channel()
    channel.call(QueueDeclare("q", durable=True))
    channel.say(BasicQos(prefetch_count=5))
    other.publish("q", *[b"%d" % number for number in range(1, 8)])
    assert bodies(channel.consume("q")) == [b"%d" % number for number in range(1, 6)]
    return channel


def held(channel: ChannelEnds) -> int:
    return channel.service.consuming.unacked


@pytest.mark.parametrize(
    "method",
    [
        BasicAck(6),
        BasicAck(6, True),
        BasicAck(0),
        BasicNack(6),
        BasicNack(6, True, True),
        BasicNack(0),
        BasicReject(6),
        BasicReject(0),
    ],
    ids=str,
)
def test_unknown_tag_is_refused(channel: ChannelEnds, method: Method) -> None:
    """A tag of 0 without multiple is unknown too."""
    tag = method.delivery_tag  # type: ignore[attr-defined]
    assert channel.refused(method) == (406, f"unknown delivery tag {tag}")


@pytest.mark.parametrize("first", [BasicAck(2), BasicNack(2), BasicReject(2, True)], ids=str)
@pytest.mark.parametrize("second", [BasicAck(2), BasicNack(2), BasicReject(2), BasicAck(2, True)], ids=str)
def test_double_ack_is_refused(channel: ChannelEnds, first: Method, second: Method) -> None:
    assert channel.refused(first, second) == (406, "unknown delivery tag 2")
    assert channel.world.counts("q")[1] == 0


def test_acks_before_an_unknown_tag_count(channel: ChannelEnds) -> None:
    channel.refused(BasicAck(1), BasicAck(2), BasicAck(9))
    assert bodies(channel.consume("q"))[0] == b"3"


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_and_ack", "subscribe_and_ack")
@pytest.mark.parametrize(
    ("method", "left"),
    [(BasicAck(3), 4), (BasicAck(3, True), 2), (BasicAck(0, True), 0), (BasicAck(5, True), 0)],
    ids=str,
)
def test_ack_removes(channel: ChannelEnds, method: Method, left: int) -> None:
    channel.say(BasicCancel("c"), method)
    assert held(channel) == left
    assert channel.world.counts("q") == (2, left)


def test_all_of_none_is_ok(channel: ChannelEnds) -> None:
    channel.say(BasicCancel("c"), BasicAck(0, True))
    assert channel.say(BasicAck(0, True), BasicNack(0, True, True)) == []


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_and_multiple_ack", "subscribe_and_multiple_ack")
def test_multiple_covers_all_queues_and_consumers_of_the_channel(channel: ChannelEnds) -> None:
    """This includes deliveries of basic.get."""
    channel.call(QueueDeclare("r", durable=True))
    channel.consume("r", "d")
    channel.publish("r", b"a", b"b")
    assert kinds(channel.say(BasicGet("q"))) == ["BasicGetOk"]
    assert held(channel) == 8
    channel.say(BasicCancel("c"), BasicAck(7, True))
    assert held(channel) == 1
    assert channel.world.counts("r") == (0, 0)
    assert channel.world.counts("q") == (1, 1)


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_and_requeue_nack", "subscribe_and_requeue_nack")
@pytest.mark.parametrize("method", [BasicNack(3, False, True), BasicReject(3, True)], ids=str)
def test_requeue_puts_it_back_to_its_place(channel: ChannelEnds, method: Method) -> None:
    got = channel.say(method)
    assert (bodies(got), tags(got), redelivered(got)) == ([b"3"], [6], [True])


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_and_nack", "subscribe_and_nack")
@pytest.mark.parametrize("method", [BasicNack(3, False, False), BasicReject(3, False)], ids=str)
def test_no_requeue_drops(channel: ChannelEnds, method: Method) -> None:
    """Without a dead-letter exchange the message is dropped, and the next is delivered."""
    got = channel.say(method)
    assert (bodies(got), redelivered(got)) == ([b"6"], [False])


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_one_channel_classic_queue")
@pytest.mark.rabbitmq("queue_parallel_SUITE", "subscribe_and_requeue_multiple_nack")
@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_and_requeue_multiple_nack")
def test_nack_multiple_redelivers_in_order(channel: ChannelEnds) -> None:
    """The first three of four are redelivered in order, before the others."""
    got = channel.say(BasicNack(3, True, True))
    assert bodies(got) == [b"1", b"2", b"3"]
    assert redelivered(got) == [True] * 3
    assert tags(got) == [6, 7, 8]


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_and_multiple_nack", "subscribe_and_multiple_nack")
def test_nack_of_all(channel: ChannelEnds) -> None:
    got = channel.say(BasicNack(0, True, True))
    assert bodies(got) == [b"1", b"2", b"3", b"4", b"5"]


def test_requeue_in_any_order_keeps_the_queue_s_order(channel: ChannelEnds) -> None:
    """Messages are always held in publication order (seed 000)."""
    other = channel.world.channel()
    channel.say(BasicCancel("c"))
    for tag in (4, 1, 5, 3, 2):
        channel.say(BasicReject(tag, True))
    got = other.consume("q")
    assert bodies(got) == [b"%d" % number for number in range(1, 8)]
    assert redelivered(got) == [True] * 5 + [False] * 2


def test_requeue_to_another_channel(channel: ChannelEnds) -> None:
    """Two channels take turns; the close of one gives its messages to the other, in order."""
    other = channel.world.channel()
    channel.say(BasicNack(2, True, True), BasicCancel("c"))
    channel.call(ChannelClose(200))
    got = other.consume("q")
    assert bodies(got) == [b"%d" % number for number in range(1, 8)]
    assert redelivered(got) == [True] * 5 + [False] * 2


@pytest.mark.rabbitmq("queue_parallel_SUITE", "basic_recover")
@pytest.mark.parametrize("method", [BasicRecover(True), BasicRecoverAsync(True)], ids=lambda m: m.NAME)
def test_recover_requeues_everything(channel: ChannelEnds, method: Method) -> None:
    """All unacked messages are redelivered in order; only basic.recover gets recover-ok."""
    got = channel.say(method)
    answers = [each for each in got if isinstance(each, BasicRecoverOk)]
    assert len(answers) == int(isinstance(method, BasicRecover))
    assert bodies(got) == [b"1", b"2", b"3", b"4", b"5"]
    assert redelivered(got) == [True] * 5
    assert channel.refused(BasicAck(1)) == (406, "unknown delivery tag 1")


@pytest.mark.parametrize("method", [BasicRecover(False), BasicRecoverAsync(False)], ids=lambda m: m.NAME)
def test_recover_without_requeue_is_not_implemented(channel: ChannelEnds, method: Method) -> None:
    assert channel.fatal(method) == (540, "requeue=false")


def test_recover_of_nothing(channel: ChannelEnds) -> None:
    channel.say(BasicCancel("c"), BasicAck(0, True))
    assert channel.call(BasicRecover(True)) == BasicRecoverOk()


@pytest.mark.parametrize("lost", [False, True])
def test_the_end_of_a_channel_requeues_everything(channel: ChannelEnds, lost: bool) -> None:
    world = channel.world
    if lost:
        channel.connection.close()
        world.rest()
    else:
        channel.call(ChannelClose(200))
    got = world.channel().consume("q")
    assert bodies(got) == [b"%d" % number for number in range(1, 8)]
    assert redelivered(got) == [True] * 5 + [False] * 2


def test_tags_of_another_channel_are_unknown(channel: ChannelEnds) -> None:
    second = channel.connection.channel(2)
    assert second.refused(BasicAck(1)) == (406, "unknown delivery tag 1")
    assert held(channel) == 5


def test_many_acks_of_one_write(channel: ChannelEnds) -> None:
    channel.say(BasicCancel("c"), BasicAck(2), BasicAck(1), BasicAck(4, True), BasicAck(5))
    assert held(channel) == 0
    assert channel.world.counts("q") == (2, 0)


def test_redelivered_stays_with_the_message(channel: ChannelEnds) -> None:
    """The flag is set for the next consumer of the requeued message, and for basic.get."""
    other = channel.world.channel()
    channel.say(BasicCancel("c"), BasicReject(1, True))
    (got,) = other.say(BasicGet("q"))
    assert got.method.redelivered  # type: ignore[union-attr]
    assert len(contents(other.say(BasicNack(1, False, True)))) == 0
    assert redelivered(other.consume("q"))[0]
