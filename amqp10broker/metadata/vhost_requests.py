"""Requests of administrators, and their plans: all except those for queues, exchanges and bindings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import MASTER_LOCATOR
from amqp10broker.errors import FeatureDenied, InvalidArgument, NotFound, PreconditionFailed
from amqp10broker.metadata.catalog import Catalog, entries_in
from amqp10broker.metadata.plan import (
    CLUSTER,
    CLUSTER_NAME,
    NODE_NUMBERS,
    Key,
    Plan,
    Put,
    UserLimits,
    VhostFacts,
    VhostLimits,
)
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import DeclaredQueue, NodeFacts
from amqp10broker.metadata.queue_arguments import queue_type_of
from amqp10broker.metadata.queue_requests import keys_of_queues
from amqp10broker.metadata.users import (
    Permission,
    TopicPermission,
    User,
    Users,
    check_user_name,
)
from amqp10broker.queues.machine_version import why_not


@dataclass(frozen=True, slots=True)
class PutUser:
    """Put a user in place of the one of its name, which keeps its permissions. `new`: there is none."""

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
    """Change fields of a user. `changes`: by name; limits in the form of `UserLimits.read`; others stay."""

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
    name: str

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.users.lookup(self.name)
        return Plan(None, forgets=[*permissions_of(catalog.users, user=self.name), ("user", self.name)])


@dataclass(frozen=True, slots=True)
class SetPermission:
    """Set a user's permission in a virtual host; None: the user may not enter it any more."""

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
    user: str
    vhost: str
    exchange: str
    permission: TopicPermission

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        if catalog.users.granted_topics.get((self.user, self.vhost, self.exchange)) == self.permission:
            return Plan(None)
        key = ("topic_permission", self.user, self.vhost, self.exchange)
        return Plan(None, [Put(key, self.permission)])


@dataclass(frozen=True, slots=True)
class ClearTopicPermission:
    """Lift the restriction at one exchange; with `exchange` None at all of the virtual host."""

    user: str
    vhost: str
    exchange: str | None = None

    def plan(self, catalog: Catalog) -> Plan[None]:
        catalog.lookup_vhost(self.vhost)
        catalog.users.lookup(self.user)
        gone = [
            key
            for key in catalog.users.granted_topics
            if key[:2] == (self.user, self.vhost) and self.exchange in (None, key[2])
        ]
        return Plan(None, forgets=[("topic_permission", *key) for key in gone])


def permissions_of(users: Users, *, user: str | None = None, vhost: str | None = None) -> list[Key]:
    """Return the keys of all permissions of a user, or in a virtual host."""
    keys: list[Key] = [("topic_permission", *key) for key in users.granted_topics]
    keys += [("permission", *key) for key in users.granted]
    return [key for key in keys if user in (None, key[1]) and vhost in (None, key[2])]


def _put(users: Users, user: User) -> Plan[User]:
    return (
        Plan(user) if users.by_name.get(user.name) == user else Plan(user, [Put(("user", user.name), user)])
    )


@dataclass(frozen=True, slots=True)
class PutVhost:
    """Put a virtual host; its content stays. `new`: there must be none of this name."""

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
        there = catalog.vhosts.get(name)
        if there is not None and there.facts == facts:
            return Plan(None)
        return Plan(None, [Put(("vhost", name), facts)])


