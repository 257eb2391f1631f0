"""Requests that change the nodes of a cluster and the places of queues, and their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument, NotFound, PreconditionFailed
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.plan import CLUSTER, CLUSTER_NAME, NODE_NUMBERS, Key, Plan, Put
from amqp10broker.metadata.queue import DeclaredQueue, NodeFacts
from amqp10broker.metadata.queue_requests import keys_of_queues
from amqp10broker.queues.machine_version import why_not


@dataclass(frozen=True, slots=True)
class JoinNode:
    """There shall be another node; the answer is what is known of it, its number first of all."""

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
    starts.

    When this is applied at that node, the node has all earlier decisions.
    """

    name: str
    incarnation: int
    host: str
    port: int
    version: str = ""
    machines: tuple[int, int] = (1, 1)

    def fits(self, catalog: Catalog) -> bool:
        """Whether it carries out what the cluster uses."""
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
    """A node is gone, or cut off: what was to end with that start of it has ended (K7, M8)."""

    number: int
    incarnation: int

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, forgets=keys_of_queues_where(catalog, _ended_with(self.number, self.incarnation)))


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """A node is a member no more, and what was at no other node is gone: durable classic queues, too (J7).

    Its members of groups are removed by the groups.
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
    """Use the newest version of the replicated machines that every node supports.

    A node that is down counts with the version of its last start. The version cannot be lowered.
    """

    def plan(self, catalog: Catalog) -> Plan[None]:
        cluster, version = catalog.cluster, newest_of_all(catalog)
        if cluster is None or version <= cluster.version:
            return Plan(None)
        return Plan(None, [Put(CLUSTER, replace(cluster, version=version))])


def newest_of_all(catalog: Catalog) -> int:
    """The newest version of the replicated machines that every node carries out; 0: there is no cluster."""
    return min((node.machines[1] for node in catalog.nodes.values()), default=0)


@dataclass(frozen=True, slots=True)
class SetClusterName:
    """The cluster shall have another name; one node alone keeps it among the global parameters."""

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
        vhost = catalog.find_vhost(self.vhost)
        queue = None if vhost is None else vhost.find(self.name)
        if queue is None or queue.number != self.number:
            return Plan(False)
        if queue.members == self.members:
            return Plan(True)
        spec = replace(queue.spec, members=self.members)
        return Plan(True, [Put(("queue", self.vhost, self.name), spec, spec.lasting)])


# --- steps of the above ---------------------------------------------------------------------------


def _lookup(catalog: Catalog, name: str) -> NodeFacts:
    node = catalog.nodes.get(name)
    if node is None:
        known = ", ".join(catalog.nodes) or "none, this node is in no cluster"
        raise NotFound(f"node '{name}'", f"no node '{name}' in the cluster; its nodes are: {known}")
    return node


def _check_machines(catalog: Catalog, name: str, machines: tuple[int, int]) -> None:
    # A node must carry out what the cluster uses.
    reason = None if catalog.cluster is None else why_not(name, machines, catalog.cluster.version)
    if reason is not None:
        raise PreconditionFailed(f"node '{name}'", reason)


def _ended_with(number: int, incarnation: int) -> Callable[[DeclaredQueue], bool]:
    return lambda queue: not queue.lasting and queue.home == number and queue.incarnation <= incarnation


def keys_of_queues_where(catalog: Catalog, gone: Callable[[DeclaredQueue], bool]) -> list[Key]:
    def found() -> Iterator[Key]:
        for vhost in catalog.vhosts.values():
            names = [queue.name for queue in vhost if gone(queue)]
            if names:
                yield from keys_of_queues(vhost, names)

    return list(found())
