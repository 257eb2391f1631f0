"""A recorder of the catalog's changes in memory, and what a catalog must be like after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from amqp10broker.errors import LimitExceeded, RefusedError
from amqp10broker.metadata.catalog import Catalog, CatalogRequest, Value, all_entries, entries, restore
from amqp10broker.metadata.plan import Key, Put
from amqp10broker.metadata.queue import QueueSpec, StartQueue
from tests.support.declaring import export
from tests.support.queue_handles import FakeHandle

T = TypeVar("T")
C = TypeVar("C", bound=Catalog)


class FakeHost:
    """Remembers what it was asked to run."""

    def __init__(self) -> None:
        self.started: list[QueueSpec] = []

    def start_queue(self, queue: QueueSpec) -> FakeHandle:
        self.started.append(queue)
        return FakeHandle()


class FakeCatalogLog:
    """Keeps entries as text, as a file would; refuses to put while it is `full`."""

    def __init__(self) -> None:
        self.by_key: dict[Key, str] = {}
        self.calls: list[tuple[str, list[Key]]] = []
        self.full = False

    def put(self, entries: Sequence[tuple[Key, Value]]) -> None:
        if self.full:
            raise LimitExceeded("data folder", "the disk is full")
        self.calls.append(("put", [key for key, _ in entries]))
        for key, value in entries:
            self.by_key[key] = json.dumps(value)

    def put_ahead(self, entries: Sequence[tuple[Key, Value]]) -> None:
        self.put(entries)

    def forget(self, keys: Sequence[Key]) -> None:
        self.calls.append(("forget", list(keys)))
        for key in keys:
            self.by_key.pop(key, None)

    def entries(self) -> list[tuple[Key, Value]]:
        return [(key, json.loads(text)) for key, text in self.by_key.items()]


class CheckedCatalog(Catalog):
    """A catalog whose plans are looked at; `log` has the puts and forgets that were applied, in order."""

    def __init__(self, start_queue: StartQueue) -> None:
        self.log: list[tuple[list[Put], list[Key]]] = []
        super().__init__(start_queue)

    def propose(self, request: CatalogRequest[T]) -> T:
        """Check that planning changes nothing before the proposal is made."""
        before = (state(self), self._clocks())
        try:
            request.plan(self)
        finally:
            assert (state(self), self._clocks()) == before, f"to plan {request} has changed the catalog"
        return super().propose(request)

    def apply(
        self,
        puts: Sequence[Put] = (),
        forgets: Sequence[Key] = (),
        *,
        send_delete: bool = True,
        used: Key | None = None,
    ) -> None:
        self.log.append((list(puts), list(forgets)))
        try:
            super().apply(puts, forgets, send_delete=send_delete, used=used)
        except RefusedError as error:
            raise AssertionError(f"{puts} {forgets} was planned, and is refused") from error

    def _clocks(self) -> object:
        """Return the counters that grow with each change and each letter to a queue."""
        letters = [len(queue.handle.commands) for queue in self]  # type: ignore[attr-defined]
        return self.users.version, {name: vhost.version for name, vhost in self.vhosts.items()}, letters


def state(catalog: Catalog) -> dict[str, Any]:
    """Return all declarations and their consequences."""
    found: dict[str, Any] = {"entries": {put.key: put for put in entries(catalog)}}
    for name, vhost in catalog.vhosts.items():
        found[f"bindings {name}"] = vhost.topology.bindings()
        found[f"settings {name}"] = {queue.name: queue.effective for queue in vhost}
        for exchange in vhost.topology:
            routes = [vhost.topology.route(exchange, (key,), lambda: {"n": 1}) for key in ("", "k", "q")]
            found[f"exchange {name} {exchange.name}"] = (
                exchange.alternate,
                exchange.exchange_destinations,
                routes,
            )
    return found


def logged_catalog(kind: Callable[[FakeHost], C] = Catalog) -> tuple[C, FakeCatalogLog]:
    """Return a new catalog and its log."""
    catalog, kept = kind(FakeHost().start_queue), FakeCatalogLog()
    kept.put(all_entries(catalog, lambda record: record))
    catalog.changes.recorder = kept
    return catalog, kept


def restarted(kept: FakeCatalogLog, kind: Callable[[FakeHost], C] = Catalog) -> C:
    """Start a catalog from the log, and let the same recorder get its changes."""
    catalog = kind(FakeHost().start_queue)
    restore(catalog, kept.entries())
    catalog.changes.recorder = kept
    return catalog


def durable_part(catalog: Catalog) -> dict[str, Any]:
    """Return the export without transient entries, and numbers and ids of the durable queues."""
    document = export(catalog)
    for section in ("queues", "exchanges"):
        document[section] = [entry for entry in document[section] if entry["durable"]]
    document["bindings"] = sorted(
        (entry for entry in document["bindings"] if _is_durable(catalog, entry)), key=repr
    )
    document["policies"] = sorted(document["policies"], key=repr)
    document["numbers"] = {
        (queue.vhost, queue.name): (queue.number, queue.declaration_id) for queue in catalog if queue.lasting
    }
    return document


def _is_durable(catalog: Catalog, binding: dict[str, Any]) -> bool:
    vhost = catalog.lookup_vhost(binding["vhost"])
    if not vhost.topology.lookup_exchange(binding["source"]).durable:
        return False
    name = binding["destination"]
    if binding["destination_type"] == "exchange":
        return vhost.topology.lookup_exchange(name).durable
    return vhost.lookup(name).lasting


def check_log(catalog: Catalog, kept: FakeCatalogLog) -> None:
    """The log of changes equals the catalog, and a restart restores it."""
    present = {key: json.dumps(value) for key, value in all_entries(catalog, lambda record: record)}
    assert {key: json.loads(text) for key, text in kept.by_key.items()} == {
        key: json.loads(text) for key, text in present.items()
    }
    again = restarted(kept)
    assert durable_part(again) == durable_part(catalog)
    assert again.highest_number >= catalog.highest_number
