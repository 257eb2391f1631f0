"""Names of the cluster's nodes in paths and bodies."""

from __future__ import annotations

from amqp10broker.api.calls import Call


def is_node(call: Call, name: str) -> bool:
    """Return whether there is a node of this name, ignoring a part behind an @."""
    known = {node.name for node in call.door.catalog.nodes.values()} or {call.door.node_name}
    return bool({name, name.partition("@")[0]} & known)
