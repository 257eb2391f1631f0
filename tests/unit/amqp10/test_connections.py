"""Connections and links of AMQP 1.0: attaches, what a resumed link knows, heartbeats, faults."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from amqp10broker.protocols.amqp10.connection import FrameReader
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
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.link import LinkAttaching
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    decode_composite,
)
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.settling import DESCRIPTION_BYTES_MAX, to_error
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.protocols.connection import IdleTimer


def serving_session() -> Session:
    session = Session(0, incoming_window=400, handle_max=255, frame_size_max=65_536)
    session.receive_begin(0, Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10))
    session.begin()
    session.take_output()
    return session


def written(session: Session) -> list[object]:
    groups = FrameReader().read(b"".join(session.take_output()))
    return [item for _, items in groups for item in items]


def refused(session: Session, attach: Attach) -> tuple[Attach, Detach]:
    """Require that the attach is answered and detached, and the session lives."""
    assert session.receive([attach]) == []
    answer, detach = written(session)
    assert isinstance(answer, Attach)
    assert isinstance(detach, Detach)
    assert (answer.source if attach.role else answer.target) is None
    assert not session.ended
    return answer, detach


@pytest.mark.parametrize(
    "attach",
    [
        Attach(name="a", handle=3, role=False, snd_settle_mode=7, initial_delivery_count=0, target=Target()),
        Attach(name="a", handle=3, role=True, snd_settle_mode=3, source=Source(address="q")),
        Attach(name="a", handle=3, role=True, rcv_settle_mode=2, source=Source(address="q")),
        Attach(name="a", handle=3, role=False, target=Target()),
    ],
)
def test_an_attach_with_a_field_no_link_can_have_is_refused_and_the_session_lives(attach: Attach) -> None:
    """The answer's terminus is null, and the detach names the field (2.8.2, 2.8.3, 2.7.3)."""
    answer, detach = refused(serving_session(), attach)
    assert answer.snd_settle_mode in (0, 1, 2)
    assert answer.rcv_settle_mode in (0, 1)
    assert detach.handle == answer.handle
    assert detach.error.condition == "amqp:invalid-field"


@pytest.mark.parametrize(
    ("unsettled", "condition"),
    [
        ({b"x" * 33: None}, "amqp:resource-limit-exceeded"),
        (dict.fromkeys(at.to_bytes(2, "big") for at in range(5_000)), "amqp:resource-limit-exceeded"),
        ({b"tag": "no state"}, "amqp:invalid-field"),
    ],
)
def test_an_attach_with_an_unsettled_map_that_is_none_or_too_large_is_refused(
    unsettled: dict[bytes, object], condition: str
) -> None:
    """The session continues (2.6.13, 2.8.4)."""
    attach = Attach(name="a", handle=3, role=True, source=Source(address="q"), unsettled=unsettled)
    assert refused(serving_session(), attach)[1].error.condition == condition


@pytest.mark.parametrize("accepted", [True, False])
def test_an_unsettled_map_is_not_kept_as_long_as_its_link(accepted: bool) -> None:
    """The map is dropped after the answer; a client with many links could fill the memory with them."""
    session = serving_session()
    attach = Attach(name="a", handle=3, role=True, source=Source(address="q"), unsettled={b"tag": None})
    (event,) = session.receive([attach])
    assert isinstance(event, LinkAttaching)
    if accepted:
        session.links.accept(
            event.link, source=Source(address="q"), target=None, snd_settle_mode=0, rcv_settle_mode=0
        )
    else:
        session.links.refuse(event.link, AmqpLinkError(Condition.NOT_FOUND, "no queue 'q'"))
    answer = written(session)[0]
    assert isinstance(answer, Attach)
    assert answer.unsettled == ({} if accepted else None)
    assert event.link.remote_attach.unsettled is None


TAG = b"tag"
PART = Received(section_number=1, section_offset=7)
OUTCOMES = (Accepted(), Rejected(), Released(), Modified(delivery_failed=True))


def attach(unsettled: dict[Any, Any] | None) -> Attach:
    return Attach(name="a", handle=0, role=True, source=Source(address="q"), unsettled=unsettled)


