"""Writing the catalog as one JSON document in RabbitMQ's shape; `definitions` reads it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.definition_entries import (
    LIMITS_COMPONENT,
    OPERATOR_COMPONENT,
    SCRAM_KEY,
    scram_text,
)
from amqp10broker.catalog.policies import Policy
from amqp10broker.catalog.users import PasswordRecord, User
from amqp10broker.catalog.vhost import RESERVED_PREFIX, VirtualHost

RABBIT_VERSION: Final = "4.3.5"
"""Whose format and behaviour this is; RabbitMQ decides by it how to read old files."""


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
    document["users"] = [_user_entry(user, conceal(user.password)) for user in _sorted_by_name(catalog.users)]
    vhosts = _sorted_by_name(catalog.vhosts.values())
    document["vhosts"] = [_vhost_entry(vhost) for vhost in vhosts]
    document["permissions"] = [
        {"user": user, "vhost": vhost, "configure": each.configure, "write": each.write, "read": each.read}
        for user, vhost, each in sorted(catalog.users.permissions(), key=lambda row: row[:2])
    ]
    document["topic_permissions"] = [
        {"user": user, "vhost": vhost, "exchange": exchange, "write": each.write, "read": each.read}
        for user, vhost, exchange, each in sorted(catalog.users.topic_permissions(), key=lambda row: row[:3])
    ]
    document["parameters"] = _parameter_entries(catalog)
    document["global_parameters"] = [
        {"name": name, "value": value} for name, value in sorted(catalog.global_parameters.items())
    ]
    document["policies"] = [
        {"vhost": vhost.name, "name": policy.name} | _policy_value(policy)
        for vhost in vhosts
        for policy in vhost.policies
        if not policy.operator
    ]
    document["queues"] = [entry for vhost in vhosts for entry in _queue_entries(vhost)]
    document["exchanges"] = [entry for vhost in vhosts for entry in _exchange_entries(vhost)]
    document["bindings"] = [entry for vhost in vhosts for entry in _binding_entries(vhost)]
    return document | catalog.unknown


def _user_entry(user: User, password: PasswordRecord | None) -> dict[str, Any]:
    entry = {
        "name": user.name,
        "password_hash": "" if password is None else password.value,
        "tags": sorted(user.tags),
        "limits": user.limits.as_dict(),
    }
    if password is not None:
        entry["hashing_algorithm"] = password.algorithm.value
        if password.scram is not None:
            entry[SCRAM_KEY] = scram_text(password.scram)
    return entry


def _vhost_entry(vhost: VirtualHost) -> dict[str, Any]:
    facts = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type is not None:
        facts["default_queue_type"] = vhost.default_queue_type
    return {"name": vhost.name, "limits": vhost.limits.as_dict(), "metadata": vhost.metadata | facts} | facts


def _policy_value(policy: Policy) -> dict[str, Any]:
    return {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": _json(policy.definition),
        "priority": policy.priority,
    }


def _parameter_entries(catalog: Catalog) -> list[dict[str, Any]]:
    values = dict(catalog.parameters)
    for vhost in catalog.vhosts.values():
        if limits := vhost.limits.as_dict():
            values[vhost.name, LIMITS_COMPONENT, "limits"] = limits
        for policy in vhost.policies:
            if policy.operator:
                values[vhost.name, OPERATOR_COMPONENT, policy.name] = _policy_value(policy)
    return [
        {"vhost": vhost, "component": component, "name": name, "value": value}
        for (vhost, component, name), value in sorted(values.items(), key=lambda item: item[0])
    ]


def _can_come_back(vhost: VirtualHost, kind: str, name: str) -> bool:
    if kind == "exchange":
        return True
    queue = vhost.find(name)
    return queue is not None and not queue.exclusive and not name.startswith(RESERVED_PREFIX)


def _queue_entries(vhost: VirtualHost) -> list[dict[str, Any]]:
    return [
        {
            "name": queue.name,
            "vhost": vhost.name,
            "type": queue.type,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "arguments": _json(queue.arguments),
        }
        for queue in _sorted_by_name(vhost)
        if _can_come_back(vhost, "queue", queue.name)
    ]


def _exchange_entries(vhost: VirtualHost) -> list[dict[str, Any]]:
    return [
        {
            "name": exchange.name,
            "vhost": vhost.name,
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": _json(exchange.arguments),
        }
        for exchange in _sorted_by_name(vhost.topology)
        if exchange.name and not exchange.name.startswith(RESERVED_PREFIX)
    ]


def _binding_entries(vhost: VirtualHost) -> list[dict[str, Any]]:
    return [
        {
            "source": binding.source,
            "vhost": vhost.name,
            "destination": binding.destination.name,
            "destination_type": binding.destination.kind,
            "routing_key": binding.routing_key,
            "arguments": _json(binding.arguments),
        }
        for binding in vhost.topology.bindings()
        if _can_come_back(vhost, binding.destination.kind, binding.destination.name)
    ]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _sorted_by_name(things: Iterable[N]) -> list[N]:
    return sorted(things, key=lambda each: each.name)


def _json(value: Any) -> Any:
    """A value as JSON can hold it; what it cannot hold becomes the nearest text."""
    match value:
        case bool() | None | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case bytes():
            return value.decode(errors="replace")
        case Mapping():
            return {str(key): _json(each) for key, each in value.items()}
        case list() | tuple():
            return [_json(each) for each in value]
        case _:
            return str(value)
