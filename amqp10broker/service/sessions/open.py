"""What the broker says and checks when a connection is opened."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.amqp10.connection import ESTABLISHMENT_FAILED
from amqp10broker.amqp10.errors import AmqpConnectionError, Condition
from amqp10broker.amqp10.performatives import Open
from amqp10broker.amqp10.types import Symbol
from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.definitions_export import RABBIT_VERSION
from amqp10broker.errors import NotAllowed
from amqp10broker.security.authorise import check_vhost_access
from amqp10broker.security.grants import Grants

PRODUCT: Final = "RabbitMQ"
COMPATIBLE_VERSION: Final = RABBIT_VERSION
"""Whose behaviour clients find here. Some of RabbitMQ's own clients talk to no other product, and
choose what they do by its version; who we are is in `information` and `platform`."""

_VHOST_PREFIX = "vhost:"


def vhost_of(performative: Open, default: str) -> str:
    """The virtual host that a client chooses: hostname ``vhost:NAME``; any other means the default one."""
    hostname = performative.hostname or ""
    return hostname.removeprefix(_VHOST_PREFIX) if hostname.startswith(_VHOST_PREFIX) else default


def check_open(vhost: str, grants: Grants, catalog: Catalog) -> AmqpConnectionError | None:
    """Why a user may not open a connection to a virtual host; None if only a limit can be against it."""
    if catalog.find_vhost(vhost) is None:
        return AmqpConnectionError(
            Condition.UNAUTHORIZED_ACCESS,
            f"AMQP 1.0 connection failed: virtual host '{vhost}' does not exist",
        )
    try:
        check_vhost_access(grants, vhost)
    except NotAllowed as refusal:
        return AmqpConnectionError(Condition.UNAUTHORIZED_ACCESS, refusal.description)
    return None


def open_properties(container_id: str, cluster: str, version: str, platform: str) -> dict[Any, Any]:
    """Properties of our open.

    Args:
        container_id: ours.
        cluster: name of the cluster; ours, if the broker is in none.
        version: the broker's.
        platform: what the broker runs on, for people.
    """
    return {
        Symbol("product"): PRODUCT,
        Symbol("version"): COMPATIBLE_VERSION,
        Symbol("platform"): f"amqp10broker {version}, {platform}",
        Symbol("information"): f"amqp10broker {version}, compatible with RabbitMQ {COMPATIBLE_VERSION}",
        Symbol("cluster_name"): cluster,
        Symbol("node"): container_id,
    }


def refused_properties(properties: dict[Any, Any], fault: AmqpConnectionError) -> dict[Any, Any]:
    """Properties of an open that a close with this reason will follow.

    No product is named: RabbitMQ's client for Python, which looks for RabbitMQ, gives up with the reason in
    its words, and would connect again for ever after a close. The one for Java looks at the others.

    Args:
        properties: from `open_properties`.
        fault: the reason.
    """
    product = f"none, the connection is refused: {fault.description}"
    return {**properties, Symbol("product"): product, ESTABLISHMENT_FAILED: True}
