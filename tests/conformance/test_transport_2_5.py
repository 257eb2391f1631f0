"""Part 2, section 2.5: sessions. States, ends, errors, windows."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from amqp10broker.protocols.amqp10.credit import OutgoingWindow
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.link import SessionEnded
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Detach, Disposition, End, Flow, Target
from amqp10broker.protocols.amqp10.session import SESSION_TRANSITIONS, Session, SessionInput, SessionState
from tests.support.engine import read_all
from tests.support.script import ScriptRunner

S = SessionState
Step = SessionInput
LAST = 4_294_967_295

LEGAL = {
    (S.UNMAPPED, Step.SEND_BEGIN),
    (S.UNMAPPED, Step.RECEIVE_BEGIN),
    (S.BEGIN_SENT, Step.RECEIVE_BEGIN),
    (S.BEGIN_RECEIVED, Step.SEND_BEGIN),
    (S.MAPPED, Step.SEND_END),
    (S.MAPPED, Step.SEND_END_ERROR),
    (S.MAPPED, Step.RECEIVE_END),
    (S.END_RECEIVED, Step.SEND_END),
    (S.END_SENT, Step.RECEIVE_END),
    (S.DISCARDING, Step.RECEIVE_END),
}


def begin(**fields: Any) -> Begin:
    return Begin(**{"next_outgoing_id": 0, "incoming_window": 10, "outgoing_window": 10, **fields})


def flow(**fields: Any) -> Flow:
    return Flow(
        **{
            "next_incoming_id": 0,
            "incoming_window": 10,
            "next_outgoing_id": 0,
            "outgoing_window": 10,
            **fields,
        }
    )


def mapped(**options: Any) -> Session:
    session = Session(0, **{"incoming_window": 8, "handle_max": 3, "frame_size_max": 512, **options})
    session.receive_begin(0, begin())
    session.begin()
    session.take_output()
    return session


def out(session: Session) -> list[Any]:
    return read_all(b"".join(bytes(piece) for piece in session.take_output()))


# --- 2.5.5: states -------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "step"), list(product(S, Step)), ids=lambda value: value.name)
def test_every_pair_of_state_and_input_is_a_transition_or_refused(state: S, step: Step) -> None:
    """2.5.5: a pair outside the table is an illegal state."""
    assert ((state, step) in SESSION_TRANSITIONS) == ((state, step) in LEGAL)
    session = Session(0, incoming_window=8, handle_max=3, frame_size_max=512)
    session.state = state
    if (state, step) in LEGAL:
        session._move(step)
        assert session.state is SESSION_TRANSITIONS[state, step]
    else:
        with pytest.raises(AmqpConnectionError) as caught:
            session._move(step)
        assert caught.value.condition == Condition.ILLEGAL_STATE


FRAMES: dict[str, Any] = {
    "begin": begin(),
    "flow": flow(),
    "disposition": Disposition(role=True, first=0),
    "attach": Attach(name="l", handle=0, role=True, source=None, target=Target()),
    "detach": Detach(handle=0),
    "end": End(),
}


@pytest.mark.parametrize(("state", "what"), list(product(S, FRAMES)), ids=str)
def test_every_frame_in_every_state(state: S, what: str) -> None:
    """2.5.4, 2.5.5: MAPPED handles everything, END_SENT and DISCARDING only end, UNMAPPED nothing."""
    session = mapped()
    session.state = state
    if state is S.MAPPED:
        session.receive([FRAMES[what]])
        expected = {"end": S.END_RECEIVED, "begin": S.DISCARDING}.get(what, S.MAPPED)
        assert session.state is expected
    elif state in (S.END_SENT, S.DISCARDING):
        assert session.receive([FRAMES[what]]) == []
        assert session.state is (S.UNMAPPED if what == "end" else state)
        assert out(session) == []
    elif state is S.UNMAPPED or what == "end":
        with pytest.raises(AmqpConnectionError) as caught:
            session.receive([FRAMES[what]])
        assert caught.value.condition == Condition.ILLEGAL_STATE


def test_begin_is_answered_with_remote_channel() -> None:
    """2.7.2: "When an endpoint responds to a remotely initiated session, the remote-channel MUST be set to
    the channel on which the remote session sent the begin"."""
    script = ScriptRunner()
    assert script.do("C> BEGIN ch=6") == ["B> BEGIN ch=6 remote-channel=6 noi=0 iw=400 handle-max=255"]


def test_begin_of_our_own_has_no_remote_channel() -> None:
    """2.7.2: "If a session is locally initiated, the remote-channel MUST NOT be set"."""
    session = Session(4, incoming_window=8, handle_max=3, frame_size_max=512)
    session.begin()
    (sent,) = out(session)
    assert sent.remote_channel is None
    session.receive_begin(9, begin(remote_channel=4))
    assert session.state is S.MAPPED


def test_begin_with_remote_channel_of_no_session_is_refused() -> None:
    """2.7.2: only the answer to a begin of ours may name a remote-channel, and we sent none."""
    script = ScriptRunner()
    lines = script.do("C> BEGIN remote-channel=5")
    assert len(lines) >= 1
    assert lines[-1].startswith(("B> CLOSE error=amqp:", "B> END error=amqp:"))


