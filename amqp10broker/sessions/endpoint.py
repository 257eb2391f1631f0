"""The common base of the broker's sessions (AMQP 1.0) and channels (AMQP 0-9-1): their steps. No task is
involved.

One step of both is: `handle` each waiting message, `write_output`, then send the result of `take_commands` to
queues. A task does that whenever its mailbox is not empty; tests do it without one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol

from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.sessions.context import ToQueue
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.measures import Moment
from amqp10broker.sessions.messages import SessionMessage

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


class SessionEndpoint(ABC):
    """One session or channel of one client.

    Attributes:
        moment: the time of the present step, set by the caller before each.
        commands: for queues, not sent yet; `to_queue` adds one.
    """

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.commands: list[QueueCommand] = []
        self.to_queue: ToQueue = self.commands.append

    @abstractmethod
    def handle(self, message: SessionMessage) -> None:
        """Handle one message. Raises `AmqpError`, or `Amqp091Error` of a channel, to close the connection."""

    def handle_undelivered(self, message: SessionMessage) -> None:
        """Handle a message that was still waiting at the end. A channel drops it."""
        return

    @property
    @abstractmethod
    def has_unsent(self) -> bool:
        """Whether deliveries wait to be written."""

    @abstractmethod
    def pump(self, budget_bytes: int) -> int:
        """Write deliveries within the budget of bytes; return their bytes. Raises as `handle`."""

    @abstractmethod
    def take_output(self) -> Sequence[bytes | memoryview]:
        """Return the bytes to write now, in pieces to be joined."""

    def write_output(self, outlet: Outlet) -> None:
        """Write answers, and deliveries as far as credit, window and the writer's buffer allow."""
        spent = 0
        for writes in range(1, LARGE_WRITES_MAX + 1):
            spent = self.pump(outlet.room)
            pieces = self.take_output()
            if pieces:
                outlet.put(pieces, spent)
            if not spent or outlet.room <= 0:
                break
            if writes >= WRITES_MAX and len(pieces) * LARGE_PIECE_BYTES > spent:
                break
        if (spent or outlet.room <= 0) and self.has_unsent:
            outlet.want()

    def take_commands(self) -> list[QueueCommand]:
        commands = self.commands[:]
        self.commands.clear()
        return commands

    @abstractmethod
    def counted(self) -> ClientCounters:
        """Return its counters so far."""

    @abstractmethod
    def close(self) -> None:
        """End, whatever the reason, and return everything to queues. May be called twice."""

    @abstractmethod
    def release(self) -> None:
        """Drop the parts of a closed endpoint, which refer back to it, so that all are freed at once.

        Otherwise, in a storm of sessions, the garbage collector would find hundreds of them together and stop
        all other work while it frees them.
        """
