"""Frames to write for one session, as pieces that the writer joins."""

from __future__ import annotations

from typing import Protocol

from amqp10broker.protocols.amqp10.link import SenderLink
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Detach, End, Flow


class FrameTap(Protocol):
    """An observer of one session's frames: called in the order in which they take effect; must not raise.

    It is called where the engine counts frames, in the engine's own batches: a run of a thousand transfers is
    one call. A tap that reads the bytes of a connection again would have a cost for each frame.
    """

    def received(self, item: object) -> None:
        """Handle a frame body of the peer, or a run of them, before the session does."""

    def sent(self, frame: bytes) -> None:
        """Handle a frame without payload that was written."""

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        """Handle deliveries of one frame each that were written."""

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        """Handle a written frame of a delivery that takes several."""


class Output:
    """Collects the bytes of one channel. `frame_tail`: doff, type and channel, which follow the size in every
    frame's header.
    """

    __slots__ = ("frame_size_max", "frame_tail", "pieces", "tap")

    def __init__(self, channel: int, frame_size_max: int) -> None:
        self.frame_size_max = frame_size_max
        self.pieces: list[bytes | memoryview] = []
        self.frame_tail = b"\x02\x00" + channel.to_bytes(2, "big")
        self.tap: FrameTap | None = None

    def write(self, performative: Begin | Attach | Flow | Detach | End) -> None:
        body = performative.encode()
        frame = (8 + len(body)).to_bytes(4, "big") + self.frame_tail + body
        self.pieces.append(frame)
        if self.tap is not None:
            self.tap.sent(frame)

    def extend(self, frames: list[bytes]) -> None:
        self.pieces.extend(frames)
        if self.tap is not None:
            for frame in frames:
                self.tap.sent(frame)
