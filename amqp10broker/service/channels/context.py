"""What a channel may know of the broker around it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.proposing import Propose
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.security.authorise import Access
from amqp10broker.service.commits import Commits
from amqp10broker.service.context import ClientLog, MakeVolatile, OnUnroutable, Post
from amqp10broker.service.moment import Moment

__all__ = ["ChannelContext", "Post"]


@dataclass(slots=True)
class ChannelContext:
    """One channel's surroundings.

    Attributes:
        catalog: everything that is declared.
        vhost: the connection's virtual host.
        propose: has requests to the catalog decided.
        access: what the user may do there.
        config: the present configuration; replaced as a whole when a setting changes.
        reply_to: under which queues answer this channel.
        user: authenticated name.
        connection: identity of the connection, the owner of exclusive queues.
        capabilities: what the client said it can do, by name.
        frame_max: bytes, the largest frame the client takes.
        new_id: gives a fresh unguessable token for generated names.
        volatile: makes a queue without a task, for direct reply-to: posted to, it answers at once.
        log: of the connection.
        moment: the time of the present wake; whoever wakes the channel sets it.
        commits: carries out what a transaction has several queues do; None: queue by queue.
        on_unroutable: told of messages for which there is no queue; must not raise.
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
    commits: Commits | None = None
    on_unroutable: OnUnroutable = lambda messages: None
