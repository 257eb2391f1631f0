"""The frames of messages for clients: basic.deliver, basic.get-ok and basic.return with content.

A head holds redelivered flag, exchange, routing key and properties as these methods and the content header
write them (`message` defines its layout), so they are sliced, not decoded. The bytes that are equal for
messages of one consumer with equal heads and body sizes are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final

from amqp10broker.protocols.amqp091.codec import encode_shortstr
from amqp10broker.protocols.amqp091.framing import (
    END,
    FRAME_OVERHEAD,
    HEADER,
    body_frames,
    body_pieces,
    content_header_frame,
)
from amqp10broker.protocols.amqp091.methods import FRAME_BODY, FRAME_METHOD

_DELIVER: Final = b"\x00\x3c\x00\x3c"
_GET_OK: Final = b"\x00\x3c\x00\x47"
_RETURN: Final = b"\x00\x3c\x00\x32"
_TAG_BYTES: Final = 8

_FLAGS_AT: Final = 1
# The offset of the names in a head, behind the flags.
_NAMES_AT: Final = 6

REDELIVERED: Final = 1
"""Flag of a head: the message was delivered before."""
DEAD_LETTERED: Final = 2
"""Flag: the head ends with records of 16 bytes each, and their number in the last two bytes."""
HIDDEN_KEYS: Final = 4
"""Flag: before these come routing keys that are not sent to clients, and their length in four bytes."""

# A longer body is passed on beside its frame header and end octet: copying it costs more than two pieces.
_WHOLE_BODY_BYTES_MAX: Final = 1024

# Heads cached per consumer, and structs; if they are more, they do not repeat.
_LAYOUTS_MAX: Final = 1024

# A longer head is not cached: it mostly does not repeat, and a consumer's cache must stay small.
_LAYOUT_BYTES_MAX: Final = 1024

Pack = Callable[[bytes, int, bytes, bytes, bytes], bytes]


def split(head: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a head: bit octet for redelivered; exchange and routing key; properties."""
    end = _NAMES_AT + 1 + head[_NAMES_AT]
    end += 1 + head[end]
    bit = b"\x01" if head[_FLAGS_AT] & REDELIVERED else b"\x00"
    return bit, head[_NAMES_AT:end], head[end : properties_end(head)]


def properties_end(head: bytes) -> int:
    """Return where the properties in a head end: bytes behind them are not sent to clients."""
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
        """Write deliveries. `first_tag`: delivery tag of the first message; the others follow without a gap.
        `out`: is extended by the frames, in order; a piece may be less than a frame.
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
                self._append_body(body, out)
            tag += 1

    def _append_body(self, body: bytes, out: list[bytes | memoryview]) -> None:
        if self._fits(len(body)):
            if body:
                out += (body, END)
        else:
            out += body_pieces(self._channel, body, self._frame_max)

    def _fits(self, body_bytes: int) -> bool:
        # Whether a body takes one frame; then `between` includes its header.
        return not self._frame_max or body_bytes <= self._frame_max - FRAME_OVERHEAD

    def _learn(self, head: bytes, body_bytes: int) -> tuple[bytes, bytes]:
        # The bytes before the delivery tag, and between it and the body.
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
        # For a message with a body of this size in one frame; None if it takes several.
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
    """Encode basic.return with its content. The code is 312 if unroutable."""
    head, body = message
    _, names, properties = split(head)
    arguments = (_RETURN, code.to_bytes(2, "big"), encode_shortstr(text), names)
    return _content(channel, b"".join(arguments), properties, body, frame_max)


def _content(channel: int, payload: bytes, properties: bytes, body: bytes, frame_max: int) -> bytes:
    return b"".join(
        (
            HEADER.pack(FRAME_METHOD, channel, len(payload)),
            payload,
            END,
            content_header_frame(channel, properties, len(body)),
            body_frames(channel, body, frame_max),
        )
    )
