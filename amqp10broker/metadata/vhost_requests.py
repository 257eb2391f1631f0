"""Virtual hosts, their limits and policies, parameters, users and permissions: requests and their plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import MASTER_LOCATOR
from amqp10broker.errors import FeatureDenied, InvalidArgument, NotFound, PreconditionFailed
from amqp10broker.metadata.catalog import Catalog, entries_in
from amqp10broker.metadata.plan import Key, Plan, Put, UserLimits, VhostFacts, VhostLimits
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import queue_type_of
from amqp10broker.metadata.users import (
    Permission,
    TopicPermission,
    User,
    Users,
    check_user_name,
)


@dataclass(frozen=True, slots=True)
class PutUser:
    """There shall be this user; all that was known of it before is replaced, but for its permissions. `new`:
    there must be none of this name.
    """

    user: User
    new: bool = False

    def plan(self, catalog: Catalog) -> Plan[User]:
        name = self.user.name
        check_user_name(name)
        if self.new and name in catalog.users:
            raise PreconditionFailed(f"user '{name}'", f"user '{name}' exists; change or delete it instead")
        return _put(catalog.users, self.user)


@dataclass(frozen=True, slots=True)
class ChangeUser:
    """Fields of a user shall be others. `changes`: by name. Limits are as `UserLimits.read` takes them: those
    that are not named stay, and so does what is open already.
    """

    name: str
    changes: Mapping[str, Any] = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[User]:
        user, changes = catalog.users.lookup(self.name), dict(self.changes)
        if "limits" in changes:
            limits = {**user.limits.as_dict(), **changes["limits"]}
            changes["limits"] = UserLimits.read(limits, f"user '{self.name}'")
        return _put(catalog.users, replace(user, **changes))


@dataclass(frozen=True, slots=True)
class DeleteUser:
    """A user shall be gone, with its permissions."""

    name: str

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.users.lookup(self.name)
        return Plan(None, forgets=[*permissions_of(catalog.users, user=self.name), ("user", self.name)])


@dataclass(frozen=True, slots=True)
class SetPermission:
    """A user shall have this permission in a virtual host; None: it shall not enter it any more."""

    user: str
    vhost: str
    permission: Permission | None

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        if catalog.users.granted.get((self.user, self.vhost)) == self.permission:
            return Plan(None)
        key = ("permission", self.user, self.vhost)
        if self.permission is None:
            return Plan(None, forgets=[key])
        return Plan(None, [Put(key, self.permission)])


@dataclass(frozen=True, slots=True)
class SetTopicPermission:
    """A user's routing keys at a topic exchange, which need not exist yet, shall be restricted."""

    user: str
    vhost: str
    exchange: str
    permission: TopicPermission

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        if catalog.users.topic_permission(self.user, self.vhost, self.exchange) == self.permission:
            return Plan(None)
        key = ("topic_permission", self.user, self.vhost, self.exchange)
        return Plan(None, [Put(key, self.permission)])


@dataclass(frozen=True, slots=True)
class ClearTopicPermission:
    """The restriction at one exchange, with `exchange` None at all of the virtual host, shall be lifted."""

    user: str
    vhost: str
    exchange: str | None = None

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        return Plan(
            None,
            forgets=[
                ("topic_permission", user, vhost, exchange)
                for user, vhost, exchange, _ in catalog.users.topic_permissions()
                if (user, vhost) == (self.user, self.vhost) and self.exchange in (None, exchange)
            ],
        )


# --- steps of the above ---------------------------------------------------------------------------


def permissions_of(users: Users, *, user: str | None = None, vhost: str | None = None) -> list[Key]:
    """The keys of all permissions of a user, or in a virtual host."""
    return [
        *(
            ("topic_permission", whose, where, exchange)
            for whose, where, exchange, _ in users.topic_permissions()
            if user in (None, whose) and vhost in (None, where)
        ),
        *(
            ("permission", whose, where)
            for whose, where, _ in users.permissions()
            if user in (None, whose) and vhost in (None, where)
        ),
    ]


def _put(users: Users, user: User) -> Plan[User]:
    return (
        Plan(user) if users.by_name.get(user.name) == user else Plan(user, [Put(("user", user.name), user)])
    )