@dataclass(frozen=True, slots=True)
class ChangeVhostLimits:
    """Change limits of a virtual host, by name as `VhostLimits.read` takes them; the others stay."""

    vhost: str
    limits: Mapping[str, Any] = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[VhostLimits]:
        facts = catalog.lookup_vhost(self.vhost).facts
        limits = VhostLimits.read({**facts.limits.as_dict(), **self.limits}, f"vhost '{self.vhost}'")
        return Plan(limits, PutVhost(replace(facts, limits=limits)).plan(catalog).puts)


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Delete a virtual host with its content; the answer is the number of deleted queues. The caller closes
    the connections to it.
    """

    name: str

    def plan(self, catalog: Catalog) -> Plan[int]:
        vhost = catalog.lookup_vhost(self.name)
        within = [put.key for put in reversed(entries_in(vhost))]
        parameters = [("parameter", *key) for key in catalog.parameters if key[0] == self.name]
        permissions = permissions_of(catalog.users, vhost=self.name)
        return Plan(vhost.declared, forgets=[*within, *permissions, *parameters, ("vhost", self.name)])


@dataclass(frozen=True, slots=True)
class SetPolicy:
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
    vhost: str
    name: str
    operator: bool = False

    def plan(self, catalog: Catalog) -> Plan[Policy]:
        policies = catalog.lookup_vhost(self.vhost).policies
        policy = policies.lookup(self.name, operator=self.operator)
        return Plan(
            policy, forgets=[("operator_policy" if self.operator else "policy", self.vhost, self.name)]
        )


@dataclass(frozen=True, slots=True)
class SetParameter:
    """Store a value without a meaning to the broker. `key`: that of its entry: a ``parameter`` of a plugin, a
    ``global_parameter``, or an ``unknown`` part of a definitions file.
    """

    key: Key
    value: Any = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, [Put(self.key, self.value)])


@dataclass(frozen=True, slots=True)
class ClearParameter:
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


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Add a node; the answer has its number."""

    name: str
    host: str
    port: int
    version: str = ""
    machines: tuple[int, int] = (1, 1)

    def plan(self, catalog: Catalog) -> Plan[NodeFacts]:
        if not self.name:
            raise InvalidArgument("node ''", "the name of a node must not be empty")
        if self.name in catalog.nodes:
            raise PreconditionFailed(
                f"node '{self.name}'",
                f"node '{self.name}' is a member of the cluster already: give this one another name, or, "
                "if the other will not come back, forget it first: amqp10broker cluster forget-node "
                f"{self.name}",
            )
        _check_machines(catalog, self.name, self.machines)
        node = NodeFacts(
            self.name,
            catalog.highest_node + 1,
            self.host,
            self.port,
            version=self.version,
            machines=self.machines,
        )
        return Plan(node, [Put(NODE_NUMBERS, node.number), Put(("node", node.name), node)])


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """Record a node's start: its address, the end of maintenance, and the end of what belonged to earlier
    starts. When this is applied at that node, the node has all earlier decisions.
    """

    name: str
    incarnation: int
    host: str
    port: int
    version: str = ""
    machines: tuple[int, int] = (1, 1)

    def fits(self, catalog: Catalog) -> bool:
        return catalog.cluster is None or why_not(self.name, self.machines, catalog.cluster.version) is None

    def plan(self, catalog: Catalog) -> Plan[None]:
        node = _lookup(catalog, self.name)
        _check_machines(catalog, self.name, self.machines)
        now = NodeFacts(
            node.name,
            node.number,
            self.host,
            self.port,
            self.incarnation,
            version=self.version,
            machines=self.machines,
        )
        gone = _ended_with(node.number, self.incarnation - 1)
        return Plan(None, [Put(("node", self.name), now)], forgets=keys_of_queues_where(catalog, gone))


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node has stopped, or is cut off: what belonged to that start of it ends (K7, M8)."""

    number: int
    incarnation: int

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, forgets=keys_of_queues_where(catalog, _ended_with(self.number, self.incarnation)))


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """Remove a node, and queues that were on no other node, durable classic queues, too (J7). The groups
    remove its members.
    """

    name: str

    def plan(self, catalog: Catalog) -> Plan[NodeFacts]:
        node = _lookup(catalog, self.name)
        gone = keys_of_queues_where(catalog, lambda queue: queue.home == node.number)
        return Plan(node, forgets=[*gone, ("node", self.name)])


@dataclass(frozen=True, slots=True)
class SetDraining:
    name: str
    draining: bool

    def plan(self, catalog: Catalog) -> Plan[None]:
        node = _lookup(catalog, self.name)
        if node.draining == self.draining:
            return Plan(None)
        return Plan(None, [Put(("node", self.name), replace(node, draining=self.draining))])


@dataclass(frozen=True, slots=True)
class RaiseMachines:
    """Use the newest version of the replicated machines that every node supports; for stopped nodes their
    last start counts. It cannot be lowered.
    """

    def plan(self, catalog: Catalog) -> Plan[None]:
        cluster, version = catalog.cluster, newest_of_all(catalog)
        if cluster is None or version <= cluster.version:
            return Plan(None)
        return Plan(None, [Put(CLUSTER, replace(cluster, version=version))])


def newest_of_all(catalog: Catalog) -> int:
    """Return the version of the replicated machines that every node supports; 0: there is no cluster."""
    return min((node.machines[1] for node in catalog.nodes.values()), default=0)


@dataclass(frozen=True, slots=True)
class SetClusterName:
    """Rename the cluster; a node that is not in one stores the name as a global parameter."""

    name: str

    def plan(self, catalog: Catalog) -> Plan[None]:
        cluster = catalog.cluster
        if not self.name:
            raise InvalidArgument("cluster", "the name of a cluster must not be empty")
        if cluster is None:
            return Plan(None, [Put(("global_parameter", CLUSTER_NAME), self.name)])
        if cluster.name == self.name:
            return Plan(None)
        return Plan(None, [Put(CLUSTER, replace(cluster, name=self.name))])


@dataclass(frozen=True, slots=True)
class SetMembers:
    vhost: str
    name: str
    number: int
    members: tuple[int, ...]

    def plan(self, catalog: Catalog) -> Plan[bool]:
        vhost = catalog.vhosts.get(self.vhost)
        queue = None if vhost is None else vhost.find(self.name)
        if queue is None or queue.number != self.number:
            return Plan(False)
        if queue.members == self.members:
            return Plan(True)
        spec = replace(queue.spec, members=self.members)
        return Plan(True, [Put(("queue", self.vhost, self.name), spec, spec.lasting)])


def _lookup(catalog: Catalog, name: str) -> NodeFacts:
    node = catalog.nodes.get(name)
    if node is None:
        known = ", ".join(catalog.nodes) or "none, this node is in no cluster"
        raise NotFound(f"node '{name}'", f"no node '{name}' in the cluster; its nodes are: {known}")
    return node


def _check_machines(catalog: Catalog, name: str, machines: tuple[int, int]) -> None:
    # A node must support the version that the cluster uses.
    reason = None if catalog.cluster is None else why_not(name, machines, catalog.cluster.version)
    if reason is not None:
        raise PreconditionFailed(f"node '{name}'", reason)


def _ended_with(number: int, incarnation: int) -> Callable[[DeclaredQueue], bool]:
    return lambda queue: not queue.lasting and queue.home == number and queue.incarnation <= incarnation


def keys_of_queues_where(catalog: Catalog, gone: Callable[[DeclaredQueue], bool]) -> list[Key]:
    keys: list[Key] = []
    for vhost in catalog.vhosts.values():
        names = [queue.name for queue in vhost if gone(queue)]
        if names:
            keys += keys_of_queues(vhost, names)
    return keys
