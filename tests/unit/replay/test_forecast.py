"""Replay and forecasts of a recording."""

from __future__ import annotations

import csv
import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.cli.main import main
from amqp10broker.observe.frames.records import KnownLink, read_lines
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import method_frame
from amqp10broker.protocols.amqp10.codec import decode
from amqp10broker.protocols.amqp10.performatives import AMQP_VALUE, DATA
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.replay.forecast import (
    ConsumerModel,
    Delivering,
    Forecast,
    Settings,
    answer,
    answer_of_file,
    grid,
    known,
    table_rows,
)
from amqp10broker.tools.replay.pace import Habits, PublisherWait, SimulationResult, simulate
from amqp10broker.tools.replay.player import Script, otherwise, read_script
from amqp10broker.tools.replay.player10 import content
from tests.support.rawframes import open_frame
from tests.support.tape import Tape, write_tape
from tests.support.taped_clients import BUSY, taped, taped_consumer


def forecasts(script: Script, asked: Settings) -> tuple[list[Forecast], list[str]]:
    """Return a forecast for each publisher and consumer, and sentences on those without one."""
    found, without = known(script)
    return [forecast for each in found for forecast in each.forecasts(asked)], without


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
    """A run is not faster than the client, has no more than twice the credit, and more never slows it."""
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
    """This holds for any credit and round trip of the recording."""
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
    assert "has no link of AMQP 1.0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["frames", "what-if", str(path), "--round-trip-ms", "soon"])
    assert "'soon' must be 0 to 60000 milliseconds" in capsys.readouterr().err


BUSY_CONSUMING = ConsumerModel(0.0, 0.0, 0.5, 2.0, False, (100,))
"""It is done with a message at once, and grants anew at half of its credit."""

EACH = ConsumerModel(0.0, 0.0, 1.0, 1.0, True, (100,))
"""It grants anew with each message."""


def one_consuming(
    habits: ConsumerModel = BUSY_CONSUMING, *, credit: int = 50, trip_s: float = 0.1, messages: int = 4000
) -> SimulationResult:
    return Delivering(habits, credit, trip_s / 2).run(messages)


def test_who_works_is_the_limit_and_what_waits_then_is_told() -> None:
    """A consumer that grants by settled deliveries holds at most its credit; by arrivals, up to twice."""
    slow = one_consuming(replace(EACH, own_s=0.01), credit=50, trip_s=0.1)
    assert slow.rate == pytest.approx(100, rel=0.05)
    assert slow.waits[PublisherWait.WORK] > 0.7 * sum(slow.waits.values())
    assert slow.held <= 50
    ahead = one_consuming(replace(BUSY_CONSUMING, own_s=0.01), credit=50, trip_s=0.1)
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
def test_no_run_breaks_its_bounds_consuming(
    credit: int, trip_ms: int, own_ms: float, supply_ms: float, renew_at: float, bound: float, by_finish: bool
) -> None:
    """It is no faster than either side or its credit a round trip; more credit never slows it down."""
    habits = ConsumerModel(own_ms / 1000, supply_ms / 1000, renew_at, bound, by_finish, (1,))

    def rate(credit: int) -> SimulationResult:
        return one_consuming(habits, credit=credit, trip_s=trip_ms / 1000, messages=max(200, 40 * credit))

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
    habits=st.sampled_from([BUSY_CONSUMING, EACH, replace(EACH, renew_at=0.0)]),
    settled=st.booleans(),
)
@settings(max_examples=6)
def test_a_forecast_from_a_recording_is_the_run_of_who_was_recorded_consuming(
    credit: int, asked: int, trip_ms: int, asked_ms: int, habits: ConsumerModel, settled: bool
) -> None:
    """This holds for any credit and round trip of the recording, and any time of the client's grants."""
    tape = taped_consumer(habits, credit=credit, trip_s=trip_ms / 1000, messages=600, settled=settled)
    found = forecast(tape, Settings(client_credit=asked, round_trip_ms=asked_ms))
    assert (found.receives, found.credit, found.window, found.messages) == (True, credit, None, 600)
    assert found.round_trip_s == pytest.approx(trip_ms / 1000, rel=0.01)
    truth = one_consuming(habits, credit=asked, trip_s=asked_ms / 1000, messages=40 * asked + 1000)
    assert found.run.rate == pytest.approx(truth.rate, rel=0.15)


Output = pytest.CaptureFixture[str]

