"""What a load process is told to do: plain records, sent to it once before it starts.

A load is a list of connections, each a list of sessions, each with groups of sending and receiving
links. Links of one group behave alike and are served in turn. Groups count into numbered *streams*, so
that a question can add up links of many sessions or keep two links of one session apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

# handle-max 255 and channel-max 63 are what RabbitMQ and the broker under test offer.
LINKS_PER_SESSION_MAX: Final = 256
SESSIONS_PER_CONNECTION_MAX: Final = 64

# The generator's own session window: so wide that the window under test is the broker's.
INCOMING_WINDOW: Final = 20_000
# What RabbitMQ announces, and what this generator announces.
MAX_FRAME_SIZE_BYTES: Final = 131_072


class Settle(Enum):
    """How a receiving link settles what it gets."""

    RANGE = "range"
    """One disposition for all deliveries of one socket read."""
    EACH = "each"
    """One disposition a delivery."""
    PRESETTLED = "presettled"
    """The link asks for settled transfers; nothing is sent back."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the broker listens and who connects."""

    host: str
    port: int
    user: str | None = None
    """None logs in with SASL ANONYMOUS."""
    password: str = ""
    hostname: str = "localhost"
    """The open frame's hostname."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A group of sending links of one session."""

    addresses: tuple[str, ...]
    """One link for each."""
    stream: int = 0
    settled: bool = False
    size_bytes: int = 100
    """Bytes in the message's data section."""
    durable: bool = False
    sections: bool = False
    """Put properties and application-properties before the body, as client libraries do."""
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


@dataclass(frozen=True, slots=True)
class Consume:
    """A group of receiving links of one session."""

    addresses: tuple[str, ...]
    stream: int = 0
    credit: int = 1000
    """Set at start, and set again when half of it is used."""
    settle: Settle = Settle.RANGE
    stamp: bool = False
    """Read the time from the message's first eight bytes and keep the latency."""
    size_bytes: int = 100
    """Where the stamp is: so many bytes before the end of the frame."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session and its links."""

    publish: tuple[Publish, ...] = ()
    consume: tuple[Consume, ...] = ()
    incoming_window: int = INCOMING_WINDOW


@dataclass(frozen=True, slots=True)
class Load:
    """All that one load process does."""

    endpoint: Endpoint
    connections: tuple[tuple[Session, ...], ...]
    streams: int = 1
    seconds_max: float = 600.0
    """The process ends by itself after so long, whatever happens to its parent."""
    name: str = "load"


def spread(addresses: Sequence[str], links_per_session: int = 250) -> list[tuple[str, ...]]:
    """Divide one link an address over as few sessions as possible, evenly.

    Raises:
        ValueError: more links than one connection can carry.
    """
    links_per_session = min(links_per_session, LINKS_PER_SESSION_MAX)
    sessions = -(-len(addresses) // links_per_session)
    if sessions > SESSIONS_PER_CONNECTION_MAX:
        raise ValueError(f"{len(addresses)} links do not fit in {SESSIONS_PER_CONNECTION_MAX} sessions")
    return [tuple(addresses[start::sessions]) for start in range(sessions)]


def without_count(connections: tuple[tuple[Session, ...], ...]) -> tuple[tuple[Session, ...], ...]:
    """Return the same load without limits on the number of messages, for peers that keep none."""
    return tuple(
        tuple(
            replace(session, publish=tuple(replace(group, count_max=0) for group in session.publish))
            for session in connection
        )
        for connection in connections
    )
