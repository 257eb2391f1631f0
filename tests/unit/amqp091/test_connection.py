"""The server's end of a connection: start to close."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from amqp10broker.protocols.amqp091.connection import (
    CONNECTION_TRANSITIONS,
    ChannelItems,
    Connection091,
    ConnectionEvent,
    ConnectionFailed,
    ConnectionInput,
    ConnectionState,
    FrameReader,
)
from amqp10broker.protocols.amqp091.content import (
    HEADER,
    HEARTBEAT,
    MethodFrame,
    PublishRun,
    content_frames,
    method_frame,
)
from amqp10broker.protocols.amqp091.errors import ReplyCode
from amqp10broker.protocols.amqp091.methods import (
    BasicPublish,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    QueueDeclare,
    TxSelect,
)

S = ConnectionState
I = ConnectionInput  # noqa: E741
CAPABILITIES = {"capabilities": {"connection.blocked": True, "basic.nack": False}}
PUBLISH = content_frames(1, BasicPublish(routing_key="q"), b"\x00\x00", b"hello", 0)


def written(connection: Connection091) -> list[Method]:
    found = []
    for item in FrameReader(0).feed(connection.take_output()):
        assert isinstance(item, MethodFrame)
        assert item.channel == 0
        found.append(item.method)
    return found


def failure_of(events: list[ConnectionEvent]) -> ConnectionFailed:
    (event,) = events
    assert isinstance(event, ConnectionFailed)
    return event


def receive(connection: Connection091, *methods: Method) -> list[ConnectionEvent]:
    return connection.receive(b"".join(method_frame(0, method) for method in methods))


SENT: dict[ConnectionInput, Callable[[Connection091], object]] = {
    I.SEND_START: lambda connection: connection.start(["PLAIN", "AMQPLAIN"]),
    I.SEND_SECURE: lambda connection: connection.secure(b"challenge"),
    I.SEND_TUNE: lambda connection: connection.tune(channel_max=2047, frame_max=131072, heartbeat_s=60),
    I.SEND_OPEN_OK: Connection091.open_ok,
    I.SEND_CLOSE_OK: Connection091.close_ok,
    I.SEND_CLOSE: lambda connection: connection.close(ReplyCode.CONNECTION_FORCED, "bye"),
}
RECEIVED: dict[ConnectionInput, Method] = {
    I.RECEIVE_START_OK: ConnectionStartOk(CAPABILITIES, "PLAIN", b"\0u\0p", "en_US"),
    I.RECEIVE_SECURE_OK: ConnectionSecureOk(b"response"),
    I.RECEIVE_TUNE_OK: ConnectionTuneOk(100, 8192, 30),
    I.RECEIVE_OPEN: ConnectionOpen("/"),
    I.RECEIVE_UPDATE_SECRET: ConnectionUpdateSecret(b"new", "old one expires"),
    I.RECEIVE_CLOSE: ConnectionClose(200, "bye", 0, 0),
    I.RECEIVE_CLOSE_OK: ConnectionCloseOk(),
}
WAY: dict[ConnectionState, list[ConnectionInput]] = {
    S.START: [],
    S.STARTING: [I.SEND_START],
    S.AUTHENTICATING: [I.SEND_START, I.RECEIVE_START_OK],
    S.SECURING: [I.SEND_START, I.RECEIVE_START_OK, I.SEND_SECURE],
    S.TUNING: [I.SEND_START, I.RECEIVE_START_OK, I.SEND_TUNE],
}
WAY[S.OPENING] = [*WAY[S.TUNING], I.RECEIVE_TUNE_OK]
WAY[S.OPEN_RECEIVED] = [*WAY[S.OPENING], I.RECEIVE_OPEN]
WAY[S.RUNNING] = [*WAY[S.OPEN_RECEIVED], I.SEND_OPEN_OK]
WAY[S.CLOSE_RECEIVED] = [*WAY[S.RUNNING], I.RECEIVE_CLOSE]
WAY[S.CLOSING] = [*WAY[S.RUNNING], I.SEND_CLOSE]
WAY[S.END] = [*WAY[S.CLOSING], I.RECEIVE_CLOSE_OK]

OWNERS_TURN = (S.START, S.AUTHENTICATING, S.OPEN_RECEIVED)
DEAF = (S.CLOSE_RECEIVED, S.END)


def connection_in(state: ConnectionState, **options: int) -> Connection091:
    connection = Connection091(**options)
    for moved_by in WAY[state]:
        if moved_by in RECEIVED:
            receive(connection, RECEIVED[moved_by])
        else:
            SENT[moved_by](connection)
    assert connection.state is state
    connection.take_output()
    return connection


# --- the table -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
@pytest.mark.parametrize("moved_by", I, ids=lambda moved_by: moved_by.name)
def test_every_input_in_every_state(state: ConnectionState, moved_by: ConnectionInput) -> None:
    """The connection moves as the table states; other input is refused, delayed or ignored."""
    connection = connection_in(state)
    target = CONNECTION_TRANSITIONS.get((state, moved_by))
    if moved_by in RECEIVED:
        events = receive(connection, RECEIVED[moved_by])
        if state in OWNERS_TURN:
            assert (connection.state, events) == (state, []), "it is read when the owner has answered"
        elif target is not None:
            assert connection.state is target
            assert not any(isinstance(event, ConnectionFailed) for event in events)
        elif state in DEAF or state is S.CLOSING:
            assert (connection.state, events) == (state, [])
        else:
            error = failure_of(events).error
            assert error.code is ReplyCode.CHANNEL_ERROR
            assert f"in connection state {state.name.lower()}" in error.text
            assert connection.state is S.CLOSING
    elif moved_by is I.SEND_CLOSE and (state in DEAF or state is S.CLOSING):
        SENT[moved_by](connection)
        assert (connection.state, connection.take_output()) == (state, b"")
    elif target is None:
        with pytest.raises(AssertionError):
            SENT[moved_by](connection)
        assert connection.state is state
    else:
        SENT[moved_by](connection)
        assert connection.state is target


def test_the_table_leads_everywhere() -> None:
    """Every state but the first is a target, and every input is in a row."""
    assert set(CONNECTION_TRANSITIONS.values()) == set(S) - {S.START}
    assert {moved_by for _, moved_by in CONNECTION_TRANSITIONS} == set(I)


# --- opening ---------------------------------------------------------------------------------------


def test_a_connection_opens_with_start_tune_and_open() -> None:
    """A correct client gives these events, and these methods are written to it."""
    connection = Connection091()
    connection.start(["PLAIN", "AMQPLAIN"], {"product": "x"})
    assert written(connection) == [ConnectionStart(0, 9, {"product": "x"}, b"PLAIN AMQPLAIN", b"en_US")]

    assert receive(connection, RECEIVED[I.RECEIVE_START_OK]) == [
        ConnectionStartOk(CAPABILITIES, "PLAIN", b"\0u\0p", "en_US")
    ]
    assert connection.client_properties == CAPABILITIES
    assert connection.capabilities == {"connection.blocked"}

    connection.tune(channel_max=2047, frame_max=131072, heartbeat_s=60)
    assert written(connection) == [ConnectionTune(2047, 131072, 60)]
    assert receive(connection, ConnectionTuneOk(100, 16384, 30), ConnectionOpen("/")) == [
        ConnectionTuneOk(100, 16384, 30),
        ConnectionOpen("/"),
    ]
    assert (connection.channel_max, connection.frame_max, connection.heartbeat_s) == (100, 16384, 30)

    connection.open_ok()
    assert written(connection) == [ConnectionOpenOk()]
    assert connection.state is S.RUNNING


def test_a_mechanism_of_several_steps_is_answered_with_secure() -> None:
    connection = connection_in(S.AUTHENTICATING)
    for number in range(2):
        connection.secure(b"%d" % number)
        assert written(connection) == [ConnectionSecure(b"%d" % number)]
        assert receive(connection, ConnectionSecureOk(b"answer")) == [ConnectionSecureOk(b"answer")]
    connection.tune(channel_max=0, frame_max=0, heartbeat_s=0)
    assert connection.state is S.TUNING


def test_a_client_that_does_not_wait_is_read_when_the_owner_has_answered() -> None:
    """Everything after an unanswered method is kept, also frames of channels."""
    connection = Connection091()
    connection.start(["PLAIN"])
    data = b"".join(
        method_frame(0, RECEIVED[moved_by])
        for moved_by in (I.RECEIVE_START_OK, I.RECEIVE_TUNE_OK, I.RECEIVE_OPEN)
    )
    data += method_frame(1, ChannelOpen()) + PUBLISH
    events = list(itertools.chain.from_iterable(connection.receive(bytes((byte,))) for byte in data))
    assert [type(event) for event in events] == [ConnectionStartOk]
    SENT[I.SEND_TUNE](connection)
    assert [type(event) for event in connection.receive(b"")] == [ConnectionTuneOk, ConnectionOpen]
    connection.open_ok()
    (event,) = connection.receive(b"")
    assert isinstance(event, ChannelItems)
    assert [type(item) for item in event.items] == [MethodFrame, PublishRun]


# --- tune ------------------------------------------------------------------------------------------


def tuned(offered: tuple[int, int], answer: tuple[int, int]) -> tuple[Connection091, ConnectionEvent]:
    """Return the connection after tune-ok, and its event; limits are (channel-max, frame-max)."""
    connection = connection_in(S.AUTHENTICATING)
    connection.tune(channel_max=offered[0], frame_max=offered[1], heartbeat_s=60)
    (event,) = receive(connection, ConnectionTuneOk(*answer, 0))
    return connection, event


@pytest.mark.parametrize(
    ("offered", "answer", "problem", "limit"),
    [
        ((2047, 131072), (2048, 131072), "channel_max = 2048 is higher than the maximum", 2047),
        ((2047, 131072), (0, 131072), "channel_max = 0 is higher than the maximum", 2047),
        ((2047, 131072), (2047, 131073), "frame_max = 131073 is higher than the maximum", 131072),
        ((2047, 131072), (2047, 0), "frame_max = 0 is higher than the maximum", 131072),
        ((2047, 131072), (2047, 8191), "frame_max = 8191 is lower than the minimum", 8192),
        ((0, 0), (0, 4096), "frame_max = 4096 is lower than the minimum", 8192),
    ],
)
def test_a_limit_outside_the_offered_one_is_refused(
    offered: tuple[int, int], answer: tuple[int, int], problem: str, limit: int
) -> None:
    """The error is 530 with RabbitMQ's text, and the method tune."""
    connection, event = tuned(offered, answer)
    text = f"negotiated {problem} allowed value ({limit})"
    assert isinstance(event, ConnectionFailed)
    assert event.error.text == text
    assert written(connection)[1:] == [ConnectionClose(530, f"NOT_ALLOWED - {text}", 10, 30)]