def test_end_is_answered_by_end() -> None:
    """2.5.3: a session is ended by an end from either endpoint, answered by one of the other's."""
    session = mapped()
    (event,) = session.receive([End()])
    assert isinstance(event, SessionEnded)
    session.end()
    assert [type(item) for item in out(session)] == [End]
    assert session.state is S.UNMAPPED


def test_end_of_both_at_once() -> None:
    """2.5.3: ends that cross make the session unmapped, without a third."""
    session = mapped()
    session.end()
    session.take_output()
    assert session.receive([End()]) == []
    assert session.state is S.UNMAPPED
    assert out(session) == []


def test_after_an_error_everything_but_end_is_discarded() -> None:
    """2.5.5, DISCARDING: "any incoming frames on the session MUST be silently discarded until the peer's
    end frame is received"."""
    script = ScriptRunner()
    script.do("C> BEGIN")
    assert script.do("C> TRANSFER h=1")[0].startswith("B> END error=amqp:session:unattached-handle")
    assert script.do("C> FLOW echo=true") == []
    assert script.do("C> ATTACH h=0 target=q") == []
    assert script.do("C> TRANSFER h=9") == []
    assert script.do("C> END") == []


def test_end_with_an_error_of_the_peer_is_answered_without() -> None:
    """2.7.8: the error says why its sender ended; our answer has no reason of its own."""
    script = ScriptRunner()
    script.do("C> BEGIN")
    assert script.do("C> END error=amqp:internal-error") == ["B> END"]


@pytest.mark.rabbitmq("amqp_client_SUITE", "multiple_sessions")
def test_sessions_of_a_connection_are_independent() -> None:
    """ "A single connection MAY have multiple independent sessions active simultaneously"."""
    script = ScriptRunner()
    for channel in range(4):
        script.do(f"C> BEGIN ch={channel}")
    script.do("C> TRANSFER ch=2 h=1")
    for channel in (0, 1, 3):
        assert script.do(f"C> FLOW ch={channel} echo=true") == [
            f"B> FLOW {f'ch={channel} ' if channel else ''}nii=0 iw=400 noi=0"
        ]


def test_frames_of_sessions_may_alternate_in_one_read() -> None:
    script = ScriptRunner()
    script.do("queue q")
    script.do("C> BEGIN")
    script.do("C> BEGIN ch=1")
    script.do("C> ATTACH h=0 target=/queues/q")
    script.do("C> ATTACH ch=1 h=0 target=/queues/q")
    lines = script.do("C> TRANSFER h=0 ; TRANSFER ch=1 h=0 ; TRANSFER h=0 ; TRANSFER ch=1 h=0")
    assert lines == [
        "B> DISPOSITION role=receiver first=0 last=1 settled=true state=accepted",
        "B> DISPOSITION ch=1 role=receiver first=0 last=1 settled=true state=accepted",
    ]


# --- 2.5.6: windows ------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "sent", "next_incoming_id"), [(0, 10, 11), (LAST, 1, 1), (0, 0, 1)])
def test_an_acknowledgement_of_unsent_transfers_is_a_window_violation(
    first: int, sent: int, next_incoming_id: int
) -> None:
    """next-incoming-id "leads" next-outgoing-id: the peer cannot expect what was not sent."""
    outgoing = OutgoingWindow(next_outgoing_id=first)
    outgoing.remote_incoming_window = 100
    outgoing.spend(sent)
    with pytest.raises(AmqpSessionError) as caught:
        outgoing.update(flow(next_incoming_id=next_incoming_id))
    assert caught.value.condition == Condition.WINDOW_VIOLATION


def test_sending_decrements_the_remote_window_and_counts_transfers() -> None:
    """2.5.6, sending a transfer: next-outgoing-id goes up, remote-incoming-window down."""
    outgoing = OutgoingWindow()
    outgoing.remote_incoming_window = 5
    outgoing.spend(3)
    assert (outgoing.next_outgoing_id, outgoing.remote_incoming_window) == (3, 2)


def test_a_window_violation_ends_the_session() -> None:
    """2.8.17: "amqp:session:window-violation: The peer violated incoming window for the session"."""
    session = mapped(window_closed=True)
    assert session.incoming.advertised == 0
    assert session.incoming.allowance() == 8


def test_every_flow_has_the_session_state() -> None:
    """2.7.4: incoming-window, next-outgoing-id and outgoing-window are mandatory; next-incoming-id "MUST
    be set if the peer has received the begin frame for the session"."""
    session = mapped()
    session.send_session_flow()
    (sent,) = out(session)
    assert (sent.next_incoming_id, sent.incoming_window, sent.next_outgoing_id) == (0, 8, 0)
    assert sent.outgoing_window == LAST


def test_a_flow_before_the_peers_begin_has_no_next_incoming_id() -> None:
    """2.7.4: next-incoming-id "MUST NOT be set if it has not" received the begin."""
    session = Session(0, incoming_window=8, handle_max=3, frame_size_max=512)
    session.begin()
    session.take_output()
    session.send_session_flow()
    (sent,) = out(session)
    assert sent.next_incoming_id is None
