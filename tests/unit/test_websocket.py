"""A WebSocket's messages and AMQP's bytes: cut anyhow, mixed with pings, hostile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol as Engine
from websockets.protocol import Side

from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.protocols.websocket import WebSocketLayer, whole_frames
from tests.support.rawframes import SASL_HEADER
from tests.support.websocket_client import binary, masked

PIECE_MAX = 1000


def layer() -> WebSocketLayer:
    return WebSocketLayer(PIECE_MAX)


def heard(data: bytes) -> list[Frame]:
    engine = Engine(Side.CLIENT, max_size=None)
    engine.receive_data(data)
    assert engine.parser_exc is None
    found: list[Frame] = engine.events_received()
    return found


def code_of(told: WebSocketLayer) -> int:
    (frame,) = heard(told.take_output())
    assert frame.opcode is Opcode.CLOSE
    return int.from_bytes(frame.data[:2], "big")


def amqp(size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes(size - 4)


def amqp091(size: int) -> bytes:
    return b"\x03\x00\x01" + (size - 8).to_bytes(4, "big") + bytes(size - 8) + b"\xce"


@given(st.lists(st.binary(max_size=60), max_size=12), st.data())
def test_bytes_are_the_same_however_messages_fragments_and_reads_cut_them(
    parts: list[bytes], data: st.DataObject
) -> None:
    """Pings between messages or inside of them change nothing; the last of a read is answered."""
    sent, pinged = b"", b""
    for part in parts:
        at = data.draw(st.integers(0, len(part)))
        ping = data.draw(st.none() | st.binary(min_size=1, max_size=5))
        if ping is None:
            sent += binary(part[:at], part[at:])
        else:
            first = masked(Opcode.BINARY, part[:at], fin=False)
            sent += first + masked(Opcode.PING, ping) + masked(Opcode.CONT, part[at:])
            pinged = ping
    engine, got = layer(), b""
    while sent:
        cut = data.draw(st.integers(1, len(sent)))
        got += engine.receive(memoryview(sent[:cut]))
        sent = sent[cut:]
    assert got == b"".join(parts)
    assert engine.open
    assert not engine.fault
    said = heard(engine.take_output())
    assert [(frame.opcode, bytes(frame.data)) for frame in said] == (
        [(Opcode.PONG, pinged)] if pinged else []
    )


def test_text_is_answered_with_1003_and_what_stood_before_it_is_told() -> None:
    engine = layer()
    sent = binary(b"before") + masked(Opcode.TEXT, b"text") + binary(b"behind")
    assert engine.receive(sent) == b"before"
    assert engine.fault == "AMQP comes in binary messages"
    assert not engine.open
    assert code_of(engine) == 1003
    assert engine.receive(binary(b"later")) == b""


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (Frame(Opcode.BINARY, b"abc").serialize(mask=False), 1002),  # no mask
        (masked(Opcode.CONT, b"abc"), 1002),  # of nothing
        (binary(b"a")[:0] + masked(Opcode.BINARY, b"a", fin=False) + binary(b"b"), 1002),  # begun twice
        (bytes([0xC2, 0x80, 1, 2, 3, 4]), 1002),  # compressed, which nobody has agreed to
        (bytes([0x83, 0x80, 1, 2, 3, 4]), 1002),  # an opcode that is reserved
        (bytes([0x09, 0x80, 1, 2, 3, 4]), 1002),  # a ping in fragments
        (bytes([0x89, 0xFE, 0, 126, 1, 2, 3, 4]) + bytes(126), 1002),  # a ping of more than 125 bytes
        (masked(Opcode.CLOSE, b"\x03"), 1002),  # half a code
        (bytes([0x82, 0xFF, 0, 0, 0, 0, 0, 0, 3, 0xE9]), 1009),  # 1001 bytes announced
        (bytes([0x82, 0xFF]) + b"\xff" * 8, 1009),  # as many as can be announced
        (masked(Opcode.BINARY, b"a", fin=False) + bytes([0x80, 0xFE, 3, 0xE9]), 1009),  # a fragment
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value),
)
def test_what_no_client_may_send_is_answered_with_its_code(sent: bytes, code: int) -> None:
    engine = layer()
    engine.receive(sent)
    assert engine.fault
    assert not engine.open
    assert code_of(engine) == code
    assert engine.receive(binary(b"later")) == b""


def test_a_message_may_be_as_large_as_it_likes_in_fragments_that_are_not() -> None:
    engine = layer()
    assert engine.receive(binary(*[bytes(PIECE_MAX)] * 50)) == bytes(50 * PIECE_MAX)
    assert engine.open


def test_of_many_pings_the_last_is_answered() -> None:
    """A client that pings and does not read costs no memory."""
    engine = layer()
    for number in range(10_000):
        engine.receive(masked(Opcode.PING, b"%d" % number))
    assert [bytes(frame.data) for frame in heard(engine.take_output())] == [b"9999"]
    assert not engine.has_output


def test_a_close_of_the_client_is_answered_with_its_code() -> None:
    engine = layer()
    assert engine.receive(binary(b"a") + masked(Opcode.CLOSE, b"\x03\xe9bye") + binary(b"b")) == b"a"
    assert engine.closed_by_client
    assert not engine.open
    assert not engine.fault
    assert code_of(engine) == 1001


@given(
    st.lists(st.integers(8, 300), min_size=1, max_size=20),
    st.integers(1, 400),
    st.sampled_from([(WireProtocol.AMQP_10, amqp), (WireProtocol.AMQP_091, amqp091)]),
)
def test_messages_have_whole_frames_and_are_no_larger_than_needed(
    sizes: list[int], most: int, spoken: tuple[WireProtocol, object]
) -> None:
    protocol, make = spoken
    frames = [make(size) for size in sizes]  # type: ignore[operator]
    engine = layer()
    engine.speaks(protocol)
    engine.message_bytes_max = most
    messages = [bytes(frame.data) for frame in heard(engine.wrap(b"".join(frames)))]
    assert b"".join(messages) == b"".join(frames)
    left = list(frames)
    for message in messages:
        inside = []
        while message:
            inside.append(left.pop(0))
            assert message.startswith(inside[-1])
            message = message[len(inside[-1]) :]
        assert len(inside) == 1 or sum(map(len, inside)) <= most


def test_a_protocol_header_is_no_frame_of_a_gigabyte() -> None:
    engine = layer()
    engine.message_bytes_max = 16
    assert [bytes(each.data) for each in heard(engine.wrap(SASL_HEADER + amqp(12) + amqp(20)))] == [
        *(SASL_HEADER, amqp(12), amqp(20))
    ]


def test_cutting_is_lazy_and_copies_nothing() -> None:
    part = next(whole_frames(amqp(10) * 2, 10, lambda data, at: 10))
    assert isinstance(part, memoryview)
