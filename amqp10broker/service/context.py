"""What a session may know of the broker around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.queue import DeclaredQueue, QueueHandle
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.config import Config, FlowSettings
from amqp10broker.queues.commands import Command, ReplyTo
from amqp10broker.security.authorise import Access

MakeVolatile = Callable[[VirtualHost, str, object], DeclaredQueue]
"""Makes a queue for direct reply-to: in a virtual host, of a name, for a connection."""


@dataclass(slots=True)
class SessionContext:
    """One session's surroundings.

    Attributes:
        catalog: everything that is declared.
        vhost: the connection's virtual host.
        access: what the user may do there.
        config: the present configuration; replaced as a whole when a setting changes.
        reply_to: under which queues answer this session.
        user: authenticated name.
        container_id: the client's.
        connection: identity of the connection, the owner of exclusive queues.
        new_id: gives a fresh unguessable token for generated names.
        volatile: makes a queue without a task, for direct reply-to: posted to, it answers at once.
        node: the broker's own name, as its open says.
        on_filter_refused: told of each filter of a source that is not in place: address, name, reason. The
            client sees in the reply that it is not, and only whoever reads the log can see why.
    """

    catalog: Catalog
    vhost: VirtualHost
    access: Access
    config: Config
    reply_to: ReplyTo
    user: str
    container_id: str
    connection: object
    new_id: Callable[[], str]
    volatile: MakeVolatile
    node: str
    on_filter_refused: Callable[[str | None, str, str], None]

    def flow_for(self, address: str | None) -> FlowSettings:
        """The flow settings for a link of this client with this address."""
        return self.config.flow_for(self.container_id, address)


class Post(Protocol):
    """How a link end puts a letter to a queue into the session's outgoing mail."""

    def __call__(self, handle: QueueHandle, command: Command) -> None:
        """Put one letter."""
