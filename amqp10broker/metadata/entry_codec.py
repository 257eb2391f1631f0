"""The codec of entries: for the data folder, and partly for definitions files.

`encoded` and `decoded` are inverse for every kind of entry (see `plan`). Definitions files are read by the
same functions through a `DefinitionEntry`, which handles numbers, defaults and mistakes of users, and names
the place in its errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, Literal

from amqp10broker.errors import ConfigError
from amqp10broker.metadata.definition_entries import DefinitionEntry, password_of
from amqp10broker.metadata.entries import (
    binding_entry,
    exact,
    exchange_entry,
    global_parameter_entry,
    parameter_entry,
    permission_entry,
    policy_value,
    queue_entry,
    topic_permission_entry,
    unwrapped,
    user_entry,
    vhost_entry,
)
from amqp10broker.metadata.limits import UserLimits, VhostLimits
from amqp10broker.metadata.nodes import ClusterFacts, node_entry, read_node
from amqp10broker.metadata.plan import Key, Record, VhostFacts
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import Owner, QueueSpec
from amqp10broker.metadata.users import PasswordRecord, Permission, TopicPermission, User
from amqp10broker.routing.exchange import Binding, Destination, ExchangeSpec

Conceal = Callable[[PasswordRecord | None], PasswordRecord | None]
"""Turns a password record into one that may leave the process."""

_FACTS: Final = frozenset({"description", "tags", "default_queue_type"})


def encoded(key: Key, record: Record, conceal: Conceal = lambda record: record) -> Any:
    """An entry's record as JSON. Raises `InvalidArgument` if an argument is of a type that cannot be kept."""
    return _CODEC[key[0]][0](key, record, conceal)


def decoded(key: Key, value: Any) -> Record:
    """The record that `encoded` was given. Raises `ConfigError` or `RefusedError` or `KeyError` or
    `TypeError` or `ValueError` or `AttributeError` if it is no such record.
    """
    codec = _CODEC.get(key[0])
    if codec is None:
        raise ConfigError("kind", f"is {key[0]!r}", "nobody here knows entries of this kind")
    return codec[1](key, value)


# --- reading, from the data folder and from definitions files -------------------------------------


def read_user(entry: DefinitionEntry, password: PasswordRecord | None) -> User:
    """Return a user. The password record is read before, because making one is slow."""
    name = entry.text("name")
    limits = UserLimits.read(entry.table("limits"), f"user '{name}'")
    return User(name, password, entry.tags(), limits)


def read_vhost(entry: DefinitionEntry) -> VhostFacts:
    """A virtual host without what is in it. Its default type of queue may be none that is known here."""
    name = entry.text("name")
    inner = DefinitionEntry(f"{entry.place}.metadata", entry.table("metadata"))
    kind = entry.text("default_queue_type", inner.text("default_queue_type", "undefined"))
    return VhostFacts(
        name,
        description=entry.text("description", inner.text("description", "")),
        tags=entry.tags() or inner.tags(),
        metadata={key: value for key, value in inner.values.items() if key not in _FACTS},
        # Tools in Go write an empty text where there is none.
        default_queue_type=None if kind in ("", "undefined") else kind,
        limits=VhostLimits.read(entry.limits(), f"vhost '{name}'"),
    )


def read_permission(entry: DefinitionEntry) -> Permission:
    return Permission(entry.text("configure"), entry.text("write"), entry.text("read"))


def read_topic_permission(entry: DefinitionEntry) -> TopicPermission:
    return TopicPermission(entry.text("write"), entry.text("read"))


def read_policy(name: str, entry: DefinitionEntry, *, operator: bool) -> Policy:
    return Policy(
        name,
        entry.text("pattern"),
        entry.table("definition"),
        entry.integer("priority", 0),
        entry.text("apply-to", "all"),
        operator=operator,
    )


def read_exchange(entry: DefinitionEntry) -> ExchangeSpec:
    return ExchangeSpec(
        entry.text("name"),
        entry.text("type"),
        durable=entry.flag("durable", True),
        auto_delete=entry.flag("auto_delete", False),
        internal=entry.flag("internal", False),
        arguments=entry.table("arguments"),
    )


def read_binding(entry: DefinitionEntry) -> Binding:
    source, destination = entry.text("source"), entry.text("destination")
    kind: Literal["queue", "exchange"] = entry.one_of("destination_type", ("queue", "exchange"))
    key = entry.text("routing_key", "")
    return Binding(source, Destination(kind, destination), key, entry.table("arguments"))


