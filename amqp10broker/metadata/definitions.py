"""Definitions: all metadata as one JSON document in RabbitMQ's shape.

`definitions_export` writes the catalog; `ImportDefinitions` imports a document. A document is
planned as one: each entry on a copy of the catalog without queues, to which the plans of earlier entries were
applied. A refused exchange, queue, binding or policy is left out and reported, since RabbitMQ exports
bindings of internal exchanges without the exchanges. A malformed document, or one with a refused user,
permission or limit, is rejected as a whole. Equal existing entries stay, so a second import changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, RefusedError
from amqp10broker.metadata.catalog import Catalog, CatalogRequest, entries
from amqp10broker.metadata.definition_entries import (
    LIMITS_COMPONENT,
    OPERATOR_COMPONENT,
    DefinitionEntry,
    entries_of,
    password_of,
    shown,
)
from amqp10broker.metadata.entry_codec import (
    read_binding,
    read_exchange,
    read_permission,
    read_policy,
    read_topic_permission,
    read_user,
    read_vhost,
)
from amqp10broker.metadata.exchange_requests import Bind, DeclareExchange
from amqp10broker.metadata.limits import VhostLimits
from amqp10broker.metadata.node_requests import SetClusterName
from amqp10broker.metadata.plan import CLUSTER, CLUSTER_NAME, Key, Plan, Put
from amqp10broker.metadata.queue import UnknownQueueType
from amqp10broker.metadata.queue_requests import DeclareQueue
from amqp10broker.metadata.user_requests import PutUser, SetPermission, SetTopicPermission
from amqp10broker.metadata.users import PasswordRecord, Permission
from amqp10broker.metadata.vhost import RESERVED_PREFIX, VirtualHost
from amqp10broker.metadata.vhost_requests import (
    PutVhost,
    SetParameter,
    SetPolicy,
)
from amqp10broker.routing.exchange import Binding

T = TypeVar("T")

_OPTIONAL: Final = frozenset({"exchanges", "policies", "queues", "bindings"})
"""Sections of which an entry that is refused is left out."""
_HEADER: Final = frozenset(
    {"rabbit_version", "rabbitmq_version", "product_name", "product_version", "explanation", "metadata"}
    | {"rabbitmq_definition_format", "original_cluster_name", "description", "default_queue_type", "limits"}
)


@dataclass(slots=True)
class ImportReport:
    """The result of an import. `unknown`: names of unknown parts of the document; stored for the
    next export.
    """

    loaded: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ImportDefinitions:
    """Import a document; `importing` creates this request. `passwords`: the records of its users' passwords,
    by the place of the entry. `user`: may do all in the virtual hosts that the document adds, as if it had
    added them one by one; None, or one that is not in the catalog: no user may.
    """

    document: Mapping[str, Any] = field(hash=False, repr=False)
    passwords: Mapping[str, PasswordRecord | None] = field(hash=False, repr=False)
    vhost: str | None = None
    user: str | None = None

    def plan(self, catalog: Catalog) -> Plan[ImportReport]:
        loader = _Loader(catalog, self.passwords, self.vhost, self.user)
        loader.load(self.document)
        return Plan(loader.report, list(loader.puts.values()))


def importing(
    document: object,
    *,
    make_password: Callable[[str], PasswordRecord] | None = None,
    vhost: str | None = None,
    user: str | None = None,
) -> ImportDefinitions:
    """The request to bring a document into the catalog.

    Args:
        make_password: makes the record of a password that stands there in plain; without it, such a user
            is refused.
        vhost: the virtual host of entries that name none, as in a file of one virtual host.

    Raises:
        ConfigError: it is no document, or a password cannot be used; names the place.
    """
    if not isinstance(document, Mapping):
        raise ConfigError("definitions:", f"is {shown(document)}", "must be an object: {...}")
    if document and not document.keys() & {*SECTIONS, *_HEADER}:
        raise ConfigError(
            "definitions:",
            f"there are none, but {', '.join(map(str, document))}"[:200],
            "give a file of 'amqp10broker definitions export' or 'rabbitmqctl export_definitions'",
        )
    passwords = {entry.place: password_of(entry, make_password) for entry in entries_of(document, "users")}
    return ImportDefinitions(document, passwords, vhost, user)


def _copy(catalog: Catalog) -> Catalog:
    copy = Catalog(
        default_queue_type=catalog.default_queue_type,
        relaxed_quorum_checks=catalog.relaxed_quorum_checks,
        rules=catalog.rules,
        choose=catalog.choose,
    )
    copy.placement = catalog.placement
    if not catalog.vhosts.keys() >= copy.vhosts.keys():
        copy.apply(forgets=[("vhost", name) for name in copy.vhosts])
    copy.apply(entries(catalog, bindings=False))
    for vhost in copy.vhosts.values():
        vhost.choose = catalog.vhosts[vhost.name].choose
    return copy


@dataclass(eq=False)
class _Loader:
    """Plans the entries of a document one by one. `puts`: what the plans put, by key: of what two of them
    put, the last counts.
    """

    _original: Catalog
    _passwords: Mapping[str, PasswordRecord | None]
    _vhost: str | None
    _importer: str | None
    report: ImportReport = field(default_factory=ImportReport, init=False)
    puts: dict[Key, Put] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._catalog = _copy(self._original)

    def load(self, document: Mapping[str, Any]) -> None:
        for section, take in SECTIONS.items():
            entries = entries_of(document, section)
            self.report.loaded[section] = len(entries)
            for entry in entries:
                try:
                    take(self, entry)
                except ConfigError as error:
                    refusal = error.__cause__
                    if section not in _OPTIONAL or not isinstance(refusal, RefusedError):
                        raise
                    self.report.loaded[section] -= 1
                    self._skip(entry, refusal.description)
        for name, value in document.items():
            if name not in SECTIONS and name not in _HEADER:
                self.report.unknown.append(name)
                self._do(SetParameter(("unknown", name), value))

    def _do(self, request: CatalogRequest[T]) -> T:
        # Plan a request, on what those before have made of the copy.
        plan = request.plan(self._catalog)
        self._catalog.apply(plan.puts)
        self.puts.update((put.key, put) for put in plan.puts)
        return plan.answer

    def _user(self, entry: DefinitionEntry) -> None:
        password = self._passwords[entry.place]
        entry.asking(lambda: self._do(PutUser(read_user(entry, password))))

    def _virtual_host(self, entry: DefinitionEntry) -> None:
        facts = entry.asking(lambda: read_vhost(entry))
        there = self._catalog.find_vhost(facts.name)
        if there is not None and facts.limits == VhostLimits():
            facts = replace(facts, limits=there.facts.limits)
        try:
            entry.asking(lambda: self._do(PutVhost(facts)))
        except ConfigError as error:
            if not isinstance(error.__cause__, UnknownQueueType):
                raise
            kind = facts.default_queue_type
            self._skip(entry, f"default queue type '{kind}' is not served; taking the broker's")
            before = None if there is None else there.facts.default_queue_type
            self._do(PutVhost(replace(facts, default_queue_type=before)))
        if there is None and self._importer is not None and self._importer in self._catalog.users:
            self._do(SetPermission(self._importer, facts.name, Permission()))

    def _permission(self, entry: DefinitionEntry) -> None:
        user, vhost = entry.text("user"), self._vhost_name(entry)
        entry.asking(lambda: self._do(SetPermission(user, vhost, read_permission(entry))))

    def _topic_permission(self, entry: DefinitionEntry) -> None:
        user, vhost, exchange = entry.text("user"), self._vhost_name(entry), entry.text("exchange")
        entry.asking(
            lambda: self._do(SetTopicPermission(user, vhost, exchange, read_topic_permission(entry)))
        )

    def _exchange(self, entry: DefinitionEntry) -> None:
        vhost, exchange = self._virtual_host_of(entry).name, read_exchange(entry)
        name = exchange.name
        if not name or name.startswith(RESERVED_PREFIX):
            self._skip(entry, f"exchange '{name}' is always there")
            return
        entry.asking(lambda: self._do(DeclareExchange(vhost, exchange)))

    def _global_parameter(self, entry: DefinitionEntry) -> None:
        name, value = entry.text("name"), entry.value("value")
        named = name == CLUSTER_NAME and isinstance(value, str) and value
        self._do(SetClusterName(value) if named else SetParameter(("global_parameter", name), value))

    def _policy(self, entry: DefinitionEntry) -> None:
        vhost = self._virtual_host_of(entry).name
        policy = entry.asking(lambda: read_policy(entry.text("name"), entry, operator=False))
        self._do(SetPolicy(vhost, policy))

    def _parameter(self, entry: DefinitionEntry) -> None:
        vhost = self._virtual_host_of(entry).name
        component, name, value = entry.text("component"), entry.text("name"), entry.value("value")
        inner_place = f"{entry.place}.value"
        if component == LIMITS_COMPONENT:
            values = DefinitionEntry(inner_place, {"limits": value}).limits()
            limits = entry.asking(lambda: VhostLimits.read(values, f"vhost '{vhost}'"))
            self._do(PutVhost(replace(self._catalog.vhosts[vhost].facts, limits=limits)))
        elif component == OPERATOR_COMPONENT:
            inner = DefinitionEntry(inner_place, value)
            policy = entry.asking(lambda: read_policy(name, inner, operator=True))
            self._do(SetPolicy(vhost, policy))
        else:
            self._do(SetParameter(("parameter", vhost, component, name), value))

    def _queue(self, entry: DefinitionEntry) -> None:
        vhost, name = self._virtual_host_of(entry).name, entry.text("name")
        durable, auto_delete = entry.flag("durable", True), entry.flag("auto_delete", False)
        arguments = entry.table("arguments")
        if "type" in entry.values:
            arguments.setdefault("x-queue-type", entry.text("type"))
        if name.startswith(RESERVED_PREFIX):
            self._skip(entry, f"queue '{name}' has a name that only the broker gives")
            return
        request = DeclareQueue(vhost, name, durable, auto_delete=auto_delete, arguments=arguments)
        entry.asking(lambda: self._do(request))

    def _binding(self, entry: DefinitionEntry) -> None:
        vhost = self._virtual_host_of(entry).name
        binding = read_binding(entry)
        if not binding.source:
            self._skip(entry, "every queue is bound to the default exchange")
        elif not self._is_bound(vhost, binding):
            entry.asking(lambda: self._do(Bind(vhost, binding)))

    def _is_bound(self, vhost: str, binding: Binding) -> bool:
        original = self._original.find_vhost(vhost)
        return original is not None and original.topology.has_binding(binding)

    def _vhost_name(self, entry: DefinitionEntry) -> str:
        return entry.text("vhost") if self._vhost is None else entry.text("vhost", self._vhost)

    def _virtual_host_of(self, entry: DefinitionEntry) -> VirtualHost:
        name = self._vhost_name(entry)
        return entry.asking(lambda: self._catalog.lookup_vhost(name))

    def _skip(self, entry: DefinitionEntry, reason: str) -> None:
        values = entry.values
        name = values.get("name") or f"{values.get('source')} to {values.get('destination')}"
        self.report.skipped.append(f"{entry.place} ({name}): {reason}")


SECTIONS: Final[Mapping[str, Callable[[_Loader, DefinitionEntry], None]]] = {
    "users": _Loader._user,
    "vhosts": _Loader._virtual_host,
    "permissions": _Loader._permission,
    "topic_permissions": _Loader._topic_permission,
    "exchanges": _Loader._exchange,
    "global_parameters": _Loader._global_parameter,
    "policies": _Loader._policy,
    "parameters": _Loader._parameter,
    "queues": _Loader._queue,
    "bindings": _Loader._binding,
}
"""In the order in which they are loaded: each needs only what came before."""
DUE_LATER: Final = ("queues", "bindings")
"""Sections of a definitions file that wait."""


def without_due(request: ImportDefinitions) -> ImportDefinitions:
    """Return the part of a document that is declared at once."""
    document = {name: value for name, value in request.document.items() if name not in DUE_LATER}
    return replace(request, document=document)


def due_of(document: Mapping[str, Any], queues: Sequence[Mapping[str, Any]]) -> ImportDefinitions:
    """The rest of it, and further queues."""
    section = document.get("queues", [])
    if isinstance(section, list):  # it is refused where it is read if it is none
        section = [*section, *queues]
    return importing({"queues": section, "bindings": document.get("bindings", [])})


@dataclass(frozen=True, slots=True)
class DeclareDue:
    """Declare the waiting part, once, when the expected number of nodes has joined: a quorum queue gets at
    most as many members as the cluster has nodes at its declaration.
    """

    what: ImportDefinitions

    def plan(self, catalog: Catalog) -> Plan[ImportReport]:
        cluster = catalog.cluster
        if cluster is None or not cluster.queues_due:
            return Plan(ImportReport())
        plan = self.what.plan(catalog)
        return Plan(plan.answer, [*plan.puts, Put(CLUSTER, replace(cluster, queues_due=False))])
