"""Part 2, section 2.4: connections. Open, close, time-outs, channel-max, and every state with every input."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest

from amqp10broker.protocols.amqp10.connection import (
    CONNECTION_TRANSITIONS,
    HEADER_AMQP,
    HEADER_SASL,
    Connection,
    ConnectionInput,
    ConnectionState,
)
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, Condition
from amqp10broker.protocols.amqp10.link import BeginReceived, ConnectionFailed
from amqp10broker.protocols.amqp10.performatives import Begin, Close, End, Error, Flow, Open
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.connection import IdleTimer
from tests.support.engine import (
    BEGIN,
    CLOSE,
    EMPTY,
    OPEN,
    SASL_INIT,
    client,
    exchange,
    frame,
    kinds,
    raw_frame,
    read_all,
    server,
    server_at,
)
from tests.support.script import ScriptRunner

S = ConnectionState
Step = ConnectionInput
END = frame(End())

# --- 2.4.6: the table ----------------------------------------------------------------------------

# Written down from the section's state table, the SASL layer of part 5 in front of it.
LEGAL = {
    (S.START, Step.SEND_SASL_HEADER),
    (S.START, Step.RECEIVE_SASL_HEADER),
    (S.SASL_HEADER_SENT, Step.RECEIVE_SASL_HEADER),
    (S.SASL_NEGOTIATING, Step.SASL_OK),
    (S.SASL_NEGOTIATING, Step.SASL_FAILED),
    (S.SASL_DONE, Step.SEND_HEADER),
    (S.SASL_DONE, Step.RECEIVE_HEADER),
    (S.HEADER_SENT, Step.RECEIVE_HEADER),
    (S.HEADER_SENT, Step.SEND_OPEN),
    (S.OPEN_PIPE, Step.RECEIVE_HEADER),
    (S.HEADER_EXCHANGED, Step.SEND_OPEN),
    (S.HEADER_EXCHANGED, Step.RECEIVE_OPEN),
    (S.OPEN_SENT, Step.RECEIVE_OPEN),
    (S.OPEN_RECEIVED, Step.SEND_OPEN),
    (S.OPENED, Step.RECEIVE_CLOSE),
    (S.OPENED, Step.SEND_CLOSE),
    (S.OPENED, Step.SEND_CLOSE_ERROR),
    (S.CLOSE_RECEIVED, Step.SEND_CLOSE),
    (S.CLOSE_RECEIVED, Step.SEND_CLOSE_ERROR),
    (S.CLOSE_SENT, Step.RECEIVE_CLOSE),
    (S.DISCARDING, Step.RECEIVE_CLOSE),
}


@pytest.mark.parametrize(("state", "step"), list(product(S, Step)), ids=lambda value: value.name)
def test_every_pair_of_state_and_input_is_a_transition_or_refused(state: S, step: Step) -> None:
    """2.4.6 lists what a peer may send and receive in each state; a pair outside it is an illegal state."""
    assert ((state, step) in CONNECTION_TRANSITIONS) == ((state, step) in LEGAL)
    connection = server()
    connection.state = state
    if (state, step) in LEGAL:
        connection._move(step)
        assert connection.state is CONNECTION_TRANSITIONS[state, step]
    else:
        with pytest.raises(AmqpConnectionError) as caught:
            connection._move(step)
        assert caught.value.condition == Condition.ILLEGAL_STATE
        assert connection.state is state


def test_every_state_leads_to_the_end() -> None:
    """No state is a trap: each can be left, except END."""
    left = {state for state, _ in CONNECTION_TRANSITIONS}
    assert left == set(S) - {S.END}


# Each listening state with each thing a client can send: the state after it. A state that stays and
# "kept" means that the bytes wait for our own answer.
RECEIVED: dict[str, bytes] = {
    "sasl-header": HEADER_SASL,
    "amqp-header": HEADER_AMQP,
    "sasl-init": SASL_INIT,
    "open": OPEN,
    "begin": BEGIN,
    "end": END,
    "close": CLOSE,
    "empty": EMPTY,
    "garbage": b"\xff" * 16,
}
AFTER: dict[S, dict[str, S]] = {
    S.START: {"sasl-header": S.SASL_NEGOTIATING},
    S.SASL_NEGOTIATING: {"sasl-init": S.SASL_NEGOTIATING},
    S.SASL_DONE: {"amqp-header": S.HEADER_EXCHANGED},
    S.HEADER_EXCHANGED: {
        "open": S.OPEN_RECEIVED,
        "empty": S.HEADER_EXCHANGED,
        "close": S.END,
        "begin": S.DISCARDING,
        "end": S.DISCARDING,
        "sasl-init": S.DISCARDING,
        "sasl-header": S.DISCARDING,
        "amqp-header": S.DISCARDING,
        "garbage": S.DISCARDING,
    },
    S.OPENED: {
        "open": S.DISCARDING,
        "begin": S.OPENED,
        "end": S.DISCARDING,
        "close": S.CLOSE_RECEIVED,
        "empty": S.OPENED,
        "sasl-init": S.DISCARDING,
        "sasl-header": S.DISCARDING,
        "amqp-header": S.DISCARDING,
        "garbage": S.DISCARDING,
    },
    S.CLOSE_SENT: {
        "close": S.END,
        "open": S.CLOSE_SENT,
        "begin": S.CLOSE_SENT,
        "end": S.CLOSE_SENT,
        "empty": S.CLOSE_SENT,
    },
    S.DISCARDING: {
        "close": S.END,
        "open": S.DISCARDING,
        "begin": S.DISCARDING,
        "end": S.DISCARDING,
        "empty": S.DISCARDING,
    },
    S.END: dict.fromkeys(RECEIVED, S.END),
}


@pytest.mark.parametrize(("state", "what"), list(product(AFTER, RECEIVED)), ids=str)
def test_every_frame_in_every_state_of_a_server(state: S, what: str) -> None:
    """2.4.6: the frames a listening end meets in each state, legal or not; none of them raises."""
    connection = server_at(state)
    events = connection.receive(RECEIVED[what])
    expected = AFTER[state].get(what)
    if expected is None:
        # Bytes of another layer, or noise: before and after the open connection the socket just ends.
        assert connection.state in (S.END, S.DISCARDING, S.CLOSE_SENT)
        return
    assert connection.state is expected
    failed = any(isinstance(event, ConnectionFailed) for event in events)
    assert failed == (expected is S.DISCARDING and state is not S.DISCARDING)


@pytest.mark.parametrize("what", ["begin", "end", "open"])
def test_a_frame_before_open_is_told_by_open_and_close(what: str) -> None:
    """2.4.1: open goes before any other frame, so that a close with the reason follows an open."""
    if what == "open":
        connection = server_at(S.OPENED)
        connection.receive(OPEN)
        assert kinds(connection.take_output()) == ["Close"]
        return
    connection = server_at(S.HEADER_EXCHANGED)
    connection.receive(RECEIVED[what])
    opened, closed = read_all(connection.take_output())
    assert isinstance(opened, Open)
    assert closed.error.condition == Condition.ILLEGAL_STATE


# --- 2.4.1 and 2.7.1: open -----------------------------------------------------------------------


def test_open_is_answered_with_our_own() -> None:
    """ "After establishing or accepting a TCP connection and sending the protocol header, each peer MUST
    send an open frame before sending any other frames"."""
    connection = server_at(S.OPEN_RECEIVED)
    connection.open("broker", idle_time_out_ms=30000)
    (opened,) = read_all(connection.take_output())
    assert (opened.container_id, opened.max_frame_size, opened.channel_max) == ("broker", 4096, 7)
    assert opened.idle_time_out == 30000


