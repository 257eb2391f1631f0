"""Requests that declare and delete queues, and their plans.

Rules and error texts are RabbitMQ's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import (
    FeatureDenied,
    InvalidArgument,
    LimitExceeded,
    PreconditionFailed,
    ReservedName,
)
from amqp10broker.metadata import queue_arguments
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.effective import effective
from amqp10broker.metadata.plan import Key, Plan, Put, keys_of
from amqp10broker.metadata.queue import (
    QUEUE_NUMBER_MAX,
    DeclaredQueue,
    QueueHandle,
    QueueSpec,
    QueueType,
    deprecated_features,
    queue_type_of,
)
from amqp10broker.metadata.queue_settings import QUEUE_TYPE
from amqp10broker.metadata.vhost import RESERVED_PREFIX, VOLATILE, VirtualHost
from amqp10broker.routing.arguments import type_name
from amqp10broker.routing.declaration import stripped

NAME_BYTES_MAX: Final = 255
_IDS: Final = 2**64
"""So many ids of streams there are to choose from."""


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    name: str
    created: bool


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Declare a queue, or check that the existing one is equivalent. `name`: 1 to 255 bytes; line breaks are
    removed. `durable`: survives a restart; an exclusive queue never does, and only reports the flag.
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
        # A volatile queue is nobody's to declare: the rule of reserved names refuses it below.
        if existing is not None and existing.type != VOLATILE:
            self._assert_equivalent(existing, vhost, resource, relaxed=catalog.relaxed_quorum_checks)
            # A quorum queue's time without use goes on (RabbitMQ: declaring it again is no use of it).
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
            declaration_id=f"{vhost.choose(_IDS):016x}" if kind is QueueType.STREAM else "",
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
    """Delete a queue with its bindings; the answer is whether it existed.

    Attributes:
        farewell: it gets a `Delete`. False: the caller sends it, and gets the queue's answer.
    """

    vhost: str
    name: str
    farewell: bool = True

    def plan(self, catalog: Catalog) -> Plan[bool]:
        vhost = catalog.lookup_vhost(self.vhost)
        queue = vhost.find(self.name)
        if queue is None or queue.type == VOLATILE:
            return Plan(False)
        return Plan(True, forgets=keys_of_queues(vhost, [self.name]), farewell=self.farewell)


@dataclass(frozen=True, slots=True)
class QueueEnded:
    """A queue has ended: unused, deleted under a condition, failed, or without its purpose. In the last case
    the caller sends the `Delete` behind its earlier commands. `handle`: it, or its number in a cluster; one
    of that name that is there now may be another.
    """

    vhost: str
    name: str
    handle: QueueHandle | int
    farewell: bool = False

    def plan(self, catalog: Catalog) -> Plan[None]:
        vhost = catalog.find_vhost(self.vhost)
        queue = None if vhost is None else vhost.find(self.name)
        if vhost is None or queue is None:
            return Plan(None)
        it = queue.number if isinstance(self.handle, int) else queue.handle
        if it != self.handle:
            return Plan(None)
        return Plan(None, forgets=keys_of_queues(vhost, [self.name]), farewell=self.farewell)


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """A connection is gone, and so are the queues that it had for itself."""

    vhost: str
    owner: object

    def plan(self, catalog: Catalog) -> Plan[None]:
        vhost = catalog.find_vhost(self.vhost)
        if vhost is None:
            return Plan(None)
        return Plan(None, forgets=keys_of_queues(vhost, list(vhost.owned.get(self.owner, ()))))


# --- steps of the above ---------------------------------------------------------------------------


def keys_of_queues(vhost: VirtualHost, names: Sequence[str]) -> list[Key]:
    """The keys that go with queues: theirs, their bindings', and those of what auto-deletes itself."""
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
