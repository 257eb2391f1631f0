"""Blocks of AMQP 0-9-1 frames hold just what pamqp reads from frames written one by one."""

from __future__ import annotations

from typing import Any

from pamqp import commands, frame

from benchmarks import spec
from benchmarks.blocks import PublishBlock, ack_block

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


def test_acknowledgements_are_single_and_consecutive() -> None:
    """Across the end of a block and of a byte."""
    frames = [one for some in ack_block(2).fill(250, 1500) for one in unmarshal(some)]
    assert [(one.delivery_tag, one.multiple) for one in frames] == [(250 + n, False) for n in range(1500)]
