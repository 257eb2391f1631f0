"""The state of channels by their methods: consumers, deliveries, confirms."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.observe.frames.link_state import (
    ChannelEnded,
    ChannelEvent,
    ChannelOpened,
    ConsumerAsked,
    ConsumerEnded,
    MessageDelivered,
    MessagesConfirmed,
    ObservedChannel,
    ObservedChannels,
    ObservedConsumer,
    SettlementObserved,
)
from amqp10broker.protocols.amqp091 import methods


class Methods:
    """One connection with an open channel; `last` has the events of the last method."""

    def __init__(self) -> None:
        self.state = ObservedChannels()
        self.last: list[ChannelEvent] = []
        self.came(methods.ChannelOpen())
        self.went(methods.ChannelOpenOk())

    def came(self, method: Any) -> None:
        self.last = self.state.apply("in", 1, method)

    def went(self, method: Any) -> None:
        self.last = self.state.apply("out", 1, method)

    @property
    def channel(self) -> ObservedChannel:
        return self.state.by_number[1]

    def consumer(self, tag: str = "c", **given: Any) -> ObservedConsumer:
        """A consumer of a queue, with the broker's answer."""
        self.came(methods.BasicConsume(queue="q", consumer_tag=tag, **given))
        (asked,) = self.last
        assert isinstance(asked, ConsumerAsked)
        self.went(methods.BasicConsumeOk(tag or "made"))
        return asked.consumer

    def deliver(self, *tags: int, consumer: str = "c") -> None:
        for tag in tags:
            self.went(methods.BasicDeliver(consumer_tag=consumer, delivery_tag=tag, routing_key="q"))


def test_a_channel_is_there_until_both_sides_have_closed_it() -> None:
    """What crosses the first close has no effect."""
    channels = ObservedChannels()
    (opened,) = channels.apply("in", 1, methods.ChannelOpen())
    assert opened == ChannelOpened(channels.by_number[1])
    channel = channels.by_number[1]
    assert channels.apply("out", 1, methods.ChannelClose(404, "no queue")) == [ChannelEnded(channel, False)]
    channels.apply("in", 1, methods.BasicPublish(routing_key="q"))
    assert channel.published == 0
    assert channels.apply("in", 1, methods.ChannelCloseOk()) == [ChannelEnded(channel, True)]
    assert channels.by_number == {}


def test_methods_of_the_connection_are_of_no_channel() -> None:
    """Channel 0 has no consumers, deliveries or confirms."""
    channels = ObservedChannels()
    assert channels.apply("out", 0, methods.ConnectionClose(320, "bye")) == []
    assert channels.by_number == {}


def test_a_channel_without_open_was_there_before() -> None:
    """What it had done is not known."""
    channels = ObservedChannels()
    channels.apply("in", 3, methods.BasicPublish(routing_key="q"))
    assert not channels.by_number[3].recorded


@pytest.mark.parametrize("tag", ["c", ""])
def test_a_consumer_has_the_tag_that_the_broker_confirms(tag: str) -> None:
    """Its own, or one that the broker has chosen."""
    frames = Methods()
    consumer = frames.consumer(tag)
    assert frames.channel.consumers == {tag or "made": consumer}
    assert consumer.tag == (tag or "made")


def test_a_consumer_that_wants_no_answer_consumes_at_once() -> None:
    frames = Methods()
    frames.came(methods.BasicConsume(queue="q", consumer_tag="c", no_wait=True))
    consumer = frames.channel.consumers["c"]
    frames.came(methods.BasicCancel("c", no_wait=True))
    assert frames.last == [ConsumerEnded(frames.channel, consumer, by_broker=False)]


def test_a_cancelled_consumer_ends_with_the_answer() -> None:
    """Deliveries that cross its cancel are its own."""
    frames = Methods()
    consumer = frames.consumer()
    frames.came(methods.BasicCancel("c"))
    frames.deliver(1)
    assert frames.last == [MessageDelivered(frames.channel, consumer, 1, no_ack=False)]
    frames.went(methods.BasicCancelOk("c"))
    assert frames.last == [ConsumerEnded(frames.channel, consumer, by_broker=False)]


