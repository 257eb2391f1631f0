"""The codec of entries: each declared object as one JSON entry, with the names of definitions files.

Definitions files are read by the same functions through a `DefinitionEntry`, an object with its place, so
that errors begin like ``definitions: queues[3].durable is "yes"; must be true or false``. In a definitions
file an argument without a JSON type becomes the nearest text (`nearest`). In the data folder it is wrapped
without loss (`exact`, reversed by `unwrapped`).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

from amqp10broker.errors import ConfigError, InvalidArgument, RefusedError
from amqp10broker.metadata.plan import Key, Record, UserLimits, VhostFacts, VhostLimits
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import ClusterFacts, DeclaredQueue, Owner, QueueSpec, node_entry, read_node
from amqp10broker.metadata.users import (
    PasswordAlgorithm,
    PasswordRecord,
    Permission,
    ScramRecord,
    TopicPermission,
    User,
)
from amqp10broker.routing.exchange import Binding, Destination, Exchange, ExchangeSpec

Entry = dict[str, Any]
AsJson = Callable[[Any], Any]

SCRAM_KEY: Final = "scram_sha_256"
"""An addition to RabbitMQ's users, which RabbitMQ ignores."""
ARGON2_KEY: Final = "argon2id"
"""Likewise: argon2's hash, where ``password_hash`` is one for RabbitMQ."""
_MARK: Final = "!"
"""The prefix of the one key of an object that wraps a value without a JSON type."""


# --- entries --------------------------------------------------------------------------------------


def _fields(record: object, *names: str) -> Entry:
    return {name: getattr(record, name) for name in names}


def user_entry(user: User, password: PasswordRecord | None, *, exported: bool = False) -> Entry:
    """Return the entry of a user. `exported`: for a file, in which RabbitMQ refuses unknown kinds of hash."""
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
    parts = (base64.b64encode(part).decode() for part in (record.salt, record.stored_key, record.server_key))
    return ":".join([str(record.iterations), *parts])


def permission_entry(user: str, vhost: str, permission: Permission) -> Entry:
    return {"user": user, "vhost": vhost} | _fields(permission, "configure", "write", "read")


def topic_permission_entry(user: str, vhost: str, exchange: str, permission: TopicPermission) -> Entry:
    return {"user": user, "vhost": vhost, "exchange": exchange} | _fields(permission, "write", "read")


def vhost_entry(vhost: VhostFacts) -> Entry:
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
    """Return a value as JSON; one without a JSON type becomes the nearest text."""
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
    """Return a value as JSON, from which `unwrapped` makes an equivalent one (`routing.exchange.canonical`).
    Raises `InvalidArgument` for other types.
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
    """Reverse `exact`, without wire types. Raises `ValueError`, `KeyError` or `TypeError` for other input."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, inner),) = value.items()
            if key.startswith(_MARK):
                return _UNWRAP[key](inner)
        return {key: unwrapped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [unwrapped(each) for each in value]
    return value


T = TypeVar("T")

LIMITS_COMPONENT: Final = "vhost-limits"
OPERATOR_COMPONENT: Final = "operator_policy"
# The bytes of salt and digest, as RabbitMQ writes them.
_HASH_BYTES: Final = {
    PasswordAlgorithm.RABBIT_SHA256: 36,
    PasswordAlgorithm.RABBIT_SHA512: 68,
    PasswordAlgorithm.RABBIT_MD5: 20,
}
_REQUIRED: Final = object()


class DefinitionEntry:
    def __init__(self, place: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(place, f"is {shown(values)}", "must be an object: {...}")
        self.place = place
        self.values = values

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        return str(self._typed(key, str, "a string", default))

    def one_of(self, key: str, words: tuple[str, ...]) -> Any:
        text = self.text(key)
        if text not in words:
            raise self.fault(key, f"is {shown(text)}", f"must be {' or '.join(map(json.dumps, words))}")
        return text

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._typed(key, bool, "true or false", default))

    def integer(self, key: str, default: int) -> int:
        return int(self._typed(key, int, "an integer", default))

    def table(self, key: str) -> dict[str, Any]:
        """Return an object, or a list of pairs, which Erlang's JSON writes for one."""
        value = self.values.get(key)
        if value is None or value == []:
            return {}
        if isinstance(value, list) and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
        ):
            return dict(value)
        return dict(self._typed(key, dict, "an object: {...}", _REQUIRED))

    def value(self, key: str) -> Any:
        if key not in self.values:
            raise self.fault(key, "is missing", "must be given")
        return self.values[key]

    def tags(self) -> tuple[str, ...]:
        """Return a list of strings; also from one string with commas, as in old versions."""
        value = self.values.get("tags")
        if value is None:
            return ()
        if isinstance(value, str):
            return tuple(tag for each in value.split(",") if (tag := each.strip()))
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise self.fault("tags", f"is {shown(value)}", "must be a list of strings, or one string with commas")

    def limits(self) -> dict[str, Any]:
        value = self.values.get("limits")
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return {name: limit for each in value for name, limit in each.items()}
        return self.table("limits")

    def fault(self, key: str, problem: str, allowed: str) -> ConfigError:
        return ConfigError(f"{self.place}.{key}", problem, allowed)

    def asking(self, ask: Callable[[], T]) -> T:
        """Call a function; raises `ConfigError` with the place in the file if it refuses."""
        try:
            return ask()
        except RefusedError as error:
            raise ConfigError(
                self.place, f"is refused: {error.description}", "change the file, or what is there already"
            ) from error

    def _typed(self, key: str, kind: type, what: str, default: Any) -> Any:
        value = self.values.get(key, default)
        if value is _REQUIRED:
            raise self.fault(key, "is missing", f"must be {what}")
        # Types are compared exactly: true is an int in Python, but not a number for a reader.
        if type(value) is not kind:
            raise self.fault(key, f"is {shown(value)}", f"must be {what}")
        return value


