"""The layout of frames (section 2.3.5) and the encoding of whole ones. Reading is in `frames`."""

from __future__ import annotations

from struct import Struct
from typing import Final

from amqp10broker.protocols.amqp091.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    Method,
)

HEADER: Final = Struct(">BHI")
"""type, channel, bytes of the payload; the payload and the end octet follow."""
HEADER_BYTES: Final = 7
FRAME_OVERHEAD: Final = 8
END: Final = bytes((FRAME_END,))

FRAME_MIN_SIZE: Final = 8192
"""The size that every peer must accept, before tune, too: RabbitMQ's since 4.1 (specification: 4096)."""

HEARTBEAT: Final = HEADER.pack(FRAME_HEARTBEAT, 0, 0) + END

CONTENT_HEADER: Final = Struct(">HHQ")
"""class, weight (always 0), body size: the payload of a content header before the property flags."""
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
    """Encode the content header of class basic, with properties as `encode_properties` writes them."""
    head = CONTENT_START.pack(
        FRAME_HEADER, channel, CONTENT_HEADER_BYTES + len(properties), BASIC_CLASS, 0, body_bytes
    )
    return head + properties + END


def body_pieces(channel: int, body: bytes, frame_max: int) -> list[bytes | memoryview]:
    """Return the frames of a body, in pieces that are not copied; none for an empty one."""
    room = frame_max - FRAME_OVERHEAD if frame_max else len(body)
    if len(body) <= room:
        return [HEADER.pack(FRAME_BODY, channel, len(body)), body, END] if body else []
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)
    for start in range(0, len(body), room):
        piece = view[start : start + room]
        pieces += (HEADER.pack(FRAME_BODY, channel, len(piece)), piece, END)
    return pieces


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    return b"".join(body_pieces(channel, body, frame_max))


def content_frames(channel: int, method: Method, properties: bytes, body: bytes, frame_max: int) -> bytes:
    return b"".join(
        (
            method_frame(channel, method),
            content_header_frame(channel, properties, len(body)),
            body_frames(channel, body, frame_max),
        )
    )
