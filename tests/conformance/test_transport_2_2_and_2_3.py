"""Part 2, sections 2.2 (version negotiation) and 2.3 (framing)."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.connection import (
    HEADER_AMQP,
    HEADER_SASL,
    ConnectionState,
    FrameReader,
    encode_frame,
)
from amqp10broker.protocols.amqp10.errors import Condition, DecodeError
from amqp10broker.protocols.amqp10.link import BeginReceived, ConnectionFailed
from amqp10broker.protocols.amqp10.performatives import Begin, Close, Open, Transfer
from amqp10broker.protocols.amqp10.types import Described, ULong
from tests.support.engine import BEGIN, CLOSE, EMPTY, frame, raw_frame, read_all, server, server_at
from tests.support.script import ScriptRunner

OPENED = ConnectionState.OPENED


# --- 2.2 -----------------------------------------------------------------------------------------


def test_a_supported_header_is_answered_with_the_same() -> None:
    """ "If the server supports the requested protocol version, it MUST send its own protocol header
    with the requested version"."""
    connection = server()
    connection.receive(HEADER_SASL)
    assert connection.take_output().startswith(HEADER_SASL)


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x02\x00\x00",
        b"AMQP\x00\x01\x00\x01",
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x03\x01\x01\x00",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x01\x01\x08\x00",
        b"HTTP/1.1",
        b"GET / HT",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_any_other_header_is_answered_with_a_supported_one_and_the_socket_closed(header: bytes) -> None:
    """ "If the requested protocol version is not supported by the server, it MUST send a protocol header
    with a supported protocol version and then close the socket"; "If the server cannot parse the
    protocol header ..." the same."""
    connection = server()
    events = connection.receive(header)
    assert isinstance(events[-1], ConnectionFailed)
    assert connection.take_output() == HEADER_SASL
    assert connection.state is ConnectionState.END


@pytest.mark.rabbitmq("amqp_auth_SUITE", "sasl_none_failure")
def test_amqp_without_sasl_is_answered_with_the_sasl_header() -> None:
    """SASL is compulsory here, so that a bare AMQP header is not a supported one."""
    connection = server()
    connection.receive(HEADER_AMQP)
    assert connection.take_output() == HEADER_SASL
    assert connection.state is ConnectionState.END


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_header_may_come_in_pieces(cut: int) -> None:
    """A stream has no frames before the header: eight bytes are eight bytes however they come."""
    connection = server()
    assert connection.receive(HEADER_SASL[:cut]) == []
    assert connection.take_output() == b""
    connection.receive(HEADER_SASL[cut:])
    assert connection.state is ConnectionState.SASL_NEGOTIATING


def test_a_hopeless_beginning_is_refused_before_eight_bytes_are_there() -> None:
    """A client of another protocol may be waiting, so it is answered as early as possible."""
    connection = server()
    events = connection.receive(b"GET")
    assert isinstance(events[-1], ConnectionFailed)
    assert connection.take_output() == HEADER_SASL


def test_the_header_behind_sasl_must_be_amqp() -> None:
    """After sasl-outcome the client sends the AMQP header; anything else closes the socket."""
    connection = server_at(ConnectionState.SASL_DONE)
    events = connection.receive(HEADER_SASL)
    assert isinstance(events[-1], ConnectionFailed)
    assert connection.take_output() == HEADER_AMQP
    assert connection.state is ConnectionState.END


def test_the_amqp_header_behind_sasl_is_answered() -> None:
    """After the SASL exchange each peer sends the header of the AMQP layer."""
    connection = server_at(ConnectionState.SASL_DONE)
    connection.receive(HEADER_AMQP)
    assert connection.take_output() == HEADER_AMQP
    assert connection.state is ConnectionState.HEADER_EXCHANGED


# --- 2.3: malformed families ---------------------------------------------------------------------

_PERFORMATIVE = Close().encode()
_TRANSFER = Transfer(handle=0, delivery_id=0, delivery_tag=b"t").encode()


