"""Forecasts of consumers: the simulation does what engines do, and a recording tells who was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.tools.replay.forecast import ConsumerModel, Delivering, Forecast, Settings
from amqp10broker.tools.replay.pace import PublisherWait
from amqp10broker.tools.replay.player import read_script
from amqp10broker.tools.replay.simulation import SimulationResult
from tests.support.forecasts import forecasts
from tests.support.tape import Tape
from tests.support.taped_consumer import taped_consumer

BUSY = ConsumerModel(0.0, 0.0, 0.5, 2.0, False, (100,))
"""It is done with a message at once, and grants anew at half of its credit."""
EACH = ConsumerModel(0.0, 0.0, 1.0, 1.0, True, (100,))
"""It grants anew with each message."""


def one(
    habits: ConsumerModel = BUSY, *, credit: int = 50, trip_s: float = 0.1, messages: int = 4000
) -> SimulationResult:
    return Delivering(habits, credit, trip_s / 2).run(messages)


def forecast(tape: Tape, asked: Settings) -> Forecast:
    (found,), _ = forecasts(read_script(tape.records), asked)
    assert found.receives
    return found


def test_who_works_is_the_limit_and_what_waits_then_is_told() -> None:
    """Of deliveries to who grants by what is finished, and to who grants by what has come."""
    slow = one(replace(EACH, own_s=0.01), credit=50, trip_s=0.1)
    assert slow.rate == pytest.approx(100, rel=0.05)
    assert slow.waits[PublisherWait.WORK] > 0.7 * sum(slow.waits.values())
    assert slow.held <= 50
    ahead = one(replace(BUSY, own_s=0.01), credit=50, trip_s=0.1)
    assert ahead.rate == pytest.approx(100, rel=0.05)
    assert 50 < ahead.held <= 100
    assert ahead.held_bytes == 100 * ahead.held


@given(
    credit=st.integers(1, 20),
    trip_ms=st.integers(1, 100),
    own_ms=st.sampled_from([0.0, 0.1, 3.0]),
    supply_ms=st.sampled_from([0.0, 0.2, 2.0]),
    renew_at=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    bound=st.sampled_from([1.0, 1.5, 2.0]),
    by_finish=st.booleans(),
)
@settings(max_examples=15)
def test_no_run_breaks_its_bounds(
    credit: int,
    trip_ms: int,
    own_ms: float,
    supply_ms: float,
    renew_at: float,
    bound: float,
    by_finish: bool,
) -> None:
    """Faster than neither side, and no more than its credit a round trip; more credit never slows down."""
    habits = ConsumerModel(own_ms / 1000, supply_ms / 1000, renew_at, bound, by_finish, (1,))

    def rate(credit: int) -> SimulationResult:
        return one(habits, credit=credit, trip_s=trip_ms / 1000, messages=max(200, 40 * credit))

    run = rate(credit)
    assert run.rate <= 1000 / supply_ms * 1.001 if supply_ms else True
    # What is there when it ends may be unfinished: it can be as much as the bound.
    most = 1000 / own_ms * (1 + bound * credit / max(200, 40 * credit)) * 1.05 if own_ms else float("inf")
    assert run.rate <= most
    assert run.rate <= 1000 * credit / trip_ms * 1.05
    assert run.held <= bound * credit + 1
    assert rate(3 * credit).rate >= 0.95 * run.rate


@given(
    credit=st.integers(10, 40),
    asked=st.integers(10, 40),
    trip_ms=st.integers(5, 100),
    asked_ms=st.integers(5, 100),
    habits=st.sampled_from([BUSY, EACH, replace(EACH, renew_at=0.0)]),
    settled=st.booleans(),
)
@settings(max_examples=6)
def test_a_forecast_from_a_recording_is_the_run_of_who_was_recorded(
    credit: int, asked: int, trip_ms: int, asked_ms: int, habits: ConsumerModel, settled: bool
) -> None:
    """Whatever the credit and round trip of the recording were, and whenever the client grants."""
    tape = taped_consumer(habits, credit=credit, trip_s=trip_ms / 1000, messages=600, settled=settled)
    found = forecast(tape, Settings(client_credit=asked, round_trip_ms=asked_ms))
    assert (found.credit, found.window, found.messages) == (credit, None, 600)
    assert found.round_trip_s == pytest.approx(trip_ms / 1000, rel=0.01)
    truth = one(habits, credit=asked, trip_s=asked_ms / 1000, messages=40 * asked + 1000)
    assert found.run.rate == pytest.approx(truth.rate, rel=0.15)
