"""The views of the broker for its parts: values, and a few methods. The broker (`broker.py`) is all of them,
and passes itself to the parts that it creates, whose constructors name the view that they use. Connections
are numbers here, so that lower layers need not import them.
"""

from __future__ import annotations

from collections.abc import Callable

from amqp10broker.auth.login import Authenticator
from amqp10broker.config import Config
from amqp10broker.metadata.catalog import Catalog, Propose
from amqp10broker.protocols.connection import UserBudgets
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.login import Logins
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.log import LogLimits
from amqp10broker.runtime.mailbox import ReplyRegistry
from amqp10broker.sessions.amqp10.resumable_links import ResumableLinks
from amqp10broker.sessions.context import MakeVolatile


class BrokerContext:
    """`config`: the present one; replaced as a whole when a setting changes. `alarms`: names of those that
    are on; publishers are held back while there is any.
    """

    catalog: Catalog
    clock: WallClock
    reply_registry: ReplyRegistry
    config: Config
    alarms: frozenset[str]


class ConnectionContext(BrokerContext):
    """For a connection, its sessions and its channels.

    Attributes:
        unfinished: bounds what is kept of messages that are not whole, by user.
        identity: what both protocols announce of the broker (`sessions.amqp10.open.identity_of`).
        journal_task: stores what durable queues have; None: all is in memory.
        resumable_links: of AMQP 1.0, which outlive their sessions.
        is_memory_tight: whether memory is near to where its alarm begins.
        new_id: returns a fresh unguessable token, for generated names.
        logged_in: to be called with the number of a connection whose user is known from now on.
        part_begun: likewise, with the number of a session or a channel that it has from now on.
    """

    container_id: str
    identity: dict[str, str]
    propose: Propose
    authenticator: Authenticator
    logins: Logins
    log_limits: LogLimits
    unfinished: UserBudgets
    journal_task: JournalTask | None
    resumable_links: ResumableLinks
    is_memory_tight: Callable[[], bool]
    new_id: Callable[[], str]
    make_volatile: MakeVolatile
    logged_in: Callable[[int], None]
    part_begun: Callable[[int, int], None]
