"""The handshake of a WebSocket that carries AMQP (RFC 6455, section 4.2; the binding, section 2)."""

from __future__ import annotations

import binascii
import ipaddress
from base64 import b64decode, b64encode
from collections.abc import Collection
from hashlib import sha1
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from amqp10broker.api.messages import HttpRequest, RequestRefused, bad_request
from amqp10broker.dataclass import dataclass

SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10")
"""The binding's name, and that of its drafts, for clients that offer no other."""
VERSION: Final = "13"
_KEY_BYTES: Final = 16
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(frozen=True, slots=True)
class AcceptedUpgrade:
    """A WebSocket that may be opened.

    Attributes:
        foreign: the page is of another machine, and not in the configured origins. Its connection does not
            count as one from this machine.
    """

    headers: tuple[tuple[str, str], ...]
    foreign: bool


def asks_for_websocket(headers: Collection[tuple[bytes, bytes]], version: bytes) -> bool:
    """Return whether a request wants a WebSocket, which HTTP/1.0 cannot have (RFC 9110, 7.8)."""
    wanted = b",".join(value for name, value in headers if name == b"upgrade")
    return version >= b"1.1" and "websocket" in _tokens(wanted.decode("latin-1").lower())


def accept(request: HttpRequest, origins: Collection[str]) -> AcceptedUpgrade:
    """Check a request for a WebSocket.

    Raises:
        Refused: 400, 403 or 426, with the reason.
    """
    headers = request.headers
    if request.method != "GET" or request.body:
        raise bad_request("a WebSocket is asked for with GET, without a body")
    if "upgrade" not in _tokens(headers.get("connection", "").lower()):
        raise bad_request("the header Connection must say Upgrade")
    if headers.get("sec-websocket-version") != VERSION:
        reason = f"the header Sec-WebSocket-Version must say {VERSION}"
        refusal = RequestRefused(HTTPStatus.UPGRADE_REQUIRED, "upgrade_required", reason)
        refusal.answer = refusal.answer.with_headers(("sec-websocket-version", VERSION))
        raise refusal
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        raise bad_request(f"the header Sec-WebSocket-Key must have {_KEY_BYTES} bytes in base64")
    asked = _tokens(headers.get("sec-websocket-protocol", ""))
    chosen = next((name for name in SUBPROTOCOLS if name in asked), None)
    if chosen is None:
        raise bad_request("the header Sec-WebSocket-Protocol must list amqp")
    origin = headers.get("origin")
    if origin is not None and origin not in origins and "*" not in origins:
        reason = f"pages of {origin} may not connect: name it in the setting websocket_origins"
        raise RequestRefused(HTTPStatus.FORBIDDEN, "forbidden", reason)
    return AcceptedUpgrade(
        (
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-accept", b64encode(sha1(key.encode() + _GUID).digest()).decode()),
            ("sec-websocket-protocol", chosen),
        ),
        foreign=origin is not None and origin not in origins and not _of_this_machine(origin),
    )


def _of_this_machine(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_key(text: str) -> bool:
    try:
        return len(b64decode(text, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def _tokens(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]
