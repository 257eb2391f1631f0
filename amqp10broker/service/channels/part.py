"""What the parts of a channel need of the channel they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from amqp10broker.amqp091.methods import Method
from amqp10broker.catalog.queue import DeclaredQueue, QueueHandle
from amqp10broker.errors import NotFound
from amqp10broker.queues.commands import Command, RequestRef
from amqp10broker.queues.effects import Answer
from amqp10broker.service.channels.consuming import Consuming
from amqp10broker.service.channels.context import ChannelContext
from amqp10broker.service.channels.publishing import Publishing


class Channel(Protocol):
    """A channel, as its parts see it."""

    number: int
    context: ChannelContext
    mail: list[tuple[QueueHandle, Command]]
    consuming: Consuming
    publishing: Publishing

    def write(self, method: Method) -> None:
        """Write a method to the client."""

    def write_pieces(self, pieces: Sequence[bytes]) -> None:
        """Write frames that are encoded already."""

    def post(self, handle: QueueHandle, command: Command) -> None:
        """Put one letter to a queue."""

    def ask(
        self,
        handle: QueueHandle,
        command: Callable[[RequestRef], Command],
        then: Callable[[Answer], None],
    ) -> None:
        """Ask a queue and handle nothing else until it has answered."""

    def perform(self, operation: str, given: Mapping[str, object], then: Callable[[Any], None]) -> None:
        """Carry out an operation of the table and handle nothing else until it is done.

        Raises:
            RefusedError: it was refused.
        """

    def warn(self, event: str, **details: Any) -> None:
        """Log what the client is told that went wrong, and remember it."""

    def pause(self) -> None:
        """Handle nothing more until `resume`."""

    def resume(self) -> None:
        """Go on with what has come meanwhile."""

    def queue_named(self, name: str) -> str:
        """The name, or for an empty one that of the queue declared last.

        Raises:
            NotFound: there is no such.
        """


def usable(channel: Channel, name: str) -> DeclaredQueue:
    """The queue of this name that the channel's connection may use.

    Raises:
        NotFound: there is none.
        ResourceLocked: another connection has it exclusively.
    """
    context = channel.context
    return context.vhost.for_connection(context.vhost.lookup(name), context.connection)


def not_found(name: str, vhost: str) -> NotFound:
    """The refusal for a queue that is gone."""
    return NotFound(f"queue '{name}'", f"no queue '{name}' in vhost '{vhost}'")
