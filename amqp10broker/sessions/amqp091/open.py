"""Server properties of connection.start, and the refusal of a login."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.sessions.amqp10.open import COMPATIBLE_VERSION, PRODUCT

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


def server_properties(cluster: str, version: str, platform: str) -> dict[str, Any]:
    """Return the server properties of connection.start."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": cluster,
        "copyright": "The amqp10broker developers",
        "information": f"amqp10broker {version}, compatible with RabbitMQ {COMPATIBLE_VERSION}",
        "platform": f"amqp10broker {version}, {platform}",
        "product": PRODUCT,
        "version": COMPATIBLE_VERSION,
    }
