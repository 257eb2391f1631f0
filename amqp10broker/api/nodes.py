"""Names of the cluster's nodes in paths and bodies."""

from __future__ import annotations

from amqp10broker.api.calls import EndpointCall


def is_node(call: EndpointCall, name: str) -> bool:
    """Return whether there is a node of this name, ignoring a part behind an @."""
    known = {node.name for node in call.broker_api.catalog.nodes.values()} or {call.broker_api.node_name}
    return bool({name, name.partition("@")[0]} & known)
