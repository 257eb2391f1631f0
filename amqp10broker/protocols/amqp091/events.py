"""The events that `connection.Connection091.receive` reports to its owner.

Passwords and secrets do not appear in reprs, so not in logs either.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.content import Item
from amqp10broker.protocols.amqp091.errors import Amqp091Error
from amqp10broker.protocols.amqp091.methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionTuneOk,
)


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
class ConnectionFailed:
    """The client broke a rule of the connection. connection.close has been written; wait for close-ok."""

    error: Amqp091Error


ConnectionEvent = (
    StartOkReceived
    | SecureOkReceived
    | ConnectionTuneOk
    | ConnectionOpen
    | ChannelItems
    | UpdateSecretReceived
    | ConnectionClose
    | ConnectionCloseOk
    | ConnectionFailed
)
"""Methods of the client: answer open with `open_ok` or `fail`, then `receive` the rest; end the channels
before `close_ok`, the answer to close; after close-ok write the rest, and close the socket.
"""
