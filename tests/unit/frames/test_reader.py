"""Frames as lines, mostly of AMQP 0-9-1: a line a frame, whatever the reads, and no secrets."""

from __future__ import annotations

import pytest

from amqp10broker.observe.frames.records import FrameSplitter
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import HEARTBEAT, content_frames, method_frame
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.performatives import (
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslResponse,
)
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.connection import AMQP_091_HEADER, SASL_HEADER, WireProtocol
from tests.support.rawframes import frame

CONVERSATION = b"".join(
    (
        AMQP_091_HEADER,
        method_frame(0, methods.ConnectionStartOk({"product": "p"}, "PLAIN", b"\0guest\0secret", "en_US")),
        method_frame(1, methods.QueueDeclare(queue="q", durable=True, arguments={"x-max-length": 5})),
        content_frames(
            1,
            methods.BasicPublish(exchange="", routing_key="q", mandatory=True),
            encode_properties(
                BasicProperties(content_type="text/plain", delivery_mode=2, headers={"a": [1]})
            ),
            b"hello",
            131_072,
        ),
        HEARTBEAT,
    )
)

LINES = [
    "AMQP 0 0 9 1",
    (
        "ch 0 connection.start-ok client-properties={product: p} mechanism=PLAIN response=(hidden) "
        "locale=en_US"
    ),
    "ch 1 queue.declare queue=q durable=true arguments={x-max-length: 5}",
    "ch 1 basic.publish routing-key=q mandatory=true",
    "ch 1 header body-size=5 content-type=text/plain headers={a: [1]} delivery-mode=2",
    "ch 1 body(5 bytes)=68656c6c6f",
    "heartbeat",
]


def texts(reader: FrameSplitter, data: bytes) -> list[str]:
    return [shown.text for shown in reader.feed(data)]


@pytest.mark.parametrize("step", [1, 5, 64, 4096])
def test_a_line_a_frame_however_the_bytes_come(step: int) -> None:
    reader = FrameSplitter()
    lines = [
        line
        for start in range(0, len(CONVERSATION), step)
        for line in texts(reader, CONVERSATION[start : start + step])
    ]
    assert lines == LINES


def test_bytes_that_are_no_frame_end_the_trace_and_nothing_else() -> None:
    """One line says so; what follows cannot be read any more."""
    reader = FrameSplitter(WireProtocol.AMQP_091, logged_in=True)
    assert texts(reader, b"\x09" * 16) == [
        "not a frame (no frame type 9): 09 09 09 09 09 09 09 09; what follows is not shown"
    ]
    assert texts(reader, CONVERSATION) == []


@pytest.mark.parametrize("header", [AMQP_091_HEADER, SASL_HEADER])
def test_bytes_that_are_no_frame_are_not_shown_before_login(header: bytes) -> None:
    """They may be a password behind a wrong length."""
    reader = FrameSplitter()
    shown = texts(reader, header + b"\x00\x00\x00\x01guest\0secret")
    assert len(shown) == 2
    assert shown[1].startswith("not a frame")
    assert b"secret".hex(" ") not in shown[1]
    assert b"secr".hex() not in shown[1]
    assert "16 bytes" in shown[1]


def test_nothing_that_lets_somebody_in_is_shown_of_amqp_10() -> None:
    """PLAIN may come in the first frame or the next; of SCRAM, what a password can be guessed from."""
    frames = (
        SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0guest\0secret"),
        SaslChallenge(challenge=b"r=nonce,s=secret,i=4096"),
        SaslResponse(response=b"\0guest\0secret"),
        SaslOutcome(code=SaslCode.OK, additional_data=b"v=secret"),
    )
    reader = FrameSplitter()
    assert texts(reader, SASL_HEADER + b"".join(frame(0, each, kind=1) for each in frames)) == [
        "AMQP 3 1 0 0",
        "ch 0 SASL-INIT mechanism=PLAIN initial-response=(hidden)",
        "ch 0 SASL-CHALLENGE challenge=(hidden)",
        "ch 0 SASL-RESPONSE response=(hidden)",
        "ch 0 SASL-OUTCOME code=ok additional-data=(hidden)",
    ]


def test_nothing_that_lets_somebody_in_is_shown_of_amqp_091() -> None:
    """Neither the first response nor a later one, nor a new secret while the connection is open."""
    frames = (
        methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0secret", "en_US"),
        methods.ConnectionSecure(b"s=secret"),
        methods.ConnectionSecureOk(b"\0guest\0secret"),
        methods.ConnectionUpdateSecret(new_secret=b"secret", reason="a token has expired"),
    )
    reader = FrameSplitter(WireProtocol.AMQP_091)
    assert texts(reader, b"".join(method_frame(0, each) for each in frames)) == [
        "ch 0 connection.start-ok mechanism=PLAIN response=(hidden) locale=en_US",
        "ch 0 connection.secure challenge=(hidden)",
        "ch 0 connection.secure-ok response=(hidden)",
        "ch 0 connection.update-secret new-secret=(hidden) reason=a token has expired",
    ]
