"""Frames that are recorded, and how a trace shows them."""

from __future__ import annotations

import json

import pytest

from amqp10broker.observe.frames import records
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import HEARTBEAT, content_frames, method_frame
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.protocols.connection import AMQP_091_HEADER, AMQP_10_HEADER, SASL_HEADER, WireProtocol
from tests.support.rawframes import attach_sender, begin, flow, frame, transfer

LISTENING = records.Listening(5, 3, "127.0.0.1:4711", WireProtocol.AMQP_10, True)


def recorded(
    data: bytes, direction: records.Direction = "in", protocol: WireProtocol = WireProtocol.AMQP_10
) -> list[str]:
    reader = records.FrameSplitter(protocol)
    lines = [records.frame_line(3, 7, direction, each) for each in reader.feed(data)]
    return [records.first_line(), records.listening_line(LISTENING), *lines]


def read_texts(lines: list[str]) -> list[str]:
    return [each.text for each in records.read_lines(lines) if isinstance(each, records.RecordedFrame)]


def test_frames_of_amqp_10_come_back_without_the_contents_of_messages() -> None:
    data = AMQP_10_HEADER + begin(1) + attach_sender(0, "/queues/q") + transfer(0, 0, b"secret" * 100)
    lines = recorded(data + flow(1) + b"\x00\x00\x00\x08\x02\x00\x00\x00")
    assert b"secret".hex() not in "".join(lines)
    first, *found = records.read_lines(lines)
    texts = read_texts(lines)
    assert (first, len(texts), len(found)) == (LISTENING, 6, 6)
    assert [text.split()[3] for text in texts[1:5]] == ["BEGIN", "ATTACH", "TRANSFER", "FLOW"]
    assert texts[0] == "<- AMQP 0 1 0 0"
    assert texts[3].endswith("payload(608 bytes)")
    assert texts[5] == "<- ch 0 (empty frame)"


def test_frames_of_amqp_091_come_back_without_the_contents_of_messages() -> None:
    method = methods.BasicPublish(exchange="", routing_key="q")
    properties = encode_properties(BasicProperties(content_type="text/plain"))
    content = content_frames(1, method, properties, b"secret" * 10, 40)
    lines = recorded(AMQP_091_HEADER + content + HEARTBEAT, protocol=WireProtocol.AMQP_091)
    assert b"secret".hex() not in "".join(lines)
    assert read_texts(lines) == [
        "<- AMQP 0 0 9 1",
        "<- ch 1 basic.publish routing-key=q",
        "<- ch 1 header body-size=60 content-type=text/plain",
        "<- ch 1 body(32 bytes)",
        "<- ch 1 body(28 bytes)",
        "<- heartbeat",
    ]


