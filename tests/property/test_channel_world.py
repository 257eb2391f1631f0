"""Channels of AMQP 0-9-1 against queues, all in any order: nothing lost, doubled, mixed up or stuck."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqp10broker.sessions.amqp091 import consuming
from tests.support.channel_random_walk import Walk
from tests.support.examples import tried

STEPS = 250
UNSENT_MAX = 6


def walk(seed: int, steps: int = STEPS) -> Walk:
    """Take a random walk that checks all counts now and then, and at the end."""
    walked = Walk(random.Random(seed).randrange)
    for number in range(steps):
        walked.step()
        if number % 90 == 89:
            walked.settle()
    walked.settle()
    walked.finish()
    return walked


@pytest.fixture(autouse=True, scope="module")
def _few_unsent() -> object:
    """Lower the limit of unsent deliveries so that walks reach it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consuming, "UNSENT_MAX", UNSENT_MAX)
        yield None


@settings(max_examples=tried(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_every_message_is_in_one_place_and_in_order(seed: int) -> None:
    """Steps are publish, consume, get, settle, recover, cancel, close, delete, purge and lose, with letters
    in any order.
    """
    walk(seed)


@settings(
    max_examples=tried(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_short_walks_that_can_be_shrunk(data: st.DataObject) -> None:
    """Hypothesis draws every choice, so that a failure shrinks to a short sequence."""
    walked = Walk(lambda below: data.draw(st.integers(0, below - 1)))
    for _ in range(40):
        walked.step()
    walked.settle()
    walked.finish()


def test_walks_go_where_it_is_interesting() -> None:
    """A walk proves nothing if it meets none of the cases that it is to check."""
    walks = [walk(seed) for seed in range(30)]
    seen = sum((each.met for each in walks), start=type(walks[0].met)())
    for thing in (
        "delivered",
        "redelivered",
        "no_ack",
        "get",
        "confirmed",
        "returned",
        "commit",
        "rollback",
        "recover",
        "cancelled by the queue",
        "closed 404",
        "closed 406",
        "held by credit flow",
        "prefetch full",
        "global prefetch full",
    ):
        assert seen[thing] >= 3, f"{thing}: {seen[thing]} times"