SETTINGS = grid([20, 100], [], [50.0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    write_tape(folder / "a.jsonl", taped(BUSY, credit=10, window=400, trip_s=0.05, messages=300))
    write_tape(
        folder / "b.jsonl", taped(BUSY, credit=20, window=400, trip_s=0.05, messages=300), Tape(number=2)
    )
    (folder / "c.jsonl").write_text("no JSON\n")
    (folder / "notes.txt").write_text("not meant by the folder\n")
    (folder / "empty").mkdir()
    return folder


def test_an_answer_has_what_each_setting_alone_would_get(folder: Path) -> None:
    path = folder / "b.jsonl"
    lines = path.read_text().splitlines()
    found = answer("b", read_lines(lines), SETTINGS)
    assert [asked for asked, _ in found.forecasts] == SETTINGS
    for asked, forecast in found.forecasts:
        assert forecasts(read_script(read_lines(lines)), asked) == ([forecast], found.without)
    assert answer_of_file(str(path), SETTINGS).forecasts == found.forecasts
    assert found.problem is None


def test_a_file_that_is_none_is_an_answer(folder: Path) -> None:
    assert "line 1 of the recording of frames" in str(
        answer_of_file(str(folder / "c.jsonl"), SETTINGS).problem
    )
    (row,) = table_rows(answer_of_file(str(folder / "d.jsonl"), SETTINGS))
    assert row["no_forecast"] == "it cannot be read: No such file or directory"


def test_the_command_forecasts_the_others_and_names_the_bad_file(folder: Path, capsys: Output) -> None:
    asked = ["frames", "what-if", str(folder), "--max-link-credit", "20,100", "--round-trip-ms", "50"]
    assert main([*asked, "--format", "csv"]) == 1
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [(Path(row["recording"]).name, row["max_link_credit"]) for row in rows] == [
        *(("a.jsonl", "20"), ("a.jsonl", "100"), ("b.jsonl", "20"), ("b.jsonl", "100")),
        *(("b.jsonl", ""), ("c.jsonl", "")),
    ]
    assert "c.jsonl: line 1 of the recording of frames: no JSON" in said.err
    assert "the other 2 were looked at" in said.err
    assert main(asked) == 1
    text = capsys.readouterr().out
    assert text.count("  recorded: ") == 2
    assert text.count("  what if:  (credit 100, round trip 50 ms) ") == 2
    assert f"{folder / 'c.jsonl'}:\nno forecast: line 1" in text
    assert main([*asked, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["asked"]["max_link_credit"] for each in document["forecasts"]] == [20, 100] * 2
    assert [Path(each.partition(": ")[0]).name for each in document["without"]] == ["b.jsonl", "c.jsonl"]


def test_a_connection_that_was_there_before_is_left_out() -> None:
    """Its attached links and granted credit are unknown."""
    tape = Tape(number=7, known=[KnownLink(0, 7, 0, "sender", "out", "/queues/q", 0, 0)])
    script = read_script(tape.records)
    assert not script.parts
    assert script.left_out[0].startswith("connection 7 was there when the recording began")


@given(whole=st.integers(4, 70_000), cuts=st.lists(st.integers(0, 70_000), max_size=5))
def test_a_made_message_has_its_length_however_it_is_cut(whole: int, cuts: list[int]) -> None:
    places = sorted({0, whole, *(cut for cut in cuts if cut < whole)})
    message = b"".join(content(start, stop - start, whole) for start, stop in itertools.pairwise(places))
    assert len(message) == whole
    section, end = decode(message)
    assert end == whole
    assert section.descriptor == (DATA if whole > 4 else AMQP_VALUE)


@pytest.mark.parametrize("whole", [0, 1, 2, 3])
def test_what_is_too_short_for_a_message_has_its_length_all_the_same(whole: int) -> None:
    assert len(content(0, whole, whole)) == whole


def test_answers_that_differ_are_told_by_pairs() -> None:
    was = {4: "accepted", 5: "accepted", 6: "released", 7: "accepted"}
    now = {4: "accepted", 5: "rejected", 6: "accepted", 8: "accepted"}
    assert list(otherwise(dict(was), dict(now), "message")) == [
        "message 2: accepted in the recording, rejected now",
        "message 3: released in the recording, accepted now",
    ]
    twice = list(otherwise(dict(was), {4: "released", 5: "released"}, "message"))
    assert twice == ["2 of 4 messages, message 1 first: accepted in the recording, released now"]
