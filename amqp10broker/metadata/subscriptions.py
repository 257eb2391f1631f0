"""Subscriptions to topics: the arguments of their queues, their names, and their creation.

A topic is not an entry of the catalog but a routing key of `TOPIC_EXCHANGE`. A subscription is a classic
queue with that binding and an argument that describes it, so that it can be found by the link's name and
appears in every listing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import quote

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotFound
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.plan import Plan, Put, binding_key
from amqp10broker.metadata.queue import DeclaredQueue, QueueType
from amqp10broker.metadata.queue_requests import NAME_BYTES_MAX, DeclareQueue, QueueDeclaration
from amqp10broker.metadata.queue_settings import QUEUE_TYPE, SUBSCRIPTION, SUBSCRIPTION_FIELDS
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.routing.address import TOPIC_EXCHANGE
from amqp10broker.routing.exchange import Binding, Destination

OF_TEMPORARY_TOPICS: Final = "amq.temporary-topic-"
"""Before the name of a topic that is there as long as an exclusive queue of its name: the connection that
made it consumes from it, and nobody else."""
_PREFIX: Final = "subscription"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The properties of a subscription, and its owner.

    Attributes:
        topic: key of the binding; `*` and `#` stand for words of a topic's name, as in any binding.
        container: the client's container-id; None: it is one for all clients, or for one link.
        name: of the subscription; None: it is for one link, and ends with it.
        selector: which messages it is for; None: all.
    """

    topic: str
    container: str | None = None
    name: str | None = None
    durable: bool = False
    shared: bool = False
    selector: str | None = None
    no_local: bool = False

    @classmethod
    def of(cls, queue: DeclaredQueue) -> Self | None:
        value = queue.arguments.get(SUBSCRIPTION)
        return cls(**value) if isinstance(value, Mapping) else None

    @property
    def argument(self) -> dict[str, str | bool]:
        """As it stands among its queue's arguments: what is so, and nothing else."""
        values = ((name, getattr(self, name)) for name in SUBSCRIPTION_FIELDS)
        return {name: value for name, value in values if value not in (None, False)}

    def queue_name(self, fresh_id: str) -> str:
        """Return the name of its queue. `fresh_id`: unguessable; for one that ends with its link, or whose
        name is too long.
        """
        if self.name is None:
            name = f"amq.{_PREFIX}-{quote(self.topic, safe='')}-{fresh_id}"
            return name if len(name) <= NAME_BYTES_MAX else f"amq.{_PREFIX}-{fresh_id}"
        return named_queue(self.container, self.name, durable=self.durable)

    def request(self, vhost: str, queue: str, owner: object) -> DeclareSubscription:
        own = self.name is None
        arguments: dict[str, Any] = {SUBSCRIPTION: self.argument}
        if not own:
            arguments[QUEUE_TYPE] = QueueType.CLASSIC.value
        declare = DeclareQueue(
            vhost,
            queue,
            durable=self.durable,
            owner=owner if own else None,
            auto_delete=not own and not self.durable,
            arguments=arguments,
            internal=own,
        )
        return DeclareSubscription(declare, self.topic)


def temporary_topic(vhost: VirtualHost, topic: str) -> DeclaredQueue | None:
    """Return the queue that represents a temporary topic; None for other topics. Raises `NotFound` if it does
    not exist any more.
    """
    if not topic.startswith(OF_TEMPORARY_TOPICS):
        return None
    queue = vhost.find(topic)
    if queue is None:
        raise NotFound(
            f"topic '{topic}'", f"no temporary topic '{topic}' in vhost '{vhost.name}': it was deleted"
        )
    return queue


def is_subscribed(vhost: VirtualHost, topic: str) -> bool:
    """Whether there is a subscription to just this topic; one with `*` or `#` for a word is to many."""
    queues, _ = vhost.route(vhost.topology.lookup_exchange(TOPIC_EXCHANGE), (topic,))
    return any(each is not None and each.topic == topic for each in map(Subscription.of, queues))


def is_local(queue: DeclaredQueue, container: str) -> bool:
    """Whether a queue is of a subscription that is not for what this container publishes."""
    value = queue.arguments.get(SUBSCRIPTION)
    return value is not None and value.get("no_local") is True and value.get("container") == container


def named_queue(container: str | None, name: str, *, durable: bool) -> str:
    """The queue of a subscription that has a name: ``subscription:CONTAINER:NAME``.

    One for all clients has `*` for the container, and one that does not outlive its links is `shared`. Both
    parts are percent-encoded, so that no two subscriptions have one queue.
    """
    kind = _PREFIX if durable else f"{_PREFIX}-shared"
    whose = "*" if container is None else quote(container, safe="")
    return f"{kind}:{whose}:{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class DeclareSubscription:
    """There shall be the queue of a subscription, bound to the topic; both or nothing."""

    queue: DeclareQueue
    topic: str

    def plan(self, catalog: Catalog) -> Plan[QueueDeclaration]:
        declared = self.queue.plan(catalog)
        vhost = catalog.lookup_vhost(self.queue.vhost)
        binding = Binding(TOPIC_EXCHANGE, Destination("queue", declared.answer.name), self.topic)
        if binding in vhost.topology.all_bindings:
            return declared
        lasting = self.queue.durable and self.queue.owner is None
        put = Put(binding_key(vhost.name, binding), binding, lasting)
        return Plan(declared.answer, [*declared.puts, put], used=declared.used)
