"""Short ways to have a catalog changed: each proposes one request, as front ends do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from amqp10broker.metadata import definitions, queue_requests, vhost_requests
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definitions import ExportSection, ImportReport, sections
from amqp10broker.metadata.plan import UserLimits, VhostFacts, VhostLimits
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.users import PasswordRecord, Permission, TopicPermission, User, Users
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.routing.exchange import Binding, Exchange, ExchangeSpec
from tests.support.topologies import NoHost

Where = VirtualHost | str


def _vhost(catalog: Catalog, where: Where) -> VirtualHost:
    return catalog.lookup_vhost(where) if isinstance(where, str) else where


# --- virtual hosts --------------------------------------------------------------------------------


def add_vhost(
    catalog: Catalog,
    name: str,
    *,
    description: str = "",
    tags: Iterable[str] = (),
    default_queue_type: str | None = None,
    limits: VhostLimits | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> VirtualHost:
    facts = VhostFacts(
        name, description, tuple(tags), metadata or {}, default_queue_type, limits or VhostLimits()
    )
    catalog.propose(vhost_requests.PutVhost(facts, new=True))
    return catalog.lookup_vhost(name)


def change_vhost(catalog: Catalog, where: Where, **facts: Any) -> None:
    catalog.propose(vhost_requests.PutVhost(replace(_vhost(catalog, where).facts, **facts)))


def delete_vhost(catalog: Catalog, name: str) -> VirtualHost:
    vhost = catalog.lookup_vhost(name)
    catalog.propose(vhost_requests.DeleteVhost(name))
    return vhost


def put_policy(catalog: Catalog, where: Where, policy: Policy) -> None:
    catalog.propose(vhost_requests.SetPolicy(_vhost(catalog, where).named(), policy))


def delete_policy(catalog: Catalog, where: Where, name: str, *, operator: bool = False) -> Policy:
    return catalog.propose(vhost_requests.ClearPolicy(_vhost(catalog, where).named(), name, operator))


def load(document: object, catalog: Catalog, **options: Any) -> ImportReport:
    return catalog.propose(definitions.importing(document, **options))


# --- queues, exchanges, bindings ------------------------------------------------------------------


def declare(
    catalog: Catalog,
    where: Where,
    name: str,
    *,
    durable: bool = True,
    exclusive_owner: object | None = None,
    auto_delete: bool = False,
    arguments: Mapping[str, Any] | None = None,
    internal: bool = False,
) -> tuple[DeclaredQueue, bool]:
    """Declare a queue; return it, and whether it is new."""
    vhost = _vhost(catalog, where)
    request = queue_requests.DeclareQueue(
        vhost.named(), name, durable, exclusive_owner, auto_delete, arguments or {}, internal
    )
    declared = catalog.propose(request)
    return vhost.lookup(declared.name), declared.created


def remove(catalog: Catalog, where: Where, name: str) -> DeclaredQueue | None:
    """Delete a queue; return it, or None if it was absent."""
    vhost = _vhost(catalog, where)
    queue = vhost.find(name)
    catalog.propose(queue_requests.DeleteQueue(vhost.name, name))
    return queue


def declare_exchange(
    catalog: Catalog, where: Where, name: str, type: str = "direct", **settings: Any
) -> tuple[Exchange, bool]:
    """Declare an exchange; return it, and whether it is new."""
    vhost = _vhost(catalog, where)
    created = catalog.propose(
        queue_requests.DeclareExchange(vhost.named(), ExchangeSpec(name, type, **settings))
    )
    return vhost.topology.lookup_exchange(name), created


def delete_exchange(catalog: Catalog, where: Where, name: str, *, if_unused: bool = False) -> bool:
    return catalog.propose(queue_requests.DeleteExchange(_vhost(catalog, where).named(), name, if_unused))


def bind(catalog: Catalog, where: Where, binding: Binding) -> bool:
    return catalog.propose(queue_requests.Bind(_vhost(catalog, where).named(), binding))


def unbind(catalog: Catalog, where: Where, binding: Binding) -> bool:
    return catalog.propose(queue_requests.Unbind(_vhost(catalog, where).named(), binding))


# --- users ----------------------------------------------------------------------------------------


def _catalog(accounts: Catalog | Users, vhost: str | None = None) -> Catalog:
    """Return the catalog; users that are tested alone get one that has the virtual host."""
    if isinstance(accounts, Catalog):
        return accounts
    catalog = Catalog(NoHost().start_queue)
    catalog.users = accounts
    if vhost not in (None, "/"):
        catalog.propose(vhost_requests.PutVhost(VhostFacts(vhost), new=True))
    return catalog


def add_user(
    accounts: Catalog | Users,
    name: str,
    password: PasswordRecord | None,
    *,
    tags: Iterable[str] = (),
    limits: UserLimits | None = None,
) -> User:
    user = User(name, password, tuple(tags), limits or UserLimits())
    return _catalog(accounts).propose(vhost_requests.PutUser(user, new=True))


def put_user(accounts: Catalog | Users, user: User) -> User:
    return _catalog(accounts).propose(vhost_requests.PutUser(user))


def set_password(accounts: Catalog | Users, name: str, password: PasswordRecord | None) -> User:
    return _catalog(accounts).propose(vhost_requests.ChangeUser(name, {"password": password}))


def set_tags(accounts: Catalog | Users, name: str, tags: Iterable[str]) -> User:
    return _catalog(accounts).propose(vhost_requests.ChangeUser(name, {"tags": tuple(tags)}))


def set_user_limits(accounts: Catalog | Users, name: str, limits: UserLimits) -> User:
    catalog = _catalog(accounts)
    return catalog.propose(vhost_requests.PutUser(replace(catalog.users.lookup(name), limits=limits)))


def delete_user(accounts: Catalog | Users, name: str) -> None:
    _catalog(accounts).propose(vhost_requests.DeleteUser(name))


def set_permission(accounts: Catalog | Users, user: str, vhost: str, permission: Permission) -> None:
    _catalog(accounts, vhost).propose(vhost_requests.SetPermission(user, vhost, permission))


def clear_permission(accounts: Catalog | Users, user: str, vhost: str) -> None:
    """Remove a user's permissions in a virtual host."""
    _catalog(accounts, vhost).propose(vhost_requests.SetPermission(user, vhost, None))


def set_topic_permission(
    accounts: Catalog | Users, user: str, vhost: str, exchange: str, permission: TopicPermission
) -> None:
    """Restrict a user's routing keys at a topic exchange."""
    _catalog(accounts, vhost).propose(vhost_requests.SetTopicPermission(user, vhost, exchange, permission))


def clear_topic_permission(
    accounts: Catalog | Users, user: str, vhost: str, exchange: str | None = None
) -> None:
    _catalog(accounts, vhost).propose(vhost_requests.ClearTopicPermission(user, vhost, exchange))


def export(catalog: Catalog) -> dict[str, Any]:
    return {
        name: list(section.made()) if isinstance(section, ExportSection) else section
        for name, section in sections(catalog, lambda record: record).items()
    }
