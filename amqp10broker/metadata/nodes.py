"""The nodes of a cluster, as every one of them sees the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp10broker.dataclass import dataclass


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
    declared (`metadata.definitions_due`).
    """

    id: str
    name: str
    version: int = 1
    queues_due: bool = False


def node_entry(node: NodeFacts) -> dict[str, Any]:
    """A node as JSON, without its name."""
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
    """The node that `node_entry` was given."""
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
