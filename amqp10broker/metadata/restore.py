"""Restores a catalog from the entries of a data folder.

The entries were checked when they were declared. Limits, defaults and configuration may have changed since,
so nothing is refused: entries are applied, and no request is planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from amqp10broker.errors import ConfigError, RefusedError
from amqp10broker.metadata.catalog import VHOST, Catalog, entries
from amqp10broker.metadata.entry_codec import KINDS, Conceal, decoded, encoded
from amqp10broker.metadata.plan import NUMBERS, Key, Put, Record
from amqp10broker.metadata.queue import queue_type_of


def all_entries(catalog: Catalog, conceal: Conceal) -> list[tuple[Key, Any]]:
    """Everything that must outlive the process, as JSON can hold it."""
    reserved = Put(NUMBERS, max(catalog.highest_number, catalog.changes.highest_reserved))
    kept = [*(put for put in entries(catalog) if put.kept and put.key != NUMBERS), reserved]
    return [(put.key, encoded(put.key, put.record, conceal)) for put in kept]


def restore(catalog: Catalog, kept: Iterable[tuple[Key, Any]]) -> dict[str, int]:
    """Declare the content of the entries. `kept`: the entries of one data folder, in any order as far as
    kinds go. Returns how many there were of each kind, for the log. Raises `ConfigError` if an entry cannot
    be understood, or needs what is not installed; the broker must not start, because what depends on that
    entry would be lost.
    """
    by_kind: dict[str, list[tuple[Key, Any]]] = {kind: [] for kind in KINDS}
    for key, value in kept:
        if key[0] not in by_kind:
            raise _unreadable(key, "nobody here knows entries of this kind")
        by_kind[key[0]].append((key, value))
    if ("vhost", VHOST) not in {key for key, _ in by_kind["vhost"]}:
        # An administrator has deleted it.
        catalog.apply(forgets=[("vhost", VHOST)])
    counts: Counter[str] = Counter()
    for kind, found in by_kind.items():
        for key, value in found:
            try:
                record = decoded(key, value)
                _check_there(catalog, key, record)
                catalog.apply([Put(key, record)])
            except RefusedError as error:
                raise _unreadable(key, error.description) from error
            except ConfigError as error:
                raise _unreadable(key, str(error)) from error
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise _unreadable(key, f"{type(error).__name__}: {error}") from error
        if found:
            counts[kind] = len(found)
    catalog.changes.highest_reserved = catalog.highest_number
    return dict(counts)


def _check_there(catalog: Catalog, key: Key, record: Record) -> None:
    match key[0]:
        case "vhost":
            if record.default_queue_type is not None:
                queue_type_of(record.default_queue_type, f"vhost '{record.name}'")
        case "queue":
            catalog.lookup_vhost(key[1])
            queue_type_of(record.type, f"queue '{record.name}' in vhost '{record.vhost}'")
        case "permission" | "topic_permission":
            catalog.users.lookup(key[1])
            catalog.lookup_vhost(key[2])
        case "policy" | "operator_policy" | "exchange":
            catalog.lookup_vhost(key[1])
        case "binding":
            topology = catalog.lookup_vhost(key[1]).topology
            topology.lookup_exchange(record.source)
            destination = record.destination
            if destination.kind == "exchange":
                topology.lookup_exchange(destination.name)
            else:
                catalog.lookup_vhost(key[1]).lookup(destination.name)
        case _:
            return  # it needs nothing that could be missing


def _unreadable(key: Key, problem: str) -> ConfigError:
    return ConfigError(
        f"data folder: {key[0]} {' '.join(map(repr, key[1:]))}",
        f"cannot be restored: {problem}",
        "nothing was changed: start the version that wrote it, with all packages that it had",
    )
