"""The items of `frames.FrameReader`: whole methods and whole contents, adjacent ones joined.

One is made per run of frames, not per message. Each has its ``channel``.
"""

from __future__ import annotations

from dataclasses import field

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.methods import Method


@dataclass(slots=True)
class MethodFrame:
    channel: int
    method: Method


@dataclass(eq=False, slots=True)
class PublishRun:
    """Whole basic.publish of one channel that followed each other with equal arguments. `immediate`:
    unsupported by RabbitMQ since 2011; the channel refuses it. `properties`: of each message the bytes of its
    content header behind the body size: flags and values, not decoded.
    """

    channel: int
    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool
    properties: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"PublishRun(channel={self.channel}, exchange={self.exchange!r}, "
            f"routing_key={self.routing_key!r}, messages={len(self.bodies)})"
        )


@dataclass(eq=False, slots=True)
class AckRun:
    channel: int
    tags: list[tuple[int, bool]] = field(default_factory=list)
    """Of consecutive basic.ack: delivery tag and multiple."""


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
