"""Blocks of ready-made frames: how one Python process writes millions of messages a second.

A block is one `bytearray` holding the same frames many times. In AMQP 1.0 they differ only in handle,
delivery-id and delivery-tag, in 0-9-1 only in the delivery-tag, and a publish not at all. These numbers lie
at a fixed distance from frame to frame, so that one extended slice assignment rewrites one byte of every
frame at once: about ten nanoseconds a frame in place of a microsecond. The bytes on the wire are those of
`wire.transfer_performative`, or of the methods of 0-9-1; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

from amqp10broker.protocols.amqp091.content import FRAME_OVERHEAD, HEADER_BYTES, method_frame
from amqp10broker.protocols.amqp091.methods import BasicAck, BasicDeliver, BasicPublish
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES
from amqp10broker.protocols.amqp10.performatives import Transfer
from amqp10broker.protocols.serial import MASK
from benchmarks import spec, wire091
from benchmarks.wire import disposition_frame, frame, transfer_performative

# A block covers about this many bytes: enough to make the fixed cost of a column small, and little
# enough to stay in the processor's second-level cache.
BLOCK_BYTES: Final = 128 * 1024
BLOCK_FRAMES_MAX: Final = 1024
DELIVERY_TAG_MAX: Final = 0xFFFFFFFF
"""Only the lower half of a tag of 0-9-1 is written: no load sends more messages on a channel."""

_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_LOW: Final = bytes(range(256)) * 256
"""Lowest byte of every 16-bit number, in order."""
_HIGH: Final = b"".join(bytes((high,)) * 256 for high in range(256))
"""Upper byte of every 16-bit number, in order."""

# Offsets in a frame whose performative has the layout of `wire.transfer_performative`.
HANDLE_OFFSET: Final = FRAME_HEADER_BYTES + 7
DELIVERY_ID_OFFSET: Final = FRAME_HEADER_BYTES + 9
TAG_OFFSET: Final = FRAME_HEADER_BYTES + 15


def write_serials(buffer: bytearray, offset: int, stride: int, first: int, count: int, step: int = 1) -> None:
    """Write `count` big-endian 32-bit serial numbers, `stride` bytes apart, the first of them at `offset`.

    They grow by `step` and wrap at 2**32.
    """
    while count:
        low = first & 0xFFFF
        run = min(count, -(-(0x10000 - low) // step))
        end = low + run * step
        last = offset + (run - 1) * stride
        buffer[offset : last + 1 : stride] = bytes((first >> 24,)) * run
        buffer[offset + 1 : last + 2 : stride] = bytes(((first >> 16) & 0xFF,)) * run
        buffer[offset + 2 : last + 3 : stride] = _HIGH[low:end:step]
        buffer[offset + 3 : last + 4 : stride] = _LOW[low:end:step]
        offset += run * stride
        count -= run
        first = (first + run * step) & MASK


def write_stamps(buffer: bytearray, offset: int, stride: int, times_ns: Sequence[int]) -> None:
    """Write 64-bit big-endian times, at least one and in order, `stride` bytes apart from `offset` on."""
    count = len(times_ns)
    if times_ns[0] == times_ns[-1]:
        # All of one burst: eight columns in place of a thousand numbers.
        last = offset + (count - 1) * stride
        for place, byte in enumerate(_U64.pack(times_ns[0])):
            buffer[offset + place : last + place + 1 : stride] = bytes((byte,)) * count
        return
    for time_ns in times_ns:
        _U64.pack_into(buffer, offset, time_ns)
        offset += stride


class Repeated:
    """Messages, one behind the other, again and again."""

    def __init__(self, ones: Sequence[bytes], budget_bytes: int = BLOCK_BYTES) -> None:
        """Repeat these, as often as the budget allows, at least once."""
        pattern = b"".join(ones)
        repeats = max(1, min(BLOCK_FRAMES_MAX // len(ones), budget_bytes // len(pattern)))
        self.capacity: Final = repeats * len(ones)
        """Messages in the block."""
        self.stride: Final = len(pattern)
        self.offsets: Final = [0, *accumulate(map(len, ones))]
        """Where each message of the pattern begins, and where the last one ends."""
        self.buffer = bytearray(pattern * repeats)
        self._view = memoryview(self.buffer)

    def first(self, count: int) -> memoryview:
        """Return the first messages (1 to `capacity`)."""
        whole, rest = divmod(count, len(self.offsets) - 1)
        return self._view[: whole * self.stride + self.offsets[rest]]


class TransferBlock(Repeated):
    """Single-frame deliveries on one session, ready to be sent: of one message, or of several in turns.

    Frames at the same place of the pattern lie a pattern's length apart, so that columns are rewritten one
    place after the other.
    """

    def __init__(self, channel: int, *payloads: bytes, settled: bool, stamp_offset: int | None = None):
        """Make the block.

        Args:
            channel: channel of the session.
            payloads: the encoded messages, of any sizes.
            settled: send pre-settled.
            stamp_offset: where in the payload `stamp` writes, None if nothing is stamped.

        Raises:
            ValueError: messages of different sizes are to be stamped.
        """
        if stamp_offset is not None and len(payloads) > 1:
            raise ValueError("mixed messages carry no stamps: measure latency with one size")
        performative = transfer_performative(0, 0, settled=settled)
        ones = [frame(performative + one, channel=channel) for one in payloads]
        super().__init__(ones)
        self.frame_bytes_max: Final = max(map(len, ones))
        """Size of the largest frame."""
        self._stamp_at = None if stamp_offset is None else self.stride - len(payloads[0]) + stamp_offset
        self._handles: int | bytes = 0
        self._handles_written = self.capacity

    def fill(self, handles: int | bytes, first_delivery_id: int, count: int) -> memoryview:
        """Return `count` transfer frames (1 to `capacity`), valid until the next call.

        Args:
            handles: the link's handle, or one handle a frame.
            first_delivery_id: delivery-id of the first frame; the others follow it.
            count: how many.
        """
        buffer, stride, places = self.buffer, self.stride, len(self.offsets) - 1
        if count == 1:
            buffer[HANDLE_OFFSET] = handles if isinstance(handles, int) else handles[0]
            _U32.pack_into(buffer, DELIVERY_ID_OFFSET, first_delivery_id)
            _U32.pack_into(buffer, TAG_OFFSET, first_delivery_id)
            self._handles_written = 0
            return self.first(1)
        column = b""
        if handles != self._handles or count > self._handles_written:
            column = bytes((handles,)) * count if isinstance(handles, int) else handles
            self._handles = handles
            self._handles_written = count
        for place in range(min(places, count)):
            start = self.offsets[place]
            frames = -(-(count - place) // places)
            if column:
                at = start + HANDLE_OFFSET
                buffer[at : at + (frames - 1) * stride + 1 : stride] = column[place::places]
            first = (first_delivery_id + place) & MASK
            write_serials(buffer, start + DELIVERY_ID_OFFSET, stride, first, frames, places)
            write_serials(buffer, start + TAG_OFFSET, stride, first, frames, places)
        return self.first(count)

    def stamp(self, times_ns: Sequence[int]) -> None:
        """Write a time into the payload of the first frames of the block, one each, in their order."""
        assert self._stamp_at is not None, "this block was made without a place for stamps"
        write_stamps(self.buffer, self._stamp_at, self.stride, times_ns)


class LargeTransfer:
    """One message that needs several frames, cut to the peer's max-frame-size (part 2 §2.6.14)."""

    def __init__(self, channel: int, payload: bytes, *, settled: bool, max_frame_size_bytes: int):
        """Cut the message; every frame but the last has `more` set."""
        room = max_frame_size_bytes - FRAME_HEADER_BYTES
        room -= len(transfer_performative(0, 0, settled=settled, more=True))
        self._frames: list[bytearray] = []
        for start in range(0, len(payload), room):
            more = start + room < len(payload)
            performative = transfer_performative(0, 0, settled=settled, more=more)
            piece = payload[start : start + room]
            self._frames.append(bytearray(frame(performative + piece, channel=channel)))

    @property
    def frame_count(self) -> int:
        """Frames a delivery takes, each one unit of the session window."""
        return len(self._frames)

    def frames(
        self, handle: int, delivery_id: int, start: int = 0, end: int | None = None
    ) -> Iterator[bytearray]:
        """Yield frames of one delivery; each is valid until the next delivery."""
        for one in self._frames[start:end]:
            one[HANDLE_OFFSET] = handle
            _U32.pack_into(one, DELIVERY_ID_OFFSET, delivery_id)
            _U32.pack_into(one, TAG_OFFSET, delivery_id)
            yield one