def test_open_twice_closes_the_connection() -> None:
    connection = server_at(S.OPENED)
    events = connection.receive(OPEN)
    assert isinstance(events[-1], ConnectionFailed)
    (closed,) = read_all(connection.take_output())
    assert closed.error.condition == Condition.ILLEGAL_STATE


@pytest.mark.parametrize(("size", "taken"), [(512, True), (511, False), (0, False), (4294967295, True)])
def test_max_frame_size_is_at_least_512(size: int, taken: bool) -> None:
    """ "Both peers MUST accept frames of up to 512 (MIN-MAX-FRAME-SIZE) octets"."""
    connection = server_at(S.HEADER_EXCHANGED)
    events = connection.receive(frame(Open(container_id="c", max_frame_size=size)))
    assert isinstance(events[-1], Open if taken else ConnectionFailed)
    if taken:
        assert connection.frame_size_max == size
    else:
        closed = read_all(connection.take_output())[-1]
        assert closed.error.condition == Condition.FRAME_SIZE_TOO_SMALL


def test_max_frame_size_unset_is_unlimited() -> None:
    """The default of max-frame-size is 4294967295."""
    connection = server_at(S.OPEN_RECEIVED)
    assert connection.frame_size_max == 4294967295


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "idle_time_out_too_short",
    differs="open and close with the condition instead of a closed socket",
)
@pytest.mark.parametrize(("idle", "taken"), [(999, False), (1, False), (1000, True), (0, True), (None, True)])
def test_an_idle_time_out_of_less_than_a_second_is_refused(idle: int | None, taken: bool) -> None:
    """ "If a peer can not, for any reason support a proposed idle timeout, then it SHOULD close the
    connection using a close frame with an error explaining why"; 0 is none."""
    connection = server_at(S.HEADER_EXCHANGED)
    events = connection.receive(frame(Open(container_id="c", idle_time_out=idle)))
    assert isinstance(events[-1], Open if taken else ConnectionFailed)
    if not taken:
        closed = read_all(connection.take_output())[-1]
        assert closed.error.condition == Condition.NOT_ALLOWED
        assert f"({idle} ms) < minimum idle-time-out (1000 ms)" in closed.error.description


