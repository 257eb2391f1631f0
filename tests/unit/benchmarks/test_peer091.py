"""The AMQP 0-9-1 generator keeps the protocol's rules, and ends the run when the broker does not."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, frame

from amqp10broker.protocols.amqp091.methods import (
    BasicCancel,
    BasicDeliver,
    BasicReturn,
    ChannelClose,
    ChannelFlow,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
)
from benchmarks import spec
from benchmarks.channel091 import PeerChannel
from benchmarks.errors import PeerError
from benchmarks.peer091 import Peer091
from benchmarks.scan091 import Contents
from benchmarks.stream import Stream

ENDPOINT = spec.Endpoint("127.0.0.1", 1)
FRAME_MAX = 131072


def channel_of(
    *, publish: tuple[spec.Publish, ...] = (), consume: tuple[spec.Consume, ...] = (), streams: int = 1
) -> PeerChannel:
    """Return the channel of a connection that is open."""
    peer = Peer091(ENDPOINT, (spec.Channel(publish, consume),), [Stream() for _ in range(streams)])
    for publisher in peer.channels[0].publishers:
        publisher.prepare(FRAME_MAX)
    return peer.channels[0]


def written(channel: PeerChannel) -> list[Any]:
    """Take what was written and read it with pamqp."""
    rest = bytes(channel.peer.out)
    channel.peer.out.clear()
    found = []
    while rest:
        consumed, number, one = frame.unmarshal(rest)
        assert number == channel.number
        found.append(one)
        rest = rest[consumed:]
    return found


def produce_all(channel: PeerChannel) -> int:
    """Publish until nothing more may be published; return the number of messages."""
    total = 0
    while count := channel.produce(0):
        total += count
        channel.peer.out.clear()
    return total


def deliver(channel: PeerChannel, first: int, count: int, *, consumer: str = "b0.0") -> None:
    """Let the broker send deliveries."""
    method = BasicDeliver(consumer, first, routing_key="q")
    channel.peer.on_contents(Contents(channel.number, method, first, count, 1, -1, 0))


def test_a_channel_is_opened_with_its_queues_looked_for() -> None:
    """A queue that is missing must end the run, not swallow it; each is looked for once."""
    what = spec.Publish(("a", "b"))
    channel = channel_of(publish=(what,), consume=(spec.Consume(("b",)),))
    frames, answers = channel.opening()
    channel.peer.out += frames
    opened, first, second, confirms = written(channel)
    assert isinstance(opened, commands.Channel.Open)
    assert [(one.queue, one.passive) for one in (first, second)] == [("a", True), ("b", True)]
    assert isinstance(confirms, commands.Confirm.Select)
    assert answers == 4


def test_a_channel_without_confirms_does_not_select_them() -> None:
    """Confirms cost something."""
    channel = channel_of(publish=(spec.Publish(("q",), settled=True),))
    channel.peer.out += channel.opening()[0]
    assert not any(isinstance(one, commands.Confirm.Select) for one in written(channel))


def test_confirms_are_a_matter_of_the_whole_channel() -> None:
    """Two groups cannot disagree."""
    with pytest.raises(ValueError, match="whole channel"):
        spec.Channel((spec.Publish(("a",)), spec.Publish(("b",), settled=True)))


def test_two_loops_without_confirms_publish_message_by_message_in_turns() -> None:
    """The article's two endless loops on one channel, none getting more than its share."""
    loops = tuple(
        spec.Publish((queue,), stream=stream, settled=True, burst=1) for stream, queue in enumerate("ab")
    )
    channel = channel_of(publish=loops, streams=2)
    channel.produce(0)
    keys = [one.routing_key for one in written(channel) if isinstance(one, commands.Basic.Publish)]
    assert keys[:6] == ["a", "b"] * 3
    first, second = channel.peer.streams
    assert 0 <= first.published - second.published <= 1


