"""Generator and floor peer against each other, over real sockets."""

from __future__ import annotations

import pytest

from benchmarks import spec
from benchmarks.broker_process import BrokerSettings, OwnBroker
from benchmarks.cases import publish_and_consume
from benchmarks.measure import drain, preload, window
from tests.support.load_windows import LONG_S, until_delivered

pytestmark = pytest.mark.integration


def test_what_is_published_is_delivered_confirmed_and_settled() -> None:
    """Two connections in one load process, measured like a broker."""
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
    """A message larger than a frame goes in several."""
    with OwnBroker(BrokerSettings(), floor=()) as floor:
        sizes = (12, 100_000, 300_000)
        for size_bytes in sizes:
            preload(floor, (f"q{size_bytes}",), 30, size_bytes=size_bytes)
        # Longer than processes stand still on a busy machine: a pause in between is not the end.
        assert drain(floor, [f"q{size_bytes}" for size_bytes in sizes], quiet_s=4.0) == 90