def test_open_without_container_id_is_refused() -> None:
    connection = server_at(S.HEADER_EXCHANGED)
    events = connection.receive(raw_frame(b"\x00\x53\x10\xc0\x02\x01\x40"))
    assert isinstance(events[-1], ConnectionFailed)
    assert kinds(connection.take_output()) == ["Open", "Close"]


def test_bytes_pipelined_behind_open_are_kept() -> None:
    """2.4.1: a peer may send begin right behind its open, without waiting for ours."""
    connection = server_at(S.HEADER_EXCHANGED)
    events = connection.receive(OPEN + BEGIN)
    assert [type(event) for event in events] == [Open]
    connection.open("broker")
    (event,) = connection.receive(b"")
    assert isinstance(event, BeginReceived)


def test_bytes_pipelined_behind_sasl_init_are_kept() -> None:
    """A client may send everything up to its first begin in one segment."""
    connection = server()
    connection.receive(HEADER_SASL + SASL_INIT + HEADER_AMQP + OPEN + BEGIN)
    connection.sasl_outcome(0)
    (event,) = connection.receive(b"")
    assert isinstance(event, Open)
    connection.open("broker")
    (event,) = connection.receive(b"")
    assert isinstance(event, BeginReceived)


def test_open_and_close_pipelined_is_answered_by_open_and_close() -> None:
    """2.4.6, OC PIPE: open, close and goodbye in one segment are legal."""
    connection = server_at(S.HEADER_EXCHANGED)
    connection.receive(OPEN + CLOSE)
    connection.open("broker")
    (event,) = connection.receive(b"")
    assert isinstance(event, Close)
    connection.close()
    assert kinds(connection.take_output()) == ["Open", "Close"]
    assert connection.state is S.END


# --- 2.4.2, 2.7.1: channels ----------------------------------------------------------------------


def test_channel_max_is_the_smaller_of_both() -> None:
    """ "A peer MUST not use channel numbers outside the range that its partner can handle"."""
    connection = server_at(S.HEADER_EXCHANGED)
    connection.receive(frame(Open(container_id="c", channel_max=3)))
    connection.open("broker")
    assert connection.channel_max == 3
    (opened,) = read_all(connection.take_output())
    assert opened.channel_max == 3