class NumberBlock(Repeated):
    """Frames of one kind that differ only in one number, of four bytes that are written."""

    def __init__(self, one: bytes, offset: int) -> None:
        """Make the block from one frame, or several that belong together; the number stands at `offset`."""
        super().__init__([one])
        self._offset: Final = offset

    def fill(self, first: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes for `count` consecutive numbers, which wrap at 2**32, a block at a time."""
        while count:
            run = min(count, self.capacity)
            write_serials(self.buffer, self._offset, self.stride, first, run)
            yield self.first(run)
            first = (first + run) & MASK
            count -= run


class DispositionBlock(NumberBlock):
    """Dispositions by which a receiver accepts and settles one delivery each (part 2 §2.7.6)."""

    def __init__(self, channel: int) -> None:
        """Make the block for a session."""
        # A number that needs four bytes; `last` is left out: it is then the same as `first`.
        one = disposition_frame(channel, receiver=True, first=MASK, last=None)
        super().__init__(one, FRAME_HEADER_BYTES + 8)


class TagBlock(NumberBlock):
    """Frames of 0-9-1 that differ only in their delivery-tag."""

    def fill(self, first: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes for `count` consecutive tags, a block at a time.

        Raises:
            ValueError: a tag is too high for this generator.
        """
        if first + count - 1 > DELIVERY_TAG_MAX:
            raise ValueError(f"delivery-tag {first + count - 1} is beyond what a load can reach")
        return super().fill(first, count)


def ack_block(channel: int) -> TagBlock:
    """Return a block of basic.ack, each for a single delivery."""
    return TagBlock(method_frame(channel, BasicAck()), HEADER_BYTES + 4 + 4)


def deliver_block(channel: int, consumer_tag: str, queue: str, body: bytes) -> TagBlock:
    """Return a block of basic.deliver with its content: what the floor peer sends."""
    method = method_frame(channel, BasicDeliver(consumer_tag, routing_key=queue))
    tag_offset = HEADER_BYTES + 4 + 1 + len(consumer_tag.encode())
    content = wire091.content(channel, body, wire091.PLAIN, spec.MAX_FRAME_SIZE_BYTES)
    return TagBlock(method + content, tag_offset + 4)


class PublishBlock:
    """Publishes of 0-9-1 of one group: each of its queues has a block of its own."""

    def __init__(self, channel: int, what: spec.Publish, frame_max: int) -> None:
        """Make the blocks of a channel's group.

        Args:
            channel: the channel's number.
            what: how the group publishes, and which messages.
            frame_max: largest frame the broker takes; a larger body goes in several.

        Raises:
            ValueError: the messages shall be stamped and vary in size, or do not fit in one frame.
        """
        single = FRAME_OVERHEAD + what.size_bytes <= frame_max
        if what.stamp and (what.mixed or what.size_bytes < _U64.size or not single):
            raise ValueError("stamped messages are of one size, at least 8 bytes and at most one frame")
        properties = wire091.properties(
            content_type=what.content_type, durable=what.durable, sections=what.sections
        )
        contents = [wire091.content(channel, bytes(size), properties, frame_max) for size in what.sizes]
        self._blocks: Final[list[Repeated]] = []
        for queue in what.addresses:
            method = method_frame(channel, BasicPublish(routing_key=queue, mandatory=what.mandatory))
            ones = [method + one for one in contents]
            self._blocks.append(Repeated(ones, BLOCK_BYTES // len(what.addresses)))
        self.capacity: Final = min(block.capacity for block in self._blocks)
        """Most messages of one `fill`."""
        self._body_bytes: Final = what.size_bytes

    def fill(self, queue: int, count: int) -> memoryview:
        """Return `count` publishes (1 to `capacity`) to the group's queue of this number."""
        return self._blocks[queue].first(count)

    def stamp(self, queue: int, times_ns: Sequence[int]) -> None:
        """Write a time into the first eight bytes of each of the first bodies of a queue's block."""
        block = self._blocks[queue]
        write_stamps(block.buffer, block.stride - 1 - self._body_bytes, block.stride, times_ns)


# The offsets above are read off the layout; a change of the layout must not pass unseen.
_SAMPLE: Final = frame(transfer_performative(0xAB, 0x01020304, settled=True))
assert _SAMPLE[FRAME_HEADER_BYTES + 2] == Transfer.DESCRIPTOR
assert _SAMPLE[HANDLE_OFFSET] == 0xAB
assert _SAMPLE[DELIVERY_ID_OFFSET : DELIVERY_ID_OFFSET + 4] == b"\x01\x02\x03\x04"
assert _SAMPLE[TAG_OFFSET : TAG_OFFSET + 4] == b"\x01\x02\x03\x04"
