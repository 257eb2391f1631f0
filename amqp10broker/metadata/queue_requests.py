"""Requests that declare and delete queues, exchanges, bindings and subscriptions to topics, and their plans.

Rules and error texts are RabbitMQ's. A topic is a routing key of `TOPIC_EXCHANGE`. A subscription is a
classic queue with that binding and an argument that describes it, so that it can be found by the link's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, Self
from urllib.parse import quote

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import (
    FeatureDenied,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    ReservedName,
)
from amqp10broker.metadata import queue_arguments
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.plan import Key, Plan, Put, binding_key, keys_of
from amqp10broker.metadata.policies import effective
from amqp10broker.metadata.queue import (
    QUEUE_NUMBER_MAX,
    DeclaredQueue,
    QueueHandle,
    QueueSpec,
    deprecated_features,
)
from amqp10broker.metadata.queue_arguments import (
    QUEUE_TYPE,
    SUBSCRIPTION,
    SUBSCRIPTION_FIELDS,
    QueueType,
    queue_type_of,
)
from amqp10broker.metadata.vhost import RESERVED_PREFIX, VOLATILE, VirtualHost
from amqp10broker.routing.address import TOPIC_EXCHANGE
from amqp10broker.routing.exchange import Binding, Destination, ExchangeSpec, stripped, type_name
from amqp10broker.routing.topology import Removal

NAME_BYTES_MAX: Final = 255
_STREAM_IDS: Final = 2**64


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    name: str
    created: bool


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Declare a queue, or check that the existing one is equivalent. `durable`: only reported by an exclusive
    queue, which never survives a restart. `internal`: the broker names it.
    """

    vhost: str
    name: str
    durable: bool = True
    owner: object | None = None
    auto_delete: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    internal: bool = False

    def plan(self, catalog: Catalog) -> Plan[QueueDeclaration]:
        vhost = catalog.lookup_vhost(self.vhost)
        name = stripped(self.name)
        resource = f"queue '{name}' in vhost '{vhost.name}'"
        existing = vhost.find(name)
        # The rule of reserved names refuses a volatile queue below.
        if existing is not None and existing.type != VOLATILE:
            self._assert_equivalent(existing, vhost, resource, relaxed=catalog.relaxed_quorum_checks)
            # A quorum queue's unused time continues: in RabbitMQ, declaring it again is not a use of it.
            used = None if existing.type == QueueType.QUORUM else ("queue", vhost.name, name)
            return Plan(QueueDeclaration(name, False), used=used)
        _check_name(name, self.internal)
        kind = self._queue_type(vhost, resource)
        queue_arguments.check(self.arguments, kind, resource)
        self._check_properties(kind, resource)
        _check_limit(vhost, name)
        kept = {key: queue_arguments.plain(value) for key, value in self.arguments.items()}
        kept[QUEUE_TYPE] = kind.value
        spec = QueueSpec(
            *(vhost.name, name, kind.value, self.durable, self.auto_delete, kept),
            number=_next_number(catalog, resource) if self.durable and self.owner is None else 0,
            declaration_id=f"{vhost.choose(_STREAM_IDS):016x}" if kind is QueueType.STREAM else "",
            owner=self.owner,
            rules=catalog.rules.quorum if kind is QueueType.QUORUM else {},
        )
        if catalog.placement is not None:
            definition = effective(vhost.policies, name, kind.value, kept).definition
            count = sum(each.declared for each in catalog.vhosts.values())
            placed = catalog.placement(spec, definition, catalog.nodes.values(), catalog, count)
            spec = replace(spec, **placed._asdict())
        for feature in deprecated_features(spec):
            if feature in catalog.rules.denied:
                raise FeatureDenied(resource, feature)
        return Plan(QueueDeclaration(name, True), [Put(("queue", vhost.name, name), spec, spec.lasting)])

    def _assert_equivalent(
        self, queue: DeclaredQueue, vhost: VirtualHost, resource: str, *, relaxed: bool
    ) -> None:
        if queue.owner != self.owner:
            raise vhost.locked(queue.name)
        for what, new, old in (
            ("durable", self.durable, queue.durable),
            ("auto_delete", self.auto_delete, queue.auto_delete),
        ):
            if new != old:
                raise queue_arguments.inequivalent(
                    what, resource, f"received '{str(new).lower()}' but current is '{str(old).lower()}'"
                )
        arguments = self.arguments
        if QUEUE_TYPE not in arguments:
            arguments = {**arguments, QUEUE_TYPE: self._default_type(vhost, server_named=False).value}
        relaxed = (
            relaxed and queue.type == QueueType.QUORUM and arguments[QUEUE_TYPE] == QueueType.CLASSIC.value
        )
        kind = QueueType(queue.type)
        queue_arguments.assert_equivalent(arguments, queue.arguments, kind, resource, relaxed=relaxed)

    def _check_properties(self, kind: QueueType, resource: str) -> None:
        if kind is QueueType.CLASSIC:
            return
        for wrong, what in (
            (self.auto_delete, "auto-delete"),
            (self.owner is not None, "exclusive-owner"),
            (not self.durable, "non-durable"),
        ):
            if wrong:
                raise PreconditionFailed(resource, f"invalid property '{what}' for {resource}")

    def _queue_type(self, vhost: VirtualHost, resource: str) -> QueueType:
        if QUEUE_TYPE not in self.arguments:
            return self._default_type(vhost, server_named=self.internal)
        given = self.arguments[QUEUE_TYPE]
        if not isinstance(given, str):
            raise InvalidArgument(
                resource,
                f"invalid arg '{QUEUE_TYPE}' for {resource}: must be a string, not {type_name(given)}",
            )
        kind = queue_type_of(given, resource)
        if self.internal and kind is not QueueType.CLASSIC:
            raise PreconditionFailed(
                resource, f"Cannot declare a server-named queue for type {kind}; give it a name"
            )
        return kind

    def _default_type(self, vhost: VirtualHost, *, server_named: bool) -> QueueType:
        lasting = self.durable and self.owner is None and not (self.auto_delete or server_named)
        return vhost.default_type(lasting=lasting)


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Delete a queue with its bindings; the answer is whether it existed. `send_delete`: see `Plan`."""

    vhost: str
    name: str
    send_delete: bool = True

    def plan(self, catalog: Catalog) -> Plan[bool]:
        vhost = catalog.lookup_vhost(self.vhost)
        queue = vhost.find(self.name)
        if queue is None or queue.type == VOLATILE:
            return Plan(False)
        return Plan(True, forgets=keys_of_queues(vhost, [self.name]), send_delete=self.send_delete)


@dataclass(frozen=True, slots=True)
class QueueEnded:
    """A queue has ended: unused, deleted under a condition, failed, or not needed any more. `handle`: it, or
    its number in a cluster; the present queue of that name may be another one.
    """

    vhost: str
    name: str
    handle: QueueHandle | int
    send_delete: bool = False

    def plan(self, catalog: Catalog) -> Plan[None]:
        vhost = catalog.vhosts.get(self.vhost)
        queue = None if vhost is None else vhost.find(self.name)
        if vhost is None or queue is None:
            return Plan(None)
        it = queue.number if isinstance(self.handle, int) else queue.handle
        if it != self.handle:
            return Plan(None)
        return Plan(None, forgets=keys_of_queues(vhost, [self.name]), send_delete=self.send_delete)


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """A connection has ended, and its exclusive queues with it."""

    vhost: str
    owner: object

    def plan(self, catalog: Catalog) -> Plan[None]:
        vhost = catalog.vhosts.get(self.vhost)
        if vhost is None:
            return Plan(None)
        return Plan(None, forgets=keys_of_queues(vhost, list(vhost.owned.get(self.owner, ()))))


def keys_of_queues(vhost: VirtualHost, names: Sequence[str]) -> list[Key]:
    """Return the keys of queues, their bindings, and the exchanges that auto-delete with them."""
    keys = keys_of(vhost.name, vhost.topology.plan_queues_gone(names))
    return [*keys, *(("queue", vhost.name, name) for name in names)]


def _check_name(name: str, internal: bool) -> None:
    resource = f"queue '{name}'"
    if not name:
        raise InvalidArgument(resource, "declare queue with empty name not allowed")
    size = len(name.encode(errors="surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise InvalidArgument(
            resource, f"queue name is {size} bytes long, must be 1 to {NAME_BYTES_MAX}: '{name[:40]}...'"
        )
    if name.startswith(RESERVED_PREFIX) and not internal:
        raise ReservedName(resource, f"queue name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")


def _check_limit(vhost: VirtualHost, name: str) -> None:
    limit = vhost.facts.limits.max_queues
    if limit is not None and vhost.declared >= limit:
        raise LimitExceeded(
            f"queue '{name}'",
            f"cannot declare queue '{name}': queue limit in vhost '{vhost.name}' ({limit}) is reached",
        )


def _next_number(catalog: Catalog, resource: str) -> int:
    if catalog.highest_number >= QUEUE_NUMBER_MAX:
        raise LimitExceeded(
            resource,
            f"this data folder has had {QUEUE_NUMBER_MAX} durable queues and can name no more: export "
            "the definitions and start with a new folder",
        )
    return catalog.highest_number + 1


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Declare an exchange, or check that the existing one is equivalent. The answer is whether it is new."""

    vhost: str
    exchange: ExchangeSpec

    def plan(self, catalog: Catalog) -> Plan[bool]:
        planned = catalog.lookup_vhost(self.vhost).topology.plan_exchange(self.exchange)
        if planned is None:
            return Plan(False)
        return Plan(True, [Put(("exchange", self.vhost, planned.name), planned, planned.durable)])


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Delete an exchange, its bindings, and exchanges that then auto-delete; answers if it existed."""

    vhost: str
    name: str
    if_unused: bool = False

    def plan(self, catalog: Catalog) -> Plan[bool]:
        topology = catalog.lookup_vhost(self.vhost).topology
        return _gone(self.vhost, topology.plan_delete_exchange(self.name, if_unused=self.if_unused))


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a queue or an exchange to an exchange. The answer is whether the binding is new."""

    vhost: str
    binding: Binding

    def plan(self, catalog: Catalog) -> Plan[bool]:
        vhost = catalog.lookup_vhost(self.vhost)
        if not vhost.topology.plan_bind(self.binding):
            return Plan(False)
        return Plan(
            True, [Put(binding_key(self.vhost, self.binding), self.binding, vhost.is_kept(self.binding))]
        )


