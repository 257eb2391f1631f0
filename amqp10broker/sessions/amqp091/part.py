"""The interface of a channel that its parts use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from amqp10broker.errors import NotFound
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand, QueueHandle
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.queues.commands import Command, RequestRef
from amqp10broker.queues.effects import Answer
from amqp10broker.sessions.amqp091.consuming import ChannelConsumers
from amqp10broker.sessions.amqp091.publishing import Publishing
from amqp10broker.sessions.context import ChannelContext, ToQueue


class Channel(Protocol):
    """A channel, as its parts use it."""

    number: int
    context: ChannelContext
    commands: list[QueueCommand]
    to_queue: ToQueue
    consuming: ChannelConsumers
    publishing: Publishing

    def write(self, method: Method) -> None: ...

    def write_pieces(self, pieces: Sequence[bytes]) -> None:
        """Write frames that are encoded already."""

    def ask(
        self,
        handle: QueueHandle,
        command: Callable[[RequestRef], Command],
        then: Callable[[Answer], None],
    ) -> None:
        """Send a request to a queue and handle nothing else until it has answered."""

    def perform(self, operation: str, given: Mapping[str, object], then: Callable[[Any], None]) -> None:
        """Carry out an operation and handle nothing else until it is done. Raises `RefusedError`."""

    def warn(self, event: str, **details: Any) -> None:
        """Log an error that is sent to the client, and store it as the last one."""

    def pause(self) -> None:
        """Handle nothing more until `resume`."""

    def resume(self) -> None:
        """Continue with frames that have come meanwhile."""

    def queue_named(self, name: str) -> str:
        """Return the name, or for an empty one that of the queue declared last. Raises `NotFound`."""


def usable(channel: Channel, name: str) -> DeclaredQueue:
    """Return the queue of this name that the channel's connection may use. Raises `NotFound` if it does not
    exist, and `ResourceLocked` if it is exclusive to another connection.
    """
    context = channel.context
    return context.vhost.for_connection(context.vhost.lookup(name), context.connection)


def not_found(name: str, vhost: str) -> NotFound:
    return NotFound(f"queue '{name}'", f"no queue '{name}' in vhost '{vhost}'")