def test_the_broker_may_cancel_a_consumer() -> None:
    frames = Methods()
    consumer = frames.consumer()
    frames.went(methods.BasicCancel("c"))
    assert frames.last == [ConsumerEnded(frames.channel, consumer, by_broker=True)]


def test_settlements_name_deliveries_of_several_consumers() -> None:
    """With `multiple` up to a tag, and all of them with tag 0."""
    frames = Methods()
    first, second = frames.consumer("a"), frames.consumer("b")
    frames.deliver(1, 3, consumer="a")
    frames.deliver(2, 4, consumer="b")
    frames.came(methods.BasicAck(3, multiple=True))
    assert frames.last == [
        SettlementObserved(frames.channel, first, [1, 3], gives_back=False),
        SettlementObserved(frames.channel, second, [2], gives_back=False),
    ]
    assert frames.channel.unsettled == {4: second}
    frames.came(methods.BasicNack(0, multiple=True))
    assert frames.last == [SettlementObserved(frames.channel, second, [4], gives_back=True)]


def test_a_settlement_of_what_is_not_held_names_nothing() -> None:
    """The broker closes the channel for it."""
    frames = Methods()
    frames.came(methods.BasicReject(9))
    assert frames.last == []


def test_recovery_gives_everything_back() -> None:
    """The broker delivers it again, with other tags."""
    frames = Methods()
    consumer = frames.consumer()
    frames.deliver(1, 2)
    frames.came(methods.BasicRecover(requeue=True))
    assert frames.last == [SettlementObserved(frames.channel, consumer, [1, 2], gives_back=True)]
    assert frames.channel.unsettled == {}


def test_what_needs_no_acknowledgement_is_settled() -> None:
    """A consumer's deliveries, and each basic.get by its own flag."""
    frames = Methods()
    consumer = frames.consumer(no_ack=True)
    frames.deliver(1)
    assert frames.last == [MessageDelivered(frames.channel, consumer, 1, no_ack=True)]
    for no_ack in (True, True, False):
        frames.came(methods.BasicGet(queue="q", no_ack=no_ack))
    frames.went(methods.BasicGetEmpty())
    frames.went(methods.BasicGetOk(delivery_tag=2, routing_key="q", message_count=0))
    frames.went(methods.BasicGetOk(delivery_tag=3, routing_key="q", message_count=0))
    assert frames.last == [MessageDelivered(frames.channel, frames.channel.getter, 3, no_ack=False)]
    assert frames.channel.unsettled == {3: frames.channel.getter}


def test_confirms_have_the_numbers_of_publishes_since_confirm_select() -> None:
    """In order, whatever the broker confirms together."""
    frames = Methods()
    frames.came(methods.BasicPublish(routing_key="q"))
    frames.came(methods.ConfirmSelect())
    frames.came(methods.ConfirmSelect())
    for _ in range(4):
        frames.came(methods.BasicPublish(routing_key="q"))
    frames.went(methods.BasicNack(3))
    assert frames.last == [MessagesConfirmed(frames.channel, [3], refused=True)]
    frames.went(methods.BasicAck(4, multiple=True))
    assert frames.last == [MessagesConfirmed(frames.channel, [1, 2, 4], refused=False)]
    assert frames.channel.unconfirmed == {}


def test_without_confirms_nothing_is_unconfirmed() -> None:
    frames = Methods()
    frames.came(methods.BasicPublish(routing_key="q"))
    assert (frames.channel.published, frames.channel.unconfirmed) == (1, {})


def test_the_broker_may_ask_for_no_more_publishes() -> None:
    frames = Methods()
    frames.went(methods.ChannelFlow(active=False))
    assert frames.channel.stopped
    frames.went(methods.ChannelFlow(active=True))
    assert not frames.channel.stopped