@pytest.mark.rabbitmq(
    "unit_amqp_reader_SUITE",
    "close_frame_on_framing_error",
    "data_offset_past_end_of_frame",
    "undersized_data_offset",
    "undersized_frame",
    "unexpected_frame_type",
)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (raw_frame(b"", size=0), "less than the frame header"),
        (raw_frame(b"", size=7), "less than the frame header"),
        (raw_frame(b"", size=4097), "exceeds the maximum frame size"),
        (raw_frame(b"", size=0xFFFF_FFFF), "exceeds the maximum frame size"),
        (raw_frame(_PERFORMATIVE, doff=0), "data offset"),
        (raw_frame(_PERFORMATIVE, doff=1), "data offset"),
        (raw_frame(_PERFORMATIVE, doff=200), "data offset"),
        (raw_frame(b"", doff=3), "data offset"),
        (raw_frame(_PERFORMATIVE, kind=1), "frame type 1"),
        (raw_frame(_PERFORMATIVE, kind=2), "frame type 2"),
        (HEADER_AMQP, "exceeds the maximum frame size"),
    ],
    ids=[
        "size-0",
        "size-7",
        "size-over-max",
        "size-largest",
        "doff-0",
        "doff-1",
        "doff-over-size",
        "doff-over-empty",
        "sasl-frame-in-amqp-phase",
        "unknown-type",
        "second-header",
    ],
)
def test_a_malformed_frame_header_closes_with_framing_error(data: bytes, words: str) -> None:
    """ "The frame is malformed if the size is less than the size of the frame header (8 bytes)"; "the
    frame is malformed if the [doff] value is less than 2"; an oversized frame "MUST close the connection
    with the framing-error error-code" (2.7.1)."""
    connection = server_at(OPENED)
    events = connection.receive(data)
    assert isinstance(events[-1], ConnectionFailed)
    (close,) = read_all(connection.take_output())
    assert close.error.condition == Condition.FRAMING_ERROR
    assert words in close.error.description
    assert connection.state is ConnectionState.DISCARDING


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x18",
        b"\x00\x53\x18\xc0",
        b"\x00\x53\x18\xc0\x05\x01",
        b"\x40",
        b"\x00\x53\xee\x45",
        b"\x00\x53\x11\x45",
        encode(Described(ULong(0x18), "no list")),
        encode(Described(ULong(0x13), [None, None, None, None])),
        encode(Described(ULong(0x18), [None, None])),
        _PERFORMATIVE + b"\x40",
        _PERFORMATIVE + _PERFORMATIVE,
        b"\x00" * 64,
        b"\x00\x53\x18" + b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    ids=[
        "no-constructor",
        "cut-descriptor",
        "cut-descriptor-value",
        "no-list",
        "cut-list",
        "list-longer-than-frame",
        "null-body",
        "unknown-descriptor",
        "begin-without-fields",
        "close-of-a-string",
        "flow-with-null-mandatory-fields",
        "close-with-too-many-fields",
        "trailing-bytes",
        "two-performatives",
        "zeros",
        "absurd-count",
    ],
)
def test_an_undecodable_body_closes_the_connection(body: bytes) -> None:
    """2.3.2: the body of an AMQP frame is a performative, one of section 2.7's, and its payload: anything
    else is answered by a close with a reason, never by a silent death."""
    connection = server_at(OPENED)
    connection.receive(BEGIN)
    events = connection.receive(encode_frame(0, body))
    assert isinstance(events[-1], ConnectionFailed)
    closes = [item for item in read_all(connection.take_output()) if isinstance(item, Close)]
    assert len(closes) == 1
    assert closes[0].error.condition in (
        Condition.DECODE_ERROR,
        Condition.FRAMING_ERROR,
        Condition.INVALID_FIELD,
        Condition.ILLEGAL_STATE,
        Condition.NOT_IMPLEMENTED,
    )
    assert closes[0].error.description


def test_a_composite_that_is_no_performative_closes_the_connection() -> None:
    """An outcome can be decoded, but it is no frame body."""
    script = ScriptRunner()
    script.do("C> BEGIN")
    (line,) = script.do("C> RAW hex=0000000c0200000000532445")
    assert line.startswith("B> CLOSE error=amqp:illegal-state")


def test_nothing_behind_a_malformed_frame_is_read() -> None:
    """Once the boundary is lost, no byte that follows has a meaning."""
    connection = server_at(OPENED)
    events = connection.receive(raw_frame(b"", size=3) + BEGIN)
    assert not any(isinstance(event, BeginReceived) for event in events)
    assert connection.receive(BEGIN) == []


def test_frames_in_front_of_a_malformed_one_are_handled() -> None:
    """Whole and well-formed frames are handled, though they came in the same segment as the fault."""
    connection = server_at(OPENED)
    events = connection.receive(BEGIN + raw_frame(b"", size=3))
    assert isinstance(events[-1], ConnectionFailed)
    assert isinstance(events[0], BeginReceived)


@pytest.mark.rabbitmq("unit_amqp_reader_SUITE", "empty_frame")
def test_an_empty_frame_is_no_error_on_any_channel() -> None:
    """2.3.2: "An AMQP frame with no body MAY be used to generate artificial traffic as needed to satisfy any
    negotiated idle timeout interval"."""
    connection = server_at(OPENED)
    assert connection.receive(EMPTY + encode_frame(900, b"")) == []
    assert connection.take_output() == b""
    assert connection.state is OPENED


def test_an_empty_sasl_frame_is_malformed() -> None:
    """5.3.1: "Receipt of an empty frame is an irrecoverable error"."""
    connection = server_at(ConnectionState.SASL_NEGOTIATING)
    events = connection.receive(raw_frame(b"", kind=1))
    assert isinstance(events[-1], ConnectionFailed)
    assert connection.state is ConnectionState.END


