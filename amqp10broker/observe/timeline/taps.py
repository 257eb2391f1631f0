"""Several rings of one session, each of another link, as one tap."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.observe.timeline.ring import FrameRing
from amqp10broker.protocols.amqp10.link import SenderLink


class Taps:
    """Forwards the events of one session to several rings (a `FrameTap`)."""

    def __init__(self, rings: Sequence[FrameRing]) -> None:
        self._rings = rings

    def received(self, item: object) -> None:
        for ring in self._rings:
            ring.received(item)

    def sent(self, frame: bytes) -> None:
        for ring in self._rings:
            ring.sent(frame)

    def sent_run(self, link: SenderLink, first_id: int, deliveries: int, head: bytes) -> None:
        for ring in self._rings:
            ring.sent_run(link, first_id, deliveries, head)

    def sent_piece(self, link: SenderLink, delivery_id: int, head: bytes, *, first: bool, last: bool) -> None:
        for ring in self._rings:
            ring.sent_piece(link, delivery_id, head, first=first, last=last)

    def turn_over(self) -> None:
        for ring in self._rings:
            ring.turn_over()