def test_publishing_stops_when_enough_waits_for_the_socket_and_goes_on_with_the_next_loop() -> None:
    """The socket's push-back is the only limit; it must not favour the first loop."""
    loops = tuple(
        spec.Publish((queue,), stream=stream, settled=True, burst=100) for stream, queue in enumerate("ab")
    )
    channel = channel_of(publish=loops, streams=2)
    for _ in range(50):
        channel.produce(0)
        assert len(channel.peer.out) < channel.peer.out_bytes_max + 100 * 200
        assert channel.produce(0) == 0
        channel.peer.out.clear()
    first, second = channel.peer.streams
    assert abs(first.published - second.published) <= 100


def test_a_batch_waits_for_all_its_confirms() -> None:
    """The next batch begins when the last confirm of this one has come."""
    channel = channel_of(publish=(spec.Publish(("q",), batch=5),))
    assert produce_all(channel) == 5
    channel.peer.on_acks(1, 4, 4, multiple=True, accepted=True)
    assert produce_all(channel) == 0
    channel.peer.on_acks(1, 5, 5, multiple=False, accepted=True)
    assert produce_all(channel) == 5


def test_confirms_are_counted_for_the_group_whose_they_are() -> None:
    """Numbers count the channel's publishes from 1."""
    loops = tuple(spec.Publish((queue,), stream=stream, count_max=3) for stream, queue in enumerate("ab"))
    channel = channel_of(publish=loops, streams=2)
    assert produce_all(channel) == 6
    channel.peer.on_acks(1, 2, 4, multiple=False, accepted=True)
    assert [stream.confirmed for stream in channel.peer.streams] == [2, 1]
    channel.peer.on_acks(1, 0, 0, multiple=True, accepted=True)
    assert [stream.confirmed for stream in channel.peer.streams] == [3, 3]


def test_a_nack_counts_as_refused() -> None:
    """The broker did not take the message."""
    channel = channel_of(publish=(spec.Publish(("q",), count_max=2),))
    produce_all(channel)
    channel.peer.on_acks(1, 2, 2, multiple=True, accepted=False)
    assert (channel.peer.streams[0].confirmed, channel.peer.streams[0].refused) == (2, 2)


@pytest.mark.parametrize(("number", "why"), [(3, "only 2 were published"), (1, "a second time")])
def test_a_confirm_of_what_does_not_wait_ends_the_run(number: int, why: str) -> None:
    """Never published, or confirmed before."""
    channel = channel_of(publish=(spec.Publish(("q",), count_max=2),))
    produce_all(channel)
    channel.peer.on_acks(1, 1, 1, multiple=False, accepted=True)
    with pytest.raises(PeerError, match=why):
        channel.peer.on_acks(1, number, number, multiple=False, accepted=True)


def test_single_confirms_out_of_order_fill_up_what_lies_below() -> None:
    """A later `multiple` then speaks only of those that still wait."""
    channel = channel_of(publish=(spec.Publish(("q",), count_max=5),))
    produce_all(channel)
    for number in (2, 4, 1):
        channel.peer.on_acks(1, number, number, multiple=False, accepted=True)
    channel.peer.on_acks(1, 5, 5, multiple=True, accepted=True)
    assert channel.peer.streams[0].confirmed == 5


def test_nothing_is_published_while_the_broker_says_stop() -> None:
    """connection.blocked and channel.flow are respected although the socket would take more."""
    channel = channel_of(publish=(spec.Publish(("q",), settled=True),))
    channel.peer.on_method(0, ConnectionBlocked("low on memory"))
    assert channel.produce(0) == 0
    channel.peer.on_method(0, ConnectionUnblocked())
    channel.peer.on_method(1, ChannelFlow(False))
    (answer,) = written(channel)
    assert isinstance(answer, commands.Channel.FlowOk)
    assert channel.produce(0) == 0
    channel.peer.on_method(1, ChannelFlow(True))
    assert channel.produce(0) > 0


