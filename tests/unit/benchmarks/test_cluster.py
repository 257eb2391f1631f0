"""The question about a cluster: how another broker's nodes are run, and how a pause is measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from benchmarks import cluster, spec
from benchmarks.cluster import CASES, Pause, Rate
from benchmarks.stream import Counts


class Load:
    """A load process whose confirms come as they are told."""

    def __init__(self, *confirmed: int) -> None:
        self.confirmed = itertools.chain(confirmed, itertools.repeat(confirmed[-1]))

    def counts(self) -> Counts:
        return Counts(0, next(self.confirmed), 0, 0, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes one second."""
    now = itertools.count()
    monkeypatch.setattr(cluster.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)


def test_the_longest_time_without_a_confirm_is_the_pause(clock: None) -> None:
    load: Any = Load(5, 6, 6, 6, 6, 7, 8, 8, 9)
    watch = cluster._Watch(load)
    watch.look(0.0, until=lambda: watch.confirmed == 9)
    # Two readings of the clock to a look: five looks from 6 to 7.
    assert watch.longest_s == 8.0


def test_rates_are_those_of_one_queue_led_at_the_first_node() -> None:
    rates = [case for case in CASES if isinstance(case, Rate)]
    for case in rates:
        (connection, *_) = case.connections("/queues/q", 100)
        (part, *_) = connection
        assert isinstance(part, spec.Session)
        assert {group.addresses for group in part.publish} == {("/queues/q",)}
    assert {case.node for case in rates} == {0, 1}
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(isinstance(case, Pause) for case in CASES) == 3
