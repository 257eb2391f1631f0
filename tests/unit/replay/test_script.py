"""What of a recording can be played, and the messages that stand for those whose contents were not kept."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.observe.frames.records import KnownLink
from amqp10broker.protocols.amqp10.codec import decode
from amqp10broker.protocols.amqp10.performatives import AMQP_VALUE, DATA
from amqp10broker.tools.replay.player import otherwise, read_script
from amqp10broker.tools.replay.player10 import content
from tests.support.tape import Tape


def test_a_connection_that_was_there_before_is_left_out() -> None:
    """Nobody knows what it had attached and granted."""
    tape = Tape(number=7, known=[KnownLink(0, 7, 0, "sender", "out", "/queues/q", 0, 0)])
    script = read_script(tape.records)
    assert not script.parts
    assert script.left_out[0].startswith("connection 7 was there when the recording began")


@given(whole=st.integers(4, 70_000), cuts=st.lists(st.integers(0, 70_000), max_size=5))
def test_a_made_message_has_its_length_however_it_is_cut(whole: int, cuts: list[int]) -> None:
    """And is one data section, or for four bytes a value of null."""
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
    """With the first of each pair, and nothing of what did not come."""
    was = {4: "accepted", 5: "accepted", 6: "released", 7: "accepted"}
    now = {4: "accepted", 5: "rejected", 6: "accepted", 8: "accepted"}
    assert list(otherwise(dict(was), dict(now), "message")) == [
        "message 2: accepted in the recording, rejected now",
        "message 3: released in the recording, accepted now",
    ]
    twice = list(otherwise(dict(was), {4: "released", 5: "released"}, "message"))
    assert twice == ["2 of 4 messages, message 1 first: accepted in the recording, released now"]
