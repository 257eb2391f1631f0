"""The views of the broker for its parts: values, and a few methods.

The broker (`broker.py`) implements all of them, and passes itself to the parts that it creates. A part's
constructor names the view that it uses; nothing else of the broker is reachable. Connections are numbers
here, so that lower layers need not import them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from amqp10broker.auth.login import Authenticator
from amqp10broker.config import Config
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.proposing import Propose
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.protocols.budget import UserBudgets
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.log_limits import LogLimits
from amqp10broker.runtime.connections.login import Logins
from amqp10broker.runtime.connections.socket_transport import Stream
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.queues.reply_registry import ReplyRegistry
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.resumable_links import ResumableLinks
from amqp10broker.sessions.amqp10.session import BrokerSession


class BrokerContext(Protocol):
    catalog: Catalog
    clock: WallClock
    reply_registry: ReplyRegistry

    @property
    def config(self) -> Config:
        """The present configuration; replaced as a whole when a setting changes."""

    @property
    def alarms(self) -> frozenset[str]:
        """Names of the alarms that are on; publishers are held back while there is any."""


class ConnectionContext(BrokerContext, Protocol):
    """For a connection, its sessions and its channels.

    Attributes:
        unfinished: bounds what is kept of messages that are not whole, by user.
        identity: what both protocols announce of the broker (`sessions.amqp10.open.identity_of`).
        journal_task: keeps what durable queues have; None: all is in memory.
        faulty_stream: makes of a stream, for a connection's number, one that commits faults; None: no faults.
    """

    container_id: str
    identity: dict[str, str]
    propose: Propose
    authenticator: Authenticator
    logins: Logins
    log_limits: LogLimits
    unfinished: UserBudgets
    journal_task: JournalTask | None
    session_type: Callable[..., BrokerSession]
    channel_type: Callable[..., BrokerChannel]
    faulty_stream: Callable[..., Stream] | None

    @property
    def resumable_links(self) -> ResumableLinks:
        """Links of AMQP 1.0 that outlive their sessions."""

    def is_memory_tight(self) -> bool:
        """Whether memory is near to where its alarm begins."""

    def new_id(self) -> str:
        """Return a fresh unguessable token, for generated names."""

    def make_volatile(
        self, vhost: VirtualHost, connection: object, allowed: Callable[[str], None]
    ) -> DeclaredQueue:
        """A queue of direct reply-to for one connection (see `sessions.context.MakeVolatile`)."""

    def logged_in(self, connection: int) -> None:
        """The user of a connection is known from now on."""

    def part_begun(self, connection: int, part: int) -> None:
        """A connection has a session, or a channel, of this number from now on."""
