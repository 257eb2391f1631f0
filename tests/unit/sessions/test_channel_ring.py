"""The ring of a channel of AMQP 0-9-1: what it costs, what it forgets, what it says of a frame, its end."""

from __future__ import annotations

from itertools import count

import pytest

from amqp10broker.observe.frames.records import describe_method
from amqp10broker.observe.timeline import channel_ring
from amqp10broker.observe.timeline.channel_ring import NAMES, ChannelRing, timeline
from amqp10broker.protocols.amqp091 import methods
from tests.support.channel_world import World, WorldChannel
from tests.support.steps import steps_of

BATCH = 170
"""Messages of one read at full load, which take some 180 instructions each from read to write and back."""


def consuming() -> WorldChannel:
    """A channel in confirm mode that consumes what it publishes."""
    channel = World().channel()
    channel.call(methods.QueueDeclare("q"))
    channel.call(methods.ConfirmSelect())
    channel.consume("q")
    return channel


def watched(channel: WorldChannel, link: str | None = "c") -> ChannelRing:
    """A ring that listens to a channel, or to a consumer of it."""
    service = channel.service
    consumer = None if link is None else service.consuming.consumers[link]

    def mark() -> channel_ring.ChannelMark:
        if consumer is None:
            return (channel.credit.credit, 0, False, 0, 0, False)
        credit = consumer.credit
        return (channel.credit.credit, 0, False, credit.granted, credit.waiting, credit.closed)

    ring = ChannelRing(service, consumer, mark, count().__next__, describe_method)
    service.listen((ring,))
    return ring


def round_of(channel: WorldChannel, messages: int, ring: ChannelRing | None) -> None:
    """So many messages are published, delivered and acknowledged as a range, in turns as of a task."""
    world = channel.world

    def turns() -> None:
        while channel.connection.pass_on():
            pass
        while channel.letters or channel.inbox:
            channel.take_letters(1000)
            channel.wake()
            if ring is not None:
                ring.turn_over()
        for box in world.boxes:
            box.run(1000)

    channel.send(*[channel.content("q", b"x" * 12) for _ in range(messages)])
    for _ in range(4):
        turns()
    last = max(got.method.delivery_tag for got in channel.take() if hasattr(got, "body"))
    channel.send(methods.BasicAck(last, True))
    for _ in range(3):
        turns()


@pytest.mark.parametrize("link", [None, "c"])
@pytest.mark.parametrize(("messages", "most"), [(BATCH, BATCH * 180 // 50), (1, 450)])
def test_a_channel_that_is_watched_takes_two_per_cent_more_at_most(
    link: str | None, messages: int, most: int
) -> None:
    """Of what a message takes in all at full load; a lone message takes 8 000 instructions."""
    taken = []
    for watch in (False, True):
        channel = consuming()
        ring = watched(channel, link) if watch else None
        round_of(channel, messages, ring)
        taken.append(steps_of(lambda: round_of(channel, messages, ring)))  # noqa: B023
    assert ring is not None
    assert ring.next >= 8, "nothing was recorded"
    assert 0 < taken[1] - taken[0] <= most


def test_the_oldest_goes_when_the_ring_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for what is gone hears how much that was, and the rest is as exact as before."""
    monkeypatch.setattr(channel_ring, "RECORDS_MAX", 16)
    monkeypatch.setattr(channel_ring, "LOOK_AFTER", 4)
    channel = consuming()
    ring = watched(channel)
    for limit in range(1, 40):
        channel.call(methods.BasicQos(0, limit, True))
        ring.turn_over()
    found = timeline(ring, 0, 1000)
    assert found["lost"] == found["since"] > 0
    assert 16 <= len(found["steps"]) <= 16 + 4 + 2
    limits = [step["values"]["global_prefetch"] for step in found["steps"] if step["values"]]
    assert limits == list(range(limits[0], 40))
    assert found["start"]["global_prefetch"] in (limits[0] - 1, limits[0])
    part = timeline(ring, found["since"] + 3, 2)
    assert part["steps"] == found["steps"][3:5]
    assert timeline(ring, found["next"], 10)["steps"] == []


@pytest.mark.parametrize("refused", [False, True])
def test_a_content_that_is_read_in_parts_is_one_step(refused: bool) -> None:
    """When its first part came, the channel only asked whether it is wanted."""
    channel = consuming()
    ring = watched(channel)
    content = channel.content("q", b"x" * 100, exchange="missing" if refused else "")
    channel.connection.send(content[:-50])
    channel.world.rest()
    ring.turn_over()
    channel.connection.send(content[-50:])
    channel.world.rest()
    frames = [step["frame"].split()[0] for step in timeline(ring, 0, 100)["steps"] if step["direction"]]
    if refused:
        assert frames == ["basic.publish", "channel.close"]
    else:
        assert sorted(frames) == ["basic.ack", "basic.deliver", "basic.publish"]


def test_a_channel_that_is_opened_again_in_the_same_turn_is_another() -> None:
    """Its timeline ends, and nothing of the new one stands in it as if it were of the old."""
    channel = consuming()
    ring = watched(channel)
    channel.send(methods.ChannelClose(200, "", 0, 0), methods.ChannelOpen())
    while channel.connection.pass_on():
        pass
    channel.take_letters(1000)
    channel.wake()
    ring.turn_over()
    assert ring.ended == "the channel is closed"
    assert dict(zip(NAMES, ring.before(ring.next), strict=True))["unconfirmed"] == 0


def test_a_consumer_that_goes_without_a_word_ends_its_timeline() -> None:
    """Its client did not ask to be told that queues go."""
    world = World()
    channel = world.channel(capabilities=())
    channel.call(methods.QueueDeclare("q"))
    channel.consume("q")
    ring = watched(channel)
    other = world.channel()
    other.call(methods.QueueDelete("q"))
    world.rest()
    ring.turn_over()
    assert ring.ended == "the consumer is cancelled"
    assert [record["direction"] for record in timeline(ring, 0, 10)["steps"]] == [None]
