"""Definitions: all metadata as one JSON document in RabbitMQ's format.

A document is planned as one: each entry on a copy of the catalog with the plans of earlier entries. A refused
exchange, queue, binding or policy is left out and reported, because RabbitMQ exports bindings of internal
exchanges without the exchanges. A malformed document, or one with a refused user, permission or limit, is
rejected as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, RefusedError
from amqp10broker.metadata.catalog import Catalog, CatalogRequest, entries
from amqp10broker.metadata.entry_codec import (
    ARGON2_KEY,
    LIMITS_COMPONENT,
    OPERATOR_COMPONENT,
    DefinitionEntry,
    Entry,
    binding_entry,
    entries_of,
    exchange_entry,
    global_parameter_entry,
    nearest,
    parameter_entry,
    password_of,
    permission_entry,
    policy_value,
    queue_entry,
    read_binding,
    read_exchange,
    read_permission,
    read_policy,
    read_topic_permission,
    read_user,
    read_vhost,
    shown,
    topic_permission_entry,
    user_entry,
    vhost_entry,
)
from amqp10broker.metadata.plan import CLUSTER, CLUSTER_NAME, Key, Plan, Put, VhostLimits
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.queue_arguments import UnknownQueueType
from amqp10broker.metadata.queue_requests import Bind, DeclareExchange, DeclareQueue
from amqp10broker.metadata.users import PasswordRecord, Permission
from amqp10broker.metadata.vhost import RESERVED_PREFIX, VirtualHost
from amqp10broker.metadata.vhost_requests import (
    PutUser,
    PutVhost,
    SetClusterName,
    SetParameter,
    SetPermission,
    SetPolicy,
    SetTopicPermission,
)
from amqp10broker.routing.exchange import Binding

T = TypeVar("T")

_OPTIONAL: Final = frozenset({"exchanges", "policies", "queues", "bindings"})
"""Sections with entries that are left out when they are refused."""
_HEADER: Final = frozenset(
    {"rabbit_version", "rabbitmq_version", "product_name", "product_version", "explanation", "metadata"}
    | {"rabbitmq_definition_format", "original_cluster_name", "description", "default_queue_type", "limits"}
)


@dataclass(slots=True)
class ImportReport:
    """The result of an import. `unknown`: unknown parts of the document, stored for the next export."""

    loaded: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ImportDefinitions:
    """Import a document; `importing` makes this request. `passwords`: the records of its users' passwords, by
    the place of the entry. `user`: gets all permissions in the virtual hosts that the document adds, as if it
    had added them one by one.
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
    """Return the request to import a document. `make_password`: makes the record of a plain password; None
    refuses such a user. `vhost`: that of entries without one, as in a file of one virtual host. Raises
    `ConfigError` if it is not a document, or a password cannot be used.
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
    """Plans the entries of a document one by one. `puts`: by key; the last one of a key counts."""

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
        plan = request.plan(self._catalog)
        self._catalog.apply(plan.puts)
        self.puts.update((put.key, put) for put in plan.puts)
        return plan.answer

    def _user(self, entry: DefinitionEntry) -> None:
        password = self._passwords[entry.place]
        entry.asking(lambda: self._do(PutUser(read_user(entry, password))))

    def _virtual_host(self, entry: DefinitionEntry) -> None:
        facts = entry.asking(lambda: read_vhost(entry))
        there = self._catalog.vhosts.get(facts.name)
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
        original = self._original.vhosts.get(vhost)
        return original is not None and binding in original.topology.all_bindings

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
"""The sections, each of which needs only earlier ones."""
DUE_LATER: Final = ("queues", "bindings")
"""Sections that `DeclareDue` declares."""


def without_due(request: ImportDefinitions) -> ImportDefinitions:
    """Return the request for the part of a document that is declared at once."""
    document = {name: value for name, value in request.document.items() if name not in DUE_LATER}
    return replace(request, document=document)


def due_of(document: Mapping[str, Any], queues: Sequence[Mapping[str, Any]]) -> ImportDefinitions:
    """Return the request for the rest of a document, and further queues."""
    section = document.get("queues", [])
    if isinstance(section, list):  # other values are refused when they are read
        section = [*section, *queues]
    return importing({"queues": section, "bindings": document.get("bindings", [])})


@dataclass(frozen=True, slots=True)
class DeclareDue:
    """Declare the waiting part once, when the expected number of nodes has joined: a quorum queue gets at
    most as many members as the cluster has nodes.
    """

    what: ImportDefinitions

    def plan(self, catalog: Catalog) -> Plan[ImportReport]:
        cluster = catalog.cluster
        if cluster is None or not cluster.queues_due:
            return Plan(ImportReport())
        plan = self.what.plan(catalog)
        return Plan(plan.answer, [*plan.puts, Put(CLUSTER, replace(cluster, queues_due=False))])


_NAME: Final = attrgetter("name")
_BINDING: Final = attrgetter(
    "source", "destination.kind", "destination.name", "routing_key", "arguments_identity"
)


@dataclass(frozen=True, slots=True)
class ExportSection(Generic[T]):
    """One list of the document, with entries that are made later. `things`: the declared objects at the time
    of the request. `entry`: makes the entry of one; None: it is left out.
    """

    things: Sequence[T]
    entry: Callable[[T], Entry | None]

    def made(self, begin: int = 0, end: int | None = None) -> Iterator[Entry]:
        return filter(None, map(self.entry, self.things[begin:end]))


def sections(
    catalog: Catalog, conceal: Callable[[PasswordRecord | None], PasswordRecord | None]
) -> dict[str, Any]:
    """Return the document of an export. A long list is an `ExportSection`, which is made in parts."""
    document: dict[str, Any] = {
        # RabbitMQ decides by it how to read old files.
        "rabbit_version": catalog.rules.version,
        "rabbitmq_version": catalog.rules.version,
        "product_name": "amqp10broker",
        "rabbitmq_definition_format": "cluster",
    }
    document["users"] = users = [
        user_entry(user, conceal(user.password), exported=True) for user in _sorted_by_name(catalog.users)
    ]
    if without := [user["name"] for user in users if ARGON2_KEY in user and not user["password_hash"]]:
        document["explanation"] = (
            f"RabbitMQ gives no password to {', '.join(without)}: it does not read argon2id. With "
            'password_hash_export = "sha256", passwords that are set from then on are exported for it, too'
        )
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
    parameters = catalog.global_parameters
    if catalog.cluster is not None:
        parameters = {**parameters, CLUSTER_NAME: catalog.cluster.name}
    document["global_parameters"] = [
        global_parameter_entry(name, parameters[name]) for name in sorted(parameters)
    ]
    document["policies"] = [
        {"vhost": vhost.name, "name": policy.name} | policy_value(policy, nearest)
        for vhost in vhosts
        for policy in _sorted_by_name(vhost.policies)
        if not policy.operator
    ]
    queues = [queue for vhost in vhosts for queue in _sorted_by_name(vhost) if _can_come_back(queue)]
    there: dict[str, set[str]] = {vhost.name: set() for vhost in vhosts}
    for queue in queues:
        there[queue.vhost].add(queue.name)
    exchanges = [
        (vhost.name, exchange)
        for vhost in vhosts
        for exchange in _sorted_by_name(vhost.topology)
        if exchange.name and not exchange.name.startswith(RESERVED_PREFIX)
    ]
    bindings: list[tuple[str, Binding]] = []
    for vhost in vhosts:
        # Each node may have its own order.
        bindings += zip(repeat(vhost.name), sorted(vhost.topology.bindings(), key=_BINDING))

    def of_binding(found: tuple[str, Binding]) -> Entry | None:
        vhost, binding = found
        to = binding.destination
        if to.kind == "queue" and to.name not in there[vhost]:
            return None
        return binding_entry(vhost, binding, nearest)

    document["queues"] = ExportSection(queues, lambda queue: queue_entry(queue, nearest))
    document["exchanges"] = ExportSection(
        exchanges, lambda found: exchange_entry(found[0], found[1], nearest)
    )
    document["bindings"] = ExportSection(bindings, of_binding)
    return document | dict(sorted(catalog.unknown.items()))


def parameter_entries(catalog: Catalog) -> list[dict[str, Any]]:
    values = dict(catalog.parameters)
    for vhost in catalog.vhosts.values():
        if limits := vhost.facts.limits.as_dict():
            values[vhost.name, LIMITS_COMPONENT, "limits"] = limits
        for policy in vhost.policies:
            if policy.operator:
                values[vhost.name, OPERATOR_COMPONENT, policy.name] = policy_value(policy, nearest)
    return [
        parameter_entry(vhost, component, name, value)
        for (vhost, component, name), value in sorted(values.items(), key=lambda item: item[0])
    ]


def _can_come_back(queue: DeclaredQueue) -> bool:
    return not queue.exclusive and not queue.name.startswith(RESERVED_PREFIX)


N = TypeVar("N")


def _sorted_by_name(things: Iterable[N]) -> list[N]:
    return sorted(things, key=_NAME)
