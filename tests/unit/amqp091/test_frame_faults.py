"""What is wrong with frames, and with which code the connection is closed for it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp10broker.protocols.amqp091.content import (
    HEADER,
    HEARTBEAT,
    AckRun,
    ContentOpened,
    PublishRun,
    body_frames,
    content_frames,
    content_header_frame,
    method_frame,
)
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.frames import FrameReader
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicPublish,
    ChannelOpen,
    ConnectionCloseOk,
    QueueDeclare,
    TxSelect,
)

FRAME_MAX = 8192
PLAIN = b"\x00\x00"
PUBLISH = method_frame(1, BasicPublish(routing_key="q"))
CONTENT_HEADER = content_header_frame(1, PLAIN, 5)
GOOD = content_frames(1, BasicPublish(routing_key="q"), PLAIN, b"hello", FRAME_MAX)


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return HEADER.pack(kind, channel, len(payload)) + payload + bytes((end,))


def feed_all(reader: FrameReader, data: bytes, chunk: int) -> None:
    for start in range(0, len(data), chunk):
        reader.feed(data[start : start + chunk])
    reader.feed(b"")


def fault_of(data: bytes, **attributes: Any) -> AmqpHardError:
    """The fault that some bytes are, and that it does not depend on how they are cut or what is before."""
    faults = []
    for chunk in (len(data), 1, 5):
        for before in (b"", GOOD * 3):
            reader = FrameReader(FRAME_MAX)
            if before:
                assert len(reader.feed(before)) == 1
            for name, value in attributes.items():
                setattr(reader, name, value)
            with pytest.raises(AmqpHardError) as caught:
                feed_all(reader, data, chunk)
            assert reader.fault is caught.value
            faults.append(caught.value)
    assert len({(fault.code, fault.text, fault.class_id, fault.method_id) for fault in faults}) == 1
    return faults[0]


def test_a_fault_is_raised_behind_the_good_frames_before_it() -> None:
    """They are returned, `fault` is set, and the next call raises."""
    reader = FrameReader(FRAME_MAX)
    (run,) = reader.feed(GOOD * 2 + frame(9, 1, b"") + GOOD)
    assert isinstance(run, PublishRun)
    assert len(run.bodies) == 2
    assert reader.fault is not None
    with pytest.raises(AmqpHardError) as caught:
        reader.feed(GOOD)
    assert caught.value is reader.fault
    assert reader.take_rest() == frame(9, 1, b"") + GOOD


def test_a_payload_larger_than_frame_max_is_a_frame_error() -> None:
    """501, from the header alone, with the sizes in the text."""
    fault = fault_of(HEADER.pack(3, 1, FRAME_MAX + 1))
    assert (fault.code, fault.text) == (ReplyCode.FRAME_ERROR, "type 3, 8193 octets payload, max 8184")


@pytest.mark.parametrize(
    "data",
    [
        frame(1, 1, ChannelOpen().encode(), end=0xCF),
        PUBLISH + content_header_frame(1, PLAIN, 5)[:-1] + b"\x00" + body_frames(1, b"hello", 0),
        PUBLISH + CONTENT_HEADER + frame(3, 1, b"hello", end=0),
        HEARTBEAT[:-1] + b"\x00",
    ],
    ids=["method", "header", "body", "heartbeat"],
)
def test_a_wrong_end_octet_is_a_frame_error(data: bytes) -> None:
    """501, in a frame of any type."""
    fault = fault_of(data)
    assert fault.code is ReplyCode.FRAME_ERROR
    assert "instead of 206" in fault.text


@pytest.mark.parametrize("data", [frame(8, 1, b""), frame(8, 0, b"x")], ids=["channel", "payload"])
def test_a_heartbeat_on_a_channel_or_with_a_payload_is_a_frame_error(data: bytes) -> None:
    assert fault_of(data).code is ReplyCode.FRAME_ERROR


def test_a_method_of_the_connection_on_a_channel_is_an_invalid_command() -> None:
    fault = fault_of(method_frame(1, ConnectionCloseOk()))
    assert (fault.code, fault.class_id, fault.method_id) == (ReplyCode.COMMAND_INVALID, 10, 51)


@pytest.mark.parametrize("method", [TxSelect(), BasicPublish()], ids=["tx.select", "basic.publish"])
def test_a_method_of_a_channel_on_channel_0_is_a_channel_error(method: Any) -> None:
    fault = fault_of(method_frame(0, method))
    assert (fault.code, fault.class_id) == (ReplyCode.CHANNEL_ERROR, method.CLASS_ID)


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("kind", ["header", "body"])
def test_a_content_frame_without_a_method_is_unexpected(kind: str, channel: int) -> None:
    data = content_header_frame(channel, PLAIN, 1) if kind == "header" else body_frames(channel, b"x", 0)
    fault = fault_of(data)
    assert fault.code is ReplyCode.UNEXPECTED_FRAME
    assert fault.text == "expected method frame, got non method frame instead"


@pytest.mark.parametrize(
    "data",
    [method_frame(1, TxSelect()), PUBLISH, body_frames(1, b"x", 0)],
    ids=["method", "publish", "body"],
)
def test_anything_but_a_content_header_behind_a_publish_is_unexpected(data: bytes) -> None:
    """505 with the method that the content belongs to."""
    fault = fault_of(PUBLISH + data)
    assert (fault.code, fault.class_id, fault.method_id) == (ReplyCode.UNEXPECTED_FRAME, 60, 40)
    assert fault.text == "expected content header for class 60, got non content header frame instead"


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_content_header_cut_off_is_a_frame_error(size: int) -> None:
    """501: class, weight, body size and property flags are 14 bytes."""
    fault = fault_of(PUBLISH + frame(2, 1, CONTENT_HEADER[7 : 7 + size]))
    assert fault.code is ReplyCode.FRAME_ERROR


@pytest.mark.parametrize(
    "data", [method_frame(1, TxSelect()), PUBLISH, CONTENT_HEADER], ids=["method", "publish", "header"]
)
def test_anything_but_a_body_behind_a_content_header_is_unexpected(data: bytes) -> None:
    """505 with the method that the content belongs to."""
    fault = fault_of(PUBLISH + CONTENT_HEADER + body_frames(1, b"he", 0) + data)
    assert (fault.code, fault.class_id, fault.method_id) == (ReplyCode.UNEXPECTED_FRAME, 60, 40)
    assert fault.text == "expected content body, got non content body frame instead"


@pytest.mark.parametrize("bodies", [[b"hello!"], [b"hel", b"lo!"]])
def test_a_body_longer_than_announced_is_a_frame_error(bodies: list[bytes]) -> None:
    """501, in the first frame or a later one."""
    fault = fault_of(PUBLISH + CONTENT_HEADER + b"".join(body_frames(1, body, 0) for body in bodies))
    assert (fault.code, fault.class_id, fault.method_id) == (ReplyCode.FRAME_ERROR, 60, 40)


STREAM = (
    GOOD * 3
    + method_frame(1, BasicAck(7)) * 3
    + content_frames(2, BasicPublish(routing_key="q"), PLAIN, bytes(20), 16)
    + method_frame(1, QueueDeclare(queue="q", arguments={"a": [True, 1, "x"]}))
    + HEARTBEAT
    + GOOD
)


def outcome(data: bytes, cuts: list[int]) -> tuple[list[Any], tuple[Any, ...] | None]:
    """What was read, without the joining, and the fault."""
    reader = FrameReader(FRAME_MAX)
    found: list[Any] = []
    try:
        for start, stop in itertools.pairwise([0, *sorted(cuts), len(data)]):
            for item in reader.feed(data[start:stop]):
                if isinstance(item, PublishRun):
                    messages = zip(item.properties, item.bodies, strict=True)
                    found += [(item.channel, item.exchange, item.routing_key, *each) for each in messages]
                elif isinstance(item, AckRun):
                    found += [(item.channel, *tag) for tag in item.tags]
                elif not isinstance(item, ContentOpened):  # it tells what is not here yet
                    found.append((item.channel, item))
        reader.feed(b"")
    except AmqpHardError as fault:
        return sorted(found, key=lambda each: each[0]), (fault.code, fault.text, fault.class_id)
    return sorted(found, key=lambda each: each[0]), None


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(0, 255)), min_size=1, max_size=3),
    st.lists(st.integers(0, len(STREAM)), max_size=8),
)
# The last content header claims 21 bytes instead of 14: its end octet is wrong, and no body frame follows.
@example(changes=[(379, 21)], cuts=[373])
@example(changes=[(379, 21)], cuts=[373, 385])
@example(changes=[(129, 1)], cuts=[239])
def test_broken_bytes_have_one_outcome_however_they_are_cut(
    changes: list[tuple[int, int]], cuts: list[int]
) -> None:
    """The same good frames and the same fault, and never an exception of another kind."""
    data = bytearray(STREAM)
    for position, value in changes:
        data[position] = value
    assert outcome(bytes(data), cuts) == outcome(bytes(data), [])
