"""The items of `frames.FrameReader`: whole methods and whole contents, adjacent ones joined.

One is made per run of frames, not per message, so most are plain slotted classes. Each has its ``channel``.
"""

from __future__ import annotations

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.methods import Method


@dataclass(slots=True)
class MethodFrame:
    channel: int
    method: Method


class PublishRun:
    """Whole basic.publish of one channel that followed each other with equal arguments. `immediate`:
    unsupported by RabbitMQ since 2011; the channel refuses it. `properties`: of each message the bytes of its
    content header behind the body size: flags and values, not decoded.
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
    __slots__ = ("channel", "tags")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.tags: list[tuple[int, bool]] = []

    def __repr__(self) -> str:
        return f"AckRun(channel={self.channel}, tags={self.tags!r})"


@dataclass(slots=True)
class Content:
    """A method with content other than basic.publish, which only clients receive."""

    channel: int
    method: Method
    properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class ContentTooLarge:
    """A content announces a body over the limit. Its body frames are skipped."""

    channel: int
    method: Method
    size: int
    limit: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    channel: int = 0
