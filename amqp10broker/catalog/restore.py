"""The catalog as entries, and a catalog again from entries: what a broker is started with.

`changes` tells of entries one by one while the broker runs; here are all of them at once. What is restored
was checked when it was declared. Limits, defaults and the configuration may be others since, so nothing is
refused because of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from amqp10broker.catalog.catalog import VHOST, Catalog
from amqp10broker.catalog.changes import NUMBERS, Changes, Conceal, EntryList, Key, Value, entries_of_vhost
from amqp10broker.catalog.definition_entries import Entry, password_of
from amqp10broker.catalog.entries import unwrapped
from amqp10broker.catalog.limits import UserLimits, VhostLimits
from amqp10broker.catalog.policies import Policy
from amqp10broker.catalog.queue import QueueSpec, QueueType
from amqp10broker.catalog.users import Permission, TopicPermission, User
from amqp10broker.errors import ConfigError, RefusedError
from amqp10broker.routing.exchange import Binding, Destination

_FACTS: Final = frozenset({"description", "tags", "default_queue_type"})
"""What a virtual host's metadata repeat."""


def all_entries(catalog: Catalog, conceal: Conceal) -> list[tuple[Key, Value]]:
    """Everything that must outlive the process.

    Args:
        catalog: unchanged.
        conceal: turns a password record into one that may be written.
    """
    recorder = EntryList()
    changes = Changes()
    changes.tell(recorder, conceal)
    users = catalog.users
    for user in users:
        changes.put_user(user)
    for name, vhost, permission in users.permissions():
        changes.put_permission(name, vhost, permission)
    for name, vhost, exchange, topic_permission in users.topic_permissions():
        changes.put_topic_permission(name, vhost, exchange, topic_permission)
    for key, value in catalog.parameters.items():
        changes.put_parameter(*key, value)
    for name, value in catalog.global_parameters.items():
        changes.put_global_parameter(name, value)
    for name, value in catalog.unknown.items():
        changes.put_unknown(name, value)
    for each in catalog.vhosts.values():
        recorder.put(entries_of_vhost(each))
    return [*recorder.entries, (NUMBERS, {"highest": catalog.changes.highest_reserved})]


def restore(catalog: Catalog, entries: Iterable[tuple[Key, Value]]) -> dict[str, int]:
    """Declare what entries say.

    Args:
        catalog: new; nobody is told of its changes so far.
        entries: those of one data folder, in any order as far as kinds go.

    Returns:
        How many there were of each kind, for the log.

    Raises:
        ConfigError: an entry cannot be understood, or needs what is not installed; the broker must not start,
            because what depends on that entry would be lost.
    """
    by_kind: dict[str, list[tuple[Key, Value]]] = {kind: [] for kind in _READERS}
    for key, value in entries:
        if key[0] not in by_kind:
            raise _unreadable(key, "nobody here knows entries of this kind")
        by_kind[key[0]].append((key, value))
    if ("vhost", VHOST) not in {key for key, _ in by_kind["vhost"]}:
        # An administrator has deleted it.
        catalog.delete_vhost(VHOST)
    counts: Counter[str] = Counter()
    for kind, read in _READERS.items():
        for key, value in by_kind[kind]:
            try:
                read(catalog, value)
            except RefusedError as error:
                raise _unreadable(key, error.description) from error
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise _unreadable(key, f"{type(error).__name__}: {error}") from error
        if by_kind[kind]:
            counts[kind] = len(by_kind[kind])
    return dict(counts)


def _unreadable(key: Key, problem: str) -> ConfigError:
    return ConfigError(
        f"data folder: {key[0]} {' '.join(map(repr, key[1:]))}",
        f"cannot be restored: {problem}",
        "nothing was changed: start the version that wrote it, with all packages that it had",
    )


# --- one kind each --------------------------------------------------------------------------------


def _vhost(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    vhost = catalog.find_vhost(entry["name"]) or catalog.add_vhost(entry["name"])
    vhost.set_default_queue_type(entry.get("default_queue_type"))
    metadata = {key: value for key, value in entry["metadata"].items() if key not in _FACTS}
    vhost.describe(entry["description"], entry["tags"], metadata)
    vhost.set_limits(VhostLimits.read(entry["limits"], f"vhost '{vhost.name}'"))


def _user(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    name = entry["name"]
    password = password_of(Entry(f"data folder: user '{name}'", entry), None)
    limits = UserLimits.read(entry["limits"], f"user '{name}'")
    catalog.users.put(User(name, password, frozenset(entry["tags"]), limits))


def _permission(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    permission = Permission(entry["configure"], entry["write"], entry["read"])
    catalog.set_permission(entry["user"], entry["vhost"], permission)


def _topic_permission(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    permission = TopicPermission(entry["write"], entry["read"])
    catalog.set_topic_permission(entry["user"], entry["vhost"], entry["exchange"], permission)


def _parameter(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    catalog.set_parameter(entry["vhost"], entry["component"], entry["name"], entry["value"])


def _global_parameter(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    catalog.set_global_parameter(entry["name"], entry["value"])


def _unknown(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    catalog.keep_unknown(entry["name"], entry["value"])


def _policy(catalog: Catalog, entry: Mapping[str, Any], *, operator: bool = False) -> None:
    policy = Policy(
        entry["name"],
        entry["pattern"],
        unwrapped(entry["definition"]),
        entry["priority"],
        entry["apply-to"],
        operator=operator,
    )
    catalog.lookup_vhost(entry["vhost"]).policies.put(policy)


def _operator_policy(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    _policy(catalog, entry, operator=True)


def _exchange(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    catalog.lookup_vhost(entry["vhost"]).topology.declare_exchange(
        entry["name"],
        entry["type"],
        durable=entry["durable"],
        auto_delete=entry["auto_delete"],
        internal=entry["internal"],
        arguments=unwrapped(entry["arguments"]),
    )


def _queue(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    spec = QueueSpec(
        entry["vhost"],
        entry["name"],
        entry["type"],
        entry["durable"],
        False,
        entry["auto_delete"],
        unwrapped(entry["arguments"]),
        number=entry["number"],
        declaration_id=_declaration_id(entry),
    )
    catalog.lookup_vhost(spec.vhost).restore(spec)
    catalog.changes.at_least(spec.number)


def _declaration_id(entry: Mapping[str, Any]) -> str:
    """Of a stream; its number where a version wrote the entry that made no ids."""
    if entry["type"] != QueueType.STREAM:
        return ""
    return str(entry.get("declaration_id") or entry["number"])


def _binding(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    destination = Destination(entry["destination_type"], entry["destination"])
    binding = Binding(entry["source"], destination, entry["routing_key"], unwrapped(entry["arguments"]))
    catalog.lookup_vhost(entry["vhost"]).topology.bind(binding)


def _numbers(catalog: Catalog, entry: Mapping[str, Any]) -> None:
    catalog.changes.at_least(entry["highest"])


_READERS: Final[Mapping[str, Callable[[Catalog, Any], None]]] = {
    "vhost": _vhost,
    "user": _user,
    "permission": _permission,
    "topic_permission": _topic_permission,
    "parameter": _parameter,
    "global_parameter": _global_parameter,
    "unknown": _unknown,
    "policy": _policy,
    "operator_policy": _operator_policy,
    "exchange": _exchange,
    "queue": _queue,
    "binding": _binding,
    NUMBERS[0]: _numbers,
}
"""In the order in which they are restored: each needs only what came before."""