# --- we send --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "resumed"),
    [
        (None, None, Resumed(TAG, Resume.CONTENT, None)),
        (None, PART, Resumed(TAG, Resume.CONTENT, PART)),
        *[(None, each, Resumed(TAG, Resume.OUTCOME, each, apply=True)) for each in OUTCOMES],
        *[(Accepted(), each, Resumed(TAG, Resume.OUTCOME, Accepted())) for each in (None, PART, *OUTCOMES)],
    ],
)
def test_what_becomes_of_a_delivery_that_the_receiver_has(
    ours: State, theirs: State, resumed: Resumed
) -> None:
    """The delivery is sent whole again, or from where it ended. An outcome whose disposition was lost is
    applied; one that was applied stands, whatever the receiver's state.
    """
    assert resume_as_sender({TAG: ours}, {TAG: theirs}).resumed == [resumed]


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


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *[(ours, theirs) for ours in (PART, *OUTCOMES) for theirs in (None, PART)],
        *[(outcome, outcome) for outcome in OUTCOMES],
    ],
)
def test_a_delivery_that_we_have_is_awaited_and_our_map_says_our_state(ours: State, theirs: State) -> None:
    assert resume_as_receiver({TAG: ours}, {TAG: theirs}).awaited == {TAG: ours}


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


def test_a_time_in_which_we_did_not_look_is_not_all_the_peers_silence() -> None:
    """After a delay of the broker, the peer's frames may have arrived without being read."""
    timer = IdleTimer(1000, None, 0.0)
    assert timer.tick(0.25, 10, 0) == (False, False)
    assert timer.tick(100.0, 10, 0) == (False, False)
    for now in (100.25, 100.5):
        assert timer.tick(now, 10, 0) == (False, False)
    assert timer.tick(100.75, 10, 0) == (False, True)


@pytest.mark.parametrize("local_ms", [100, 333, 1000, 7777, 60_000])
@pytest.mark.parametrize("remote_ms", [None, 90, 1100, 50_000])
def test_looked_at_in_time_a_peer_expires_at_the_first_look_after_its_time(
    local_ms: int, remote_ms: int | None
) -> None:
    """Rounding of the parts of the silence does not matter."""
    timer = IdleTimer(local_ms, remote_ms, 5.0)
    assert timer.interval is not None
    looks, now = 0, 5.0
    timer.tick(now, 1, 1)
    while True:
        looks, now = looks + 1, now + timer.interval
        if timer.tick(now, 1, 1)[1]:
            break
    assert looks == math.ceil(local_ms / 1000 / timer.interval - 1e-6)


def test_silence_while_we_do_not_read_is_not_the_peers() -> None:
    """A reader that waits for a session reads no bytes, so the peer must not expire."""
    timer = IdleTimer(1000, None, 0.0)
    for now in (0.5, 1.5, 2.5, 3.5):
        assert timer.tick(now, 10, 0, listening=False) == (False, False)
    for now in (3.75, 4.0, 4.25):
        assert timer.tick(now, 10, 0) == (False, False)
    assert timer.tick(4.5, 10, 0) == (False, True)


def test_heartbeats_go_on_while_we_do_not_read() -> None:
    """The peer must get heartbeats, whatever the reader waits for."""
    timer = IdleTimer(0, 2000, 0.0)
    assert timer.tick(0.1, 0, 5, listening=False) == (False, False)
    assert timer.tick(0.7, 0, 5, listening=False) == (True, False)


@pytest.mark.parametrize("sign", ["x", "é", "\N{GRINNING FACE}"])
def test_a_long_description_is_cut(sign: str) -> None:
    """Error texts repeat a client's text, and an error must fit a frame (2.8.14)."""
    for count in (DESCRIPTION_BYTES_MAX // 4, DESCRIPTION_BYTES_MAX, 1_000_000):
        text = sign * count
        error = to_error(AmqpLinkError(Condition.INVALID_FIELD, text))
        size = len(error.description.encode())
        if len(text.encode()) <= DESCRIPTION_BYTES_MAX:
            assert error.description == text
        else:
            assert DESCRIPTION_BYTES_MAX - 4 < size <= DESCRIPTION_BYTES_MAX
            assert text.startswith(error.description.removesuffix("..."))
