"""Checks common to all requests (path, method, login, tag, type of the answer), and headers of all answers. A
WebSocket that carries AMQP begins here, too (RFC 6455, section 4.2; the binding, section 2).

The order is RabbitMQ's: unknown paths and missing methods are reported without a login; a preflight needs no
login. The head of a request decides all of that.

A login is by HTTP Basic (RFC 7617) or a bearer token (RFC 6750), and verified like the PLAIN mechanism of
AMQP (`auth.login`). A pattern of the router is a path with parts in braces that match anything:
``/api/queues/{vhost}/{name}``. Of two matching patterns the more specific one counts, from left to right:
``/api/queues/detailed`` is not a virtual host.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import zlib
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from hashlib import sha1
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from amqp10broker.api.messages import (
    HttpRequest,
    HttpResponse,
    RequestRefused,
    bad_request,
    not_authorised,
    not_found,
)
from amqp10broker.dataclass import dataclass

NOT_LOGGED_IN: Final = HttpResponse(
    HTTPStatus.UNAUTHORIZED, (("www-authenticate", 'Basic realm="RabbitMQ Management"'),)
)
"""The answer that makes a browser prompt for a password."""
FORM_TYPE: Final = "application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 10
"""The number of fields of a login form."""


class Tag(Enum):
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
    """Parse the header ``Authorization``. Returns credentials, or an answer without verifiable ones."""
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
    return credentials(request.headers.get("authorization"))


def form_credentials(request: HttpRequest) -> Credentials | HttpResponse:
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
    """Refuse a user without sufficient tags (401). The lack of all four tags is reported first."""
    for tag in (Tag.MANAGEMENT, wanted):
        if not SUFFICIENT[tag] & frozenset(tags):
            raise not_authorised(_REASONS[tag])


JSON_TYPES: Final = ("application/json", "application/*", "*/*")

RunEndpoint: TypeAlias = Callable[[Any], Awaitable[HttpResponse]]
"""An endpoint, which takes an `api.calls.EndpointCall`."""
ReadLogin: TypeAlias = Callable[[HttpRequest], Credentials | HttpResponse]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of a path. `tag`: the one that the user must have; None: no login. `types`: those of its
    answers; a client must accept one of them. `onward`: the member of its answers, and parameter of its
    query, that continues after an answer; None: each answer is complete.
    """

    tag: Tag | None
    run: RunEndpoint
    types: tuple[str, ...] = JSON_TYPES
    onward: tuple[str, str] | None = None
    login: ReadLogin = header_credentials
    forms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A path and its methods; HEAD comes with GET, OPTIONS with all."""

    pattern: str
    endpoints: dict[str, Endpoint]

    @property
    def allow(self) -> str:
        """The methods, as in the header ``Allow``."""
        head = ("HEAD",) if "GET" in self.endpoints else ()
        return ", ".join((*head, *self.endpoints, "OPTIONS"))

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The segments of the pattern; None for a pair of braces."""
        return tuple(
            None if part.startswith("{") else part for part in self.pattern.removesuffix("/").split("/")[1:]
        )

    def values(self, segments: tuple[str, ...]) -> dict[str, str]:
        names = self.pattern.removesuffix("/").split("/")[1:]
        return {
            name[1:-1]: value for name, value in zip(names, segments, strict=True) if name.startswith("{")
        }


