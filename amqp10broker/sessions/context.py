"""The context and the common base of sessions (AMQP 1.0) and channels (AMQP 0-9-1).

One step of either is: `handle` each waiting message, `write_output`, then send the result of `take_commands`
to queues. A task runs a step whenever its mailbox is not empty; tests run steps without a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from typing import Any, Final, Protocol

from amqp10broker.auth.authorise import Access
from amqp10broker.config import Config, FlowSettings
from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog, Propose
from amqp10broker.metadata.queue import DeclaredQueue, LastError, QueueCommand
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.queues.commands import ReplyTo, RequestRef
from amqp10broker.sessions.amqp10.resumable_links import ResumableLinks
from amqp10broker.sessions.amqp10.transactions import Transactions
from amqp10broker.sessions.counters import ClientCounters, Moment
from amqp10broker.sessions.messages import LinkStolen, QueueCommits, SessionMessage, ToSession

Key = tuple[str, bool]


@dataclass(eq=False, slots=True)
class LinkNames:
    """The names of the links of one connection, over all its sessions. A name has one end for each direction:
    a new attach detaches the earlier one with `amqp:link:stolen`.
    """

    _holders: dict[Key, tuple[SenderLink | ReceiverLink, ToSession]] = field(default_factory=dict)

    def take(
        self, link: SenderLink | ReceiverLink, to_session: ToSession
    ) -> SenderLink | ReceiverLink | None:
        """Register a link under its name; return the link of this session that had it, which must be
        detached.
        """
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
        """Free the name of an ended link, unless another link has taken it over."""
        key = _key(link)
        holder = self._holders.get(key)
        if holder is not None and holder[0] is link:
            del self._holders[key]


def _key(link: SenderLink | ReceiverLink) -> Key:
    return link.name, isinstance(link, SenderLink)


MakeVolatile = Callable[[VirtualHost, object, Callable[[str], None]], DeclaredQueue]
"""Makes a queue for direct reply-to in a virtual host, for a connection. The third argument is called with
the name before the queue is made, and may refuse it.
"""

OfferToken = Callable[[bytes, RequestRef], None]
"""Has a token verified. A `Decided` follows when it was accepted; else the connection is closed."""

ToQueue = Callable[[QueueCommand], None]
"""Adds a command to those that are sent to queues at the end of the step."""

OnUnroutable = Callable[[Sequence[Message]], None]


@dataclass(slots=True, kw_only=True)
class EndpointContext:
    """The parts of the broker that a session and a channel use.

    Attributes:
        moment: the time of the present step, set by the caller before each.
        commits: None: a session has no transactions, a channel commits queue by queue.
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
    """The context of one session. `offer_token`, `resumable_links`: None if not supported. `is_memory_tight`:
    returns whether automatic limits must not grow.
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

    def transacts(self, queue: DeclaredQueue) -> bool:
        """Return whether a queue may take part in a commit."""
        return self.commits is not None and self.commits.takes(queue.handle)


class ClientLog(Protocol):
    """The log of a connection for its sessions and channels. It adds the connection, and limits the rate."""

    def warning(self, event: str, **details: Any) -> LastError:
        """Write a warning. `details["text"]` is the text that the client got."""

    def noted(self, event: str, **details: Any) -> LastError:
        """Record an error for `status` only, without a log entry."""

    def info(self, event: str, **details: Any) -> None: ...


@dataclass(slots=True, kw_only=True)
class ChannelContext(EndpointContext):
    capabilities: Collection[str]
    frame_max: int


WRITES_MAX: Final = 4
"""The most buffers of transfers that one session writes in a step, while the socket takes them."""

LARGE_WRITES_MAX: Final = 16
"""The same for large messages: more than a read brings, so that consumers keep up with publishers."""

LARGE_PIECE_BYTES: Final = 4096
"""Pieces of so many bytes on average are large, and are not copied to join them."""


class Outlet(Protocol):
    """The output of one session or channel to its connection's writer."""

    @property
    def room(self) -> int:
        """The bytes of transfers or deliveries that may be encoded now."""

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        """Write pieces; `transfer_bytes` of them belong to transfers."""

    def want(self) -> None:
        """Request one `Notice.WRITER_READY` as soon as there is room."""


class SessionEndpoint(ABC):
    """One session or channel of one client. `commands`: those for queues that are not sent yet; `to_queue`
    adds one. `over`: the session has ended, and no step follows.
    """

    over = False

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.commands: list[QueueCommand] = []
        self.to_queue: ToQueue = self.commands.append

    @abstractmethod
    def handle(self, message: SessionMessage) -> None:
        """Handle one message. Raises `AmqpError`, or `Amqp091Error` of a channel, to close the connection."""

    def handle_undelivered(self, message: SessionMessage) -> None:
        """Handle a message that was still in the mailbox when the session ended."""
        return

    @property
    @abstractmethod
    def has_unsent(self) -> bool:
        """Whether deliveries wait to be written."""

    @abstractmethod
    def pump(self, budget_bytes: int) -> int:
        """Write deliveries within the budget; return their bytes. Raises as `handle`."""

    @abstractmethod
    def take_output(self) -> Sequence[bytes | memoryview]:
        """Return the bytes to write now, in pieces to be joined."""

    def write_output(self, outlet: Outlet) -> None:
        """Write answers, then deliveries as far as credit, window and the writer's buffer allow."""
        for writes in range(1, LARGE_WRITES_MAX + 1):
            spent = self.pump(outlet.room)
            unsent = (spent or outlet.room <= 0) and self.has_unsent
            pieces = self.take_output()
            if pieces:
                outlet.put(pieces, spent)
            if not unsent:
                return
            if not spent or outlet.room <= 0:
                break
            if writes >= WRITES_MAX and len(pieces) * LARGE_PIECE_BYTES > spent:
                break
        outlet.want()

    def take_commands(self) -> list[QueueCommand]:
        commands = self.commands[:]
        self.commands.clear()
        return commands

    @abstractmethod
    def counted(self) -> ClientCounters: ...

    @abstractmethod
    def close(self) -> None:
        """End for any reason, and return everything to queues. May be called twice."""

    @abstractmethod
    def release(self) -> None:
        """Drop the parts of a closed endpoint, which refer back to it. Otherwise, when many sessions end
        together, the garbage collector would find hundreds of them at once and stop all other work.
        """
