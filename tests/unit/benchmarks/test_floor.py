"""The floor: what a socket and a client can do without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from benchmarks import spec
from benchmarks.broker_process import BrokerSettings, OwnBroker
from benchmarks.cases import publish_and_consume
from benchmarks.measure import carry_through, drain, preload, window
from benchmarks.queues091 import Queues
from benchmarks.stream import Counts

LONG_S: Final = 60.0

"""Longest length of such a window: waited for in full only by a test that fails."""


def until_delivered(count: int) -> Callable[[tuple[Counts, ...]], bool]:
    """Replace `benchmarks.measure.window`: the window ends after so many more deliveries. `window` checks
    once before it begins, and refuses loads whose messages are used up by then; the answer here is always
    no. Earlier deliveries do not count.
    """
    seen: list[int] = []

    def enough(counts: tuple[Counts, ...]) -> bool:
        seen.append(counts[0].delivered)
        # Not the first one, but the first in the window: what was sampled before it has been forgotten.
        return len(seen) > 2 and seen[-1] - seen[1] >= count

    return enough


pytestmark = pytest.mark.integration


def test_what_is_published_is_delivered_confirmed_and_settled() -> None:
    with OwnBroker(BrokerSettings(max_link_credit=100), floor=()) as floor:
        what = spec.Load(floor.endpoint, publish_and_consume("q", size_bytes=20))
        taken = window(floor, what, warmup_s=0.0, duration_s=LONG_S, until=until_delivered(1000))
    (total,) = taken.result.counts
    assert total.delivered >= 1000
    assert total.settled == total.delivered
    assert total.published - total.delivered <= 4000
    assert total.published - total.confirmed <= 4000
    assert taken.cpu_s is not None


def test_messages_of_every_size_pass() -> None:
    """A message larger than a frame takes several frames."""
    with OwnBroker(BrokerSettings(), floor=()) as floor:
        sizes = (12, 100_000, 300_000)
        for size_bytes in sizes:
            preload(floor, (f"q{size_bytes}",), 30, size_bytes=size_bytes)
        # Longer than processes stand still on a busy machine: a pause in between is not the end.
        assert drain(floor, [f"q{size_bytes}" for size_bytes in sizes], quiet_s=4.0) == 90


@pytest.mark.parametrize("settle", spec.Settle)
def test_what_is_published_is_delivered_confirmed_and_acknowledged(settle: spec.Settle) -> None:
    connections = publish_and_consume(
        "q", size_bytes=20, credit=50, settle=settle, in_flight_max=100, amqp091=True
    )
    with OwnBroker(BrokerSettings(), floor=()) as floor:
        what = spec.Load(floor.endpoint, connections)
        taken = window(floor, what, warmup_s=0.0, duration_s=LONG_S, until=until_delivered(1000))
    (total,) = taken.result.counts
    assert total.delivered >= 1000
    assert total.settled == total.delivered
    assert total.published - total.delivered <= 4000
    assert total.published - total.confirmed <= 100


def test_latencies_are_read_from_the_stamps() -> None:
    publish = spec.Publish(("q",), size_bytes=20, rate_per_s=2000.0, stamp=True)
    consume = spec.Consume(("q",), size_bytes=20, stamp=True)
    connections = (spec.Channel(publish=(publish,)),), (spec.Channel(consume=(consume,)),)
    with OwnBroker(BrokerSettings(), floor=("--keep",)) as floor:
        what = spec.Load(floor.endpoint, connections)
        taken = window(floor, what, warmup_s=0.0, duration_s=LONG_S, until=until_delivered(1000))
    (delivery,) = taken.result.delivery
    (confirm,) = taken.result.confirm
    assert confirm is not None
    assert 0 < delivery.p50_ms < 10_000


def test_messages_of_every_size_pass_floor091() -> None:
    """A message larger than a frame takes several body frames, an empty one takes none."""
    with OwnBroker(BrokerSettings(), floor=()) as floor, Queues(floor.endpoint) as queues:
        for size_bytes in (0, 12, 100_000, 300_000):
            queue = f"q{size_bytes}"
            preload(floor, (queue,), 30, size_bytes=size_bytes, amqp091=True)
            assert queues.counts((queue,)) == {queue: 30}
            consume = spec.Consume((queue,), credit=10)
            carry_through(floor, (spec.connection(consume, amqp091=True),), 30, "delivered", name="drain")
            assert queues.counts((queue,)) == {queue: 0}
