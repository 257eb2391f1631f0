"""Each declared object as one JSON entry, in the words of definitions files.

Definitions files and the data folder share one form; `entry_codec` reads it. They differ in one thing: in a
definitions file an argument without a JSON type becomes the nearest text (`nearest`); in the data folder it
is wrapped without loss (`exact`, undone by `unwrapped`).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata.plan import VhostFacts
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import DeclaredQueue, QueueSpec
from amqp10broker.metadata.users import (
    PasswordAlgorithm,
    PasswordRecord,
    Permission,
    ScramRecord,
    TopicPermission,
    User,
)
from amqp10broker.routing.exchange import Binding, Exchange, ExchangeSpec

Entry = dict[str, Any]
AsJson = Callable[[Any], Any]

SCRAM_KEY: Final = "scram_sha_256"
"""Our addition to RabbitMQ's users; RabbitMQ ignores it."""
ARGON2_KEY: Final = "argon2id"
"""Likewise: argon2's hash, where ``password_hash`` is one for RabbitMQ."""
_MARK: Final = "!"
"""Begins the one key of an object that stands for a value which JSON has no word for."""


# --- entries --------------------------------------------------------------------------------------


def _fields(record: object, *names: str) -> Entry:
    return {name: getattr(record, name) for name in names}


def user_entry(user: User, password: PasswordRecord | None, *, exported: bool = False) -> Entry:
    """A user. `exported`: for a file: RabbitMQ refuses one in which a hash is of a kind that it does not
    know.
    """
    entry = {
        "name": user.name,
        "password_hash": "" if password is None else password.value,
        "tags": list(user.tags),
        "limits": user.limits.as_dict(),
    }
    if password is not None:
        entry["hashing_algorithm"] = password.algorithm.value
        if password.rabbit_sha256 is not None or (
            exported and password.algorithm is PasswordAlgorithm.ARGON2ID
        ):
            entry |= {
                "password_hash": password.rabbit_sha256 or "",
                "hashing_algorithm": PasswordAlgorithm.RABBIT_SHA256.value,
                ARGON2_KEY: password.value,
            }
        if password.scram is not None:
            entry[SCRAM_KEY] = scram_text(password.scram)
    return entry


def scram_text(record: ScramRecord) -> str:
    """A SCRAM verifier as it stands in an entry: iterations, salt, stored key and server key."""
    parts = (base64.b64encode(part).decode() for part in (record.salt, record.stored_key, record.server_key))
    return ":".join([str(record.iterations), *parts])


def permission_entry(user: str, vhost: str, permission: Permission) -> Entry:
    return {"user": user, "vhost": vhost} | _fields(permission, "configure", "write", "read")


def topic_permission_entry(user: str, vhost: str, exchange: str, permission: TopicPermission) -> Entry:
    return {"user": user, "vhost": vhost, "exchange": exchange} | _fields(permission, "write", "read")


def vhost_entry(vhost: VhostFacts) -> Entry:
    """A virtual host without what is in it."""
    facts: Entry = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type is not None:
        facts["default_queue_type"] = vhost.default_queue_type
    metadata = {**vhost.metadata, **facts}
    return {"name": vhost.name, "limits": vhost.limits.as_dict(), "metadata": metadata} | facts


def parameter_entry(vhost: str, component: str, name: str, value: Any) -> Entry:
    return {"vhost": vhost, "component": component, "name": name, "value": value}


def global_parameter_entry(name: str, value: Any) -> Entry:
    return {"name": name, "value": value}


def policy_value(policy: Policy, as_json: AsJson) -> Entry:
    """A policy without its place."""
    return {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": as_json(policy.definition),
        "priority": policy.priority,
    }


def queue_entry(queue: QueueSpec | DeclaredQueue, as_json: AsJson) -> Entry:
    fields = _fields(queue, "name", "vhost", "type", "durable", "auto_delete")
    return fields | {"arguments": as_json(queue.arguments)}


def exchange_entry(vhost: str, exchange: Exchange | ExchangeSpec, as_json: AsJson) -> Entry:
    fields = _fields(exchange, "type", "durable", "auto_delete", "internal")
    return {"name": exchange.name, "vhost": vhost} | fields | {"arguments": as_json(exchange.arguments)}


def binding_entry(vhost: str, binding: Binding, as_json: AsJson) -> Entry:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.routing_key,
        # Most have none, and there may be a hundred thousand bindings.
        "arguments": as_json(binding.arguments) if binding.arguments else {},
    }


# --- values ---------------------------------------------------------------------------------------


def nearest(value: Any) -> Any:
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
            return {str(key): nearest(each) for key, each in value.items()}
        case list() | tuple():
            return [nearest(each) for each in value]
        case _:
            return str(value)


def exact(value: Any) -> Any:
    """A value as JSON, from which `unwrapped` makes one that counts as the same (`arguments.canonical`).
    Raises `InvalidArgument` if values of this type cannot be kept.
    """
    match value:
        case bool() | None:
            return value
        case str():
            return str(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else {_MARK + "float": str(float(value))}
        case bytes() | bytearray() | memoryview():
            return {_MARK + "bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {_MARK + "decimal": str(value)}
        case UUID():
            return {_MARK + "uuid": str(value)}
        case Mapping():
            table = {str(key): exact(each) for key, each in value.items()}
            # A client's own table may look like one of these.
            return {_MARK + "table": table} if any(key.startswith(_MARK) for key in table) else table
        case list() | tuple():
            return [exact(each) for each in value]
        case _:
            kind = type(value).__name__
            raise InvalidArgument(
                "arguments", f"an argument is of type {kind}, which cannot be kept on disk: use another type"
            )


_UNWRAP: Final[Mapping[str, Callable[[Any], Any]]] = {
    _MARK + "float": float,
    _MARK + "bytes": base64.b64decode,
    _MARK + "decimal": Decimal,
    _MARK + "uuid": UUID,
    _MARK + "table": lambda table: {key: unwrapped(each) for key, each in table.items()},
}


def unwrapped(value: Any) -> Any:
    """Undo `exact`, without wire types. Raises `ValueError`, `KeyError` or `TypeError` for other input."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, inner),) = value.items()
            if key.startswith(_MARK):
                return _UNWRAP[key](inner)
        return {key: unwrapped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [unwrapped(each) for each in value]
    return value
