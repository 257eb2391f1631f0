"""What changes about the nodes of a cluster, and where queues are: requests and their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.nodes import ClusterFacts, NodeFacts
from amqp10broker.catalog.plan import CLUSTER, NODE_NUMBERS, Key, Plan, Put
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.catalog.queue_requests import keys_of_queues
from amqp10broker.errors import InvalidArgument, NotFound, PreconditionFailed


@dataclass(frozen=True, slots=True)
class JoinNode:
    """There shall be another node; the answer is what is known of it, its number first of all.

    Attributes:
        name: unique.
        host: where its cluster port listens.
        port: that port.
        version: of its broker.
    """

    name: str
    host: str
    port: int
    version: str = ""

    def plan(self, catalog: Catalog) -> Plan[NodeFacts]:
        """See `plan`.

        Raises:
            InvalidArgument: the name is empty.
            PreconditionFailed: there is a node of this name.
        """
        if not self.name:
            raise InvalidArgument("node ''", "the name of a node must not be empty")
        if self.name in catalog.nodes:
            raise PreconditionFailed(
                f"node '{self.name}'",
                f"node '{self.name}' is a member of the cluster already: give this one another name, or, "
                f"if the other will not come back, forget it first: forget-cluster-node {self.name}",
            )
        node = NodeFacts(self.name, catalog.highest_node + 1, self.host, self.port, version=self.version)
        return Plan(node, [Put(NODE_NUMBERS, node.number), Put(("node", node.name), node)])


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A node has started: it is where it says, not drained, and what ended with its earlier starts is gone.

    When this is applied at that node, it knows all that was decided before it started.

    Attributes:
        name: its own.
        incarnation: of this start, above all earlier ones.
        host, port: where its cluster port listens now.
        version: of its broker.
    """

    name: str
    incarnation: int
    host: str
    port: int
    version: str = ""

    def plan(self, catalog: Catalog) -> Plan[None]:
        """See `plan`.

        Raises:
            NotFound: it is no member (any more).
        """
        node = _lookup(catalog, self.name)
        now = NodeFacts(node.name, node.number, self.host, self.port, self.incarnation, version=self.version)
        gone = _ended_with(node.number, self.incarnation - 1)
        return Plan(None, [Put(("node", self.name), now)], forgets=keys_of_queues_where(catalog, gone))


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, or cut off: what was to end with that start of it has ended (K7, M8).

    Attributes:
        number: the node's.
        incarnation: which start.
    """

    number: int
    incarnation: int

    def plan(self, catalog: Catalog) -> Plan[None]:
        """See `plan`."""
        return Plan(None, forgets=keys_of_queues_where(catalog, _ended_with(self.number, self.incarnation)))


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """A node is a member no more, and what was at no other node is gone: durable classic queues, too (J7).

    Its members of groups are removed by the groups.
    """

    name: str

    def plan(self, catalog: Catalog) -> Plan[NodeFacts]:
        """See `plan`; the answer is what was known of it.

        Raises:
            NotFound: there is no such node.
        """
        node = _lookup(catalog, self.name)
        gone = keys_of_queues_where(catalog, lambda queue: queue.home == node.number)
        return Plan(node, forgets=[*gone, ("node", self.name)])


@dataclass(frozen=True, slots=True)
class SetDraining:
    """A node shall be in maintenance, or no more."""

    name: str
    draining: bool

    def plan(self, catalog: Catalog) -> Plan[None]:
        """See `plan`.

        Raises:
            NotFound: there is no such node.
        """
        node = _lookup(catalog, self.name)
        if node.draining == self.draining:
            return Plan(None)
        return Plan(None, [Put(("node", self.name), replace(node, draining=self.draining))])


@dataclass(frozen=True, slots=True)
class SetClusterName:
    """The cluster shall have another name."""

    name: str

    def plan(self, catalog: Catalog) -> Plan[None]:
        """See `plan`.

        Raises:
            InvalidArgument: the name is empty.
            PreconditionFailed: this node is in no cluster.
        """
        cluster = catalog.cluster
        if not self.name:
            raise InvalidArgument("cluster", "the name of a cluster must not be empty")
        if cluster is None:
            raise PreconditionFailed("cluster", "this node is in no cluster; start it with --cluster-nodes")
        if cluster.name == self.name:
            return Plan(None)
        return Plan(None, [Put(CLUSTER, ClusterFacts(cluster.id, self.name))])


@dataclass(frozen=True, slots=True)
class SetMembers:
    """A quorum queue has other members.

    Attributes:
        vhost: where.
        name: of the queue.
        number: of the queue; another one may have its name by now.
        members: their ids, the one that shall lead first.
    """

    vhost: str
    name: str
    number: int
    members: tuple[int, ...]

    def plan(self, catalog: Catalog) -> Plan[bool]:
        """See `plan`; the answer is whether the queue is there."""
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
    """The node of this name.

    Raises:
        NotFound: there is none.
    """
    node = catalog.nodes.get(name)
    if node is None:
        known = ", ".join(catalog.nodes) or "none, this node is in no cluster"
        raise NotFound(f"node '{name}'", f"no node '{name}' in the cluster; its nodes are: {known}")
    return node


def _ended_with(number: int, incarnation: int) -> Callable[[DeclaredQueue], bool]:
    """Tells the queues that end with this start of a node, or an earlier one."""
    return lambda queue: not queue.lasting and queue.home == number and queue.incarnation <= incarnation


def keys_of_queues_where(catalog: Catalog, gone: Callable[[DeclaredQueue], bool]) -> list[Key]:
    def found() -> Iterator[Key]:
        for vhost in catalog.vhosts.values():
            names = [queue.name for queue in vhost if gone(queue)]
            if names:
                yield from keys_of_queues(vhost, names)

    return list(found())
