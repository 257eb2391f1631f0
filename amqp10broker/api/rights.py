"""Credentials by HTTP Basic (RFC 7617) or a bearer token (RFC 6750), and the rights of user tags.

Credentials are verified like the PLAIN mechanism of AMQP (`auth.login`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from dataclasses import field
from enum import Enum
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused
from amqp10broker.dataclass import dataclass

NOT_LOGGED_IN: Final = HttpResponse(
    HTTPStatus.UNAUTHORIZED, (("www-authenticate", 'Basic realm="RabbitMQ Management"'),)
)
"""Makes a browser prompt for a password."""
FORM_TYPE: Final = "application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 10
"""The most fields of a login form."""


class Tag(Enum):
    """The least tag that an endpoint requires."""

    MANAGEMENT = "management"
    POLICYMAKER = "policymaker"
    MONITORING = "monitoring"
    ADMINISTRATOR = "administrator"


SUFFICIENT: Final = {
    Tag.MANAGEMENT: frozenset({"management", "policymaker", "monitoring", "administrator"}),
    Tag.POLICYMAKER: frozenset({"policymaker", "administrator"}),
    Tag.MONITORING: frozenset({"monitoring", "administrator"}),
    Tag.ADMINISTRATOR: frozenset({"administrator"}),
}
"""The tags of which a user must have one."""

_REASONS: Final = {
    Tag.MANAGEMENT: "Not management user",
    Tag.POLICYMAKER: "User not authorised to access object",
    Tag.MONITORING: "Not monitor user",
    Tag.ADMINISTRATOR: "Not administrator user",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a request. `user`: the name, UTF-8; empty with a token."""

    user: bytes
    password: bytes = field(repr=False)

    @property
    def plain(self) -> bytes:
        """The equivalent response of SASL PLAIN (RFC 4616)."""
        return b"\0" + self.user + b"\0" + self.password


def credentials(header: str | None) -> Credentials | HttpResponse:
    """Parse the header ``Authorization``, None if it is absent. Returns the credentials, or an answer without
    such that can be verified.
    """
    if header is None:
        return NOT_LOGGED_IN
    scheme, _, encoded = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return Credentials(b"", encoded.strip().encode("latin-1"))
    if scheme.lower() != "basic":
        return wrong_login().answer
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return HttpResponse(HTTPStatus.BAD_REQUEST)
    return Credentials(user, password) if colon else HttpResponse(HTTPStatus.BAD_REQUEST)


def header_credentials(request: HttpRequest) -> Credentials | HttpResponse:
    """Return the credentials in the header of a request."""
    return credentials(request.headers.get("authorization"))


def form_credentials(request: HttpRequest) -> Credentials | HttpResponse:
    """Return the credentials in a form's fields ``username`` and ``password``."""
    try:
        fields = dict(parse_qsl(request.body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError:
        return wrong_login().answer
    if "username" not in fields or "password" not in fields:
        return wrong_login().answer
    return Credentials(fields["username"].encode(), fields["password"].encode())


def wrong_login() -> RequestRefused:
    """Make the refusal of a wrong user or password, without revealing which one."""
    return RequestRefused(HTTPStatus.UNAUTHORIZED, "not_authorized", "Not_Authorized")


def check_tag(wanted: Tag, tags: Collection[str]) -> None:
    """Refuse a user without sufficient tags.

    Raises:
        Refused: 401. The lack of all four tags is reported first, at any endpoint.
    """
    for tag in (Tag.MANAGEMENT, wanted):
        if not SUFFICIENT[tag] & frozenset(tags):
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, "not_authorised", _REASONS[tag])
