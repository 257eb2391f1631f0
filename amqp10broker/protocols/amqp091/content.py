"""Frames and contents of AMQP 0-9-1 (sections 2.3.5 and 2.3.5.2): their encoding, and parts of their reader.

The reader (`connection.FrameReader`) makes items: methods and whole contents, adjacent ones joined. A content
is a method, a content header, and body frames up to the announced size; frames of other channels may come in
between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from struct import Struct
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.codec import encode_shortstr
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    BasicPublish,
    Method,
)

HEADER: Final = Struct(">BHI")
"""type, channel, bytes of the payload."""
HEADER_BYTES: Final = 7
FRAME_OVERHEAD: Final = 8
END: Final = bytes((FRAME_END,))

FRAME_MIN_SIZE: Final = 8192
"""The size that every peer must accept: RabbitMQ's since 4.1 (specification: 4096)."""

HEARTBEAT: Final = HEADER.pack(FRAME_HEARTBEAT, 0, 0) + END

CONTENT_HEADER: Final = Struct(">HHQ")
"""class, weight (always 0), body size; the property flags follow."""
CONTENT_HEADER_BYTES: Final = 12
CONTENT_HEADER_BYTES_MIN: Final = CONTENT_HEADER_BYTES + 2
CONTENT_START: Final = Struct(">BHIHHQ")
CONTENT_START_BYTES: Final = HEADER_BYTES + CONTENT_HEADER_BYTES

BASIC_CLASS: Final = 60
CONNECTION_CLASS: Final = 10


def method_frame(channel: int, method: Method) -> bytes:
    payload = method.encode()
    return HEADER.pack(FRAME_METHOD, channel, len(payload)) + payload + END


def content_header_frame(channel: int, properties: bytes, body_bytes: int) -> bytes:
    head = CONTENT_START.pack(
        FRAME_HEADER, channel, CONTENT_HEADER_BYTES + len(properties), BASIC_CLASS, 0, body_bytes
    )
    return head + properties + END


def body_pieces(channel: int, body: bytes, frame_max: int) -> list[bytes | memoryview]:
    """Return the frames of a body in pieces; none for an empty one."""
    room = frame_max - FRAME_OVERHEAD if frame_max else len(body)
    if len(body) <= room:
        return [HEADER.pack(FRAME_BODY, channel, len(body)), body, END] if body else []
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)
    for start in range(0, len(body), room):
        piece = view[start : start + room]
        pieces += (HEADER.pack(FRAME_BODY, channel, len(piece)), piece, END)
    return pieces


def content_frames(channel: int, method: Method, properties: bytes, body: bytes, frame_max: int) -> bytes:
    return _content(channel, method.encode(), properties, body, frame_max)


def _content(channel: int, payload: bytes, properties: bytes, body: bytes, frame_max: int) -> bytes:
    return b"".join(
        (
            HEADER.pack(FRAME_METHOD, channel, len(payload)),
            payload,
            END,
            content_header_frame(channel, properties, len(body)),
            *body_pieces(channel, body, frame_max),
        )
    )


# --- items of the reader -------------------------------------------------------------------------


@dataclass(slots=True)
class MethodFrame:
    channel: int
    method: Method


@dataclass(eq=False, slots=True)
class PublishRun:
    """Adjacent basic.publish of one channel with equal arguments. `immediate`: the channel refuses it, as
    RabbitMQ has since 2011. `properties`: for each message, the bytes of its content header after the body
    size.
    """

    channel: int
    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool
    properties: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"PublishRun(channel={self.channel}, exchange={self.exchange!r}, "
            f"routing_key={self.routing_key!r}, messages={len(self.bodies)})"
        )


@dataclass(eq=False, slots=True)
class AckRun:
    channel: int
    tags: list[tuple[int, bool]] = field(default_factory=list)
    """Consecutive basic.ack: delivery tag and multiple."""


@dataclass(slots=True)
class Content:
    """A method with content other than basic.publish. Only clients receive it."""

    channel: int
    method: Method
    properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class ContentTooLarge:
    """A content announces a body over the limit. Its body frames are skipped."""

    channel: int
    method: Method
    size: int
    limit: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    channel: int = 0


# --- repeated bytes, and reading many messages with them at once ---------------------------------

