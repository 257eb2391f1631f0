"""Reading what the broker sends: whole frames out of a buffer, runs of like transfers at once.

A broker under load sends long runs of transfer frames that differ only in handle, delivery-id,
delivery-tag and the message's bytes. The scanner decodes the first frame of such a run field by field,
learns from it where the changing bytes are, and then compares every other byte of the performative
column by column over the whole run: each frame is checked, at about 40 ns. A frame that does not fit is
decoded field by field again. Nothing is assumed about how a broker encodes its transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.protocols.amqp10.codec import decode
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES
from amqp10broker.protocols.amqp10.performatives import Accepted, Composite, Disposition, Transfer
from amqp10broker.protocols.serial import MASK
from benchmarks.errors import WireError
from benchmarks.runs import Pattern
from benchmarks.wire import decode_performative

_U32: Final = Struct(">I")
_U16: Final = Struct(">H")
_PREFIX_TRANSFER: Final = b"\x00\x53\x14"
_PREFIX_DISPOSITION: Final = b"\x00\x53\x15"

_Disposition = tuple[bool, int, int, bool, bool]
"""Peer is the receiver, first, last, settled, accepted."""


class Run(NamedTuple):
    """Consecutive transfer frames of one session, alike but for handle and delivery-id."""

    channel: int
    handles: int | bytes
    """The peer's handle, or one for each frame."""
    first_delivery_id: int | None
    """delivery-id of the first frame, the others follow it; None on a continuation that leaves it out."""
    frames: int
    settled: bool
    more: bool
    position: int
    """Where the first frame starts in the buffer; valid during the call only."""
    stride: int
    """Bytes of each frame; 0 if they differ."""
    payload_bytes: int
    """Message bytes in the first frame."""


class FrameHandler(Protocol):
    """Who is told what the scanner found, in the order of the wire."""

    def on_transfers(self, run: Run) -> None:
        """Transfer frames arrived."""

    def on_disposition(
        self, channel: int, receiver: bool, first: int, last: int, settled: bool, accepted: bool
    ) -> None:
        """The peer told a state for first..last."""

    def on_performative(self, channel: int, performative: Composite) -> None:
        """Any other frame arrived."""


class _Layout:
    """Where the changing bytes of one kind of transfer frame are."""

    __slots__ = ("_fields_of", "_tag_end", "fields", "handle_at", "id_at", "pattern", "payload_at", "tag_at")

    def __init__(self, whole: bytes) -> None:
        """Learn from one frame."""
        self.fields, self.payload_at = _transfer_of(whole)
        self.handle_at = self.id_at = self.tag_at = self._tag_end = -1
        self._fields_of: Callable[[bytearray, int], tuple[Any, ...]] | None = None
        self.pattern = Pattern(whole, self._changing_offsets(whole), self.payload_at)

    def _changing_offsets(self, whole: bytes) -> set[int]:
        """Return the offsets of handle, delivery-id and delivery-tag data."""
        changing: set[int] = set()
        short = whole[FRAME_HEADER_BYTES + 3] == 0xC0
        position = FRAME_HEADER_BYTES + (6 if short else 12)
        # The tag is the third field.
        for index in range(1 if self.fields.delivery_tag is None else 3):
            code = whole[position]
            _, end = decode(whole, position)
            if index == 0 and code == 0x52:
                self.handle_at = position + 1
                changing.add(position + 1)
            elif index == 1 and code == 0x70:
                self.id_at = position + 1
                changing.update(range(position + 1, end))
            elif index == 2 and code == 0xA0:
                self.tag_at = position + 2
                self._tag_end = end
                changing.update(range(position + 2, end))
            position = end
        return changing

    def follow(
        self, data: bytearray, first: int, delivery_id: int, position: int, end: int
    ) -> tuple[int, int]:
        """Count the frames from `position` on that follow a frame of this layout but differ in size.

        Args:
            data: the buffer.
            first: where a frame of this layout starts, with the handle that all must have.
            delivery_id: what the first of them must have; the others follow it.
            position: where they may start.
            end: of the bytes in the buffer.

        Returns:
            Their number and the offset behind them.
        """
        count = 0
        if self.tag_at < 0 or self.id_at < 0:
            return count, position
        if self._fields_of is None:
            # Size, what lies before the delivery-id, it, what lies before the tag's data; the tag; the rest.
            before, between = self.id_at - 4, self.tag_at - self.id_at - 4
            tag_bytes = self._tag_end - self.tag_at
            after = self.payload_at - self._tag_end
            self._fields_of = Struct(f">I{before}sI{between}s{tag_bytes}x{after}s").unpack_from
        unpack, payload_at = self._fields_of, self.payload_at
        _, head, _, middle, tail = unpack(data, first)
        while end - position >= payload_at:
            size, head_here, id_here, middle_here, tail_here = unpack(data, position)
            if id_here != delivery_id or head_here != head or position + size > end:
                break
            if middle_here != middle or tail_here != tail or size < payload_at:
                break
            count += 1
            position += size
            delivery_id = (delivery_id + 1) & MASK
        return count, position


