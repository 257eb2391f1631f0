"""The parts of a connection that both protocols share: its first bytes, idle time-outs, bounds of unfinished
input.

The first eight bytes of a client select the protocol. To unsupported ones the broker sends a supported
header, and then closes the socket (AMQP 1.0 part 2, section 2.2; AMQP 0-9-1 section 4.2.2).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final
from weakref import WeakValueDictionary

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.errors import AmqpSessionError, Condition

HEADER_BYTES: Final = 8
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_10_HEADER: Final = b"AMQP\x00\x01\x00\x00"
AMQP_091_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_AMQP_09_HEADER: Final = b"AMQP\x01\x01\x00\x09"
_AMQP_0_X: Final = b"AMQP\x00\x00"


class WireProtocol(Enum):
    AMQP_10 = auto()
    AMQP_091 = auto()


@dataclass(frozen=True, slots=True)
class Greeting:
    """The decision on a client's first bytes. `protocol`: None: send `reply` and close."""

    protocol: WireProtocol | None
    reply: bytes = b""


def answer(data: bytes) -> Greeting | None:
    """Decide on a client's first bytes; None if there are too few of them."""
    header = data[:HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        # Bytes that cannot become a header are answered at once.
        return None if b"AMQP".startswith(header[:4]) else Greeting(None, SASL_HEADER)
    if header in (SASL_HEADER, AMQP_10_HEADER):
        return Greeting(WireProtocol.AMQP_10)
    if header in (AMQP_091_HEADER, _AMQP_09_HEADER):
        return Greeting(WireProtocol.AMQP_091)
    if header.startswith(_AMQP_0_X) and header[6] >= 9:
        return Greeting(None, AMQP_091_HEADER)
    return Greeting(None, SASL_HEADER)


# --- idle time-outs: part 2, section 2.4.5 -------------------------------------------------------

_ROUNDING_S: Final = 1e-6


class IdleTimer:
    """Determines when to send an empty frame and when the peer has been silent for too long. `interval`:
    seconds between two calls of `tick`; None: neither side has a time-out.

    A process can be delayed while data of the peer waits to be read. So the time between two calls counts as
    silence for at most a quarter of the time-out.
    """

    __slots__ = ("_local", "_looked_at", "_received", "_remote", "_sent", "_sent_at", "_silence", "interval")

    def __init__(self, local_ms: int, remote_ms: int | None, now: float) -> None:
        """Create it. `local_ms`: the longest accepted silence, 0 for any; `remote_ms`: the peer's
        idle-time-out.
        """
        self._local = local_ms / 1000
        self._remote = (remote_ms or 0) / 1000
        self._received = -1
        self._sent = -1
        self._looked_at = now
        self._silence = 0.0
        self._sent_at = now
        # A silence of a quarter is noticed at most a quarter late, so that this end is silent for at most
        # half of the peer's time-out.
        choices = [part for part in (self._local / 4, self._remote / 4) if part > 0]
        self.interval = min(choices) if choices else None

    def tick(self, now: float, received: int, sent: int, *, listening: bool = True) -> tuple[bool, bool]:
        """Return whether to send an empty frame now, and whether the peer's silence has lasted too long.
        `listening`: the socket is being read.
        """
        if received != self._received or not listening:
            self._received = received
            self._silence = 0.0
        else:
            self._silence += min(now - self._looked_at, self._local / 4)
        self._looked_at = now
        if sent != self._sent:
            self._sent = sent
            self._sent_at = now
        heartbeat = self._remote > 0 and now - self._sent_at >= self._remote / 4
        expired = self._local > 0 and self._silence >= self._local - _ROUNDING_S
        return heartbeat, expired


# --- bytes of unfinished input, by connection, user and node --------------------------------------


class Budget:
    """Bytes that may be held at a time, within a larger budget if there is one."""

    __slots__ = ("__weakref__", "bytes_max", "held_bytes", "whose", "within")

    def __init__(self, bytes_max: int, whose: str, within: Budget | None = None) -> None:
        self.held_bytes = 0
        self.bytes_max = bytes_max
        self.whose = whose
        self.within = within

    def take(self, size: int) -> Budget | None:
        """Hold more bytes and return None; or return the budget that has too few left, and hold no more."""
        if self.held_bytes + size > self.bytes_max:
            return self
        if self.within is not None and (short := self.within.take(size)) is not None:
            return short
        self.held_bytes += size
        return None

    def give_back(self, size: int) -> None:
        self.held_bytes -= size
        if self.within is not None:
            self.within.give_back(size)

    def leave(self) -> None:
        """Return all bytes to the larger budget, and leave it."""
        if self.within is not None:
            self.within.give_back(self.held_bytes)
            self.within = None


class UserBudgets:
    """The budgets of one node: a user has at most half of it, and a message of the largest size always
    fits.
    """

    def __init__(self, node_bytes_max: int, message_bytes_max: int) -> None:
        self._user_bytes_max = max(node_bytes_max // 2, 2 * message_bytes_max)
        self._node = Budget(max(node_bytes_max, self._user_bytes_max), "on this node")
        # A connection holds a reference to its user's budget.
        self._by_user: WeakValueDictionary[str, Budget] = WeakValueDictionary()

    def of(self, user: str) -> Budget:
        found = self._by_user.get(user)
        if found is None:
            found = Budget(self._user_bytes_max, f"for user '{user}' on this node", self._node)
            self._by_user[user] = found
        return found


# Credit and window do not count bytes: without this a client could begin a message of the largest size on
# each of its links.

FRAME_BYTES: Final = 64
"""The overhead of a stored frame, so that empty ones count, too."""

NO_LIMIT: Final = 2**63


class Unfinished(Budget):
    """The bound of one connection: stored payloads, and `FRAME_BYTES` for each."""

    __slots__ = ()

    def __init__(self, bytes_max: int = NO_LIMIT) -> None:
        super().__init__(bytes_max, "on this connection")

    def keep(self, payload_bytes: int) -> int:
        """Count a stored frame; return the size to release later. Raises `AmqpSessionError`: the end of the
        session frees the parts of its links.
        """
        held = payload_bytes + FRAME_BYTES
        if (short := self.take(held)) is not None:
            raise AmqpSessionError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "deliveries that are not whole, and frames for links that are not attached yet, hold more "
                f"than {short.bytes_max} bytes {short.whose}: finish or abort some before you begin others",
            )
        return held
