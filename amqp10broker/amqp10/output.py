"""Frames on their way out of one session, as pieces that the writer joins."""

from __future__ import annotations

from amqp10broker.amqp10.performatives import Attach, Begin, Detach, End, Flow


class Output:
    """Collects the bytes of one channel.

    Attributes:
        pieces: in order; whoever writes transfers adds to it directly.
        frame_tail: doff, type and channel, which follow the size in every frame's header.
    """

    __slots__ = ("frame_tail", "pieces")

    def __init__(self, channel: int) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.frame_tail = b"\x02\x00" + channel.to_bytes(2, "big")

    def write(self, performative: Begin | Attach | Flow | Detach | End) -> None:
        """Add one frame without payload."""
        body = performative.encode()
        self.pieces.append((8 + len(body)).to_bytes(4, "big") + self.frame_tail + body)

    def take(self) -> list[bytes | memoryview]:
        """Hand the pieces over."""
        pieces, self.pieces = self.pieces, []
        return pieces