@pytest.mark.parametrize(
    ("offered", "answer", "limits"),
    [
        ((2047, 131072), (2047, 131072), (2047, 131072)),
        ((2047, 131072), (1, 8192), (1, 8192)),
        ((0, 0), (0, 0), (65535, 0)),
        ((0, 0), (65535, 1_000_000), (65535, 1_000_000)),
        ((2047, 4096), (2047, 4096), (2047, 4096)),
    ],
)
def test_a_limit_within_the_offered_one_holds(
    offered: tuple[int, int], answer: tuple[int, int], limits: tuple[int, int]
) -> None:
    """0 means no limit, if the broker offers none either."""
    connection, event = tuned(offered, answer)
    assert isinstance(event, ConnectionTuneOk)
    assert (connection.channel_max, connection.frame_max) == limits


def test_the_negotiated_frame_size_is_enforced() -> None:
    """Channel numbers have no limit here: the owner counts the open channels."""
    failure = failure_of(connection_in(S.RUNNING).receive(HEADER.pack(3, 1, 8193)))
    assert failure.error.code is ReplyCode.FRAME_ERROR
    (event,) = connection_in(S.RUNNING).receive(method_frame(65_535, ChannelOpen()))
    assert isinstance(event, ChannelItems)
    assert event.channel == 65_535


