"""The views of the broker for its parts: values, and a few methods.

The broker (`broker.py`) is all of them, and passes itself to the parts that it creates. Their constructors
name the view that they use. Connections are numbers here, so that lower layers need not import them.
"""

from __future__ import annotations

from collections.abc import Callable

from amqp10broker.auth.login import Authenticator
from amqp10broker.config import Config
from amqp10broker.metadata.catalog import Catalog, Propose
from amqp10broker.protocols.connection import UserBudgets
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.login import Logins
from amqp10broker.runtime.log import LogLimits
from amqp10broker.runtime.mailbox import Mailbox, ReplyRegistry
from amqp10broker.sessions.amqp10.resumable_links import ResumableLinks
from amqp10broker.sessions.context import MakeVolatile
from amqp10broker.sessions.messages import QueueCommits, SessionMessage


class BrokerContext:
    """`config`: the present one; replaced as a whole when a setting changes. `alarms`: the names of active
    alarms; publishers are held back while there is any.
    """

    catalog: Catalog
    clock: WallClock
    reply_registry: ReplyRegistry
    config: Config
    alarms: frozenset[str]


class ConnectionContext(BrokerContext):
    """The context of a connection, its sessions and its channels.

    Attributes:
        unfinished: bounds the memory of incomplete messages, by user.
        identity: the properties that both protocols announce (`sessions.amqp10.open.identity_of`).
        commits: makes the commits of a session or channel with this mailbox.
        resumable_links: AMQP 1.0 links that survive their sessions.
        is_memory_tight: whether memory is near the limit of its alarm.
        new_id: returns a fresh unguessable token, for generated names.
        logged_in: called with the number of a connection when its user is known.
        part_begun: called with the numbers of a connection and of its new session or channel.
    """

    container_id: str
    identity: dict[str, str]
    propose: Propose
    authenticator: Authenticator
    logins: Logins
    log_limits: LogLimits
    unfinished: UserBudgets
    commits: Callable[[Mailbox[SessionMessage]], QueueCommits]
    resumable_links: ResumableLinks
    is_memory_tight: Callable[[], bool]
    new_id: Callable[[], str]
    make_volatile: MakeVolatile
    logged_in: Callable[[int], None]
    part_begun: Callable[[int, int], None]
