"""Writing the catalog as one JSON document in RabbitMQ's shape; `definitions` reads it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definition_entries import LIMITS_COMPONENT, OPERATOR_COMPONENT
from amqp10broker.metadata.entries import (
    ARGON2_KEY,
    Entry,
    binding_entry,
    exchange_entry,
    global_parameter_entry,
    nearest,
    parameter_entry,
    permission_entry,
    policy_value,
    queue_entry,
    topic_permission_entry,
    user_entry,
    vhost_entry,
)
from amqp10broker.metadata.plan import CLUSTER_NAME
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.users import PasswordRecord
from amqp10broker.metadata.vhost import RESERVED_PREFIX
from amqp10broker.routing.exchange import Binding

T = TypeVar("T")

_NAME: Final = attrgetter("name")
_BINDING: Final = attrgetter(
    "source", "destination.kind", "destination.name", "routing_key", "arguments_identity"
)


@dataclass(frozen=True, slots=True)
class ExportSection(Generic[T]):
    """One list of the document, whose entries are made later. `things`: the declared objects at the time of
    the request; they do not change. `entry`: makes the entry of one; None: it is left out.
    """

    things: Sequence[T]
    entry: Callable[[T], Entry | None]

    def made(self, begin: int = 0, end: int | None = None) -> Iterator[Entry]:
        """Entries of some of the things."""
        return filter(None, map(self.entry, self.things[begin:end]))


def sections(
    catalog: Catalog, conceal: Callable[[PasswordRecord | None], PasswordRecord | None]
) -> dict[str, Any]:
    """Return the document of `export`, with each list of possibly many entries as a `ExportSection`. Later
    changes have no effect on it, so its entries can be made in parts.
    """
    document: dict[str, Any] = {
        # RabbitMQ decides by it how to read old files.
        "rabbit_version": catalog.rules.version,
        "rabbitmq_version": catalog.rules.version,
        "product_name": "amqp10broker",
        "rabbitmq_definition_format": "cluster",
    }
    document["users"] = users = [
        user_entry(user, conceal(user.password), exported=True) for user in _sorted_by_name(catalog.users)
    ]
    if without := [user["name"] for user in users if ARGON2_KEY in user and not user["password_hash"]]:
        document["explanation"] = (
            f"RabbitMQ gives no password to {', '.join(without)}: it does not read argon2id. With "
            'password_hash_export = "sha256", passwords that are set from then on are exported for it, too'
        )
    vhosts = _sorted_by_name(catalog.vhosts.values())
    document["vhosts"] = [vhost_entry(vhost.facts) for vhost in vhosts]
    document["permissions"] = [
        permission_entry(user, vhost, each)
        for user, vhost, each in sorted(catalog.users.permissions(), key=lambda row: row[:2])
    ]
    document["topic_permissions"] = [
        topic_permission_entry(user, vhost, exchange, each)
        for user, vhost, exchange, each in sorted(catalog.users.topic_permissions(), key=lambda row: row[:3])
    ]
    document["parameters"] = parameter_entries(catalog)
    parameters = catalog.global_parameters
    if catalog.cluster is not None:
        parameters = {**parameters, CLUSTER_NAME: catalog.cluster.name}
    document["global_parameters"] = [
        global_parameter_entry(name, parameters[name]) for name in sorted(parameters)
    ]
    document["policies"] = [
        {"vhost": vhost.name, "name": policy.name} | policy_value(policy, nearest)
        for vhost in vhosts
        for policy in _sorted_by_name(vhost.policies)
        if not policy.operator
    ]
    # All of this is done at once, so it costs little for each of ten thousands.
    queues = [queue for vhost in vhosts for queue in _sorted_by_name(vhost) if _can_come_back(queue)]
    there: dict[str, set[str]] = {vhost.name: set() for vhost in vhosts}
    for queue in queues:
        there[queue.vhost].add(queue.name)
    exchanges = [
        (vhost.name, exchange)
        for vhost in vhosts
        for exchange in _sorted_by_name(vhost.topology)
        if exchange.name and not exchange.name.startswith(RESERVED_PREFIX)
    ]
    bindings: list[tuple[str, Binding]] = []
    for vhost in vhosts:
        # Each node may have heard of them in an order of its own.
        bindings += zip(repeat(vhost.name), sorted(vhost.topology.bindings(), key=_BINDING))

    def of_binding(found: tuple[str, Binding]) -> Entry | None:
        vhost, binding = found
        to = binding.destination
        if to.kind == "queue" and to.name not in there[vhost]:
            return None
        return binding_entry(vhost, binding, nearest)

    document["queues"] = ExportSection(queues, lambda queue: queue_entry(queue, nearest))
    document["exchanges"] = ExportSection(
        exchanges, lambda found: exchange_entry(found[0], found[1], nearest)
    )
    document["bindings"] = ExportSection(bindings, of_binding)
    return document | dict(sorted(catalog.unknown.items()))


def parameter_entries(catalog: Catalog) -> list[dict[str, Any]]:
    values = dict(catalog.parameters)
    for vhost in catalog.vhosts.values():
        if limits := vhost.facts.limits.as_dict():
            values[vhost.name, LIMITS_COMPONENT, "limits"] = limits
        for policy in vhost.policies:
            if policy.operator:
                values[vhost.name, OPERATOR_COMPONENT, policy.name] = policy_value(policy, nearest)
    return [
        parameter_entry(vhost, component, name, value)
        for (vhost, component, name), value in sorted(values.items(), key=lambda item: item[0])
    ]


def _can_come_back(queue: DeclaredQueue) -> bool:
    return not queue.exclusive and not queue.name.startswith(RESERVED_PREFIX)


N = TypeVar("N")


def _sorted_by_name(things: Iterable[N]) -> list[N]:
    return sorted(things, key=_NAME)
