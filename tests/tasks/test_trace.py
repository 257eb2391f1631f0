"""``--trace-frames``, mostly of AMQP 0-9-1: a line a frame, whatever the reads, and no secrets."""

from __future__ import annotations

import pytest

from amqp10broker.amqp091 import methods
from amqp10broker.amqp091.framing import HEARTBEAT, content_frames, method_frame
from amqp10broker.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.amqp10.performatives import SaslResponse
from amqp10broker.greeting import AMQP_091_HEADER
from amqp10broker.tasks.trace import FrameTracer
from tests.support.rawframes import frame
from tests.tasks.conftest import LogRecorder

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
    "<- AMQP 0 0 9 1",
    (
        "<- ch 0 connection.start-ok client-properties={product: p} mechanism=PLAIN response=(hidden) "
        "locale=en_US"
    ),
    "<- ch 1 queue.declare queue=q durable=true arguments={x-max-length: 5}",
    "<- ch 1 basic.publish routing-key=q mandatory=true",
    "<- ch 1 header body-size=5 content-type=text/plain headers={a: [1]} delivery-mode=2",
    "<- ch 1 body(5 bytes)=68656c6c6f",
    "<- heartbeat",
]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    """What the tracer logs."""
    recorder = LogRecorder()
    monkeypatch.setattr("amqp10broker.tasks.trace._log", recorder)
    return recorder


@pytest.mark.parametrize("step", [1, 5, 64, 4096])
def test_a_line_a_frame_however_the_bytes_come(lines: LogRecorder, step: int) -> None:
    """And passwords are hidden."""
    tracer = FrameTracer("<-", "peer")
    for start in range(0, len(CONVERSATION), step):
        tracer.feed(CONVERSATION[start : start + step])
    assert [line for line, _ in lines.of("info")] == LINES


def test_bytes_that_are_no_frame_end_the_trace_and_nothing_else(lines: LogRecorder) -> None:
    """One line says so; what follows cannot be read any more."""
    tracer = FrameTracer("<-", "peer")
    tracer.feed(AMQP_091_HEADER + b"\x09" * 16)
    tracer.feed(CONVERSATION)
    shown = [line for line, _ in lines.of("info")]
    assert shown[0] == LINES[0]
    assert len(shown) == 2
    assert shown[1].startswith("<- not a frame (no frame type 9): 09 09")


def test_a_method_that_cannot_be_decoded_is_shown_as_such(lines: LogRecorder) -> None:
    """The frame itself is whole."""
    tracer = FrameTracer("<-", "peer")
    tracer.feed(AMQP_091_HEADER + b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x28\xce" + HEARTBEAT)
    shown = [line for line, _ in lines.of("info")]
    assert shown[1].startswith("<- ch 1 undecodable: ")
    assert shown[2] == "<- heartbeat"


def test_a_password_that_answers_a_challenge_is_hidden_too(lines: LogRecorder) -> None:
    """AMQP 1.0: PLAIN may come without an initial response, and the password in the next frame."""
    tracer = FrameTracer("<-", "peer")
    tracer.feed(frame(0, SaslResponse(response=b"\0guest\0secret"), kind=1))
    assert [line for line, _ in lines.of("info")] == ["<- ch 0 SASL-RESPONSE response=(hidden)"]
