"""The eight bytes with which a client says what it speaks, before anything else.

One port serves both protocols. A client that says something else is told what it could say, and
then the socket is closed (AMQP 1.0 part 2, section 2.2; AMQP 0-9-1 section 4.2.2).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from amqp10broker.dataclass import dataclass

HEADER_BYTES: Final = 8
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_10_HEADER: Final = b"AMQP\x00\x01\x00\x00"
AMQP_091_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_AMQP_09_HEADER: Final = b"AMQP\x01\x01\x00\x09"
_AMQP_0_X: Final = b"AMQP\x00\x00"


class Protocol(Enum):
    AMQP_10 = auto()
    AMQP_091 = auto()


@dataclass(frozen=True, slots=True)
class Greeting:
    """What to do with a client's first bytes. `protocol`: speak this; None: send `reply` and close."""

    protocol: Protocol | None
    reply: bytes = b""


def answer(data: bytes) -> Greeting | None:
    """Decide on a client's first bytes; None as long as there are too few of them."""
    header = data[:HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        # Bytes that can become no header need no waiting: an HTTP client hears from us at once.
        return None if b"AMQP".startswith(header[:4]) else Greeting(None, SASL_HEADER)
    if header in (SASL_HEADER, AMQP_10_HEADER):
        return Greeting(Protocol.AMQP_10)
    if header in (AMQP_091_HEADER, _AMQP_09_HEADER):
        return Greeting(Protocol.AMQP_091)
    if header.startswith(_AMQP_0_X) and header[6] >= 9:
        return Greeting(None, AMQP_091_HEADER)
    return Greeting(None, SASL_HEADER)
