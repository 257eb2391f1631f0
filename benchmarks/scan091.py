"""Reading AMQP 0-9-1: whole frames out of a buffer, runs of like messages and acknowledgements at once.

A broker under load sends long runs of basic.deliver, each with its content header and body, that differ
only in delivery-tag and body. The scanner decodes the first message of such a run argument by argument,
learns from it where the changing bytes are, and then compares every other byte column by column over the
whole run, as `scan` does it for AMQP 1.0. Whatever does not fit is read frame by frame. Nothing is assumed
about how a broker words its deliveries; the floor peer reads publishes with the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.protocols.amqp091.content import FRAME_OVERHEAD, HEADER, HEADER_BYTES
from amqp10broker.protocols.amqp091.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    BasicAck,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicReturn,
    Method,
)
from benchmarks.errors import WireError
from benchmarks.runs import Pattern
from benchmarks.wire091 import read_method

_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_ACK: Final = Struct(">BHIIQBB")
"""A whole basic.ack frame: type, channel, size, class and method, delivery-tag, bits, end."""
_TAG_BYTES: Final = 8
_MULTIPLE: Final = 1
_CONTENT_SIZE_OFFSET: Final = HEADER_BYTES + 4
"""Where in a content header frame the body size stands."""


def _code(kind: type[Method]) -> int:
    """Return class and method as one number, as they stand in a frame."""
    return kind.CLASS_ID << 16 | kind.METHOD_ID


_ACK_CODE: Final = _code(BasicAck)
_ACKS: Final = frozenset({_ACK_CODE, _code(BasicNack)})
_CARRY_CONTENT: Final = frozenset(map(_code, (BasicPublish, BasicReturn, BasicDeliver)))
_LAYOUTS_MAX: Final = 64
_VAIN_MAX: Final = 8
"""After so many layouts in a row that no other message had, messages are read one by one ..."""
_VAIN_PAUSE: Final = 512
"""... so many of them, before the next is learned: headers may all differ (x-stream-offset)."""
# A message of which so much has come, and still not all, is read frame by frame: waiting for the rest
# might wait for more than the buffer holds.
WAIT_BYTES: Final = 64 * 1024


class Contents(NamedTuple):
    """Consecutive messages on one channel, alike but for delivery-tag and body."""

    channel: int
    method: Method
    """basic.deliver, basic.publish or basic.return; of any of the messages."""
    first_tag: int
    """Delivery-tag of the first message of deliveries; the others follow it."""
    messages: int
    body_bytes: int
    """Length of the first body."""
    position: int
    """Where the first body starts in the buffer, valid during the call only; -1 if it came in pieces."""
    stride: int
    """Bytes from one body to the next, which is then as long; 0 if they differ."""


class FrameHandler(Protocol):
    """Who is told what the scanner found, in the order of the wire."""

    def on_contents(self, run: Contents) -> None:
        """Messages arrived."""

    def on_acks(self, channel: int, first: int, last: int, *, multiple: bool, accepted: bool) -> None:
        """basic.ack (or basic.nack) for tags first..last singly; or for all up to `last`: multiple."""

    def on_method(self, channel: int, method: Method) -> None:
        """Any other method arrived."""


class _Layout:
    """Where the changing bytes of one kind of message are."""

    __slots__ = ("_fields", "_fixed", "_tag_step", "body_at", "method", "pattern", "tag_at")

    def __init__(self, whole: bytes, header_at: int, body_at: int) -> None:
        """Learn from the first message.

        Args:
            whole: its frames: method, content header, and body if there is one.
            header_at: where the content header frame starts in it.
            body_at: where the body starts.
        """
        self.method = read_method(whole[HEADER_BYTES : header_at - 1])
        self.body_at = body_at
        self.tag_at = -1
        changing = set(range(body_at, len(whole) - 1))
        if isinstance(self.method, BasicDeliver):
            # The tag stands behind the consumer-tag, a short string.
            self.tag_at = HEADER_BYTES + 5 + whole[HEADER_BYTES + 4]
            changing.update(range(self.tag_at, self.tag_at + _TAG_BYTES))
        self.pattern = Pattern(whole, changing, len(whole))

        # For bodies of other lengths: what lies before the tag, it, what lies before the body's size in the
        # header, it, what lies before the body frame's size, and it. Without a tag the first eight bytes
        # stand in for one that does not grow.
        tag_at, self._tag_step = (self.tag_at, 1) if self.tag_at >= 0 else (0, 0)
        size_at = header_at + _CONTENT_SIZE_OFFSET
        between = (size_at - tag_at - _TAG_BYTES, body_at - 4 - size_at - 8)
        self._fields: Struct | None = None
        if body_at < len(whole):
            self._fields = Struct(f">{tag_at}sQ{between[0]}sQ{between[1]}sI")
            self._fixed = self._fields.unpack_from(whole, 0)

    def follow(self, data: bytearray, position: int, end: int, tag: int) -> tuple[int, int]:
        """Count the messages from `position` on that are like this one but for tag, body and its length.

        Args:
            data: the buffer.
            position: where they may start.
            end: of the bytes in the buffer.
            tag: delivery-tag that the first of them must have; the others follow it.

        Returns:
            Their number and the offset behind them.
        """
        count = 0
        if self._fields is None:
            return count, position
        unpack, step, body_at = self._fields.unpack_from, self._tag_step, self.body_at
        head, first, middle, _, tail, _ = self._fixed
        if not step:
            tag = first
        while end - position > body_at:
            head_here, tag_here, middle_here, size, tail_here, length = unpack(data, position)
            behind = position + body_at + length + 1
            if tag_here != tag or size != length or behind > end or data[behind - 1] != FRAME_END:
                break
            if head_here != head or middle_here != middle or tail_here != tail or not length:
                break
            count += 1
            position = behind
            tag += step
        return count, position


class _Partial:
    """A message on one channel of which not all frames have come."""

    __slots__ = ("body_bytes", "left", "method")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.body_bytes = -1
        self.left = 0


class Scanner091:
    """Cuts one connection's bytes into frames and tells a handler about them."""

    def __init__(self, handler: FrameHandler, *, alike_in_size: bool = False) -> None:
        """Make a scanner.

        Args:
            handler: is told what was found.
            alike_in_size: report messages of different sizes in different runs, for a handler that looks
                into the bodies.
        """
        self._handler = handler
        self._alike_in_size = alike_in_size
        self._layouts: dict[tuple[bytes, bytes], _Layout] = {}
        self._partials: dict[int, _Partial] = {}
        self._methods: dict[bytes, Method] = {}
        self._vain = 0

    def scan(self, data: bytearray, position: int, end: int) -> int:
        """Handle every whole frame between `position` and `end`.

        Returns:
            The offset of the first byte that belongs to a frame, or short message, not yet whole.

        Raises:
            WireError: the bytes are not AMQP 0-9-1 frames.
        """
        while end - position >= FRAME_OVERHEAD:
            kind, channel, size = HEADER.unpack_from(data, position)
            behind = position + size + FRAME_OVERHEAD
            if behind > end:
                break
            if data[behind - 1] != FRAME_END:
                raise WireError(f"a frame of type {kind} and {size} bytes does not end in 0xCE")
            if kind == FRAME_METHOD:
                (code,) = _U32.unpack_from(data, position + HEADER_BYTES)
                if code in _CARRY_CONTENT:
                    after_message = self._contents(data, position, behind, end)
                    if after_message == position:
                        break
                    behind = after_message
                elif code in _ACKS:
                    behind = self._acks(data, position, behind, end, code)
                else:
                    self._handler.on_method(channel, _method_at(data, position, behind))
            elif kind in (FRAME_HEADER, FRAME_BODY):
                self._piece(kind, channel, data, position, size)
            elif kind != FRAME_HEARTBEAT:
                raise WireError(f"frame of type {kind}")
            position = behind
        return position

    # --- messages ---

    def _contents(self, data: bytearray, position: int, behind: int, end: int) -> int:
        """Handle the messages that start with the method frame at `position`.

        Returns:
            The offset behind what was handled; `position` itself if more bytes must come first.
        """
        channel_bytes = data[position + 1 : position + 3]
        shape = _shape(data, behind, end, channel_bytes)
        if shape is None and end - position < WAIT_BYTES:
            return position
        if not shape:
            (channel,) = _CHANNEL(data, position + 1)
            self._partials[channel] = _Partial(_method_at(data, position, behind))
            return behind
        body_at, after = shape
        key = _key(data, position, behind, body_at)
        layout = self._layouts.get(key)
        count = layout.pattern.run_length(data, position, end) if layout is not None else 0
        if layout is None or count == 0:
            self._vain += 1
            if _VAIN_MAX < self._vain < _VAIN_MAX + _VAIN_PAUSE:
                return self._one(data, position, key[0], body_at, after)
            self._vain = min(self._vain, _VAIN_MAX)
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            layout = _Layout(bytes(data[position:after]), behind - position, body_at - position)
            self._layouts[key] = layout
            count = layout.pattern.run_length(data, position, end)
        else:
            self._vain = 0
        whole = stride = layout.pattern.stride
        first = 0
        if layout.tag_at >= 0:
            (first,) = _U64.unpack_from(data, position + layout.tag_at)
            last_at = position + (count - 1) * stride + layout.tag_at
            (last,) = _U64.unpack_from(data, last_at)
            if last - first != count - 1:
                count = 1
        behind = position + count * stride
        if not self._alike_in_size:
            more, behind = layout.follow(data, behind, end, first + count)
            if more:
                count += more
                stride = 0
        if count > 1:
            self._vain = 0
        (channel,) = _CHANNEL(data, position + 1)
        body_bytes = whole - layout.body_at - 1 if after > body_at else 0
        self._handler.on_contents(Contents(channel, layout.method, first, count, body_bytes, body_at, stride))
        return behind

    def _one(self, data: bytearray, position: int, before_tag: bytes, body_at: int, after: int) -> int:
        """Handle one whole message by itself; return the offset behind it.

        Its method is decoded once for all that begin with the same bytes, up to the delivery-tag.
        """
        method = self._methods.get(before_tag)
        if method is None:
            (size,) = _U32.unpack_from(data, position + 3)
            if len(self._methods) >= _LAYOUTS_MAX:
                self._methods.clear()
            method = self._methods[before_tag] = _method_at(data, position, position + size + FRAME_OVERHEAD)
        tag = _U64.unpack_from(data, position + len(before_tag))[0] if isinstance(method, BasicDeliver) else 0
        (channel,) = _CHANNEL(data, position + 1)
        body_bytes = max(0, after - body_at - 1)
        self._handler.on_contents(Contents(channel, method, tag, 1, body_bytes, body_at, after - position))
        return after

    def _piece(self, kind: int, channel: int, data: bytearray, position: int, size: int) -> None:
        """Take a content header or body frame of a message that came in pieces."""
        partial = self._partials.get(channel)
        if partial is None or (kind == FRAME_HEADER) != (partial.body_bytes < 0):
            raise WireError(f"content frame of type {kind} on channel {channel} without its method")
        if kind == FRAME_HEADER:
            (partial.body_bytes,) = _U64.unpack_from(data, position + _CONTENT_SIZE_OFFSET)
            partial.left = partial.body_bytes
        else:
            partial.left -= size
            if partial.left < 0:
                raise WireError(f"more body than announced on channel {channel}")
        if partial.left == 0:
            del self._partials[channel]
            method = partial.method
            tag = method.delivery_tag if isinstance(method, BasicDeliver) else 0
            self._handler.on_contents(Contents(channel, method, tag, 1, partial.body_bytes, -1, 0))

    # --- acknowledgements ---

    def _acks(self, data: bytearray, position: int, behind: int, end: int, code: int) -> int:
        """Handle a run of basic.ack (or nack) with consecutive tags; return the offset behind it."""
        kind, channel, size, _, first, bits, last_octet = _ACK.unpack_from(data, position)
        if bits & _MULTIPLE or behind - position != _ACK.size:
            multiple = bool(bits & _MULTIPLE)
            self._handler.on_acks(channel, first, first, multiple=multiple, accepted=code == _ACK_CODE)
            return behind
        last = first
        position = behind
        while end - position >= _ACK.size:
            follower = _ACK.unpack_from(data, position)
            if follower != (kind, channel, size, code, last + 1, bits, last_octet):
                break
            last += 1
            position += _ACK.size
        self._handler.on_acks(channel, first, last, multiple=False, accepted=code == _ACK_CODE)
        return position


