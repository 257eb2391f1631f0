"""The interface of observers of one channel."""

from __future__ import annotations

from typing import Protocol

from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer


class ChannelTap(Protocol):
    """Called for frames in the order in which they take effect; must not raise."""

    def received(self, item: object) -> None:
        """Handle an item of the frame reader, before the channel does."""

    def sent(self, method: Method) -> None:
        """Handle a written method after its effect; for confirms, that of all written together."""

    def sent_content(self, frames: bytes) -> None:
        """Handle a method that was written with its content. Its effect is complete."""

    def delivered(self, consumer: ChannelConsumer, first_tag: int, deliveries: int) -> None:
        """Handle deliveries of a consumer before they are written, with tags that follow the first."""
