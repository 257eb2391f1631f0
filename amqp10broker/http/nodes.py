"""The nodes of the cluster, as paths and bodies name them."""

from __future__ import annotations

from amqp10broker.http.calls import Call


def is_node(call: Call, name: str) -> bool:
    """Whether there is a node of this name; what stands behind an @ does not matter."""
    known = {node.name for node in call.door.catalog.nodes.values()} or {call.door.node_name}
    return bool({name, name.partition("@")[0]} & known)
