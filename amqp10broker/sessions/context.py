"""The services of the broker that a session uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Protocol

from amqp10broker.auth.authorise import Access
from amqp10broker.config import Config, FlowSettings
from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.proposing import Propose
from amqp10broker.metadata.queue import DeclaredQueue, LastError, QueueCommand
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import ReplyTo, RequestRef
from amqp10broker.sessions.amqp10.names import LinkNames
from amqp10broker.sessions.amqp10.resumable_links import ResumableLinks
from amqp10broker.sessions.amqp10.transactions import Transactions
from amqp10broker.sessions.commits import QueueCommits
from amqp10broker.sessions.measures import Moment
from amqp10broker.sessions.messages import ToSession

MakeVolatile = Callable[[VirtualHost, object, Callable[[str], None]], DeclaredQueue]
"""Makes a queue for direct reply-to: in a virtual host, for a connection. The third argument is called with
the name before the queue is made, and may refuse it.
"""


OfferToken = Callable[[bytes, RequestRef], None]
"""Has a token verified, for the whole connection. A `Decided` for the request follows when it was accepted;
otherwise the connection is closed.
"""


ToQueue = Callable[[QueueCommand], None]
"""Adds a command to those that are sent to queues at the end of the step."""


OnUnroutable = Callable[[Sequence[Message]], None]


@dataclass(slots=True, kw_only=True)
class EndpointContext:
    """What a session and a channel use of the broker.

    Attributes:
        volatile: makes a queue without a task, for direct reply-to: it answers a command at once.
        moment: the time of the present step, set by the caller before each.
        commits: carries out a transaction at several queues in one step; None: a session has no transactions,
            a channel commits queue by queue.
        on_unroutable: called with unroutable messages; must not raise.
    """

    catalog: Catalog
    vhost: VirtualHost
    access: Access
    config: Config
    reply_to: ReplyTo
    user: str
    propose: Propose
    connection: object
    new_id: Callable[[], str]
    volatile: MakeVolatile
    log: ClientLog
    moment: Moment = field(default_factory=Moment)
    commits: QueueCommits | None = None
    on_unroutable: OnUnroutable = lambda messages: None


@dataclass(slots=True, kw_only=True)
class SessionContext(EndpointContext):
    """The context of one session.

    Attributes:
        to_session: puts a message into this session's mailbox.
        offer_token: has another token of the client verified; None if that is not supported.
        resumable_links: links that survive their sessions; None: not supported.
        is_memory_tight: whether automatic limits must not grow.
    """

    container_id: str
    names: LinkNames
    to_session: ToSession
    node: str
    of_jms: bool = False
    offer_token: OfferToken | None = None
    transactions: Transactions = field(default_factory=Transactions)
    resumable_links: ResumableLinks | None = None
    is_memory_tight: Callable[[], bool] = lambda: False

    def flow_for(self, address: str | None) -> FlowSettings:
        """Return the flow settings for a link of this client with this address."""
        return self.config.flow_for(self.container_id, address)


class ClientLog(Protocol):
    """The log of a connection for its sessions and channels; it adds the connection, and bounds the rate."""

    def warning(self, event: str, **details: Any) -> LastError:
        """Write a warning. `details`: `text` is the text that the client got, `queue` the queue concerned."""

    def noted(self, event: str, **details: Any) -> LastError:
        """Record an error for `status` only, without a log entry."""

    def info(self, event: str, **details: Any) -> None:
        """Write an entry that names the connection."""
