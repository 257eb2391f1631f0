"""The nodes of a cluster, as every one of them sees the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.queue import DeclaredQueue


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


def node_entry(node: NodeFacts) -> dict[str, Any]:
    return {
        "number": node.number,
        "host": node.host,
        "port": node.port,
        "incarnation": node.incarnation,
        "draining": node.draining,
        "version": node.version,
        "machines": list(node.machines),
    }


def read_node(name: str, value: Mapping[str, Any]) -> NodeFacts:
    return NodeFacts(
        name,
        value["number"],
        value["host"],
        value["port"],
        value["incarnation"],
        value["draining"],
        value["version"],
        (int(value["machines"][0]), int(value["machines"][1])),
    )


class WantedQueue(NamedTuple):
    """A queue that is about to be declared."""

    kind: str
    arguments: Mapping[str, Any]
    definition: Mapping[str, Any]
    """What policies set for it; see `queue.Effective`."""
    exclusive: bool
    lasting: bool


class Placed(NamedTuple):
    """See the fields of these names of `queue.QueueSpec`."""

    home: int = 0
    members: tuple[int, ...] = ()
    incarnation: int = 0


Placement = Callable[[WantedQueue, Iterable[NodeFacts], Iterable[DeclaredQueue], int], Placed]
"""Chooses the nodes of a queue that a client of this node declares. Last: the number of existing queues."""