class Scanner:
    """Cuts one connection's bytes into frames and tells a handler about them."""

    def __init__(self, handler: FrameHandler, *, alike_in_size: bool = False) -> None:
        """Make a scanner.

        Args:
            handler: is told what was found.
            alike_in_size: report frames of different sizes in different runs, for a handler that looks
                into the frames.
        """
        self._handler = handler
        self._alike_in_size = alike_in_size
        self._layouts: dict[int, _Layout] = {}
        self.frames_read = 0

    def scan(self, data: bytearray, position: int, end: int) -> int:
        """Handle every whole frame between `position` and `end`.

        Returns:
            The offset of the first byte that belongs to a frame not yet whole.

        Raises:
            WireError: the bytes are not AMQP frames.
        """
        while end - position >= 8:
            (size,) = _U32.unpack_from(data, position)
            if position + size > end:
                break
            if size < 8:
                raise WireError(f"frame of {size} bytes")
            prefix = data[position + 8 : position + 11]
            if prefix == _PREFIX_TRANSFER and data[position + 4] == 2 and data[position + 5] == 0:
                position = self._transfers(data, position, size, end)
                continue
            if prefix == _PREFIX_DISPOSITION and data[position + 4] == 2:
                self._disposition(data, position, size)
            elif size > 8:
                self._other(data, position, size)
            self.frames_read += 1
            position += size
        return position

    def _transfers(self, data: bytearray, position: int, size: int, end: int) -> int:
        """Handle the run of transfers that starts at `position`; return the offset behind it."""
        layout = self._layouts.get(size)
        count = layout.pattern.run_length(data, position, end) if layout is not None else 0
        if layout is None or count == 0:
            if len(self._layouts) > 64:
                self._layouts.clear()
            layout = self._layouts[size] = _Layout(bytes(data[position : position + size]))
            count = layout.pattern.run_length(data, position, end)
        fields = layout.fields
        first = fields.delivery_id
        if layout.id_at >= 0:
            (first,) = _U32.unpack_from(data, position + layout.id_at)
            assert first is not None
            if count > 1:
                (last,) = _U32.unpack_from(data, position + (count - 1) * size + layout.id_at)
                if (last - first) & MASK != count - 1:
                    count = 1
        else:
            count = 1
        handles: int | bytes = fields.handle
        if layout.handle_at >= 0:
            handles = data[position + layout.handle_at]
            if count > 1:
                column = bytes(data[position + layout.handle_at : position + count * size : size])
                if column != column[:1] * count:
                    handles = column
        (channel,) = _U16.unpack_from(data, position + 6)
        behind = position + count * size
        stride = size
        if not self._alike_in_size and first is not None and isinstance(handles, int):
            delivery_id = (first + count) & MASK
            more, behind = layout.follow(data, position, delivery_id, behind, end)
            if more:
                count += more
                stride = 0
        run = Run(
            channel,
            handles,
            first,
            count,
            bool(fields.settled),
            fields.more,
            position,
            stride,
            size - layout.payload_at,
        )
        self.frames_read += count
        self._handler.on_transfers(run)
        return behind

    def _disposition(self, data: bytearray, position: int, size: int) -> None:
        (channel,) = _U16.unpack_from(data, position + 6)
        fast = _fast_disposition(data, position, size)
        if fast is None:
            self._other(data, position, size)
        else:
            self._handler.on_disposition(channel, *fast)

    def _other(self, data: bytearray, position: int, size: int) -> None:
        (channel,) = _U16.unpack_from(data, position + 6)
        body = bytes(data[position : position + size])
        performative, _ = decode_performative(body, body[4] * 4)
        if isinstance(performative, Transfer):
            raise WireError("transfer with an extended frame header")
        if isinstance(performative, Disposition):
            told = performative
            last, accepted = told.first if told.last is None else told.last, isinstance(told.state, Accepted)
            self._handler.on_disposition(channel, told.role, told.first, last, told.settled, accepted)
        else:
            self._handler.on_performative(channel, performative)


def _transfer_of(whole: bytes) -> tuple[Transfer, int]:
    performative, end = decode_performative(whole)
    assert isinstance(performative, Transfer)
    return performative, end


def _fast_disposition(data: bytearray, position: int, size: int) -> _Disposition | None:
    """Read the usual disposition, list8 with numbers and `accepted`; None if it is another."""
    if data[position + 11] != 0xC0:
        return None
    end = position + size
    role = data[position + 14]
    place = position + 15
    numbers = []
    for _ in (0, 1):
        code = data[place]
        if code == 0x70:
            numbers.append(_U32.unpack_from(data, place + 1)[0])
            place += 5
        elif code == 0x52:
            numbers.append(data[place + 1])
            place += 2
        elif code == 0x43:
            numbers.append(0)
            place += 1
        elif code == 0x40 and numbers:
            numbers.append(numbers[0])
            place += 1
        else:
            return None
    # What is left must be exactly: settled, accepted (as 0x45 or as list8 of nothing).
    rest = bytes(data[place:end])
    if rest[:4] != b"\x41\x00\x53\x24" or rest[4:] not in (b"\x45", b"\xc0\x01\x00"):
        return None
    if role not in (0x41, 0x42):
        return None
    return role == 0x41, numbers[0], numbers[1], True, True