def test_consumers_start_with_their_prefetch_count() -> None:
    """basic.qos holds for the consumers that come after it."""
    channel = channel_of(
        consume=(
            spec.Consume(("a",), credit=200),
            spec.Consume(("b",), credit=5, settle=spec.Settle.PRESETTLED),
        )
    )
    channel.peer.start()
    first, consume, second, other = written(channel)
    assert (first.prefetch_count, second.prefetch_count) == (200, 5)
    assert (consume.queue, consume.consumer_tag, consume.no_ack) == ("a", "b0.0", False)
    assert (other.queue, other.consumer_tag, other.no_ack) == ("b", "b1.0", True)


@pytest.mark.parametrize(
    ("settle", "expected"),
    [
        (spec.Settle.EACH, [(1, False), (2, False), (3, False)]),
        (spec.Settle.RANGE, [(3, True)]),
        (spec.Settle.PRESETTLED, []),
    ],
)
def test_deliveries_are_acknowledged_as_asked(settle: spec.Settle, expected: list[tuple[int, bool]]) -> None:
    """Each singly, all of one read at once, or not at all."""
    channel = channel_of(consume=(spec.Consume(("q",), settle=settle),))
    deliver(channel, 1, 2)
    deliver(channel, 3, 1)
    channel.after_read()
    assert [(one.delivery_tag, one.multiple) for one in written(channel)] == expected
    assert channel.peer.streams[0].settled == 3
    channel.after_read()
    assert written(channel) == []


def test_a_broker_that_exceeds_the_prefetch_count_ends_the_run() -> None:
    """It counts what is delivered and not acknowledged."""
    channel = channel_of(consume=(spec.Consume(("q",), credit=3),))
    deliver(channel, 1, 3)
    channel.after_read()
    with pytest.raises(PeerError, match="1 deliveries more than the prefetch-count"):
        deliver(channel, 4, 4)


def test_the_prefetch_count_does_not_hold_for_automatic_acknowledgement() -> None:
    """RabbitMQ applies none to such a consumer."""
    channel = channel_of(consume=(spec.Consume(("q",), credit=3, settle=spec.Settle.PRESETTLED),))
    deliver(channel, 1, 10)
    assert channel.peer.streams[0].delivered == 10


@pytest.mark.parametrize(
    ("first", "consumer", "why"), [(2, "b0.0", "where 1 was due"), (1, "other", "does not exist")]
)
def test_a_delivery_out_of_order_or_for_nobody_ends_the_run(first: int, consumer: str, why: str) -> None:
    """Delivery-tags count the channel's deliveries from 1."""
    channel = channel_of(consume=(spec.Consume(("q",)),))
    with pytest.raises(PeerError, match=why):
        deliver(channel, first, 1, consumer=consumer)


def test_a_returned_message_ends_the_run() -> None:
    """Nobody measures messages that go nowhere."""
    channel = channel_of(publish=(spec.Publish(("q",), settled=True),))
    back = BasicReturn(312, "NO_ROUTE", "", "q")
    with pytest.raises(PeerError, match="returned a message for 'q': 312 NO_ROUTE"):
        channel.peer.on_contents(Contents(1, back, 0, 1, 1, -1, 0))


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (ConnectionClose(320, "CONNECTION_FORCED"), "closed the connection: 320"),
        (ChannelClose(404, "NOT_FOUND", 50, 10), "closed a channel: 404"),
        (BasicCancel("b0.0"), "cancelled consumer 'b0.0'"),
    ],
)
def test_an_ending_by_the_broker_ends_the_run(method: Method, why: str) -> None:
    """With the broker's own words."""
    channel = channel_of(consume=(spec.Consume(("q",)),))
    with pytest.raises(PeerError, match=why):
        channel.peer.on_method(1, method)


def test_a_prefetch_count_that_does_not_fit_is_refused() -> None:
    """The field has two octets."""
    with pytest.raises(PeerError, match="65536 does not fit"):
        channel_of(consume=(spec.Consume(("q",), credit=65536),))
