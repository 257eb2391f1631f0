"""The start of a connection: the broker's open performative (part 2, section 2.7.1) and the checks of the
client's, the server properties of AMQP 0-9-1's connection.start, and the refusal of a login there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.auth.authorise import Grants, check_vhost_access
from amqp10broker.emulation import Rules
from amqp10broker.errors import NotAllowed, ResourceLocked
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, Condition
from amqp10broker.protocols.amqp10.performatives import Open
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.routing.address import TOPICS

PRODUCT: Final = "RabbitMQ"
"""Some of RabbitMQ's own clients accept no other product, and adapt to its version (docs/adr/0065). The
server property `information` names the real product.
"""

SOLE_CONNECTION: Final = Symbol("sole-connection-for-container")
SHARED_SUBSCRIPTIONS: Final = Symbol("SHARED-SUBS")
DELAYED_DELIVERY: Final = Symbol("DELAYED_DELIVERY")
# Only clients of JMS, which desire one of these, get them in return.
_OF_JMS: Final = frozenset({SOLE_CONNECTION, SHARED_SUBSCRIPTIONS, DELAYED_DELIVERY})
_ALWAYS: Final = (Symbol("LINK_PAIR_V1_0"), Symbol("ANONYMOUS-RELAY"))

_VHOST_PREFIX = "vhost:"
_CHANNEL_MAX_OF_PROTON: Final = 32_767


def vhost_of(performative: Open, default: str) -> str:
    """Return the virtual host of hostname ``vhost:NAME``; any other means the default one."""
    hostname = performative.hostname or ""
    return hostname.removeprefix(_VHOST_PREFIX) if hostname.startswith(_VHOST_PREFIX) else default


def check_open(vhost: str, grants: Grants, catalog: Catalog) -> AmqpConnectionError | None:
    """Return why a user may not open a connection to a virtual host; limits are checked elsewhere."""
    if catalog.vhosts.get(vhost) is None:
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
    return SOLE_CONNECTION in (performative.desired_capabilities or ())


def not_sole(refusal: ResourceLocked) -> AmqpConnectionError:
    info = {"invalid-field": Symbol("container-id")}
    return AmqpConnectionError(Condition.INVALID_FIELD, refusal.description, info)


def is_of_jms(performative: Open) -> bool:
    return not _OF_JMS.isdisjoint(performative.desired_capabilities or ())


def offered_capabilities(performative: Open, *, alone: bool) -> tuple[Symbol, ...]:
    """Return the capabilities of the broker's open. `alone`: not in a cluster, which counts no
    connections.
    """
    if not is_of_jms(performative):
        return _ALWAYS
    sole = (SOLE_CONNECTION,) if alone and wants_sole_connection(performative) else ()
    return (*_ALWAYS, SHARED_SUBSCRIPTIONS, DELAYED_DELIVERY, *sole)


def identity_of(rules: Rules, version: str, platform: str) -> dict[str, str]:
    """Return the properties by which both protocols identify the broker. `platform`: language and version."""
    ours = f"amqp10broker {version}"
    return {
        "product": PRODUCT,
        "version": rules.version,
        "platform": rules.platform or f"{ours}, {platform}",
        "information": f"{ours}, compatible with RabbitMQ {rules.version}",
    }


def open_properties(
    performative: Open, container_id: str, cluster: str, identity: Mapping[str, str]
) -> dict[Any, Any]:
    prefix = {Symbol("topic-prefix"): TOPICS} if is_of_jms(performative) else {}
    return {
        **{Symbol(name): value for name, value in identity.items()},
        Symbol("cluster_name"): cluster,
        Symbol("node"): container_id,
        **prefix,
    }


def is_of_rabbitmq(performative: Open) -> bool:
    """Return whether a client may be one of RabbitMQ's, which get refusals in RabbitMQ's form. The one for
    Java identifies itself; the one for Python is Proton's engine with a virtual host in RabbitMQ's form.
    """
    properties = performative.properties or {}
    if str(properties.get("product", "")).startswith(PRODUCT):
        return True
    hostname = performative.hostname or ""
    of_proton = performative.channel_max == _CHANNEL_MAX_OF_PROTON
    return not properties and of_proton and hostname.startswith(_VHOST_PREFIX)


CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def login_refused(mechanism: str) -> AmqpHardError:
    return AmqpHardError(
        ReplyCode.ACCESS_REFUSED,
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
    )


def server_properties(cluster: str, identity: Mapping[str, str]) -> dict[str, Any]:
    """Return the server properties of connection.start."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": cluster,
        "copyright": "The amqp10broker developers",
        **dict(sorted(identity.items())),
    }
