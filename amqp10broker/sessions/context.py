"""The services of the broker that sessions and channels use, and the names of links of a container."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.queues.commands import ReplyTo, RequestRef
from amqp10broker.sessions.amqp10.resumable_links import ResumableLinks
from amqp10broker.sessions.amqp10.transactions import Transactions
from amqp10broker.sessions.commits import QueueCommits
from amqp10broker.sessions.measures import Moment
from amqp10broker.sessions.messages import LinkStolen, ToSession

# A link is identified by its name, its direction and the two containers, and has one pair of ends. So the end
# that was attached before is detached with `amqp:link:stolen`. The names of one connection are compared, over
# all its sessions.

Key = tuple[str, bool]


@dataclass(eq=False, slots=True)
class LinkNames:
    """The names of the links of one connection, over all its sessions."""

    _holders: dict[Key, tuple[SenderLink | ReceiverLink, ToSession]] = field(default_factory=dict)

    def take(
        self, link: SenderLink | ReceiverLink, to_session: ToSession
    ) -> SenderLink | ReceiverLink | None:
        """Give a link its name; return the link of the same session that had it, for the caller to detach."""
        key = _key(link)
        stolen, holder = self._holders.get(key, (None, to_session))
        self._holders[key] = link, to_session
        if stolen is not None and holder is not to_session:
            holder(LinkStolen(stolen))
            return None
        return stolen

    def has(self, name: str) -> bool:
        return (name, True) in self._holders

    def leave(self, link: SenderLink | ReceiverLink) -> None:
        """Free the name of a link that is gone, unless another link has taken it over."""
        key = _key(link)
        holder = self._holders.get(key)
        if holder is not None and holder[0] is link:
            del self._holders[key]


def _key(link: SenderLink | ReceiverLink) -> Key:
    return link.name, isinstance(link, SenderLink)


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


@dataclass(slots=True, kw_only=True)
class ChannelContext(EndpointContext):
    """The context of one channel."""

    capabilities: Collection[str]
    frame_max: int
