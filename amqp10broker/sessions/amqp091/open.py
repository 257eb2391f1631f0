"""Server properties of connection.start, and the refusal of a login."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode

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
    """Return the server properties of connection.start. `identity`: see `amqp10.open.identity_of`."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": cluster,
        "copyright": "The amqp10broker developers",
        "information": identity["information"],
        "platform": identity["platform"],
        "product": identity["product"],
        "version": identity["version"],
    }
