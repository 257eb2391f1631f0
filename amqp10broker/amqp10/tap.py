"""What listens to the frames of one session, if anything does.

A tap is told of frames where the engine counts them, in the engine's own batches: a run of a thousand
transfers is one call. A tap that reads the bytes of a connection again would pay for each frame.
"""

from __future__ import annotations

from typing import Protocol

from amqp10broker.amqp10.link import SenderLink


class FrameTap(Protocol):
    """Told of frames in the order in which they count; must not raise."""

    def received(self, item: object) -> None:
        """A frame body of the peer, or a run of them, as `Session.receive` takes it; it is handled next."""

    def sent(self, frame: bytes) -> None:
        """A frame without payload was written."""

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        """Deliveries of one frame each were written.

        Args:
            link: theirs.
            first_id: delivery-id of the first; those of the others follow it.
            deliveries: how many.
            head: the first frame, up to its payload.
        """

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        """A frame of a delivery that takes several was written.

        Args:
            link: its link.
            delivery_id: of the delivery.
            head: the frame, up to its payload.
            first, last: of the delivery's frames.
        """
