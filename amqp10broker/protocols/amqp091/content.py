"""Contents: a method, a content header, and body frames up to the announced size (section 2.3.5.2).

There is one `PendingContent` for each channel with a content that has begun and is not complete. Frames of
other channels may come in between; a frame of the same channel that does not continue the content is an
error.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.framing import (
    CONTENT_HEADER,
    CONTENT_HEADER_BYTES,
    CONTENT_HEADER_BYTES_MIN,
)
from amqp10broker.protocols.amqp091.items import (
    AckRun,
    Content,
    ContentTooLarge,
    Heartbeat,
    MethodFrame,
    PublishRun,
)
from amqp10broker.protocols.amqp091.layouts import PublishLayout
from amqp10broker.protocols.amqp091.methods import Method

PIECE_BYTES: Final = 64
"""The overhead of a stored frame beside its bytes, so that empty frames are counted, too."""


@dataclass(eq=False, slots=True)
class PendingContent:
    """A content that is not complete yet. `properties`: None before the content header."""

    method: Method
    layout: PublishLayout | None = None
    properties: bytes | None = None
    remaining: int = 0
    discarded: bool = False
    held: int = 0
    _pieces: list[bytes] = field(default_factory=list)

    def header(self, payload: bytes) -> int:
        """Take the content header; return the body size. Raises `AmqpHardError` (505 or 501)."""
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
        """Take a body frame. Raises `AmqpHardError` (505 header expected, 501 body too long)."""
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
    """A content that was announced and is not complete yet: the channel may discard it now."""

    channel: int
    method: Method
    content: PendingContent


Item = MethodFrame | PublishRun | AckRun | Content | ContentOpened | ContentTooLarge | Heartbeat
