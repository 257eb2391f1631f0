"""What a session may know of the broker around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Protocol

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.last_error import LastError
from amqp10broker.catalog.proposing import Propose
from amqp10broker.catalog.queue import DeclaredQueue, QueueHandle
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.config import Config, FlowSettings
from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import Command, ReplyTo, RequestRef
from amqp10broker.security.authorise import Access
from amqp10broker.service.commits import Commits
from amqp10broker.service.moment import Moment
from amqp10broker.service.sessions.kept import KeptLinks, Tell
from amqp10broker.service.sessions.names import LinkNames, TellStolen
from amqp10broker.service.sessions.transactions import Transactions

MakeVolatile = Callable[[VirtualHost, object, Callable[[str], None]], DeclaredQueue]
"""Makes a queue for direct reply-to: in a virtual host, for a connection. The third is told the name before
the queue is made, and may refuse it."""


OfferToken = Callable[[bytes, RequestRef], None]
"""Has a token verified, for the whole connection. A `Decided` for the request follows when it was taken; when
it was not, the connection is closed."""


OnUnroutable = Callable[[Sequence[Message]], None]


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
        of_jms: its connection desires what clients of JMS do: see `open`.
        names: of the links of all sessions of the connection.
        tell_stolen: tells this session, from another one, that it has attached the name of a link here.
        propose: has requests to the catalog decided.
        connection: identity of the connection, the owner of exclusive queues.
        new_id: gives a fresh unguessable token for generated names.
        volatile: makes a queue without a task, for direct reply-to: posted to, it answers at once.
        node: the broker's own name, as its open says.
        log: of the connection.
        offer_token: has another token of the client verified; None: there is nobody to do it.
        moment: the time of the present wake; whoever wakes the session sets it.
        transactions: those of this session.
        commits: carries them out; None: there are none.
        kept: links that outlive their sessions; None: there are none.
        tell: puts a letter into this session's mailbox.
        is_memory_tight: whether what finds its own size is not to grow.
        on_unroutable: told of messages for which there is no queue; must not raise.
    """

    catalog: Catalog
    vhost: VirtualHost
    access: Access
    config: Config
    reply_to: ReplyTo
    user: str
    container_id: str
    names: LinkNames
    tell_stolen: TellStolen
    propose: Propose
    connection: object
    new_id: Callable[[], str]
    volatile: MakeVolatile
    node: str
    log: ClientLog
    of_jms: bool = False
    offer_token: OfferToken | None = None
    moment: Moment = field(default_factory=Moment)
    transactions: Transactions = field(default_factory=Transactions)
    commits: Commits | None = None
    kept: KeptLinks | None = None
    tell: Tell = lambda letter: False
    is_memory_tight: Callable[[], bool] = lambda: False
    on_unroutable: OnUnroutable = lambda messages: None

    def flow_for(self, address: str | None) -> FlowSettings:
        """The flow settings for a link of this client with this address."""
        return self.config.flow_for(self.container_id, address)


class ClientLog(Protocol):
    """Where sessions and channels say what went wrong; it adds the connection, and bounds the rate."""

    def warning(self, event: str, **details: Any) -> LastError:
        """Write a warning.

        Args:
            event: a short sentence of a closed set.
            details: where and why: `text` is what the client got, `queue` the queue that is concerned.
        """

    def noted(self, event: str, **details: Any) -> LastError:
        """The same for `status` alone: the log says nothing of it."""

    def info(self, event: str, **details: Any) -> None:
        """Write an entry that names the connection."""


class Post(Protocol):
    """How a link end puts a letter to a queue into the session's outgoing mail."""

    def __call__(self, handle: QueueHandle, command: Command) -> None:
        """Put one letter."""
