"""The events that `connection.Connection091.receive` reports to its owner.

Passwords and secrets do not appear in reprs, so not in logs either.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.content import Item
from amqp10broker.protocols.amqp091.errors import Amqp091Error


@dataclass(frozen=True, slots=True)
class StartOkReceived:
    """The client chose a mechanism: answer with `secure`, `tune` or `fail`, then `receive` the rest."""

    mechanism: str
    response: bytes = field(repr=False)
    client_properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SecureOkReceived:
    """The client answered a challenge: answer as to `StartOkReceived`."""

    response: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TuneDone:
    """The limits of the connection are negotiated; no answer is needed."""

    channel_max: int
    frame_max: int
    """Bytes; 0 for no limit."""
    heartbeat: int
    """Seconds; 0 for none."""


@dataclass(frozen=True, slots=True)
class OpenReceived:
    """The client requests a virtual host: answer with `open_ok` or `fail`, then `receive` the rest."""

    vhost: str


@dataclass(eq=False, slots=True)
class ChannelItems:
    """Items for one channel, in order. The channel checks that the first is channel.open."""

    channel: int
    items: list[Item]


@dataclass(frozen=True, slots=True)
class UpdateSecretReceived:
    """The client has a new secret: answer with `update_secret_ok`."""

    secret: bytes = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True)
class CloseReceived:
    """The client closes: end its channels, then answer with `close_ok`."""

    code: int
    text: str
    class_id: int
    method_id: int


@dataclass(frozen=True, slots=True)
class CloseOkReceived:
    """The client has answered our close: write the rest, close the socket."""


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The client broke a rule of the connection. connection.close has been written; wait for close-ok."""

    error: Amqp091Error


ConnectionEvent = (
    StartOkReceived
    | SecureOkReceived
    | TuneDone
    | OpenReceived
    | ChannelItems
    | UpdateSecretReceived
    | CloseReceived
    | CloseOkReceived
    | ConnectionFailed
)
