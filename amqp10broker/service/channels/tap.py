"""What listens to one channel, if anything does."""

from __future__ import annotations

from typing import Protocol

from amqp10broker.amqp091.methods import Method
from amqp10broker.service.channels.consumer import Consumer


class ChannelTap(Protocol):
    """Told of frames in the order in which they count; must not raise."""

    def received(self, item: object) -> None:
        """An item of the frame reader is handled next."""

    def sent(self, method: Method) -> None:
        """A method was written: of a confirm, what it did is done, and of all that are written with it."""

    def sent_content(self, frames: bytes) -> None:
        """A method was written with its content: what it did is done."""

    def delivered(self, consumer: Consumer, first_tag: int, deliveries: int) -> None:
        """Deliveries of a consumer are written next, with tags that follow the first."""