class Router:
    """All routes of a listener. Raises ValueError if two patterns match the same paths."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str | None, ...], HttpRoute]]] = defaultdict(list)
        for route in routes:
            parts = route.parts
            same = [other for there, other in self._by_length[len(parts)] if there == parts]
            if same:
                raise ValueError(f"{route.pattern} and {same[0].pattern} mean the same paths")
            self._by_length[len(parts)].append((parts, route))
        for found in self._by_length.values():
            found.sort(key=lambda each: [part is None for part in each[0]])

    def find(self, segments: tuple[str, ...]) -> tuple[HttpRoute, dict[str, str]] | None:
        """Return the route of a path, and the values of its braces."""
        for parts, route in self._by_length.get(len(segments), ()):
            if all(part is None or part == segment for part, segment in zip(parts, segments, strict=True)):
                return route, route.values(segments)
        return None


MAX_AGE_S: Final = 1800
_NEVER: Final = ("null", "*")


@dataclass(frozen=True, slots=True)
class Cors:
    origins: tuple[str, ...] = ()

    def headers(self, request: Mapping[str, str], *, allow: str | None = None) -> tuple[tuple[str, str], ...]:
        origin = request.get("origin", "")
        if not origin or origin in _NEVER:
            return ()
        if origin in self.origins:
            granted: tuple[tuple[str, str], ...] = (
                ("access-control-allow-origin", origin),
                ("access-control-allow-credentials", "true"),
            )
        elif "*" in self.origins:
            granted = (("access-control-allow-origin", "*"),)
        else:
            return ()
        if allow is None:
            return granted
        asked = request.get("access-control-request-headers")
        return (
            *granted,
            ("access-control-allow-methods", allow),
            *((("access-control-allow-headers", asked),) if asked else ()),
            ("access-control-max-age", str(MAX_AGE_S)),
        )


BODY_BYTES_MAX: Final = 20_000_000
GZIP_BYTES_MIN: Final = 300
"""Smaller bodies do not gain from compression."""
_GZIP_LEVEL: Final = 1
_GZIP: Final = 16 + zlib.MAX_WBITS

_ALWAYS: Final = (
    ("cache-control", "no-cache"),
    ("vary", "accept, accept-encoding, origin"),
    ("content-security-policy", "script-src 'self'; object-src 'self'"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
)
_READING: Final = ("GET", "HEAD", "OPTIONS")
_OF_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Types that a page of any origin can make a browser send, with its stored login and without a preflight
(Fetch, section 2.2.1).
"""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request with its endpoint."""

    request: HttpRequest
    route: HttpRoute
    endpoint: Endpoint
    values: Mapping[str, str]


class Front:
    def __init__(self, router: Router, cors: Cors, prefix: tuple[str, ...] = ()) -> None:
        self._router = router
        self._cors = cors
        self._prefix = prefix

    def enter(self, request: HttpRequest) -> RoutedRequest | HttpResponse:
        """Find a request's endpoint; without one, return the whole answer."""
        below = len(self._prefix)
        known = request.segments[:below] == self._prefix
        found = self._router.find(request.segments[below:]) if known else None
        if found is None:
            return self.leave(request, None, not_found().answer)
        route, values = found
        if request.method == "OPTIONS":
            granted = self._cors.headers(request.headers, allow=route.allow)
            return HttpResponse(HTTPStatus.OK, (*_ALWAYS, ("allow", route.allow), *granted))
        endpoint = route.endpoints.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            return self.leave(request, route, HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED))
        refusal = self._of_page(request, endpoint)
        if refusal is not None:
            return self.leave(request, route, refusal.answer)
        return RoutedRequest(request, route, endpoint, values)

    def _of_page(self, request: HttpRequest, endpoint: Endpoint) -> RequestRefused | None:
        headers = request.headers
        if request.method in _READING:
            return None
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site")  # pages cannot set this header
        here = site in ("same-origin", "none") or (
            site is None and (origin is None or origin.partition("://")[2] == headers.get("host"))
        )
        if not here and not self._cors.headers(headers):
            reason = f"pages of {origin} may change nothing: name it in the setting http_cors_origins"
            return RequestRefused(HTTPStatus.FORBIDDEN, "forbidden", reason)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind in _OF_FORMS and kind not in endpoint.forms:
            reason = f"{kind} is what forms of pages send: send the body as application/json, and say so"
            return RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", reason)
        return None

    def below(self, request: HttpRequest) -> HttpRequest:
        """Return a request for a path below the API as one for the whole path."""
        return replace(request, segments=(*self._prefix, "api", *request.segments))

    def admit(self, visit: RoutedRequest, tags: Collection[str]) -> None:
        """Check a visit before its endpoint runs; `tags` is empty without a login."""
        if visit.endpoint.tag is not None:
            check_tag(visit.endpoint.tag, tags)
        types = visit.endpoint.types
        if not takes(visit.request.headers.get("accept"), types):
            refusal = RequestRefused(HTTPStatus.NOT_ACCEPTABLE, "not_acceptable", f"answers are {types[0]}")
            refusal.answer = HttpResponse(HTTPStatus.NOT_ACCEPTABLE)
            raise refusal

    def leave(self, request: HttpRequest, route: HttpRoute | None, answer: HttpResponse) -> HttpResponse:
        """Return the answer to send, except for compression."""
        allow = () if route is None else (("allow", route.allow),)
        told = {name for name, _ in answer.headers}
        always = (header for header in _ALWAYS if header[0] not in told)
        headers = (*answer.headers, *always, *allow, *self._cors.headers(request.headers))
        return replace(answer, headers=headers)