# --- running ---------------------------------------------------------------------------------------


def test_what_comes_for_channels_is_handed_on_by_channel() -> None:
    """The order is kept; the connection does not check that the channel is open."""
    connection = connection_in(S.RUNNING)
    first, second = connection.receive(
        method_frame(1, QueueDeclare(queue="q")) + method_frame(2, TxSelect()) + PUBLISH + HEARTBEAT + PUBLISH
    )
    assert isinstance(first, ChannelItems)
    assert isinstance(second, ChannelItems)
    assert (first.channel, second.channel) == (1, 2)
    assert [type(item) for item in first.items] == [MethodFrame, PublishRun, PublishRun]
    assert second.items == [MethodFrame(2, TxSelect())]


def test_a_fault_comes_behind_what_was_good() -> None:
    """Channels get the input before it; close is written; later input is discarded."""
    connection = connection_in(S.RUNNING)
    good, failed = connection.receive(PUBLISH + b"\x09\x00\x01\x00\x00\x00\x00\xce" + PUBLISH)
    assert isinstance(good, ChannelItems)
    assert isinstance(failed, ConnectionFailed)
    assert connection.fault is failed.error
    text = "FRAME_ERROR - type 9, 0 octets payload, unknown type"
    assert written(connection) == [ConnectionClose(501, text, 0, 0)]
    assert connection.receive(PUBLISH) == []
    assert receive(connection, ConnectionCloseOk()) == [ConnectionCloseOk()]
    assert connection.state is S.END