@pytest.mark.rabbitmq("amqp_client_SUITE", "session_max_per_connection")
@pytest.mark.parametrize(("channel", "taken"), [(7, True), (8, False), (65535, False)])
def test_begin_over_channel_max_closes_with_framing_error(channel: int, taken: bool) -> None:
    """ "A peer that receives a channel number outside the supported range MUST close the connection with
    the framing-error error-code"."""
    connection = server_at(S.OPENED)
    begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    (event,) = connection.receive(frame(begin, channel=channel))
    assert isinstance(event, BeginReceived if taken else ConnectionFailed)
    if not taken:
        (closed,) = read_all(connection.take_output())
        assert closed.error.condition == Condition.FRAMING_ERROR
        assert closed.error.description == f"channel number ({channel}) exceeds maximum channel number (7)"


@pytest.mark.parametrize(
    "performative", [Flow(incoming_window=0, next_outgoing_id=0, outgoing_window=0), End()]
)
def test_a_frame_on_a_channel_without_session_closes_the_connection(performative: Any) -> None:
    """2.5: a channel means nothing before begin; amqp:illegal-state."""
    connection = server_at(S.OPENED)
    connection.receive(frame(performative, channel=3))
    (closed,) = read_all(connection.take_output())
    assert closed.error.condition == Condition.ILLEGAL_STATE


def test_a_channel_may_be_used_again_behind_end() -> None:
    """2.5.4: the number is free when both ends have been exchanged."""
    script = ScriptRunner()
    for _ in range(3):
        assert script.do("C> BEGIN") == ["B> BEGIN remote-channel=0 noi=0 iw=400 handle-max=255"]
        assert script.do("C> END") == ["B> END"]


# --- 2.4.3: close --------------------------------------------------------------------------------


def test_close_is_answered_by_close_and_the_end() -> None:
    """ "each peer MUST write a close frame with a code indicating the reason for closing"."""
    connection = server_at(S.OPENED)
    (event,) = connection.receive(CLOSE)
    assert isinstance(event, Close)
    connection.close()
    assert kinds(connection.take_output()) == ["Close"]
    assert connection.state is S.END


def test_close_of_the_client_carries_its_error() -> None:
    """close.error: "If set, this field indicates that the connection is being closed due to an error"."""
    connection = server_at(S.OPENED)
    (event,) = connection.receive(
        frame(Close(error=Error(condition=Symbol("amqp:not-found"), description="x")))
    )
    assert isinstance(event, Close)
    assert event.error.condition == "amqp:not-found"


def test_after_close_with_an_error_everything_but_close_is_discarded() -> None:
    """ "DISCARDING: ... any incoming frames on the connection MUST be silently discarded until the peer's
    close frame is received"."""
    connection = server_at(S.DISCARDING)
    assert connection.receive(BEGIN + OPEN + frame(End(), channel=4)) == []
    assert connection.take_output() == b""
    (event,) = connection.receive(CLOSE)
    assert isinstance(event, Close)
    assert connection.state is S.END


def test_frames_behind_close_are_not_looked_at() -> None:
    """Close is the last frame of its sender."""
    connection = server_at(S.OPENED)
    events = connection.receive(CLOSE + BEGIN)
    assert [type(event) for event in events] == [Close]


def test_both_peers_may_close_at_once() -> None:
    """2.4.3: closes that cross end the connection without a third."""
    connection = server_at(S.CLOSE_SENT)
    connection.receive(CLOSE)
    assert connection.state is S.END
    assert connection.take_output() == b""


# --- 2.4.5: idle time-out ------------------------------------------------------------------------


