"""The interface of observers of one session's frames.

A tap is called where the engine counts frames, in the engine's own batches: a run of a thousand transfers is
one call. A tap that reads the bytes of a connection again would have a cost for each frame.
"""

from __future__ import annotations

from typing import Protocol

from amqp10broker.protocols.amqp10.link import SenderLink


class FrameTap(Protocol):
    """Called for frames in the order in which they take effect; must not raise."""

    def received(self, item: object) -> None:
        """Handle a frame body of the peer, or a run of them, before the session does."""

    def sent(self, frame: bytes) -> None:
        """Handle a frame without payload that was written."""

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        """Handle deliveries of one frame each that were written."""

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        """Handle a written frame of a delivery that takes several."""
