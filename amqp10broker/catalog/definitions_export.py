"""Writing the catalog as one JSON document in RabbitMQ's shape; `definitions` reads it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.definition_entries import LIMITS_COMPONENT, OPERATOR_COMPONENT
from amqp10broker.catalog.entries import (
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
from amqp10broker.catalog.users import PasswordRecord
from amqp10broker.catalog.vhost import RESERVED_PREFIX, VirtualHost

RABBIT_VERSION: Final = "4.3.6"
"""Whose format and behaviour this is: RabbitMQ decides by it how to read old files, clients what to do."""


def export(
    catalog: Catalog,
    *,
    conceal: Callable[[PasswordRecord | None], PasswordRecord | None] = lambda record: record,
) -> dict[str, Any]:
    """The catalog as a document, in a stable order.

    Left out is what a file cannot bring back: exclusive queues, names that the broker gives, and what
    every virtual host has anyway.

    Args:
        catalog: what is written; unchanged.
        conceal: turns a password record into one that may leave the broker.
    """
    document: dict[str, Any] = {
        "rabbit_version": RABBIT_VERSION,
        "rabbitmq_version": RABBIT_VERSION,
        "product_name": "amqp10broker",
        "rabbitmq_definition_format": "cluster",
    }
    document["users"] = [user_entry(user, conceal(user.password)) for user in _sorted_by_name(catalog.users)]
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
    document["global_parameters"] = [
        global_parameter_entry(name, value) for name, value in sorted(catalog.global_parameters.items())
    ]
    document["policies"] = [
        {"vhost": vhost.name, "name": policy.name} | policy_value(policy, nearest)
        for vhost in vhosts
        for policy in vhost.policies
        if not policy.operator
    ]
    document["queues"] = [entry for vhost in vhosts for entry in _queue_entries(vhost)]
    document["exchanges"] = [entry for vhost in vhosts for entry in _exchange_entries(vhost)]
    document["bindings"] = [entry for vhost in vhosts for entry in _binding_entries(vhost)]
    return document | catalog.unknown


def parameter_entries(catalog: Catalog) -> list[dict[str, Any]]:
    """Runtime parameters of all virtual hosts, limits and operator policies among them."""
    values = dict(catalog.parameters)
    for vhost in catalog.vhosts.values():
        if limits := vhost.limits.as_dict():
            values[vhost.name, LIMITS_COMPONENT, "limits"] = limits
        for policy in vhost.policies:
            if policy.operator:
                values[vhost.name, OPERATOR_COMPONENT, policy.name] = policy_value(policy, nearest)
    return [
        parameter_entry(vhost, component, name, value)
        for (vhost, component, name), value in sorted(values.items(), key=lambda item: item[0])
    ]


def _can_come_back(vhost: VirtualHost, kind: str, name: str) -> bool:
    if kind == "exchange":
        return True
    queue = vhost.find(name)
    return queue is not None and not queue.exclusive and not name.startswith(RESERVED_PREFIX)


def _queue_entries(vhost: VirtualHost) -> list[Entry]:
    return [
        queue_entry(queue, nearest)
        for queue in _sorted_by_name(vhost)
        if _can_come_back(vhost, "queue", queue.name)
    ]


def _exchange_entries(vhost: VirtualHost) -> list[Entry]:
    return [
        exchange_entry(vhost.name, exchange, nearest)
        for exchange in _sorted_by_name(vhost.topology)
        if exchange.name and not exchange.name.startswith(RESERVED_PREFIX)
    ]


def _binding_entries(vhost: VirtualHost) -> list[Entry]:
    return [
        binding_entry(vhost.name, binding, nearest)
        for binding in vhost.topology.bindings()
        if _can_come_back(vhost, binding.destination.kind, binding.destination.name)
    ]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _sorted_by_name(things: Iterable[N]) -> list[N]:
    return sorted(things, key=lambda each: each.name)
