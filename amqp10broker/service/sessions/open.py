"""What the broker says and checks when a connection is opened."""

from __future__ import annotations

from typing import Any

from amqp10broker.amqp10.errors import AmqpConnectionError, Condition
from amqp10broker.amqp10.performatives import Open
from amqp10broker.amqp10.types import Symbol
from amqp10broker.catalog.catalog import VHOST

_VHOST_PREFIX = "vhost:"


def check_open(performative: Open) -> AmqpConnectionError | None:
    """Why a client may not open the connection as it asks; None if it may.

    A hostname ``vhost:NAME`` chooses a virtual host; any other hostname means the default one.
    """
    hostname = performative.hostname or ""
    if hostname.startswith(_VHOST_PREFIX):
        name = hostname.removeprefix(_VHOST_PREFIX)
        if name != VHOST:
            return AmqpConnectionError(
                Condition.UNAUTHORIZED_ACCESS,
                f"AMQP 1.0 connection failed: virtual host '{name}' does not exist",
            )
    return None


def open_properties(container_id: str, version: str, platform: str) -> dict[Any, Any]:
    """Properties of our open.

    Args:
        container_id: ours.
        version: the broker's.
        platform: what the broker runs on, for people.
    """
    return {
        Symbol("product"): "amqp10broker",
        Symbol("version"): version,
        Symbol("platform"): platform,
        Symbol("cluster_name"): container_id,
        Symbol("node"): container_id,
    }
