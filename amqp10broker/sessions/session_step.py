"""A step of a session or a channel: handle events, then write the output. No task is involved.

One step of both is: `handle` each waiting event, `write`, then post the result of `take_mail` to queues. A
task does that whenever its mailbox is not empty; tests do it without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from amqp10broker.sessions.mail import SessionLetter

WRITES_MAX: Final = 4
"""The most buffers of transfers that one session writes in a step, while the socket takes them."""

LARGE_WRITES_MAX: Final = 16
"""The same for large messages: more than a read brings, so that consumers keep up with publishers."""

LARGE_PIECE_BYTES: Final = 4096
"""Pieces of so many bytes on average are large, and are not copied to join them."""


class Outlet(Protocol):
    """The path of one session or channel to its connection's writer."""

    @property
    def room(self) -> int:
        """The bytes of transfers or deliveries that may be made now."""

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        """Write bytes, in pieces; `transfer_bytes` of them are of transfers."""

    def want(self) -> None:
        """Request one `WriterReady` as soon as there is room."""


class Turning(Protocol):
    """A `BrokerSession` or a `BrokerChannel`."""

    @property
    def has_unsent(self) -> bool:
        """Whether deliveries wait to be written."""

    def handle(self, letter: SessionLetter) -> None:
        """Handle one event. Raises `AmqpError`, or `Amqp091Error` of a channel, to close the connection."""

    def pump(self, budget_bytes: int) -> int:
        """Write deliveries within the budget of bytes; return their bytes. Raises as `handle`."""

    def take_output(self) -> Sequence[bytes | memoryview]:
        """Return the bytes to write now, in pieces to be joined."""


def write(side: Turning, outlet: Outlet) -> None:
    """Write answers, and deliveries as far as credit, window and the writer's buffer allow."""
    spent = 0
    for writes in range(1, LARGE_WRITES_MAX + 1):
        spent = side.pump(outlet.room)
        pieces = side.take_output()
        if pieces:
            outlet.put(pieces, spent)
        if not spent or outlet.room <= 0:
            break
        if writes >= WRITES_MAX and len(pieces) * LARGE_PIECE_BYTES > spent:
            break
    if side.has_unsent and (spent or outlet.room <= 0):
        outlet.want()