@pytest.mark.rabbitmq("unit_amqp_reader_SUITE", "empty_frame_with_extended_header")
@pytest.mark.parametrize("doff", [3, 4, 10])
def test_an_extended_header_is_skipped(doff: int) -> None:
    """The bytes between frame header and body are the extended header, which has no meaning here."""
    body = Begin(next_outgoing_id=1, incoming_window=1, outgoing_window=1).encode()
    connection = server_at(OPENED)
    (event,) = connection.receive(raw_frame(b"\xaa" * (doff * 4 - 8) + body, doff=doff))
    assert isinstance(event, BeginReceived)
    assert event.performative.next_outgoing_id == 1


def test_an_extended_header_is_skipped_in_front_of_transfers_that_look_alike() -> None:
    """The fast path for repeated transfers must see the difference."""
    reader = FrameReader()
    plain = [
        frame(Transfer(handle=0, delivery_id=number, delivery_tag=b"tttt"), b"x")
        for number in range(300, 303)
    ]
    body = Transfer(handle=0, delivery_id=400, delivery_tag=b"tttt").encode() + b"y"
    reader.read(b"".join(plain))
    ((_, items),) = reader.read(raw_frame(b"\x00\x53\x14\xc0" + body, doff=3))
    (item,) = items
    assert item.performative.delivery_id == 400  # type: ignore[attr-defined]
    assert item.payload == b"y"  # type: ignore[attr-defined]


def test_a_frame_may_come_byte_by_byte() -> None:
    """The socket's cuts are no part of the protocol."""
    connection = server_at(OPENED)
    events: list[Any] = []
    for byte in BEGIN:
        events += connection.receive(bytes([byte]))
    assert len(events) == 1


@pytest.mark.rabbitmq("unit_amqp_reader_SUITE", "valid_frame_header")
def test_a_frame_of_exactly_the_maximum_is_taken() -> None:
    """max-frame-size is the largest frame that the peer may send, not one less."""
    connection = server_at(OPENED, frame_size_max=512)
    connection.receive(BEGIN)
    head = len(frame(Transfer(handle=0, delivery_id=0, delivery_tag=b"t")))
    events = connection.receive(
        frame(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), b"x" * (512 - head))
    )
    assert not isinstance(events[-1], ConnectionFailed)
    events = connection.receive(
        frame(Transfer(handle=0, delivery_id=1, delivery_tag=b"t"), b"x" * (513 - head))
    )
    assert isinstance(events[-1], ConnectionFailed)


@pytest.mark.rabbitmq("unit_amqp_reader_SUITE", "oversized_frame")
def test_an_oversized_frame_is_refused_at_its_header() -> None:
    """The bytes of a frame that will be refused are neither awaited nor kept."""
    reader = FrameReader()
    reader.frame_size_max = 512
    with pytest.raises(DecodeError):
        reader.read(raw_frame(b"", size=513))


@pytest.mark.parametrize("size", [513, 1 << 30])
def test_an_oversized_transfer_of_a_known_layout_is_refused(size: int) -> None:
    """The fast path for repeated transfers looks at the size as well."""
    reader = FrameReader()
    reader.frame_size_max = 512
    for number in range(300, 303):
        reader.read(frame(Transfer(handle=0, delivery_id=number, delivery_tag=b"tttt"), b"x"))
    forged = frame(Transfer(handle=0, delivery_id=303, delivery_tag=b"tttt"), b"x" * 2000)
    with pytest.raises(DecodeError):
        reader.read(size.to_bytes(4, "big") + forged[4:])


@pytest.mark.parametrize("size", [0, 7, 20])
def test_an_undersized_transfer_of_a_known_layout_is_refused(size: int) -> None:
    """A size that ends inside the performative is malformed, in the fast path as well."""
    reader = FrameReader()
    for number in range(300, 303):
        reader.read(frame(Transfer(handle=0, delivery_id=number, delivery_tag=b"tttt"), b"x"))
    forged = frame(Transfer(handle=0, delivery_id=303, delivery_tag=b"tttt"), b"x")
    with pytest.raises(DecodeError):
        reader.read(size.to_bytes(4, "big") + forged[4:] + CLOSE)


def test_open_may_be_larger_than_512_bytes() -> None:
    """2.4.1 says 512 until open is exchanged; real clients put more into open, and it is read."""
    connection = server_at(ConnectionState.HEADER_EXCHANGED, frame_size_max=512)
    connection.receive(frame(Open(container_id="c", properties={})))
    assert connection.state is ConnectionState.OPEN_RECEIVED
    connection = server_at(ConnectionState.HEADER_EXCHANGED, frame_size_max=512)
    connection.receive(frame(Open(container_id="c" * 1000)))
    assert connection.state is ConnectionState.OPEN_RECEIVED


def test_a_huge_frame_before_open_is_refused() -> None:
    """Before open no client is authenticated to use the broker's memory."""
    connection = server_at(ConnectionState.HEADER_EXCHANGED)
    events = connection.receive(raw_frame(b"", size=9000))
    assert isinstance(events[-1], ConnectionFailed)
