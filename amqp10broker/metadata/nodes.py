"""The nodes of a cluster, as every one of them sees the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.queue import DeclaredQueue, QueueSpec


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One member of the cluster.

    Attributes:
        number: 1 to 2**32 - 1, never given again: forgotten and joined anew, it has another one.
        draining: it is in maintenance: no leader shall be there, and no client is served.
        machines: the oldest and the newest version of the replicated machines that it carries out
            (`queues.machine_version`).
    """

    name: str
    number: int
    host: str
    port: int
    incarnation: int = 0
    draining: bool = False
    version: str = ""
    machines: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Which cluster this is. `queues_due`: queues and bindings of the founder's configuration are still to be
    declared (`metadata.definitions.DeclareDue`).
    """

    id: str
    name: str
    version: int = 1
    queues_due: bool = False


_OF_NODE: Final = ("number", "host", "port", "incarnation", "draining", "version", "machines")


def node_entry(node: NodeFacts) -> dict[str, Any]:
    return {name: getattr(node, name) for name in _OF_NODE} | {"machines": list(node.machines)}


def read_node(name: str, value: Mapping[str, Any]) -> NodeFacts:
    found = {each: value[each] for each in _OF_NODE}
    return NodeFacts(name, **found | {"machines": tuple(map(int, value["machines"]))})


class Placed(NamedTuple):
    """See the fields of these names of `queue.QueueSpec`."""

    home: int = 0
    members: tuple[int, ...] = ()
    incarnation: int = 0


Placement = Callable[
    [QueueSpec, Mapping[str, Any], Iterable[NodeFacts], Iterable[DeclaredQueue], int], Placed
]
"""Chooses the nodes of a queue that a client of this node declares. Second: what policies set for it (see
`queue.Effective`). Last: the number of existing queues."""