def test_of_what_lets_somebody_in_there_are_words_alone() -> None:
    """This holds in both directions, and where the frame cannot be decoded."""
    init = frame(0, amqp10.SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0guest\0secret"), kind=1)
    broken = b"\x00\x53\x41\xc0\x10\x02\xa3\x05PLAIN\xa1\x06secret"
    broken = (8 + len(broken)).to_bytes(4, "big") + b"\x02\x01\0\0" + broken
    start_ok = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0secret", "en_US")
    for lines in (
        recorded(SASL_HEADER + init + broken),
        recorded(AMQP_091_HEADER + method_frame(0, start_ok), protocol=WireProtocol.AMQP_091),
    ):
        assert b"secret".hex() not in "".join(lines)
        assert "secret" not in "".join(lines)
        assert "response=(hidden)" in read_texts(lines)[1]


def test_lines_are_objects_with_the_documented_fields() -> None:
    first, begun, header, sent = map(json.loads, recorded(AMQP_10_HEADER + transfer(0, 0, b"x" * 4)))
    assert first == {"format": "amqp10broker frames", "version": 1}
    connection = {"peer": "127.0.0.1:4711", "protocol": "AMQP 1.0", "tls": False, "transport": "tcp"}
    assert begun == {"connection": 3, "at_ns": 5, "begins": True, **connection}
    frame = {"direction": "in", "frame": AMQP_10_HEADER.hex(), "channel": -1, "said": "AMQP 0 1 0 0"}
    assert header == {"connection": 3, "at_ns": 7, **frame}
    assert sent["payload"] == 9


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["no json"], "line 1 .* no JSON object"),
        (['{"format": "x"}'], "does not begin as one"),
        (['{"format": "amqp10broker frames", "version": 2}'], "version 2"),
        ([records.first_line(), "{}"], "line 2 .*KeyError: 'connection'"),
        ([records.first_line(), '{"connection": 1, "at_ns": 1, "direction": "in", "frame": "00"}'], "line 2"),
        ([records.first_line(), "{", records.listening_line(LISTENING)], "line 2 .* no JSON object"),
        ([records.first_line(), "[]", records.listening_line(LISTENING)], "line 2 .* no object"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(lines: list[str], reason: str) -> None:
    with pytest.raises(records.NoFrames, match=reason):
        list(records.read_lines(lines))


def test_a_last_line_that_is_not_whole_is_left_out() -> None:
    """The broker ended while it wrote the line."""
    assert list(
        records.read_lines([records.first_line(), records.listening_line(LISTENING), '{"connec'])
    ) == [LISTENING]


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


def texts(reader: records.FrameSplitter, data: bytes) -> list[str]:
    return [shown.text for shown in reader.feed(data)]


@pytest.mark.parametrize("step", [1, 5, 64, 4096])
def test_a_line_a_frame_however_the_bytes_come(step: int) -> None:
    reader = records.FrameSplitter()
    lines = [
        line
        for start in range(0, len(CONVERSATION), step)
        for line in texts(reader, CONVERSATION[start : start + step])
    ]
    assert lines == LINES


def test_bytes_that_are_no_frame_end_the_trace_and_nothing_else() -> None:
    """One line reports it; the bytes after it cannot be read any more."""
    reader = records.FrameSplitter(WireProtocol.AMQP_091, logged_in=True)
    assert texts(reader, b"\x09" * 16) == [
        "not a frame (no frame type 9): 09 09 09 09 09 09 09 09; what follows is not shown"
    ]
    assert texts(reader, CONVERSATION) == []


@pytest.mark.parametrize("header", [AMQP_091_HEADER, SASL_HEADER])
def test_bytes_that_are_no_frame_are_not_shown_before_login(header: bytes) -> None:
    """They may be a password behind a wrong length."""
    reader = records.FrameSplitter()
    shown = texts(reader, header + b"\x00\x00\x00\x01guest\0secret")
    assert len(shown) == 2
    assert shown[1].startswith("not a frame")
    assert b"secret".hex(" ") not in shown[1]
    assert b"secr".hex() not in shown[1]
    assert "16 bytes" in shown[1]


def test_nothing_that_lets_somebody_in_is_shown_of_amqp_10() -> None:
    """PLAIN may come in the first or the next frame; SCRAM has data to guess a password from."""
    frames = (
        amqp10.SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0guest\0secret"),
        amqp10.SaslChallenge(challenge=b"r=nonce,s=secret,i=4096"),
        amqp10.SaslResponse(response=b"\0guest\0secret"),
        amqp10.SaslOutcome(code=amqp10.SaslCode.OK, additional_data=b"v=secret"),
    )
    reader = records.FrameSplitter()
    assert texts(reader, SASL_HEADER + b"".join(frame(0, each, kind=1) for each in frames)) == [
        "AMQP 3 1 0 0",
        "ch 0 SASL-INIT mechanism=PLAIN initial-response=(hidden)",
        "ch 0 SASL-CHALLENGE challenge=(hidden)",
        "ch 0 SASL-RESPONSE response=(hidden)",
        "ch 0 SASL-OUTCOME code=ok additional-data=(hidden)",
    ]


def test_nothing_that_lets_somebody_in_is_shown_of_amqp_091() -> None:
    """Each response is hidden, and so is a new secret while the connection is open."""
    frames = (
        methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0secret", "en_US"),
        methods.ConnectionSecure(b"s=secret"),
        methods.ConnectionSecureOk(b"\0guest\0secret"),
        methods.ConnectionUpdateSecret(new_secret=b"secret", reason="a token has expired"),
    )
    reader = records.FrameSplitter(WireProtocol.AMQP_091)
    assert texts(reader, b"".join(method_frame(0, each) for each in frames)) == [
        "ch 0 connection.start-ok mechanism=PLAIN response=(hidden) locale=en_US",
        "ch 0 connection.secure challenge=(hidden)",
        "ch 0 connection.secure-ok response=(hidden)",
        "ch 0 connection.update-secret new-secret=(hidden) reason=a token has expired",
    ]