def too_large(limit: int) -> RequestRefused:
    return bad_request(f"the body exceeded the size limit of {limit} bytes: send less")


def check_framing(headers: Iterable[tuple[bytes, bytes]], version: bytes, limit: int) -> bool:
    """Check how a body is announced, before any of it is received; return whether it comes in chunks.
    `limit`: bytes of a body. Raises `RequestRefused` (400): it is too long, or its length is ambiguous. A
    proxy may use the other length, and treat a part of this body as a request (RFC 9112, section 6.1).
    """
    told = {name: value for name, value in headers if name in (b"content-length", b"transfer-encoding")}
    chunked = b"transfer-encoding" in told
    if chunked and (len(told) > 1 or version < b"1.1"):
        reason = "the length of the body is told in two ways: send content-length or transfer-encoding"
        raise bad_request(reason)
    if int(told.get(b"content-length", b"0")) > limit:
        raise too_large(limit)
    return chunked


def takes(accept: str | None, types: Collection[str] = JSON_TYPES) -> bool:
    """Return whether a client accepts one of these types by the header ``Accept``; without it, any."""
    return accept is None or _best(accept, types) > 0


def wants_gzip(request: HttpRequest, answer: HttpResponse) -> bool:
    """Return whether to compress the body of an answer."""
    encodings = request.headers.get("accept-encoding")
    return (
        encodings is not None
        and len(answer.body) >= GZIP_BYTES_MIN
        and _best(encodings, ("gzip", "x-gzip", "*")) > 0
    )


def compressed(answer: HttpResponse) -> HttpResponse:
    """Return the answer with its body as gzip, which may take a while."""
    packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP)
    body = packer.compress(answer.body) + packer.flush()
    return replace(answer, body=body).with_headers(("content-encoding", "gzip"))


def _best(header: str, wanted: Collection[str]) -> float:
    # Quality values are those of RFC 9110, 12.4.2.
    qualities: dict[str, float] = {}
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                quality = _quality(value.strip())
        qualities[name] = quality
    return next((qualities[name] for name in wanted if name in qualities), 0.0)


def _quality(text: str) -> float:
    whole, _, fraction = text.partition(".")
    if whole not in ("0", "1") or not (fraction == "" or (fraction.isascii() and fraction.isdigit())):
        return 0.0
    return min(float(text), 1.0)


SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10")
"""The binding's name, and that of its drafts, for clients that offer no other."""
VERSION: Final = "13"
_KEY_BYTES: Final = 16
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(frozen=True, slots=True)
class AcceptedUpgrade:
    """A WebSocket that may be opened. `foreign`: the page is from another machine, and not in the configured
    origins; its connection does not count as one from this machine.
    """

    headers: tuple[tuple[str, str], ...]
    foreign: bool


def asks_for_websocket(headers: Collection[tuple[bytes, bytes]], version: bytes) -> bool:
    """Return whether a request asks for a WebSocket, which HTTP/1.0 cannot have (RFC 9110, 7.8)."""
    wanted = b",".join(value for name, value in headers if name == b"upgrade")
    return version >= b"1.1" and "websocket" in _tokens(wanted.decode("latin-1").lower())


def accept(request: HttpRequest, origins: Collection[str]) -> AcceptedUpgrade:
    """Check a request for a WebSocket. Raises `RequestRefused` (400, 403 or 426)."""
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
