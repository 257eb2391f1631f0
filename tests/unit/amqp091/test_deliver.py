"""Messages as the frames of basic.deliver, get-ok and return, with pamqp as the independent oracle."""

from __future__ import annotations

from typing import Any

import pamqp.body
import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.message.amqp091 import make_head, split_head
from amqp10broker.protocols.amqp091.codec import encode_shortstr
from amqp10broker.protocols.amqp091.content import DeliverEncoder, split
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties

FRAME_MAX = 8192


def frames_of(data: bytes, channel: int) -> list[Any]:
    """All frames, read with pamqp; none is larger than `FRAME_MAX`."""
    found = []
    while data:
        read, on, frame = pamqp.frame.unmarshal(data)
        assert on == channel
        assert read <= FRAME_MAX
        found.append(frame)
        data = data[read:]
    return found


def content_of(frames: list[Any]) -> tuple[Any, Any, bytes]:
    """Take one content off the front: method, content header, body."""
    method, header = frames.pop(0), frames.pop(0)
    body = b""
    while frames and isinstance(frames[0], pamqp.body.ContentBody):
        body += frames.pop(0).value
    assert header.body_size == len(body)
    return method, header, body


def head(key: str = "q", *, redelivered: bool = False, **properties: Any) -> bytes:
    return make_head(
        "amq.direct", key, encode_properties(BasicProperties(**properties)), redelivered=redelivered
    )


def encoded(messages: list[tuple[bytes, bytes]], first_tag: int = 1, frame_max: int = FRAME_MAX) -> bytes:
    out: list[bytes] = []
    DeliverEncoder(3, "ctag", frame_max).encode(first_tag, messages, out)
    return b"".join(out)


def test_a_delivery_has_tag_flags_names_and_properties() -> None:
    """All that basic.deliver and the content header say."""
    message = head("key", redelivered=True, content_type="text/plain", delivery_mode=2, headers={"a": "b"})
    frames = frames_of(encoded([(message, b"hello")], 2**40), 3)
    method, header, body = content_of(frames)
    assert (method.name, method.consumer_tag, method.delivery_tag) == ("Basic.Deliver", "ctag", 2**40)
    assert (method.exchange, method.routing_key, method.redelivered) == ("amq.direct", "key", True)
    assert (header.properties.content_type, header.properties.delivery_mode) == ("text/plain", 2)
    assert header.properties.headers == {"a": "b"}
    assert (body, frames) == (b"hello", [])


@pytest.mark.rabbitmq("unit_amqp091_content_framing_SUITE", "content_framing")
@pytest.mark.parametrize("size", [0, 1, 1024, 1025, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_a_body_is_cut_to_the_frame_size(size: int) -> None:
    """Into as few frames as it takes; an empty one into none."""
    messages = [(head(), bytes([number]) * size) for number in range(3)]
    frames = frames_of(encoded(messages), 3)
    assert len(frames) == 3 * (2 + -(-size // (FRAME_MAX - 8)))
    for number in range(3):
        method, _, body = content_of(frames)
        assert (method.delivery_tag, body) == (number + 1, bytes([number]) * size)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["q", "other"]),
            st.booleans(),
            st.sampled_from([None, "id-1", "id-22"]),
            st.sampled_from([b"", b"x", b"y", b"hello", bytes(2000), bytes(FRAME_MAX)]),
        ),
        max_size=20,
    ),
    st.integers(1, 2**62),
)
def test_any_messages_follow_each_other_in_order(
    messages: list[tuple[str, bool, str | None, bytes]], first_tag: int
) -> None:
    """Whatever is alike among them, each arrives as itself with the next tag."""
    pairs = [(head(key, redelivered=again, message_id=name), body) for key, again, name, body in messages]
    frames = frames_of(encoded(pairs, first_tag), 3)
    for tag, (key, again, name, body) in enumerate(messages, first_tag):
        method, header, received = content_of(frames)
        assert (method.delivery_tag, method.routing_key, method.redelivered) == (tag, key, again)
        assert (header.properties.message_id, received) == (name, body)
    assert frames == []


def test_layouts_are_forgotten_when_they_do_not_repeat() -> None:
    """Messages with ids of their own fill no memory, and arrive all the same."""
    encoder = DeliverEncoder(3, "ctag", FRAME_MAX)
    out: list[bytes] = []
    encoder.encode(
        1, [(head(message_id=f"id-{number}"), b"x" * (number % 900)) for number in range(5000)], out
    )
    assert len(encoder._layouts) <= 1024
    assert len(encoder._packs) <= 1024
    frames = frames_of(b"".join(out), 3)
    for number in range(5000):
        method, header, body = content_of(frames)
        assert (method.delivery_tag, len(body)) == (number + 1, number % 900)
        assert header.properties.message_id == f"id-{number}"


def test_large_heads_are_not_kept() -> None:
    """A thousand of them would be a hundred megabytes for each consumer."""
    encoder = DeliverEncoder(3, "ctag", FRAME_MAX)
    out: list[bytes] = []
    large = head(headers={"text": "x" * 2000})
    encoder.encode(1, [(large, b"1"), (large, b"2"), (head(), b"3")], out)
    assert len(encoder._layouts) == 1
    frames = frames_of(b"".join(out), 3)
    for number, headers in enumerate(({"text": "x" * 2000}, {"text": "x" * 2000}, None), 1):
        method, header, body = content_of(frames)
        assert (method.delivery_tag, body) == (number, b"%d" % number)
        assert header.properties.headers == headers


def test_heads_are_read_as_the_message_room_writes_them() -> None:
    """The layout is the same on both sides."""
    for again in (False, True):
        message = head("key", redelivered=again, correlation_id="c")
        redelivered, names, properties = split(message)
        assert (names, properties, redelivered == b"\x01") == split_head(message)
        assert names == encode_shortstr("amq.direct") + encode_shortstr("key")
