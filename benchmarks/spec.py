"""What a load process is told to do: plain records, sent to it once before it starts.

A load is a list of connections, each a list of sessions (AMQP 1.0) or of channels (AMQP 0-9-1), each with
groups of sending and receiving links, which are publish loops and consumers in 0-9-1. Links of one group
behave alike and are served in turn. Groups count into numbered *streams*, so that a question can add up
links of many sessions or keep two links of one session apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

# handle-max 255 and channel-max 63 are what RabbitMQ and the broker under test offer.
LINKS_PER_SESSION_MAX: Final = 256
SESSIONS_PER_CONNECTION_MAX: Final = 64

# The generator's own session window: so wide that the window under test is the broker's.
INCOMING_WINDOW: Final = 20_000
# What RabbitMQ announces, and what this generator announces; frame-max is the same number in 0-9-1.
MAX_FRAME_SIZE_BYTES: Final = 131_072


class Settle(Enum):
    """How a receiving link settles what it gets."""

    RANGE = "range"
    """One disposition for all deliveries of one socket read; one basic.ack with `multiple` in 0-9-1."""
    EACH = "each"
    """One disposition, or basic.ack, a delivery."""
    PRESETTLED = "presettled"
    """The link asks for settled transfers, the consumer for `no-ack`; nothing is sent back."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the broker listens and who connects."""

    host: str
    port: int
    user: str | None = None
    """None logs in with SASL ANONYMOUS; in 0-9-1 as guest, like most programs."""
    password: str = ""
    hostname: str = "localhost"
    """The open frame's hostname."""
    virtual_host: str = "/"
    """What connection.open names (0-9-1 only)."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A group of sending links of one session, or of publish loops of one channel."""

    addresses: tuple[str, ...]
    """One link for each; in 0-9-1 queue names, published to through the default exchange."""
    stream: int = 0
    settled: bool = False
    """Nothing is confirmed. In 0-9-1 that is a matter of the channel: its groups must agree."""
    size_bytes: int = 100
    """Bytes in the message's data section."""
    durable: bool = False
    sections: bool = False
    """Put properties and application-properties before the body, as client libraries do; in 0-9-1
    content-type, message-id, timestamp and headers."""
    mixed: bool = False
    """Vary the body's size from message to message, from half of `size_bytes` to one and a half."""
    burst: int = 1024
    """Most messages sent on one link before the next link's turn."""
    in_flight_max: int = 10_000
    """Most unconfirmed messages of the group."""
    batch: int = 0
    """If set, send so many, wait until all are confirmed, and again."""
    count_max: int = 0
    """If set, stop when the stream has published so many."""
    rate_per_s: float = 0.0
    """If set, publish at this rate (of the stream), by the clock, whether or not the broker keeps up."""
    follow: int | None = None
    """If set, keep at most `outstanding` messages ahead of what this stream has had delivered."""
    outstanding: int = 0
    stamp: bool = False
    """Put the time at which the message was due into its first eight bytes."""
    mandatory: bool = False
    """Have it returned if no queue takes it (0-9-1 only; a return ends the run)."""
    content_type: str = ""
    """The property of this name, if set (0-9-1 only)."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of the bodies, which are sent in turns."""
        # 16 sizes in an order that is no ramp: 7 and 16 have no common divisor.
        shares = [0.5 + (place * 7 % 16) / 15 for place in range(16)] if self.mixed else [1]
        return [round(self.size_bytes * share) for share in shares]


@dataclass(frozen=True, slots=True)
class Consume:
    """A group of receiving links of one session, or of consumers of one channel."""

    addresses: tuple[str, ...]
    stream: int = 0
    credit: int = 1000
    """Set at start, and set again when half of it is used; in 0-9-1 the prefetch-count."""
    settle: Settle = Settle.RANGE
    stamp: bool = False
    """Read the time from the message's first eight bytes and keep the latency."""
    size_bytes: int = 100
    """Where the stamp is: so many bytes before the end of the frame."""
    offset: str = ""
    """Of a stream: where to begin, "first" for instance; not told if empty."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session and its links."""

    publish: tuple[Publish, ...] = ()
    consume: tuple[Consume, ...] = ()
    incoming_window: int = INCOMING_WINDOW


@dataclass(frozen=True, slots=True)
class Channel:
    """One AMQP 0-9-1 channel, its publish loops and its consumers."""

    publish: tuple[Publish, ...] = ()
    consume: tuple[Consume, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what one channel cannot do.

        Raises:
            ValueError: some groups want confirms and others do not.
        """
        if len({group.settled for group in self.publish}) > 1:
            raise ValueError("confirms are a matter of the whole channel: use two channels")

    @property
    def confirms(self) -> bool:
        """Whether the channel is put into confirm mode."""
        return any(not group.settled for group in self.publish)


Connection = tuple[Session, ...] | tuple[Channel, ...]
"""One connection: what stands in it says which protocol it speaks; an empty one speaks AMQP 1.0."""
Connections = tuple[Connection, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """All that one load process does."""

    endpoint: Endpoint
    connections: Connections
    streams: int = 1
    seconds_max: float = 600.0
    """The process ends by itself after so long, whatever happens to its parent."""
    name: str = "load"
    record: bool = False
    """Keep flow events of what its clients see, and hand them over with the result."""

    @property
    def parts(self) -> list[Session | Channel]:
        """Every session or channel."""
        return [part for one in self.connections for part in one]

    @property
    def publishing(self) -> list[Publish]:
        """Every group that sends."""
        return [group for part in self.parts for group in part.publish]

    @property
    def consuming(self) -> list[Consume]:
        """Every group that receives."""
        return [group for part in self.parts for group in part.consume]


def connection(*groups: Publish | Consume, amqp091: bool = False) -> Connection:
    """Return one connection with a session, or a channel, for each group."""
    kind = Channel if amqp091 else Session
    return tuple(  # type: ignore[return-value]  # all of one kind
        kind(publish=(group,)) if isinstance(group, Publish) else kind(consume=(group,)) for group in groups
    )


def varied(
    connections: Connections, *, durable: bool = False, from_first: bool = False, unlimited: bool = False
) -> Connections:
    """Return the same load with other messages, another beginning or no end.

    Args:
        connections: the load.
        durable: send all messages as durable.
        from_first: consumers ask for the first message of a stream, not for what comes next.
        unlimited: publish without limits on the number of messages, for peers that keep none.
    """

    def sending(group: Publish) -> Publish:
        count_max = 0 if unlimited else group.count_max
        return replace(group, durable=durable or group.durable, count_max=count_max)

    def receiving(group: Consume) -> Consume:
        return replace(group, offset="first" if from_first else group.offset)

    return tuple(
        tuple(  # type: ignore[misc]  # as uniform as it was
            replace(
                part, publish=tuple(map(sending, part.publish)), consume=tuple(map(receiving, part.consume))
            )
            for part in one
        )
        for one in connections
    )