def entries_of(document: Mapping[str, Any], section: str) -> list[DefinitionEntry]:
    """Return the objects of one section, or an empty list. Raises `ConfigError` for other contents."""
    values = document.get(section, [])
    if not isinstance(values, list):
        raise ConfigError(f"definitions: {section}", f"is {shown(values)}", "must be a list: [...]")
    return [DefinitionEntry(f"definitions: {section}[{at}]", each) for at, each in enumerate(values)]


def password_of(
    entry: DefinitionEntry, make_password: Callable[[str], PasswordRecord] | None
) -> PasswordRecord | None:
    """Return the password record of a user's entry; None if it has no password. Raises `ConfigError` if there
    is neither hash nor password, or the hash is invalid.
    """
    if ARGON2_KEY in entry.values and "password" not in entry.values:
        return _argon2_of(entry)
    if "password_hash" not in entry.values:
        if "password" not in entry.values:
            raise entry.fault(
                "password_hash", "is missing", 'must be given, or password; "" permits no login with one'
            )
        password = entry.text("password")
        if make_password is None or not password:
            raise entry.fault("password", "cannot be used", "must not be empty; or give password_hash")
        make = make_password
        return entry.asking(lambda: make(password))
    value = entry.text("password_hash")
    if not value:
        return None
    # A file without the field is of a version before 3.6, which hashed with MD5, or written by hand or by a
    # client; RabbitMQ assumes its present default then. The length shows which.
    size = len(_decoded(value) or b"")
    fitting = (algorithm for algorithm, its_size in _HASH_BYTES.items() if its_size == size)
    assumed = next(fitting, PasswordAlgorithm.RABBIT_SHA256)
    named = entry.text("hashing_algorithm", assumed.value)
    known = {each.value: each for each in PasswordAlgorithm if each is not PasswordAlgorithm.PLAIN}
    algorithm = known.get(named)
    if algorithm is None:
        raise entry.fault("hashing_algorithm", f"is {shown(named)}", f"must be one of {', '.join(known)}")
    if algorithm is PasswordAlgorithm.ARGON2ID:
        good = value.startswith("$argon2id$")
    else:
        good = len(_decoded(value) or b"") == _HASH_BYTES[algorithm]
    if not good:
        # The hash itself is not repeated, because the text is logged.
        raise entry.fault("password_hash", "cannot be read", f"must be as {algorithm.value} writes it")
    return PasswordRecord(algorithm, value, _scram_of(entry))


def _argon2_of(entry: DefinitionEntry) -> PasswordRecord:
    value, sha256 = entry.text(ARGON2_KEY), entry.text("password_hash", "")
    if not value.startswith("$argon2id$"):
        raise entry.fault(ARGON2_KEY, "cannot be read", "must be as argon2id writes it")
    algorithm = PasswordAlgorithm.RABBIT_SHA256
    if sha256 and len(_decoded(sha256) or b"") != _HASH_BYTES[algorithm]:
        raise entry.fault("password_hash", "cannot be read", f"must be as {algorithm.value} writes it")
    return PasswordRecord(PasswordAlgorithm.ARGON2ID, value, _scram_of(entry), sha256 or None)


def _scram_of(entry: DefinitionEntry) -> ScramRecord | None:
    if SCRAM_KEY not in entry.values:
        return None
    iterations, *encoded = entry.text(SCRAM_KEY).split(":")
    decoded = [_decoded(each) for each in encoded]
    if len(decoded) != 3 or not all(decoded) or not iterations.isdecimal():
        raise entry.fault(
            SCRAM_KEY, "cannot be read", "must be iterations:salt:stored-key:server-key in base64"
        )
    salt, stored_key, server_key = (each or b"" for each in decoded)
    return ScramRecord(salt, int(iterations), stored_key, server_key)


def _decoded(value: str) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def shown(value: object) -> str:
    """Return the JSON of a value, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


Conceal = Callable[[PasswordRecord | None], PasswordRecord | None]
"""Converts a password record into one that may leave the process."""

_FACTS: Final = frozenset({"description", "tags", "default_queue_type"})


def encoded(key: Key, record: Record, conceal: Conceal = lambda record: record) -> Any:
    """Return an entry's record as JSON. Raises `InvalidArgument` if an argument has no encoding."""
    return _CODEC[key[0]][0](key, record, conceal)


def decoded(key: Key, value: Any) -> Record:
    """The inverse of `encoded`. Raises `ConfigError`, `RefusedError`, `KeyError`, `TypeError`, `ValueError`
    or `AttributeError` for other input.
    """
    codec = _CODEC.get(key[0])
    if codec is None:
        raise ConfigError("kind", f"is {key[0]!r}", "this version has no entries of this kind")
    return codec[1](key, value)


# --- reading, from the data folder and from definitions files -------------------------------------


def read_user(entry: DefinitionEntry, password: PasswordRecord | None) -> User:
    """The password record is read before, because making one is slow."""
    name = entry.text("name")
    limits = UserLimits.read(entry.table("limits"), f"user '{name}'")
    return User(name, password, entry.tags(), limits)


def read_vhost(entry: DefinitionEntry) -> VhostFacts:
    """Read a virtual host, whose default type of queue may be unknown."""
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
