"""Blocks of AMQP 0-9-1 frames hold just what pamqp reads from frames written one by one."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, frame

from benchmarks import spec
from benchmarks.blocks import PublishBlock, ack_block, deliver_block

FRAME_MAX = 131072


def unmarshal(data: bytes | memoryview) -> list[Any]:
    """Read every frame with pamqp."""
    found = []
    rest = bytes(data)
    while rest:
        consumed, _, one = frame.unmarshal(rest)
        found.append(one)
        rest = rest[consumed:]
    return found


def test_a_publish_is_method_header_and_body() -> None:
    """Through the default exchange, to the queue of its number."""
    what = spec.Publish(("a", "b"), size_bytes=5, durable=True, mandatory=True, content_type="text/plain")
    block = PublishBlock(4, what, FRAME_MAX)
    frames = unmarshal(block.fill(1, 2))
    assert len(frames) == 6
    for method, head, body in (frames[:3], frames[3:]):
        assert isinstance(method, commands.Basic.Publish)
        assert (method.exchange, method.routing_key, method.mandatory) == ("", "b", True)
        assert (head.properties.content_type, head.properties.delivery_mode) == ("text/plain", 2)
        assert body.value == bytes(5)


def test_a_message_larger_than_a_frame_goes_in_several() -> None:
    """All of them with one fill."""
    block = PublishBlock(1, spec.Publish(("q",), size_bytes=300_000), FRAME_MAX)
    assert block.capacity == 1
    assert [len(one.value) for one in unmarshal(block.fill(0, 1))[2:]] == [131064, 131064, 37872]


def test_mixed_messages_vary_in_size_around_the_one_given() -> None:
    """From half of it to one and a half, and from the beginning again in the next fill."""
    block = PublishBlock(1, spec.Publish(("q",), size_bytes=90, mixed=True), FRAME_MAX)
    sizes = [one.body_size for one in unmarshal(block.fill(0, 20))[1::3]]
    assert (min(sizes), max(sizes)) == (45, 135)
    assert sizes[16:] == sizes[:4]
    assert len({*sizes}) == 16


def test_a_stamp_is_the_first_eight_bytes_of_the_body() -> None:
    """Each message has its own."""
    block = PublishBlock(1, spec.Publish(("q",), size_bytes=12, stamp=True), FRAME_MAX)
    block.stamp(0, [7, 8])
    bodies = [one.value for one in unmarshal(block.fill(0, 2))[2::3]]
    assert bodies == [(7).to_bytes(8, "big") + bytes(4), (8).to_bytes(8, "big") + bytes(4)]


@pytest.mark.parametrize("what", [{"mixed": True}, {"size_bytes": 7}, {"size_bytes": 200_000}])
def test_a_stamp_needs_messages_of_one_size_and_one_frame(what: dict[str, Any]) -> None:
    """Where it stands must be known without looking."""
    with pytest.raises(ValueError, match="stamped"):
        PublishBlock(1, spec.Publish(("q",), stamp=True, **what), FRAME_MAX)


def test_acknowledgements_are_single_and_consecutive() -> None:
    """Across the end of a block and of a byte."""
    frames = [one for some in ack_block(2).fill(250, 1500) for one in unmarshal(some)]
    assert [(one.delivery_tag, one.multiple) for one in frames] == [(250 + n, False) for n in range(1500)]


def test_a_delivery_block_counts_its_tags() -> None:
    """What the floor peer sends."""
    block = deliver_block(1, "tag", "q", b"body")
    (some,) = block.fill(65535, 2)
    methods = unmarshal(some)[::3]
    assert [one.delivery_tag for one in methods] == [65535, 65536]
    assert (methods[0].consumer_tag, methods[0].exchange, methods[0].routing_key) == ("tag", "", "q")


def test_a_tag_beyond_its_lower_half_is_refused() -> None:
    """The upper half is never written."""
    with pytest.raises(ValueError, match="beyond"):
        list(ack_block(1).fill(0xFFFFFFFF, 2))
