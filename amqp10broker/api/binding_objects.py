"""Binding objects of the HTTP API, and the keys that identify them in paths."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, quote_plus

from amqp10broker.routing.exchange import Binding


def properties_key(binding: Binding) -> str:
    """Return the key of a binding among those with the same two ends.

    Its routing key, form-encoded, and if there are arguments a tilde and a hash of them; a tilde alone
    stands for neither. Clients take it from a list, and encode it once more for a path.
    """
    # Distinguishes a tilde in a routing key from the separator.
    key = quote_plus(binding.routing_key, safe="").replace("~", "%7E")
    if binding.arguments:
        return f"{key}~{binding.arguments_hash}"
    return key or "~"


def location(binding: Binding) -> str:
    """Return the binding's location relative to the path of its creation."""
    return f"{quote(binding.destination.name, safe='')}/{quote(properties_key(binding), safe='')}"


def binding_object(binding: Binding, vhost: str) -> dict[str, Any]:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind,
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
        "properties_key": properties_key(binding),
    }