@dataclass(frozen=True, slots=True)
class Unbind:
    """Delete a binding, and an exchange that then auto-deletes. The answer is whether it existed."""

    vhost: str
    binding: Binding

    def plan(self, catalog: Catalog) -> Plan[bool]:
        return _gone(self.vhost, catalog.lookup_vhost(self.vhost).topology.plan_unbind(self.binding))


def _gone(vhost: str, removal: Removal | None) -> Plan[bool]:
    return Plan(False) if removal is None else Plan(True, forgets=keys_of(vhost, removal))


OF_TEMPORARY_TOPICS: Final = "amq.temporary-topic-"
"""The prefix of a topic that exists as long as the exclusive queue of its name; only the connection that made
it consumes from it.
"""
_PREFIX: Final = "subscription"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The properties of a subscription.

    Attributes:
        topic: key of the binding; `*` and `#` stand for words, as in any binding.
        container: the client's container-id; None: it is for all clients, or for one link.
        name: None: it is for one link, and ends with it.
        selector: selects its messages; None: all.
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
        """Return its argument of the queue, without absent and false properties."""
        values = ((name, getattr(self, name)) for name in SUBSCRIPTION_FIELDS)
        return {name: value for name, value in values if value not in (None, False)}

    def queue_name(self, fresh_id: str) -> str:
        """Return the name of its queue. `fresh_id`: unguessable; for one that ends with its link."""
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
    """Return the queue of a temporary topic; None for other topics. Raises `NotFound` if it was deleted."""
    if not topic.startswith(OF_TEMPORARY_TOPICS):
        return None
    queue = vhost.find(topic)
    if queue is None:
        raise NotFound(
            f"topic '{topic}'", f"no temporary topic '{topic}' in vhost '{vhost.name}': it was deleted"
        )
    return queue


def is_subscribed(vhost: VirtualHost, topic: str) -> bool:
    """Return whether there is a subscription to exactly this topic, without `*` and `#`."""
    queues, _ = vhost.route(vhost.topology.lookup_exchange(TOPIC_EXCHANGE), (topic,))
    return any(each is not None and each.topic == topic for each in map(Subscription.of, queues))


def is_local(queue: DeclaredQueue, container: str) -> bool:
    """Return whether a queue's subscription excludes messages that this container publishes."""
    value = queue.arguments.get(SUBSCRIPTION)
    return value is not None and value.get("no_local") is True and value.get("container") == container


def named_queue(container: str | None, name: str, *, durable: bool) -> str:
    """Return ``subscription:CONTAINER:NAME``, with both parts percent-encoded, so that two subscriptions
    never have the same queue. The container is `*` for all clients, and `shared` for one that does not
    survive its links.
    """
    kind = _PREFIX if durable else f"{_PREFIX}-shared"
    whose = "*" if container is None else quote(container, safe="")
    return f"{kind}:{whose}:{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class DeclareSubscription:
    """Declare the queue of a subscription and bind it to the topic; both or nothing."""

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