def test_an_empty_frame_is_due_before_half_of_the_peers_time_out() -> None:
    """2.4.5: frames must come within the peer's time-out; ours do within half of it."""
    timer = IdleTimer(local_ms=0, remote_ms=1000, now=0.0)
    assert timer.interval == 0.25
    times = [step * timer.interval for step in range(1, 20)]
    sent_at = [0.0]
    sent = 0
    for now in times:
        heartbeat, expired = timer.tick(now, 0, sent)
        assert not expired
        if heartbeat:
            sent += 8
            sent_at.append(now)
    gaps = [later - earlier for earlier, later in pairwise(sent_at)]
    assert gaps
    assert max(gaps) <= 0.5


def test_no_empty_frame_is_sent_while_there_is_traffic() -> None:
    """The "artificial traffic" is for connections without real traffic."""
    timer = IdleTimer(local_ms=0, remote_ms=1000, now=0.0)
    assert not any(timer.tick(step * 0.25, 0, step * 100)[0] for step in range(1, 20))


def test_a_silent_peer_is_given_up_after_our_time_out_and_not_before() -> None:
    """ "If the threshold is exceeded, then a peer SHOULD try to gracefully close the connection"."""
    timer = IdleTimer(local_ms=60_000, remote_ms=None, now=0.0)
    interval = timer.interval
    expired_at = next(step * interval for step in range(1, 20) if timer.tick(step * interval, 0, 0)[1])
    assert 60.0 <= expired_at <= 60.0 + 2 * interval


def test_any_byte_of_the_peer_is_a_sign_of_life() -> None:
    timer = IdleTimer(local_ms=4_000, remote_ms=None, now=0.0)
    assert not any(timer.tick(float(step), step, 0)[1] for step in range(1, 30))


def test_without_time_outs_nothing_is_watched() -> None:
    """idle-time-out 0 or unset is no limit."""
    assert IdleTimer(local_ms=0, remote_ms=None, now=0.0).interval is None
    assert IdleTimer(local_ms=0, remote_ms=0, now=0.0).interval is None


# --- two engines back to back --------------------------------------------------------------------


def _opened_pair() -> tuple[Connection, Connection]:
    one, other = client(frame_size_max=1024), server()
    one.start("ANONYMOUS", b"me")
    exchange(one, other)
    other.sasl_outcome(0)
    exchange(one, other)
    one.open("client", hostname="host")
    exchange(one, other)
    other.open("broker")
    exchange(one, other)
    return one, other


def test_two_ends_of_the_engine_open_a_connection() -> None:
    """The same engine plays the connecting end."""
    one, other = _opened_pair()
    assert (one.state, other.state) == (S.OPENED, S.OPENED)
    assert (one.frame_size_max, other.frame_size_max) == (4096, 1024)
    assert one.remote_open.container_id == "broker"


@pytest.mark.parametrize("end", ["client", "server"])
def test_either_end_may_close(end: str) -> None:
    """2.4.3 has no roles."""
    one, other = _opened_pair()
    closing, waiting = (one, other) if end == "client" else (other, one)
    closing.close()
    exchange(one, other)
    assert (closing.state, waiting.state) == (S.CLOSE_SENT, S.CLOSE_RECEIVED)
    waiting.close()
    exchange(one, other)
    assert (closing.state, waiting.state) == (S.END, S.END)


def test_a_client_may_send_its_open_before_the_servers_header() -> None:
    one, other = client(), server()
    one.start("ANONYMOUS", b"")
    other.receive(one.take_output())
    one.receive(other.take_output())
    other.receive(one.take_output())
    other.sasl_outcome(0)
    one.receive(other.take_output())
    states = [one.state]
    one.open("client")
    states.append(one.state)
    exchange(one, other)
    assert states == [S.HEADER_SENT, S.OPEN_PIPE]
    assert other.state is S.OPEN_RECEIVED
    other.open("broker")
    exchange(one, other)
    assert (one.state, other.state) == (S.OPENED, S.OPENED)


def test_the_client_end_refuses_a_server_that_does_not_offer_its_mechanism() -> None:
    """It must not send credentials by a mechanism that was not offered."""
    one, other = client(), server(mechanisms=("ANONYMOUS",))
    one.start("PLAIN", b"\0guest\0guest")
    events, _ = exchange(one, other)
    assert isinstance(events[-1], ConnectionFailed)
