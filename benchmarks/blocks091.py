"""Blocks of ready-made AMQP 0-9-1 frames.

A publish has nothing in it that changes from one message to the next: method, content header and body are
the same bytes each time, so that a block is one message many times over and publishing is a copy.
Acknowledgements and deliveries differ in the delivery-tag alone, which is rewritten column by column as
`blocks` does it for AMQP 1.0. The bytes on the wire are those of `wire091`; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from amqp10broker.amqp091.framing import FRAME_OVERHEAD, HEADER_BYTES, method_frame
from amqp10broker.amqp091.methods import BasicAck, BasicDeliver, BasicPublish
from benchmarks import spec, wire091
from benchmarks.blocks import BLOCK_BYTES, BLOCK_FRAMES_MAX, write_serials, write_stamps

DELIVERY_TAG_MAX: Final = 0xFFFFFFFF
"""Only the lower half of a tag is written: no load sends four thousand million messages on a channel."""


class PublishBlock:
    """Publishes of one group: each of its queues has a block of its own."""

    def __init__(self, channel: int, what: spec.Publish, frame_max: int) -> None:
        """Make the blocks.

        Args:
            channel: the channel's number.
            what: how the group publishes, and which messages.
            frame_max: largest frame the broker takes; a larger body goes in several.

        Raises:
            ValueError: the messages shall be stamped and vary in size, or do not fit in one frame.
        """
        sizes = what.sizes
        properties = wire091.properties(
            content_type=what.content_type, durable=what.durable, sections=what.sections
        )
        contents = [wire091.content(channel, bytes(size), properties, frame_max) for size in sizes]
        methods = [
            method_frame(channel, BasicPublish(routing_key=queue, mandatory=what.mandatory))
            for queue in what.addresses
        ]
        if what.stamp:
            single = FRAME_OVERHEAD + what.size_bytes <= frame_max
            if what.mixed or what.size_bytes < 8 or not single:
                raise ValueError("stamped messages are of one size, at least 8 bytes and at most one frame")
        patterns = [[method + one for one in contents] for method in methods]
        longest = max(sum(map(len, pattern)) for pattern in patterns)
        budget = BLOCK_BYTES // len(methods)
        repeats = max(1, min(BLOCK_FRAMES_MAX // len(sizes), budget // longest))
        self.capacity: Final = repeats * len(sizes)
        """Most messages of one `fill`."""
        self._places: Final = len(sizes)
        self._offsets: Final = [[0, *accumulate(len(one) for one in pattern)] for pattern in patterns]
        self._buffers: Final = [bytearray(b"".join(pattern) * repeats) for pattern in patterns]
        self._views: Final = [memoryview(buffer) for buffer in self._buffers]
        self._body_bytes: Final = what.size_bytes

    def fill(self, queue: int, count: int) -> memoryview:
        """Return `count` publishes (1 to `capacity`) to the group's queue of this number."""
        offsets = self._offsets[queue]
        if self._places == 1:
            return self._views[queue][: count * offsets[1]]
        whole, rest = divmod(count, self._places)
        return self._views[queue][: whole * offsets[-1] + offsets[rest]]

    def stamp(self, queue: int, times_ns: Sequence[int]) -> None:
        """Write a time into the first eight bytes of each of the first bodies of a queue's block."""
        buffer, stride = self._buffers[queue], self._offsets[queue][1]
        write_stamps(buffer, stride - 1 - self._body_bytes, stride, times_ns)


class TagBlock:
    """Frames of one kind that differ only in their delivery-tag."""

    def __init__(self, one: bytes, tag_offset: int) -> None:
        """Make the block from one frame, or several that belong together.

        Args:
            one: what is repeated.
            tag_offset: where its delivery-tag stands, eight bytes.
        """
        self._stride: Final = len(one)
        self._low_offset: Final = tag_offset + 4
        self.capacity: Final = max(1, min(BLOCK_FRAMES_MAX, BLOCK_BYTES // len(one)))
        self._buffer = bytearray(one * self.capacity)
        self._view = memoryview(self._buffer)

    def fill(self, first_tag: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes for `count` consecutive tags, a block at a time.

        Raises:
            ValueError: a tag is too high for this generator.
        """
        if first_tag + count - 1 > DELIVERY_TAG_MAX:
            raise ValueError(f"delivery-tag {first_tag + count - 1} is beyond what a load can reach")
        while count:
            run = min(count, self.capacity)
            write_serials(self._buffer, self._low_offset, self._stride, first_tag, run)
            yield self._view[: run * self._stride]
            first_tag += run
            count -= run


def ack_block(channel: int) -> TagBlock:
    """Return a block of basic.ack, each for a single delivery."""
    return TagBlock(method_frame(channel, BasicAck()), HEADER_BYTES + 4)


def deliver_block(
    channel: int, consumer_tag: str, queue: str, body: bytes, properties: bytes, frame_max: int
) -> TagBlock:
    """Return a block of basic.deliver with its content: what the floor peer sends."""
    method = method_frame(channel, BasicDeliver(consumer_tag, routing_key=queue))
    tag_offset = HEADER_BYTES + 4 + 1 + len(consumer_tag.encode())
    return TagBlock(method + wire091.content(channel, body, properties, frame_max), tag_offset)
