"""The table of part 2, section 2.6.13, row by row in both roles, and what maps of peers may be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from amqp10broker.protocols.amqp10.delivery import (
    UNSETTLED_ENTRIES_MAX,
    Arrival,
    NotOurs,
    Resume,
    Resumed,
    State,
    on_resumed,
    resume_as_receiver,
    resume_as_sender,
    unsettled_map,
)
from amqp10broker.protocols.amqp10.errors import AmqpLinkError
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong

TAG = b"tag"
PART = Received(section_number=1, section_offset=7)
OUTCOMES = (Accepted(), Rejected(), Released(), Modified(delivery_failed=True))


def attach(unsettled: dict[Any, Any] | None) -> Attach:
    return Attach(name="a", handle=0, role=True, source=Source(address="q"), unsettled=unsettled)


# --- we send --------------------------------------------------------------------------------------


def test_a_delivery_that_the_receiver_has_without_a_state_is_sent_whole_again() -> None:
    plan = resume_as_sender({TAG: None}, {TAG: None})
    assert plan.resumed == [Resumed(TAG, Resume.CONTENT, None)]


def test_a_delivery_that_the_receiver_has_in_part_goes_on_from_there() -> None:
    plan = resume_as_sender({TAG: None}, {TAG: PART})
    assert plan.resumed == [Resumed(TAG, Resume.CONTENT, PART)]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_that_was_lost_is_applied_and_settled(outcome: State) -> None:
    """The disposition never arrived: the map says what it said."""
    plan = resume_as_sender({TAG: None}, {TAG: outcome})
    assert plan.resumed == [Resumed(TAG, Resume.OUTCOME, outcome, apply=True)]


@pytest.mark.parametrize("theirs", [None, PART, *OUTCOMES])
def test_an_outcome_that_was_acted_on_stands_whatever_the_receiver_says(theirs: State) -> None:
    plan = resume_as_sender({TAG: Accepted()}, {TAG: theirs})
    assert plan.resumed == [Resumed(TAG, Resume.OUTCOME, Accepted())]


def test_a_delivery_that_the_receiver_does_not_have_is_given_back() -> None:
    plan = resume_as_sender({TAG: None, b"decided": Accepted()}, {})
    assert (plan.resumed, plan.unknown, plan.settled, plan.open) == ([], [TAG], [b"decided"], [])


def test_a_tag_that_only_the_receiver_has_is_ignored() -> None:
    plan = resume_as_sender({}, {TAG: Accepted()})
    assert (plan.resumed, plan.unknown, plan.settled, plan.open) == ([], [], [], [])


def test_what_an_incomplete_map_does_not_name_stays_open_for_the_sender() -> None:
    ours = {b"1": None, b"2": None, b"3": Accepted()}
    plan = resume_as_sender(ours, {b"2": Accepted()}, incomplete=True)
    assert plan.resumed == [Resumed(b"2", Resume.OUTCOME, Accepted(), apply=True)]
    assert (plan.unknown, plan.settled, plan.open) == ([], [], [b"1", b"3"])


# --- we receive -----------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [None, PART, *OUTCOMES])
def test_a_delivery_that_we_do_not_have_is_not_in_our_map(theirs: State) -> None:
    plan = resume_as_receiver({}, {TAG: theirs})
    assert (plan.awaited, plan.settled, plan.open) == ({}, [], [])


@pytest.mark.parametrize("theirs", [None, PART])
@pytest.mark.parametrize("ours", [PART, *OUTCOMES])
def test_a_delivery_that_we_have_is_awaited_and_our_map_says_our_state(ours: State, theirs: State) -> None:
    assert resume_as_receiver({TAG: ours}, {TAG: theirs}).awaited == {TAG: ours}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_that_both_have_is_awaited_to_be_settled(outcome: State) -> None:
    assert resume_as_receiver({TAG: outcome}, {TAG: outcome}).awaited == {TAG: outcome}


@pytest.mark.parametrize("ours", [PART, *OUTCOMES])
def test_what_the_sender_does_not_have_is_settled(ours: State) -> None:
    plan = resume_as_receiver({TAG: ours}, {})
    assert (plan.awaited, plan.settled, plan.open) == ({}, [TAG], [])


def test_what_an_incomplete_map_does_not_name_stays_open_for_the_receiver() -> None:
    plan = resume_as_receiver({b"1": PART, b"2": Accepted()}, {b"1": None}, incomplete=True)
    assert (plan.awaited, plan.settled, plan.open) == ({b"1": PART}, [], [b"2"])


@pytest.mark.parametrize(
    ("known", "settled", "aborted", "arrival"),
    [
        (NotOurs.ABSENT, False, False, Arrival.IGNORED),
        (NotOurs.ABSENT, True, True, Arrival.IGNORED),
        (PART, False, False, Arrival.CONTINUED),
        (None, True, False, Arrival.CONTINUED),
        (PART, False, True, Arrival.ABORTED),
        (Accepted(), True, False, Arrival.SETTLED),
        (Released(), False, False, Arrival.REPEATED),
    ],
)
def test_what_a_resumed_transfer_is(
    known: State | NotOurs, settled: bool, aborted: bool, arrival: Arrival
) -> None:
    assert on_resumed(known, settled=settled, aborted=aborted) is arrival


# --- maps of peers --------------------------------------------------------------------------------


def test_states_of_a_map_are_read_as_they_travel() -> None:
    sent = {b"1": None, b"2": PART, **{b"o%d" % at: each for at, each in enumerate(OUTCOMES)}}
    received, _ = decode_composite(attach(sent).encode())
    assert isinstance(received, Attach)
    assert unsettled_map(received) == sent
    assert unsettled_map(attach(None)) == {}


def test_a_map_of_as_many_entries_as_allowed_is_read() -> None:
    given = {at.to_bytes(32, "big"): None for at in range(UNSETTLED_ENTRIES_MAX)}
    assert unsettled_map(attach(given)) == given


@pytest.mark.parametrize(
    ("unsettled", "condition", "words"),
    [
        (
            dict.fromkeys(at.to_bytes(2, "big") for at in range(UNSETTLED_ENTRIES_MAX + 1)),
            "amqp:resource-limit-exceeded",
            "4097 entries, more than 4096",
        ),
        ({b"x" * 33: None}, "amqp:resource-limit-exceeded", "delivery-tag of 33 bytes, more than 32"),
        ({"text": None}, "amqp:invalid-field", "a delivery-tag is binary"),
        ({b"t": 7}, "amqp:invalid-field", "0x74"),
        ({b"t": Described(ULong(0x28), [])}, "amqp:invalid-field", "Source is none"),
        ({b"t": Described(ULong(0x23), [])}, "amqp:invalid-field", "section-number"),
        ({b"t": Described(Symbol("none:list"), [])}, "amqp:invalid-field", "unknown descriptor"),
        ({b"t": Described(ULong(0x24), "no list")}, "amqp:invalid-field", "delivery-state"),
    ],
)
def test_a_map_that_is_none_or_too_large_refuses_the_attach(
    unsettled: dict[Any, Any], condition: str, words: str
) -> None:
    with pytest.raises(AmqpLinkError, match=re.escape(words)) as refused:
        unsettled_map(attach(unsettled))
    assert refused.value.condition == condition