@dataclass(frozen=True, slots=True)
class PutVhost:
    """There shall be this virtual host; what is in it already stays. `new`: there must be none of this name.
    No user has permissions in a new one.
    """

    facts: VhostFacts
    new: bool = False

    def plan(self, catalog: Catalog) -> Plan[None]:
        facts = self.facts
        name = facts.name
        if self.new and name in catalog.vhosts:
            raise PreconditionFailed(f"vhost '{name}'", f"vhost '{name}' exists")
        if not 1 <= len(name.encode(errors="surrogatepass")) <= 255:
            raise InvalidArgument(f"vhost '{name}'", f"vhost name {name[:40]!r} must have 1 to 255 bytes")
        if facts.default_queue_type is not None:
            queue_type_of(facts.default_queue_type, f"vhost '{name}'")
        there = catalog.find_vhost(name)
        if there is not None and there.facts == facts:
            return Plan(None)
        return Plan(None, [Put(("vhost", name), facts)])


@dataclass(frozen=True, slots=True)
class ChangeVhostLimits:
    """Some limits of a virtual host shall be others; what is there already stays. `limits`: by name, as
    `VhostLimits.read` takes them; those that are not named stay.
    """

    vhost: str
    limits: Mapping[str, Any] = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[VhostLimits]:
        facts = catalog.lookup_vhost(self.vhost).facts
        limits = VhostLimits.read({**facts.limits.as_dict(), **self.limits}, f"vhost '{self.vhost}'")
        return Plan(limits, PutVhost(replace(facts, limits=limits)).plan(catalog).puts)


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Delete a virtual host with its content; the answer is the number of deleted queues.

    The caller closes the connections to it.
    """

    name: str

    def plan(self, catalog: Catalog) -> Plan[int]:
        vhost = catalog.lookup_vhost(self.name)
        within = [put.key for put in reversed(entries_in(vhost))]
        parameters = [("parameter", *key) for key in catalog.parameters if key[0] == self.name]
        permissions = permissions_of(catalog.users, vhost=self.name)
        return Plan(vhost.declared, forgets=[*within, *permissions, *parameters, ("vhost", self.name)])


# --- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """There shall be this policy, instead of the one of the same name; it acts at once."""

    vhost: str
    policy: Policy

    def plan(self, catalog: Catalog) -> Plan[None]:
        policy = self.policy
        if "queue-master-locator" in policy.definition and MASTER_LOCATOR in catalog.rules.denied:
            raise FeatureDenied(f"policy '{policy.name}'", MASTER_LOCATOR)
        there = catalog.lookup_vhost(self.vhost).policies.find(policy.name, operator=policy.operator)
        if there == policy:
            return Plan(None)
        kind = "operator_policy" if policy.operator else "policy"
        return Plan(None, [Put((kind, self.vhost, policy.name), policy)])


@dataclass(frozen=True, slots=True)
class ClearPolicy:
    """A policy shall be gone, and what it set counts no more, at once."""

    vhost: str
    name: str
    operator: bool = False

    def plan(self, catalog: Catalog) -> Plan[Policy]:
        policies = catalog.lookup_vhost(self.vhost).policies
        policy = policies.lookup(self.name, operator=self.operator)
        return Plan(
            policy, forgets=[("operator_policy" if self.operator else "policy", self.vhost, self.name)]
        )


# --- what is kept as it is ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetParameter:
    """A value that means nothing to the broker shall be kept. `key`: of its entry: a ``parameter`` of a
    plugin, a ``global_parameter``, or an ``unknown`` part of a definitions file.
    """

    key: Key
    value: Any = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, [Put(self.key, self.value)])


@dataclass(frozen=True, slots=True)
class ClearParameter:
    """A parameter of a plugin, or a global one, shall be forgotten."""

    key: Key

    def plan(self, catalog: Catalog) -> Plan[None]:
        kind, *places, name = self.key
        if kind == "parameter":
            vhost, component = places
            there = (vhost, component, name) in catalog.parameters
            what, where = f"parameter '{name}' of component '{component}'", f" in vhost '{vhost}'"
        else:
            there = name in catalog.global_parameters
            what, where = f"global parameter '{name}'", ""
        if not there:
            raise NotFound(what, f"there is no {what}{where}")
        return Plan(None, forgets=[self.key])
