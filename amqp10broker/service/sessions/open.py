"""What the broker says and checks when a connection is opened."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.amqp10.errors import AmqpConnectionError, Condition
from amqp10broker.amqp10.performatives import Open
from amqp10broker.amqp10.types import Symbol
from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.definitions_export import RABBIT_VERSION
from amqp10broker.errors import NotAllowed, ResourceLocked
from amqp10broker.routing.address import TOPICS
from amqp10broker.security.authorise import check_vhost_access
from amqp10broker.security.grants import Grants

PRODUCT: Final = "RabbitMQ"
COMPATIBLE_VERSION: Final = RABBIT_VERSION
"""Whose behaviour clients find here. Some of RabbitMQ's own clients talk to no other product, and
choose what they do by its version; who we are is in `information` and `platform`."""

SOLE_CONNECTION: Final = Symbol("sole-connection-for-container")
SHARED_SUBSCRIPTIONS: Final = Symbol("SHARED-SUBS")
DELAYED_DELIVERY: Final = Symbol("DELAYED_DELIVERY")
_OF_JMS: Final = frozenset({SOLE_CONNECTION, SHARED_SUBSCRIPTIONS, DELAYED_DELIVERY})
"""What clients of JMS desire of a connection: these are told what JMS needs, and others nothing of it."""
_ALWAYS: Final = (Symbol("LINK_PAIR_V1_0"), Symbol("ANONYMOUS-RELAY"))

_VHOST_PREFIX = "vhost:"
_CHANNEL_MAX_OF_PROTON: Final = 32_767


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


def wants_sole_connection(performative: Open) -> bool:
    """Whether a client wants to have the only connection of its container-id."""
    return SOLE_CONNECTION in (performative.desired_capabilities or ())


def not_sole(refusal: ResourceLocked) -> AmqpConnectionError:
    """What the client is told of a connection that would not be the only one."""
    info = {"invalid-field": Symbol("container-id")}
    return AmqpConnectionError(Condition.INVALID_FIELD, refusal.description, info)


def is_of_jms(performative: Open) -> bool:
    """Whether a client desires what clients of JMS do."""
    return not _OF_JMS.isdisjoint(performative.desired_capabilities or ())


def offered_capabilities(performative: Open, *, alone: bool) -> tuple[Symbol, ...]:
    """The capabilities of our open.

    Args:
        performative: the client's.
        alone: there is no other node: connections to others are not counted by their containers.
    """
    if not is_of_jms(performative):
        return _ALWAYS
    sole = (SOLE_CONNECTION,) if alone and wants_sole_connection(performative) else ()
    return (*_ALWAYS, SHARED_SUBSCRIPTIONS, DELAYED_DELIVERY, *sole)


def open_properties(
    performative: Open, container_id: str, cluster: str, version: str, platform: str
) -> dict[Any, Any]:
    """Properties of our open.

    Args:
        performative: the client's.
        container_id: ours.
        cluster: name of the cluster; ours, if the broker is in none.
        version: the broker's.
        platform: what the broker runs on, for people.
    """
    prefix = {Symbol("topic-prefix"): TOPICS} if is_of_jms(performative) else {}
    return {
        Symbol("product"): PRODUCT,
        Symbol("version"): COMPATIBLE_VERSION,
        Symbol("platform"): f"amqp10broker {version}, {platform}",
        Symbol("information"): f"amqp10broker {version}, compatible with RabbitMQ {COMPATIBLE_VERSION}",
        Symbol("cluster_name"): cluster,
        Symbol("node"): container_id,
        **prefix,
    }


def is_of_rabbitmq(performative: Open) -> bool:
    """Whether a client is one of RabbitMQ's, or may be: refused, these are answered as RabbitMQ answers.

    That for Java says so. That for Python is Proton's engine, and says nothing but a virtual host in
    RabbitMQ's words; another client that is both cannot be told from it.
    """
    properties = performative.properties or {}
    if str(properties.get("product", "")).startswith(PRODUCT):
        return True
    hostname = performative.hostname or ""
    of_proton = performative.channel_max == _CHANNEL_MAX_OF_PROTON
    return not properties and of_proton and hostname.startswith(_VHOST_PREFIX)
