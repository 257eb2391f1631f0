"""What `frames.FrameReader` makes of frames: whole methods and whole contents, neighbours joined.

One is made per run of frames, not per message, so most are plain slotted classes. Each has its ``channel``.
"""

from __future__ import annotations

from amqp10broker.amqp091.methods import Method
from amqp10broker.dataclass import dataclass


@dataclass(slots=True)
class MethodFrame:
    """A method without content."""

    channel: int
    method: Method


class PublishRun:
    """Whole basic.publish of one channel that followed each other with equal arguments.

    Attributes:
        channel: where they came.
        exchange: as written by the publisher; "" is the default exchange.
        routing_key: as written.
        mandatory: return it when no queue takes it.
        immediate: not supported by anybody since 2011; the channel refuses it.
        properties: of each message the bytes of its content header behind the body size: flags and values,
            not decoded.
        bodies: of each message.
    """

    __slots__ = ("bodies", "channel", "exchange", "immediate", "mandatory", "properties", "routing_key")

    def __init__(
        self, channel: int, exchange: str, routing_key: str, mandatory: bool, immediate: bool
    ) -> None:
        self.channel = channel
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate
        self.properties: list[bytes] = []
        self.bodies: list[bytes] = []

    def __repr__(self) -> str:
        return (
            f"PublishRun(channel={self.channel}, exchange={self.exchange!r}, "
            f"routing_key={self.routing_key!r}, messages={len(self.bodies)})"
        )


class AckRun:
    """basic.ack of one channel that followed each other.

    Attributes:
        channel: where they came.
        tags: delivery tag and multiple of each.
    """

    __slots__ = ("channel", "tags")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.tags: list[tuple[int, bool]] = []

    def __repr__(self) -> str:
        return f"AckRun(channel={self.channel}, tags={self.tags!r})"


@dataclass(slots=True)
class Content:
    """A method with content other than basic.publish: what a client receives."""

    channel: int
    method: Method
    properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class ContentTooLarge:
    """A content announces a body that nobody may send. Its body frames are read over.

    Attributes:
        channel: answer it there with 406.
        method: that the content belongs to.
        size: bytes announced.
        limit: bytes allowed.
    """

    channel: int
    method: Method
    size: int
    limit: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The peer says that it is alive."""

    channel: int = 0