def test_a_new_secret_is_handed_on_and_answered() -> None:
    """It keeps its place in the order of the input."""
    connection = connection_in(S.RUNNING)
    secret = ConnectionUpdateSecret(b"new", "expired")
    events = connection.receive(PUBLISH + method_frame(0, secret) + PUBLISH)
    assert [type(event) for event in events] == [ChannelItems, ConnectionUpdateSecret, ChannelItems]
    assert events[1] == ConnectionUpdateSecret(b"new", "expired")
    connection.update_secret_ok()
    assert written(connection) == [ConnectionUpdateSecretOk()]


@pytest.mark.parametrize(
    "event",
    [
        ConnectionStartOk({}, "PLAIN", b"geheim"),
        ConnectionSecureOk(b"geheim"),
        ConnectionUpdateSecret(b"geheim", "expired"),
    ],
)
def test_what_a_client_logs_in_with_is_not_shown(event: object) -> None:
    """A repr may go into a log."""
    assert "geheim" not in repr(event)


def test_blocked_is_not_told_to_other_clients() -> None:
    """A closing connection gets neither blocked nor update-secret-ok."""
    connection = connection_in(S.RUNNING)
    connection.capabilities = frozenset()
    assert not connection.blocked("low on memory")
    closing = connection_in(S.CLOSING)
    assert not closing.blocked("low on memory")
    assert not closing.unblocked()
    closing.update_secret_ok()
    assert connection.take_output() + closing.take_output() == b""


# --- closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
@pytest.mark.parametrize(
    "between",
    [
        PUBLISH * 3,
        method_frame(0, ConnectionOpen("/")),
        b"\x01\x00\x00\x00\x00\x00\x04\x00\x77\x00\x01\xce",
        HEADER.pack(3, 1, 50_000) + bytes(50_000) + b"\xce",
        HEADER.pack(1, 0, 50_000) + bytes(50_000) + b"\xce",
        b"\x09\x00\x00\x00\x00\x00\x01x\xce",
        HEARTBEAT,
    ],
    ids=["publishes", "open", "unknown class", "body", "large method", "unknown type", "heartbeat"],
)
def test_after_our_close_all_but_close_ok_is_read_over(between: bytes, chunk: int) -> None:
    """Its size and its cuts into reads do not matter."""
    connection = connection_in(S.CLOSING)
    data = between + method_frame(0, ConnectionCloseOk())
    events: list[ConnectionEvent] = []
    for start in range(0, len(data), chunk):
        events += connection.receive(data[start : start + chunk])
    assert events == [ConnectionCloseOk()]


def test_a_client_whose_bytes_are_no_frames_is_not_listened_to() -> None:
    """Frame boundaries are unknown after a wrong end octet; the time-out ends the connection."""
    connection = connection_in(S.RUNNING)
    broken = bytearray(method_frame(1, ChannelOpen()))
    broken[-1] = 0
    failure_of(connection.receive(bytes(broken)))
    assert receive(connection, ConnectionCloseOk()) == []
    assert connection.state is S.CLOSING


def test_a_frame_that_is_too_large_is_read_over_after_our_close() -> None:
    """The frame is not kept, and a close-ok after it is found."""
    connection = connection_in(S.RUNNING)
    data = HEADER.pack(3, 1, 1_000_000) + bytes(1_000_000) + b"\xce" + method_frame(0, ConnectionCloseOk())
    events: list[ConnectionEvent] = []
    for start in range(0, len(data), 4096):
        events += connection.receive(data[start : start + 4096])
    assert [type(event) for event in events] == [ConnectionFailed, ConnectionCloseOk]