def _method_at(data: bytearray, position: int, behind: int) -> Method:
    return read_method(bytes(data[position + HEADER_BYTES : behind - 1]))


def _key(data: bytearray, position: int, behind: int, body_at: int) -> tuple[bytes, bytes]:
    """Return what layouts are found by: the method as far as it stays the same, header, size of the body."""
    method_end = behind
    if data.startswith(_DELIVER, position + HEADER_BYTES):
        consumer_tag = position + HEADER_BYTES + 4
        method_end = consumer_tag + 1 + data[consumer_tag]
    return bytes(data[position:method_end]), bytes(data[behind:body_at])


_DELIVER: Final = _U32.pack(_code(BasicDeliver))
_CHANNEL: Final[Callable[[bytearray, int], tuple[Any, ...]]] = Struct(">H").unpack_from


def _shape(
    data: bytearray, position: int, end: int, channel: bytearray
) -> tuple[int, int] | tuple[()] | None:
    """Look at what follows a method that carries content.

    Args:
        data: the buffer.
        position: behind the method frame.
        end: of the bytes in the buffer.
        channel: two octets: the frames must be this channel's.

    Returns:
        Where the body starts (behind the content header, if there is none) and where the message ends;
        nothing in it if the message is not header and at most one body frame in a row; None if that
        cannot be told yet.

    Raises:
        WireError: a frame does not end as it must.
    """
    if end - position < FRAME_OVERHEAD:
        return None
    if data[position] != FRAME_HEADER or data[position + 1 : position + 3] != channel:
        return ()
    (size,) = _U32.unpack_from(data, position + 3)
    body_frame = position + size + FRAME_OVERHEAD
    if body_frame > end:
        return None
    if data[body_frame - 1] != FRAME_END:
        raise WireError("a content header frame does not end in 0xCE")
    (body_bytes,) = _U64.unpack_from(data, position + _CONTENT_SIZE_OFFSET)
    if body_bytes == 0:
        return body_frame, body_frame
    if end - body_frame < HEADER_BYTES:
        return None
    if data[body_frame] != FRAME_BODY or data[body_frame + 1 : body_frame + 3] != channel:
        return ()
    (size,) = _U32.unpack_from(data, body_frame + 3)
    if size != body_bytes:
        return ()
    behind = body_frame + size + FRAME_OVERHEAD
    if behind > end:
        return None
    if data[behind - 1] != FRAME_END:
        raise WireError("a body frame does not end in 0xCE")
    return body_frame + HEADER_BYTES, behind
