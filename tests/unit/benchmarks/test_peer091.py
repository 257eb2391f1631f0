"""The AMQP 0-9-1 generator keeps the protocol's rules, and ends the run when the broker does not."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import frame

from amqp10broker.protocols.amqp091.methods import (
    BasicDeliver,
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
