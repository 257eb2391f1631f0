"""Blocks of ready-made frames: how one Python process writes millions of transfers a second.

A block is one `bytearray` holding the same frame many times. Frames differ only in handle, delivery-id
and delivery-tag, and these lie at a fixed distance from frame to frame, so that one extended slice
assignment rewrites one byte of every frame at once: about ten nanoseconds a frame in place of a
microsecond. The bytes on the wire are those of `wire.transfer_performative`; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

from amqp10broker.amqp10.frames import FRAME_HEADER_BYTES
from amqp10broker.amqp10.performatives import Transfer
from amqp10broker.amqp10.serial import MASK
from benchmarks.wire import disposition_frame, frame, transfer_performative

# A block covers about this many bytes: enough to make the fixed cost of a column small, and little
# enough to stay in the processor's second-level cache.
BLOCK_BYTES: Final = 128 * 1024
BLOCK_FRAMES_MAX: Final = 1024

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
    """Write `count` big-endian 32-bit serial numbers, `stride` bytes apart.

    Args:
        buffer: rewritten in place.
        offset: where the first number starts.
        stride: bytes from one number to the next.
        first: the first number; the sequence wraps at 2**32.
        count: how many.
        step: difference from one number to the next.
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
    """Write 64-bit big-endian times, `stride` bytes apart.

    Args:
        buffer: rewritten in place.
        offset: where the first time starts.
        stride: bytes from one time to the next.
        times_ns: at least one, none earlier than the one before it.
    """
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


class TransferBlock:
    """Single-frame deliveries on one session, ready to be sent: of one message, or of several in turns.

    The block repeats a pattern of frames, one for each message. Frames at the same place of the pattern lie
    a pattern's length apart, so that columns are rewritten one place after the other.
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
        ones = [
            frame(transfer_performative(0, 0, settled=settled) + one, channel=channel) for one in payloads
        ]
        pattern = b"".join(ones)
        repeats = max(1, min(BLOCK_FRAMES_MAX // len(ones), BLOCK_BYTES // len(pattern)))
        self.frame_bytes_max: Final = max(len(one) for one in ones)
        """Size of the largest frame."""
        self.capacity: Final = repeats * len(ones)
        """Most frames of one `fill`."""
        self._offsets: Final = [0, *accumulate(len(one) for one in ones)]
        self._places: Final = len(ones)
        self._stride: Final = len(pattern)
        self._buffer = bytearray(pattern * repeats)
        self._view = memoryview(self._buffer)
        self._stamp_at = None if stamp_offset is None else self._stride - len(payloads[0]) + stamp_offset
        self._handles: int | bytes = 0
        self._handles_written = self.capacity

    def fill(self, handles: int | bytes, first_delivery_id: int, count: int) -> memoryview:
        """Return `count` transfer frames (1 to `capacity`), valid until the next call.

        Args:
            handles: the link's handle, or one handle a frame.
            first_delivery_id: delivery-id of the first frame; the others follow it.
            count: how many.
        """
        buffer, stride, places = self._buffer, self._stride, self._places
        if count == 1:
            buffer[HANDLE_OFFSET] = handles if isinstance(handles, int) else handles[0]
            _U32.pack_into(buffer, DELIVERY_ID_OFFSET, first_delivery_id)
            _U32.pack_into(buffer, TAG_OFFSET, first_delivery_id)
            self._handles_written = 0
            return self._view[: self._offsets[1]]
        column = b""
        if handles != self._handles or count > self._handles_written:
            column = bytes((handles,)) * count if isinstance(handles, int) else handles
            self._handles = handles
            self._handles_written = count
        for place in range(min(places, count)):
            start = self._offsets[place]
            frames = -(-(count - place) // places)
            if column:
                at = start + HANDLE_OFFSET
                buffer[at : at + (frames - 1) * stride + 1 : stride] = column[place::places]
            first = (first_delivery_id + place) & MASK
            write_serials(buffer, start + DELIVERY_ID_OFFSET, stride, first, frames, places)
            write_serials(buffer, start + TAG_OFFSET, stride, first, frames, places)
        whole, rest = divmod(count, places)
        return self._view[: whole * stride + self._offsets[rest]]

    def stamp(self, times_ns: Sequence[int]) -> None:
        """Write a time into the payload of the first frames of the block, one each, in their order."""
        assert self._stamp_at is not None, "this block was made without a place for stamps"
        write_stamps(self._buffer, self._stamp_at, self._stride, times_ns)


class LargeTransfer:
    """One message that needs several frames, cut to the peer's max-frame-size (part 2 §2.6.14)."""

    def __init__(self, channel: int, payload: bytes, *, settled: bool, max_frame_size_bytes: int):
        """Cut the message; every frame but the last has `more` set."""
        self._frames: list[bytearray] = []
        room = max_frame_size_bytes - FRAME_HEADER_BYTES
        room -= len(transfer_performative(0, 0, settled=settled, more=True))
        for start in range(0, len(payload), room):
            more = start + room < len(payload)
            performative = transfer_performative(0, 0, settled=settled, more=more)
            piece = payload[start : start + room]
            self._frames.append(bytearray(frame(performative + piece, channel=channel)))

    @property
    def frame_count(self) -> int:
        """Frames a delivery takes, each one unit of the session window."""
        return len(self._frames)

    def frames(self, handle: int, delivery_id: int, start: int) -> Iterator[bytearray]:
        """Yield the frames of one delivery from number `start` on; each is valid until the next delivery."""
        for one in self._frames[start:]:
            one[HANDLE_OFFSET] = handle
            _U32.pack_into(one, DELIVERY_ID_OFFSET, delivery_id)
            _U32.pack_into(one, TAG_OFFSET, delivery_id)
            yield one


class DispositionBlock:
    """Dispositions that accept and settle one delivery each (part 2 §2.7.6)."""

    FIRST_OFFSET: Final = FRAME_HEADER_BYTES + 8

    def __init__(self, channel: int) -> None:
        """Make the block for a session on which we are the receiver."""
        # A number that needs four bytes; `last` is left out: it is then the same as `first`.
        one = disposition_frame(channel, receiver=True, first=MASK, last=None)
        self._stride = len(one)
        self._buffer = bytearray(one * BLOCK_FRAMES_MAX)
        self._view = memoryview(self._buffer)

    def fill(self, first_delivery_id: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes of `count` dispositions for consecutive deliveries, a block at a time."""
        while count:
            run = min(count, BLOCK_FRAMES_MAX)
            write_serials(self._buffer, self.FIRST_OFFSET, self._stride, first_delivery_id, run)
            yield self._view[: run * self._stride]
            first_delivery_id = (first_delivery_id + run) & MASK
            count -= run


# The offsets above are read off the layout; a change of the layout must not pass unseen.
_SAMPLE: Final = frame(transfer_performative(0xAB, 0x01020304, settled=True))
assert _SAMPLE[FRAME_HEADER_BYTES + 2] == Transfer.DESCRIPTOR
assert _SAMPLE[HANDLE_OFFSET] == 0xAB
assert _SAMPLE[DELIVERY_ID_OFFSET : DELIVERY_ID_OFFSET + 4] == b"\x01\x02\x03\x04"
assert _SAMPLE[TAG_OFFSET : TAG_OFFSET + 4] == b"\x01\x02\x03\x04"
