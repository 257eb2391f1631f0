"""Forecasts: the simulation does what engines do, and what a recording tells is what was so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.cli.main import main
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import method_frame
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.replay.forecast import Forecast, Settings
from amqp10broker.tools.replay.pace import PublisherWait
from amqp10broker.tools.replay.player import read_script
from amqp10broker.tools.replay.simulation import Habits, SimulationResult, simulate
from tests.support.forecasts import forecasts
from tests.support.rawframes import open_frame
from tests.support.tape import Tape, write_tape
from tests.support.taped_publisher import BUSY, taped


def one(
    habits: Habits = BUSY, *, credit: int = 50, window: int = 400, trip_s: float = 0.1, messages: int = 2000
) -> SimulationResult:
    (run,) = simulate([habits], max_link_credit=credit, window=window, round_trip_s=trip_s, messages=messages)
    return run


def forecast(tape: Tape, asked: Settings) -> Forecast:
    (found,), _ = forecasts(read_script(tape.records), asked)
    return found


@given(
    credit=st.integers(1, 100),
    window=st.integers(2, 100),
    trip_ms=st.integers(1, 100),
    own_ms=st.sampled_from([0.0, 0.1, 3.0]),
    confirm_ms=st.sampled_from([0.0, 2.0, 40.0]),
)
@settings(max_examples=12)
def test_no_run_breaks_its_bounds(
    credit: int, window: int, trip_ms: int, own_ms: float, confirm_ms: float
) -> None:
    """Not faster than the client; no more without outcome than twice the credit; more never slows down."""
    habits = Habits(own_ms / 1000, None, (confirm_ms / 1000,), (1,), (1,))

    def rate(credit: int, window: int) -> SimulationResult:
        # Of a few bursts the last one, cut anywhere, would be a good part of the rate.
        messages = max(400, 40 * credit)
        return one(habits, credit=credit, window=window, trip_s=trip_ms / 1000, messages=messages)

    run = rate(credit, window)
    assert run.held <= 2 * credit
    if own_ms:
        assert run.rate <= 1000 / own_ms * 1.001
    if run.rate < float("inf"):
        assert rate(3 * credit, 3 * window).rate >= 0.95 * run.rate


@given(
    credit=st.integers(5, 40),
    asked=st.integers(5, 40),
    trip_ms=st.integers(5, 100),
    asked_ms=st.integers(5, 100),
    window=st.sampled_from([20, 400]),
    frames=st.sampled_from([1, 2]),
)
@settings(max_examples=6)
def test_a_forecast_from_a_recording_is_the_run_of_who_was_recorded(
    credit: int, asked: int, trip_ms: int, asked_ms: int, window: int, frames: int
) -> None:
    """Whatever the credit and round trip of the recording were."""
    habits = Habits(0.0, None, (0.001,), (frames,), (100,))
    tape = taped(habits, credit=credit, window=window, trip_s=trip_ms / 1000, messages=300)
    found = forecast(tape, Settings(asked, window, asked_ms))
    assert (found.credit, found.window) == (credit, window)
    assert found.round_trip_s == pytest.approx(trip_ms / 1000, rel=0.01)
    truth = one(habits, credit=asked, window=window, trip_s=asked_ms / 1000, messages=40 * asked + 1000)
    assert found.run.rate == pytest.approx(truth.rate, rel=0.1)


def test_a_client_that_waits_for_each_outcome_is_seen_to() -> None:
    """Credit brings it nothing; a shorter round trip does."""
    tape = taped(Habits(0.0, 1, (0.004,), (1,), (10,)), credit=100, window=400, trip_s=0.02, messages=200)
    assert forecast(tape, Settings(200)).run.rate == pytest.approx(1 / 0.024, rel=0.02)
    found = forecast(tape, Settings(200, None, 2))
    assert found.run.rate == pytest.approx(1 / 0.006, rel=0.02)
    assert found.waits[PublisherWait.OWN_LIMIT] > 0.9


def test_of_whom_there_is_no_forecast_is_said() -> None:
    few = taped(BUSY, credit=10, window=400, trip_s=0.05, messages=20)
    none = Tape(number=2)
    none.came(open_frame())
    other = Tape(WireProtocol.AMQP_091, number=3)
    other.came(method_frame(0, methods.ConnectionOpen("/")))
    found, without = forecasts(read_script([*few.records, *none.records, *other.records]), Settings())
    assert not found
    assert len(without) == 3
    assert "50 are needed to know its pace" in without[0]
    assert "connection 2 neither sends nor receives" in without[1]
    assert "connection 3 speaks AMQP 0-9-1, which has no credit for publishers" in without[2]
    assert "another prefetch" in without[2]


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words and as JSON; with 1 if there is nothing to say."""
    path = tmp_path / "f"
    write_tape(path, taped(BUSY, credit=10, window=400, trip_s=0.05, messages=300))
    assert main(["frames", "what-if", str(path), "--max-link-credit", "100", "--round-trip-ms", "50"]) == 0
    said = capsys.readouterr().out
    assert "to /queues/q: 300 messages\n  recorded: 2" in said
    assert " messages/s at credit 10, incoming-window 400, round trip at most 50.0 ms" in said
    assert "\n  what if:  " in said
    assert main(["frames", "what-if", str(path), "--max-link-credit", "100", "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert found["forecast"]["rate"] == pytest.approx(10 * found["recorded"]["rate"], rel=0.15)
    assert main(["frames", "what-if", str(path), "--connection", "7"]) == 1
    assert "there is no link of AMQP 1.0 in " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["frames", "what-if", str(path), "--round-trip-ms", "soon"])
    assert "'soon' must be 0 to 60000 milliseconds" in capsys.readouterr().err
