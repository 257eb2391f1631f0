"""Definitions: everything declared, as one JSON document in RabbitMQ's shape.

`export` (in `definitions_export`) writes the catalog; `load` brings a document into it. Loading is done
twice: first on a copy that runs no queues, so that a file is taken over as a whole or, if anything in it is
refused, not at all. What is there already and agrees with the file stays as it is; loading a file again
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.definition_entries import (
    LIMITS_COMPONENT,
    OPERATOR_COMPONENT,
    Entry,
    entries_of,
    password_of,
    shown,
)
from amqp10broker.catalog.definitions_export import export
from amqp10broker.catalog.limits import UserLimits, VhostLimits
from amqp10broker.catalog.policies import Policy
from amqp10broker.catalog.queue import QueueHandle, QueueSpec
from amqp10broker.catalog.users import PasswordRecord, Permission, TopicPermission, User
from amqp10broker.catalog.vhost import RESERVED_PREFIX, UnknownQueueType, VirtualHost
from amqp10broker.errors import ConfigError, PreconditionFailed
from amqp10broker.queues.commands import Command
from amqp10broker.queues.figures import QueueFigures
from amqp10broker.queues.outlook import UP_TO_DATE, Outlook, Progress
from amqp10broker.routing.exchange import Binding, Destination

__all__ = ["Report", "export", "load"]

SECTIONS: Final = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "exchanges",
    "global_parameters",
    "policies",
    "parameters",
    "queues",
    "bindings",
)
"""In the order in which they are loaded: each needs only what came before."""
_HEADER: Final = frozenset(
    {"rabbit_version", "rabbitmq_version", "product_name", "product_version", "explanation", "metadata"}
    | {"rabbitmq_definition_format", "original_cluster_name", "description", "default_queue_type", "limits"}
)


@dataclass(slots=True)
class Report:
    """What became of a document.

    Attributes:
        loaded: number of entries by section.
        skipped: entries left out, each with the reason, for the log.
        unknown: names of parts of the document that nobody here knows; kept for the next export.
    """

    loaded: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def load(
    document: object,
    catalog: Catalog,
    *,
    make_password: Callable[[str], PasswordRecord] | None = None,
    vhost: str | None = None,
    skip_unsupported: bool = False,
) -> Report:
    """Bring a document into the catalog.

    Args:
        document: parsed JSON.
        catalog: what is changed, if the whole document is good.
        make_password: makes the record of a password that stands there in plain; without it, such a user
            is refused.
        vhost: the virtual host of entries that name none, as in a file of one virtual host.
        skip_unsupported: leave out queues and exchanges of kinds that this broker does not have, and
            their bindings, instead of refusing the document.

    Raises:
        ConfigError: the document is refused; names the place. Nothing was changed.
    """
    if not isinstance(document, Mapping):
        raise ConfigError("definitions:", f"is {shown(document)}", "must be an object: {...}")
    passwords: dict[str, PasswordRecord | None] = {}
    for entry in entries_of(document, "users"):
        # Once for both rounds: it is slow, and its salt is new each time.
        passwords[entry.place] = password_of(entry, make_password)
    rehearsal = _Loader(_copy(catalog), passwords, vhost, skip_unsupported)
    rehearsal.load(document)
    loader = _Loader(catalog, passwords, vhost, skip_unsupported)
    loader.load(document)
    return loader.report


class _NoQueue:
    """A queue of the rehearsal: nobody hears what is said to it."""

    def post(self, command: Command) -> None:
        return

    @property
    def ready(self) -> int:
        return 0

    @property
    def unsettled(self) -> int:
        return 0

    def outlook(self) -> Outlook:
        return Outlook(0, 0, {})

    def progress(self) -> Progress:
        return UP_TO_DATE

    def figures(self) -> QueueFigures:
        return QueueFigures()


class _NoHost:
    """Runs the queues of the rehearsal, which is to say: does not."""

    def start_queue(self, queue: QueueSpec) -> QueueHandle:
        return _NoQueue()


def _copy(catalog: Catalog) -> Catalog:
    copy = Catalog(
        _NoHost(),
        default_queue_type=catalog.default_queue_type,
        relaxed_quorum_checks=catalog.relaxed_quorum_checks,
    )
    for user in catalog.users:
        copy.users.put(user)
    for original in catalog.vhosts.values():
        vhost = copy.find_vhost(original.name) or copy.add_vhost(original.name)
        vhost.default_queue_type = original.default_queue_type
        vhost.limits = original.limits
        vhost.queues.update({queue.name: replace(queue, handle=_NoQueue()) for queue in original})
        for exchange in original.topology:
            if exchange.name and not exchange.name.startswith(RESERVED_PREFIX):
                vhost.topology.declare_exchange(
                    exchange.name,
                    exchange.type,
                    durable=exchange.durable,
                    auto_delete=exchange.auto_delete,
                    internal=exchange.internal,
                    arguments=exchange.arguments,
                )
    # Bindings are not copied: a binding is never refused because of others.
    return copy


class _Loader:
    """One round of loading a document into a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        passwords: Mapping[str, PasswordRecord | None],
        vhost: str | None,
        skip_unsupported: bool,
    ) -> None:
        self.report = Report()
        self._catalog = catalog
        self._passwords = passwords
        self._vhost = vhost
        self._skip_unsupported = skip_unsupported
        self._left_out: set[tuple[str, str, str]] = set()

    def load(self, document: Mapping[str, Any]) -> None:
        """Go through the sections in order."""
        take: dict[str, Callable[[Entry], None]] = {
            "users": self._user,
            "vhosts": self._virtual_host,
            "permissions": self._permission,
            "topic_permissions": self._topic_permission,
            "exchanges": self._exchange,
            "global_parameters": self._global_parameter,
            "policies": self._policy,
            "parameters": self._parameter,
            "queues": self._queue,
            "bindings": self._binding,
        }
        for section in SECTIONS:
            entries = entries_of(document, section)
            for entry in entries:
                take[section](entry)
            self.report.loaded[section] = len(entries)
        for name, value in document.items():
            if name not in SECTIONS and name not in _HEADER:
                self.report.unknown.append(name)
                self._catalog.keep_unknown(name, value)

    def _user(self, entry: Entry) -> None:
        name = entry.text("name")
        limits = entry.asking(lambda: UserLimits.read(entry.table("limits"), f"user '{name}'"))
        user = User(name, self._passwords[entry.place], frozenset(entry.tags()), limits)
        entry.asking(lambda: self._catalog.users.put(user))

    def _virtual_host(self, entry: Entry) -> None:
        name = entry.text("name")
        inner = Entry(f"{entry.place}.metadata", entry.table("metadata"))
        description = entry.text("description", inner.text("description", ""))
        tags = entry.tags() or inner.tags()
        kind: str | None = entry.text("default_queue_type", inner.text("default_queue_type", "undefined"))
        if kind == "undefined":
            kind = None
        limits = entry.asking(lambda: VhostLimits.read(entry.limits(), f"vhost '{name}'"))
        catalog = self._catalog
        vhost = catalog.find_vhost(name) or entry.asking(lambda: catalog.add_vhost(name))
        try:
            entry.asking(lambda: vhost.set_default_queue_type(kind))
        except ConfigError as error:
            if not (self._skip_unsupported and isinstance(error.__cause__, UnknownQueueType)):
                raise
            self._skip(entry, f"default queue type '{kind}' is not served; taking the broker's")
        known = ("description", "tags", "default_queue_type")
        metadata = {key: value for key, value in inner.values.items() if key not in known}
        entry.asking(lambda: vhost.describe(description, tags, metadata))
        if limits != VhostLimits():
            entry.asking(lambda: vhost.set_limits(limits))

    def _permission(self, entry: Entry) -> None:
        user, vhost = entry.text("user"), self._vhost_name(entry)
        permission = entry.asking(
            lambda: Permission(entry.text("configure"), entry.text("write"), entry.text("read"))
        )
        entry.asking(lambda: self._catalog.set_permission(user, vhost, permission))

    def _topic_permission(self, entry: Entry) -> None:
        user, vhost, exchange = entry.text("user"), self._vhost_name(entry), entry.text("exchange")
        permission = entry.asking(lambda: TopicPermission(entry.text("write"), entry.text("read")))
        entry.asking(lambda: self._catalog.set_topic_permission(user, vhost, exchange, permission))

    def _exchange(self, entry: Entry) -> None:
        vhost, name = self._virtual_host_of(entry), entry.text("name")
        kind = entry.text("type")
        durable, auto_delete = entry.flag("durable", True), entry.flag("auto_delete", False)
        internal, arguments = entry.flag("internal", False), entry.table("arguments")
        if not name or name.startswith(RESERVED_PREFIX):
            self._skip(entry, f"exchange '{name}' is always there")
            return
        try:
            entry.asking(
                lambda: vhost.topology.declare_exchange(
                    name,
                    kind,
                    durable=durable,
                    auto_delete=auto_delete,
                    internal=internal,
                    arguments=arguments,
                )
            )
        except ConfigError as error:
            # Exactly this class: the kind is unknown. Its subclasses say that an exchange differs.
            self._leave_out_or_raise(
                entry,
                ("exchange", vhost.name, name),
                error,
                unsupported=type(error.__cause__) is PreconditionFailed,
            )

    def _global_parameter(self, entry: Entry) -> None:
        name, value = entry.text("name"), entry.value("value")
        entry.asking(lambda: self._catalog.set_global_parameter(name, value))

    def _policy(self, entry: Entry) -> None:
        vhost = self._virtual_host_of(entry)
        policy = entry.asking(
            lambda: Policy(
                entry.text("name"),
                entry.text("pattern"),
                entry.table("definition"),
                entry.integer("priority", 0),
                entry.text("apply-to", "all"),
            )
        )
        entry.asking(lambda: vhost.policies.put(policy))

    def _parameter(self, entry: Entry) -> None:
        vhost = self._virtual_host_of(entry)
        component, name, value = entry.text("component"), entry.text("name"), entry.value("value")
        inner_place = f"{entry.place}.value"
        if component == LIMITS_COMPONENT:
            values = Entry(inner_place, {"limits": value}).limits()
            entry.asking(lambda: vhost.set_limits(VhostLimits.read(values, f"vhost '{vhost.name}'")))
        elif component == OPERATOR_COMPONENT:
            inner = Entry(inner_place, value)
            policy = entry.asking(
                lambda: Policy(
                    name,
                    inner.text("pattern"),
                    inner.table("definition"),
                    inner.integer("priority", 0),
                    inner.text("apply-to", "all"),
                    operator=True,
                )
            )
            entry.asking(lambda: vhost.policies.put(policy))
        else:
            entry.asking(lambda: self._catalog.set_parameter(vhost.name, component, name, value))

    def _queue(self, entry: Entry) -> None:
        vhost, name = self._virtual_host_of(entry), entry.text("name")
        durable, auto_delete = entry.flag("durable", True), entry.flag("auto_delete", False)
        arguments = entry.table("arguments")
        if "type" in entry.values:
            arguments.setdefault("x-queue-type", entry.text("type"))
        if name.startswith(RESERVED_PREFIX):
            self._skip(entry, f"queue '{name}' has a name that only the broker gives")
            self._left_out.add(("queue", vhost.name, name))
            return
        try:
            entry.asking(
                lambda: vhost.declare(name, durable=durable, auto_delete=auto_delete, arguments=arguments)
            )
        except ConfigError as error:
            unsupported = isinstance(error.__cause__, UnknownQueueType)
            self._leave_out_or_raise(entry, ("queue", vhost.name, name), error, unsupported=unsupported)

    def _binding(self, entry: Entry) -> None:
        vhost = self._virtual_host_of(entry)
        source, destination = entry.text("source"), entry.text("destination")
        kind = entry.text("destination_type")
        key, arguments = entry.text("routing_key", ""), entry.table("arguments")
        if kind not in ("queue", "exchange"):
            raise entry.fault("destination_type", f"is {shown(kind)}", 'must be "queue" or "exchange"')
        ends = (("exchange", vhost.name, source), (kind, vhost.name, destination))
        if any(end in self._left_out for end in ends):
            self._skip(entry, "an end of it was left out")
            return
        if not source:
            self._skip(entry, "every queue is bound to the default exchange")
            return
        binding = Binding(
            source, Destination("queue" if kind == "queue" else "exchange", destination), key, arguments
        )
        entry.asking(lambda: vhost.topology.bind(binding))

    def _vhost_name(self, entry: Entry) -> str:
        return entry.text("vhost") if self._vhost is None else entry.text("vhost", self._vhost)

    def _virtual_host_of(self, entry: Entry) -> VirtualHost:
        name = self._vhost_name(entry)
        return entry.asking(lambda: self._catalog.lookup_vhost(name))

    def _leave_out_or_raise(
        self, entry: Entry, what: tuple[str, str, str], error: ConfigError, *, unsupported: bool
    ) -> None:
        if not (unsupported and self._skip_unsupported):
            raise error
        self._left_out.add(what)
        self._skip(entry, str(error.__cause__))

    def _skip(self, entry: Entry, reason: str) -> None:
        self.report.skipped.append(f"{entry.place}: {reason}")