ACK: Final = b"\x00\x3c\x00\x50"
ACK_PAYLOAD_BYTES: Final = 13
ACK_BYTES: Final = 21
# A whole basic.ack frame: everything up to the tag, the tag, and the bit with the end octet.
_ACK_ROW: Final = Struct(">11sQ2s")
_ACK_ENDS: Final = {b"\x00" + END: False, b"\x01" + END: True}

PREFIX_BYTES_MAX: Final = 2048
"""The longest prefix that is learned, to bound the memory of thousands of layouts."""

_unpack_header = HEADER.unpack_from
_unpack_content = CONTENT_START.unpack_from

# The number of messages compared first. It is multiplied by four each time all were alike, so that few bytes
# are read without use.
_FIRST_ROWS: Final = 4


@dataclass(eq=False, slots=True)
class PublishLayout:
    """A method frame of basic.publish, with the bytes before the body of its last message: a message with the
    same arguments, properties and body size begins with the same bytes and has the same length.
    """

    channel: int
    method: BasicPublish
    prefix: bytes = b""
    properties: bytes = b""
    body_at: int = 0
    stride: int = 0
    _row: Struct | None = None

    def read(self, buf: bytes, pos: int, head_at: int, frame_limit: int, body_limit: int) -> int:
        """Read a message with a body of one frame, after its method frame, and learn from it. Returns where
        it ends; beyond the end of the bytes: how many are needed to continue; 0: it is malformed, or not such
        a message.
        """
        end = len(buf)
        kind, channel, size, class_id, weight, body_bytes = _unpack_content(buf, head_at)
        if (
            kind != FRAME_HEADER
            or channel != self.channel
            or class_id != BASIC_CLASS
            or weight
            or not CONTENT_HEADER_BYTES_MIN <= size <= frame_limit
            or not 0 < body_bytes <= body_limit
        ):
            return 0
        head_stop: int = head_at + size + FRAME_OVERHEAD
        body_at = head_stop + HEADER_BYTES
        stop: int = body_at + body_bytes + 1
        if stop > end:
            # A header with a wrong end octet is reported without its body, which may never come.
            if head_stop > end:
                return head_stop
            if buf[head_stop - 1] != FRAME_END:
                return 0
            if body_at > end:
                return body_at
        elif buf[stop - 1] != FRAME_END or buf[head_stop - 1] != FRAME_END:
            return 0
        if _unpack_header(buf, head_stop) != (FRAME_BODY, channel, body_bytes):
            return 0
        if stop <= end:
            self.prefix = buf[pos:body_at]
            self.properties = buf[head_at + CONTENT_START_BYTES : head_stop - 1]
            self.body_at = body_at - pos
            self.stride = stop - pos
            self._row = None
        return stop

    def read_rows(self, buf: bytes, pos: int, end: int, run: PublishRun) -> int:
        """Add the messages at `pos` that are like the last one; return where they end."""
        row = self._row
        if row is None:
            row = self._row = Struct(f"{self.body_at}s{self.stride - self.body_at - 1}sc")
        prefix = self.prefix
        stride = self.stride
        count = _FIRST_ROWS
        found = count
        while found == count:
            count = min(count, (end - pos) // stride)
            if not count:
                break
            bodies = []
            for start, body, last in row.iter_unpack(memoryview(buf)[pos : pos + count * stride]):
                if start != prefix or last != END:
                    break
                bodies.append(body)
            found = len(bodies)
            run.bodies += bodies
            run.properties += [self.properties] * found
            pos += found * stride
            if found == count:
                count = found = count * 4
        return pos


def is_ack(buf: bytes, pos: int, end: int) -> bool:
    """Return whether a whole basic.ack frame with bit octet 0 or 1 begins there, given its payload size."""
    stop = pos + ACK_BYTES
    return (
        buf.startswith(ACK, pos + HEADER_BYTES)
        and stop <= end
        and buf[stop - 1] == FRAME_END
        and buf[stop - 2] < 2
    )


def read_acks(buf: bytes, pos: int, end: int, run: AckRun) -> int:
    """Add the basic.ack frames with bit octet 0 or 1 at `pos`; return where they end."""
    head = buf[pos : pos + 11]
    ends = _ACK_ENDS
    count = _FIRST_ROWS
    while True:
        count = min(count, (end - pos) // ACK_BYTES)
        before = len(run.tags)
        for start, tag, last in _ACK_ROW.iter_unpack(memoryview(buf)[pos : pos + count * ACK_BYTES]):
            if start != head or last not in ends:
                break
            run.tags.append((tag, ends[last]))
        found = len(run.tags) - before
        pos += found * ACK_BYTES
        if found < count or not count:
            return pos
        count *= 4


PIECE_BYTES: Final = 64
"""The overhead of a stored frame, so that empty ones count, too."""


@dataclass(eq=False, slots=True)
class PendingContent:
    """An incomplete content of a channel. `properties`: None before the content header."""

    method: Method
    layout: PublishLayout | None = None
    properties: bytes | None = None
    remaining: int = 0
    discarded: bool = False
    held: int = 0
    _pieces: list[bytes] = field(default_factory=list)

    def header(self, payload: bytes) -> int:
        """Take the content header; return the body size."""
        if self.properties is not None:
            raise self.unexpected()
        if len(payload) < CONTENT_HEADER_BYTES_MIN:
            raise self._fault(
                ReplyCode.FRAME_ERROR,
                f"content header of {len(payload)} bytes, at least {CONTENT_HEADER_BYTES_MIN} are needed",
            )
        class_id, weight, size = CONTENT_HEADER.unpack_from(payload)
        if class_id != self.method.CLASS_ID:
            raise self._fault(
                ReplyCode.UNEXPECTED_FRAME,
                f"expected content header for class {self.method.CLASS_ID}, "
                f"got one for class {class_id} instead",
            )
        if weight != 0:
            raise self.unexpected()
        self.properties = payload[CONTENT_HEADER_BYTES:]
        self.remaining = size
        self.held = len(payload) + PIECE_BYTES
        return int(size)

    def body(self, payload: bytes) -> None:
        if self.properties is None:
            raise self.unexpected()
        if len(payload) > self.remaining:
            raise self._fault(
                ReplyCode.FRAME_ERROR,
                f"body frame of {len(payload)} bytes where {self.remaining} of the announced size are left",
            )
        self.remaining -= len(payload)
        if not self.discarded:
            self._pieces.append(payload)
            self.held += len(payload) + PIECE_BYTES

    def discard(self) -> None:
        self.discarded = True
        self.held = 0
        self._pieces.clear()

    def take_body(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def unexpected(self) -> AmqpHardError:
        if self.properties is None:
            text = (
                f"expected content header for class {self.method.CLASS_ID}, "
                "got non content header frame instead"
            )
        else:
            text = "expected content body, got non content body frame instead"
        return self._fault(ReplyCode.UNEXPECTED_FRAME, text)

    def _fault(self, code: ReplyCode, text: str) -> AmqpHardError:
        return AmqpHardError(code, text, self.method.CLASS_ID, self.method.METHOD_ID)


@dataclass(frozen=True, slots=True, eq=False)
class ContentOpened:
    """A content that was announced and is incomplete: the channel may discard it now."""

    channel: int
    method: Method
    content: PendingContent


Item = MethodFrame | PublishRun | AckRun | Content | ContentOpened | ContentTooLarge | Heartbeat


# --- messages for clients: basic.deliver, basic.get-ok and basic.return with content -------------
#
# A head has redelivered flag, exchange, routing key and properties in the encoding of these methods and of
# the content header (`message` defines its layout), so they are sliced. The bytes that are equal for messages
# of one consumer with equal heads and body sizes are made once.

_DELIVER: Final = b"\x00\x3c\x00\x3c"
_GET_OK: Final = b"\x00\x3c\x00\x47"
_RETURN: Final = b"\x00\x3c\x00\x32"
_TAG_BYTES: Final = 8

_FLAGS_AT: Final = 1
# The offset of the names in a head, after the flags.
_NAMES_AT: Final = 6

REDELIVERED: Final = 1
"""Flag of a head: the message was delivered before."""
DEAD_LETTERED: Final = 2
"""Flag: the head ends with records of 16 bytes each, and their number in the last two bytes."""
HIDDEN_KEYS: Final = 4
"""Flag: routing keys that are not sent to clients come before these, and their length in four bytes."""

# A longer body is a separate piece, because copying it takes longer.
_WHOLE_BODY_BYTES_MAX: Final = 1024

# Heads cached per consumer, and structs.
_LAYOUTS_MAX: Final = 1024

# A longer head is not cached, because it mostly does not repeat.
_LAYOUT_BYTES_MAX: Final = 1024

Pack = Callable[[bytes, int, bytes, bytes, bytes], bytes]


def split(head: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a head: redelivered bit; exchange and routing key; properties."""
    end = _NAMES_AT + 1 + head[_NAMES_AT]
    end += 1 + head[end]
    bit = b"\x01" if head[_FLAGS_AT] & REDELIVERED else b"\x00"
    return bit, head[_NAMES_AT:end], head[end : properties_end(head)]


def properties_end(head: bytes) -> int:
    """Return where the properties in a head end; the rest is not sent to clients."""
    flags = head[_FLAGS_AT]
    end = len(head)
    if flags & DEAD_LETTERED:
        end -= 2 + 16 * int.from_bytes(head[-2:], "big")
    if flags & HIDDEN_KEYS:
        end -= 4 + int.from_bytes(head[end - 4 : end], "big")
    return end


class DeliverEncoder:
    __slots__ = ("_channel", "_consumer", "_frame_max", "_layouts", "_packs")

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        self._channel = channel
        self._consumer = encode_shortstr(consumer_tag)
        self._frame_max = frame_max
        self._layouts: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}
        self._packs: dict[tuple[int, int], Pack] = {}

    def encode(
        self, first_tag: int, messages: Iterable[tuple[bytes, bytes]], out: list[bytes | memoryview]
    ) -> None:
        """Append deliveries to `out`, in pieces that may be less than a frame. `first_tag`: delivery tag of
        the first.
        """
        tag = first_tag
        last: bytes | None = None
        length = -1
        before = between = b""
        pack: Pack | None = None
        append = out.append
        for head, body in messages:
            if len(body) != length or head != last:
                last, length = head, len(body)
                before, between = self._layouts.get((head, length)) or self._learn(head, length)
                pack = self._pack_for(len(between), length) if 0 < length <= _WHOLE_BODY_BYTES_MAX else None
            if pack is not None:
                append(pack(before, tag, between, body, END))
            else:
                append(b"".join((before, tag.to_bytes(_TAG_BYTES, "big"), between)))
                if not self._fits(length):
                    out += body_pieces(self._channel, body, self._frame_max)
                elif body:
                    out += (body, END)
            tag += 1

    def _fits(self, body_bytes: int) -> bool:
        # Return whether a body takes one frame; then `between` includes its header.
        return not self._frame_max or body_bytes <= self._frame_max - FRAME_OVERHEAD

    def _learn(self, head: bytes, body_bytes: int) -> tuple[bytes, bytes]:
        # Return the bytes before the delivery tag, and between it and the body.
        redelivered, names, properties = split(head)
        size = len(_DELIVER) + len(self._consumer) + _TAG_BYTES + len(redelivered) + len(names)
        before = HEADER.pack(FRAME_METHOD, self._channel, size) + _DELIVER + self._consumer
        between = b"".join(
            (redelivered, names, END, content_header_frame(self._channel, properties, body_bytes))
        )
        if body_bytes and self._fits(body_bytes):
            between += HEADER.pack(FRAME_BODY, self._channel, body_bytes)
        if len(head) <= _LAYOUT_BYTES_MAX:
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts[head, body_bytes] = before, between
        return before, between

    def _pack_for(self, between_bytes: int, body_bytes: int) -> Pack | None:
        # Return the bytes for a message with a body of this size in one frame; None if it takes several.
        if not self._fits(body_bytes):
            return None
        pack = self._packs.get((between_bytes, body_bytes))
        if pack is None:
            if len(self._packs) >= _LAYOUTS_MAX:
                self._packs.clear()
            before_bytes = HEADER.size + len(_DELIVER) + len(self._consumer)
            pack = Struct(f">{before_bytes}sQ{between_bytes}s{body_bytes}sc").pack
            self._packs[between_bytes, body_bytes] = pack
        return pack


def get_ok_frames(
    channel: int, tag: int, message: tuple[bytes, bytes], message_count: int, frame_max: int
) -> bytes:
    head, body = message
    redelivered, names, properties = split(head)
    arguments = (
        _GET_OK,
        tag.to_bytes(_TAG_BYTES, "big"),
        redelivered,
        names,
        message_count.to_bytes(4, "big"),
    )
    return _content(channel, b"".join(arguments), properties, body, frame_max)


def return_frames(channel: int, code: int, text: str, message: tuple[bytes, bytes], frame_max: int) -> bytes:
    head, body = message
    _, names, properties = split(head)
    arguments = (_RETURN, code.to_bytes(2, "big"), encode_shortstr(text), names)
    return _content(channel, b"".join(arguments), properties, body, frame_max)
