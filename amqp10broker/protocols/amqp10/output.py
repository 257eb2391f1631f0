"""Frames to write for one session, as pieces that the writer joins."""

from __future__ import annotations

from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Detach, End, Flow
from amqp10broker.protocols.amqp10.tap import FrameTap


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