# --- one kind each --------------------------------------------------------------------------------


def _place(key: Key, value: Any, wrapped: str = "") -> DefinitionEntry:
    if wrapped:
        value = {**value, wrapped: unwrapped(value[wrapped])}
    return DefinitionEntry(" ".join(key), value)


def _queue(key: Key, queue: QueueSpec, conceal: Conceal) -> Any:
    entry = queue_entry(queue, exact) | {"number": queue.number}
    if queue.declaration_id:
        entry["declaration_id"] = queue.declaration_id
    if queue.owner is not None:
        assert isinstance(queue.owner, Owner), queue.owner
        entry["owner"] = list(queue.owner)
    if queue.home:
        entry["home"] = queue.home
        entry["incarnation"] = queue.incarnation
    if queue.members:
        entry["members"] = list(queue.members)
    if queue.rules:
        entry["rules"] = dict(queue.rules)
    return entry


def _read_queue(key: Key, value: Mapping[str, Any]) -> QueueSpec:
    return QueueSpec(
        key[1],
        key[2],
        value["type"],
        value["durable"],
        value["auto_delete"],
        unwrapped(value["arguments"]),
        number=value["number"],
        declaration_id=value.get("declaration_id", ""),
        owner=Owner(*value["owner"]) if "owner" in value else None,
        home=value.get("home", 0),
        members=tuple(value.get("members", ())),
        incarnation=value.get("incarnation", 0),
        rules=value.get("rules", {}),
    )


def _read_user(key: Key, value: Any) -> User:
    entry = _place(key, value)
    return read_user(entry, password_of(entry, None))


def _policy(key: Key, policy: Policy, conceal: Conceal) -> Any:
    return {"vhost": key[1], "name": key[2], **policy_value(policy, exact)}


def _read_policy(key: Key, value: Any) -> Policy:
    return read_policy(key[2], _place(key, value, "definition"), operator=key[0] == "operator_policy")


_Encode = Callable[[Key, Any, Conceal], Any]
_Decode = Callable[[Key, Any], Record]

_HIGHEST: Final[tuple[_Encode, _Decode]] = (
    lambda key, number, conceal: {"highest": number},
    lambda key, value: value["highest"],
)
_VALUE: Final[tuple[_Encode, _Decode]] = (
    lambda key, value, conceal: global_parameter_entry(key[1], value),
    lambda key, entry: entry["value"],
)
_CODEC: Final[Mapping[str, tuple[_Encode, _Decode]]] = {
    "node": (
        lambda key, node, conceal: node_entry(node),
        lambda key, value: read_node(key[1], value),
    ),
    "node_numbers": _HIGHEST,
    "cluster": (
        lambda key, cluster, conceal: asdict(cluster),
        lambda key, value: ClusterFacts(value["id"], value["name"], value["version"], value["queues_due"]),
    ),
    "vhost": (
        lambda key, facts, conceal: vhost_entry(facts),
        lambda key, value: read_vhost(_place(key, value)),
    ),
    "user": (
        lambda key, user, conceal: user_entry(user, conceal(user.password)),
        _read_user,
    ),
    "permission": (
        lambda key, permission, conceal: permission_entry(key[1], key[2], permission),
        lambda key, value: read_permission(_place(key, value)),
    ),
    "topic_permission": (
        lambda key, permission, conceal: topic_permission_entry(key[1], key[2], key[3], permission),
        lambda key, value: read_topic_permission(_place(key, value)),
    ),
    "parameter": (
        lambda key, value, conceal: parameter_entry(key[1], key[2], key[3], value),
        lambda key, entry: entry["value"],
    ),
    "global_parameter": _VALUE,
    "unknown": _VALUE,
    "policy": (_policy, _read_policy),
    "operator_policy": (_policy, _read_policy),
    "exchange": (
        lambda key, exchange, conceal: exchange_entry(key[1], exchange, exact),
        lambda key, value: read_exchange(_place(key, value, "arguments")),
    ),
    "queue": (_queue, _read_queue),
    "binding": (
        lambda key, binding, conceal: binding_entry(key[1], binding, exact),
        lambda key, value: read_binding(_place(key, value, "arguments")),
    ),
    "queue_numbers": _HIGHEST,
}

KINDS: Final = tuple(_CODEC)
"""In an order in which each needs only what came before."""
