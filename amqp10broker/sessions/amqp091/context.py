"""The services of the broker that a channel uses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field

from amqp10broker.auth.authorise import Access
from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.proposing import Propose
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.sessions.commits import QueueCommits
from amqp10broker.sessions.context import ClientLog, MakeVolatile, OnUnroutable
from amqp10broker.sessions.moment import Moment


@dataclass(slots=True)
class ChannelContext:
    """The context of one channel.

    Attributes:
        volatile: makes a queue without a task, for direct reply-to: it answers a post at once.
        moment: the time of the present step, set by the caller before each.
        commits: carries out a transaction at several queues in one step; None: queue by queue.
        on_unroutable: called with unroutable messages; must not raise.
    """

    catalog: Catalog
    vhost: VirtualHost
    propose: Propose
    access: Access
    config: Config
    reply_to: ReplyTo
    user: str
    connection: object
    capabilities: Collection[str]
    frame_max: int
    new_id: Callable[[], str]
    volatile: MakeVolatile
    log: ClientLog
    moment: Moment = field(default_factory=Moment)
    commits: QueueCommits | None = None
    on_unroutable: OnUnroutable = lambda messages: None
