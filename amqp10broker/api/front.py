"""Checks common to all requests (path, method, login, tag, type of the answer), and headers common to all
answers.

The order is RabbitMQ's: unknown paths and missing methods are reported without a login; a preflight needs
no login. The head decides all of that. The shell reads it, verifies the password, reads the body and runs
the endpoint between::

    entered = front.enter(request)                  # an answer, or the visit of an endpoint
    front.admit(entered, tags of the user)          # unless the endpoint needs no login
    front.leave(request, entered.route, answer)
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from amqp10broker.api.cors import Cors
from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused
from amqp10broker.api.rights import check_tag
from amqp10broker.api.routes import JSON_TYPES, Endpoint, HttpRoute, Router
from amqp10broker.dataclass import dataclass

T = TypeVar("T")

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
class Visit(Generic[T]):
    """A request with its endpoint."""

    request: HttpRequest
    route: HttpRoute[T]
    endpoint: Endpoint[T]
    values: Mapping[str, str]


class Front(Generic[T]):
    """Entrance and exit of one listener's endpoints."""

    def __init__(self, router: Router[T], cors: Cors, prefix: tuple[str, ...] = ()) -> None:
        self._router = router
        self._cors = cors
        self._prefix = prefix

    def enter(self, request: HttpRequest) -> Visit[T] | HttpResponse:
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
        endpoint = route.endpoint(request.method)
        if endpoint is None:
            return self.leave(request, route, HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED))
        refusal = self._of_page(request, endpoint)
        if refusal is not None:
            return self.leave(request, route, refusal.answer)
        return Visit(request, route, endpoint, values)

    def _of_page(self, request: HttpRequest, endpoint: Endpoint[T]) -> RequestRefused | None:
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

    def admit(self, visit: Visit[T], tags: Collection[str]) -> None:
        """Check a visit before its endpoint runs; `tags` is empty without a login."""
        if visit.endpoint.tag is not None:
            check_tag(visit.endpoint.tag, tags)
        types = visit.endpoint.types
        if not takes(visit.request.headers.get("accept"), types):
            refusal = RequestRefused(HTTPStatus.NOT_ACCEPTABLE, "not_acceptable", f"answers are {types[0]}")
            refusal.answer = HttpResponse(HTTPStatus.NOT_ACCEPTABLE)
            raise refusal

    def leave(self, request: HttpRequest, route: HttpRoute[T] | None, answer: HttpResponse) -> HttpResponse:
        """Return the answer to send, except for compression."""
        allow = () if route is None else (("allow", route.allow),)
        told = {name for name, _ in answer.headers}
        always = (header for header in _ALWAYS if header[0] not in told)
        return answer.with_headers(*always, *allow, *self._cors.headers(request.headers))


def not_found() -> RequestRefused:
    """Make the refusal of a path, or of an object, that does not exist."""
    return RequestRefused(HTTPStatus.NOT_FOUND, "Object Not Found", "Not Found")


def too_large(limit: int = BODY_BYTES_MAX) -> RequestRefused:
    """Make the refusal of a body that exceeds the limit."""
    return RequestRefused(
        HTTPStatus.BAD_REQUEST, "bad_request", f"the body exceeded the size limit of {limit} bytes: send less"
    )


def check_framing(headers: Iterable[tuple[bytes, bytes]], version: bytes, limit: int) -> None:
    """Check how a body is announced, before any of it is received.

    Args:
        limit: bytes of a body.

    Raises:
        Refused: 400, it is too long, or its length is ambiguous: a proxy may use the other length, and
            take for a request what is a body here (RFC 9112, section 6.1).
    """
    told = {name: value for name, value in headers if name in (b"content-length", b"transfer-encoding")}
    if b"transfer-encoding" in told and (len(told) > 1 or version < b"1.1"):
        reason = "the length of the body is told in two ways: send content-length or transfer-encoding"
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", reason)
    if int(told.get(b"content-length", b"0")) > limit:
        raise too_large(limit)


def takes(accept: str | None, types: Collection[str] = JSON_TYPES) -> bool:
    """Return whether a client accepts one of these types by its header ``Accept``; without it all are
    accepted.
    """
    return accept is None or _best(accept, types) > 0


def wants_gzip(request: HttpRequest, answer: HttpResponse) -> bool:
    """Return whether to compress the body of an answer; `compressed` does it, and may take a while."""
    encodings = request.headers.get("accept-encoding")
    return (
        encodings is not None
        and len(answer.body) >= GZIP_BYTES_MIN
        and _best(encodings, ("gzip", "x-gzip", "*")) > 0
    )


def compressed(answer: HttpResponse) -> HttpResponse:
    """Return the answer with its body as gzip."""
    packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP)
    body = packer.compress(answer.body) + packer.flush()
    return replace(answer, body=body).with_headers(("content-encoding", "gzip"))


def _best(header: str, wanted: Collection[str]) -> float:
    # Quality values as of RFC 9110, 12.4.2.
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
