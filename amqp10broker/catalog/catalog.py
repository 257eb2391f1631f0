"""Declared queues by name, and who may use them.

The catalog is plain state, changed and read synchronously by whichever task holds the processor;
it neither starts queues nor talks to them. For that it is given a `QueueHost`, which the living
room implements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from amqp10broker.errors import AccessRefused, NotFound, PreconditionFailed, ResourceLocked
from amqp10broker.queues.commands import Command

VHOST = "/"
RESERVED_PREFIX = "amq."


class QueueHandle(Protocol):
    """Where letters to a queue are put. Never waits: what may be outstanding is bounded by credit."""

    def post(self, command: Command) -> None:
        """Put one letter."""

    def counts(self) -> dict[str, Any]:
        """What `status` shows: messages_ready, messages_unsettled, consumers, publishers."""


class QueueHost(Protocol):
    """Who runs queues."""

    def start_queue(self, name: str, durable: bool) -> QueueHandle:
        """Begin to run an empty queue."""


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """One queue.

    Attributes:
        name: unique in the virtual host.
        durable: as declared.
        owner: the connection that has it exclusively, None if anyone may use it.
        handle: where its letters go.
    """

    name: str
    durable: bool
    owner: object | None
    handle: QueueHandle
    type: str = "classic"


class Catalog:
    """All declared queues."""

    def __init__(self, host: QueueHost) -> None:
        self._host = host
        self._queues: dict[str, DeclaredQueue] = {}

    def __iter__(self) -> Iterator[DeclaredQueue]:
        return iter(self._queues.values())

    def find(self, name: str) -> DeclaredQueue | None:
        """The queue of this name, or None."""
        return self._queues.get(name)

    def lookup(self, name: str) -> DeclaredQueue:
        """The queue of this name.

        Raises:
            NotFound: there is none.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise NotFound(f"queue '{name}'", f"no queue '{name}' in vhost '{VHOST}'")
        return queue

    def for_consumer(self, queue: DeclaredQueue, owner: object) -> DeclaredQueue:
        """Check that a connection may consume from a queue.

        Raises:
            ResourceLocked: another connection has it exclusively.
        """
        if queue.owner is not None and queue.owner is not owner:
            raise ResourceLocked(
                f"queue '{queue.name}'",
                f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{VHOST}'. It is "
                "exclusive to the connection that declared it",
            )
        return queue

    def declare(
        self, name: str, *, durable: bool = True, owner: object | None = None, internal: bool = False
    ) -> DeclaredQueue:
        """The queue of this name, made now if it is not there.

        Args:
            name: 1 to 255 bytes.
            durable: must agree with an existing queue's.
            owner: the connection that gets it exclusively.
            internal: names with the reserved prefix are allowed.

        Raises:
            AccessRefused: the name is reserved.
            PreconditionFailed: it exists and is not as asked for.
        """
        queue = self._queues.get(name)
        if queue is None:
            if name.startswith(RESERVED_PREFIX) and not internal:
                raise AccessRefused(
                    f"queue '{name}'",
                    f"queue '{name}' in vhost '{VHOST}' starts with reserved prefix '{RESERVED_PREFIX}'",
                )
            queue = DeclaredQueue(name, durable, owner, self._host.start_queue(name, durable))
            self._queues[name] = queue
        elif queue.durable != durable:
            raise PreconditionFailed(
                f"queue '{name}'",
                f"inequivalent arg 'durable' for queue '{name}' in vhost '{VHOST}': received "
                f"'{str(durable).lower()}' but current is '{str(queue.durable).lower()}'",
            )
        return queue

    def remove(self, name: str) -> DeclaredQueue | None:
        """Forget a queue; the caller posts the `Delete` to it."""
        return self._queues.pop(name, None)
