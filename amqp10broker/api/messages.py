"""The types between the HTTP engine and the endpoints: a request, an answer, and the exception of a refusal,
to which the broker's refusals are converted. Bodies of requests are JSON objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AccessRefused, NotFound, RefusedError, Unavailable

_STATUSES: Final = (
    (NotFound, HTTPStatus.NOT_FOUND, "not_found"),
    (AccessRefused, HTTPStatus.UNAUTHORIZED, "not_authorised"),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
ACCESS_REFUSED: Final = "Access refused."
"""RabbitMQ's reason. The log has the missing permission."""


def refused(refusal: RefusedError) -> RequestRefused:
    """Convert the refusal of an operation; one without a status of its own is a bad request.

    The API has no 403: a user without permission gets the same answer as a client without a login.
    """
    for kind, status, error in _STATUSES:
        if isinstance(refusal, kind):
            reason = ACCESS_REFUSED if kind is AccessRefused else refusal.description
            return RequestRefused(status, error, reason)
    return bad_request(refusal.description)


def fault(error: Exception) -> RequestRefused:
    reason = f"a fault in the broker ({type(error).__name__}); its log says more"
    return RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", reason)


_QUERY_FIELDS_MAX: Final = 100
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

Send: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends a piece of a body to the client; returns when it is written."""
ReadBody: TypeAlias = Callable[[int | None], Awaitable[bytes]]
"""Reads the request's body, which counts until the request is answered. The argument is the limit of bytes
for a client that is not logged in; None for others.
"""


@dataclass(frozen=True, slots=True)
class Feed:
    """A body that is generated while it is sent. `run`: sends all of it; cancelled when the client
    disconnects. `close`: called once when the answer is over, even if its body never began.
    """

    run: Callable[[Send], Awaitable[None]]
    close: Callable[[], None]


class RequestRefused(Exception):
    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.answer = HttpResponse.of_json({"error": error, "reason": reason}, status=status)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    pairs: Sequence[tuple[str, str]] = ()
    slash: bool = False

    def every(self, name: str) -> list[str]:
        return [value for each, value in self.pairs if each == name]

    @classmethod
    def read(
        cls, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b""
    ) -> Self:
        """Make a request of an engine's parsed parts. `target`: as received, without scheme and host."""
        path, _, query = target.partition(b"?")
        if not path.startswith(b"/"):
            scheme, found, rest = path.partition(b"://")
            if not found or scheme.lower() not in (b"http", b"https"):
                raise _bad_target("it is no path that begins with a slash")
            path = b"/" + rest.partition(b"/")[2]
        pairs = _query_of(query)
        return cls(
            method.decode("ascii", "replace"),
            tuple(map(_decoded, path.removesuffix(b"/").split(b"/")[1:])),
            dict(pairs),
            _joined(headers),
            body,
            pairs,
            path.endswith(b"/"),
        )


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    feed: Feed | None = None

    @classmethod
    def of_json(cls, value: Any, *, status: int = HTTPStatus.OK) -> Self:
        """Make an answer with a JSON body. Raises `ValueError` or `TypeError` if there is no JSON form."""
        return cls.of_json_bytes(json_bytes(value), status=status)

    @classmethod
    def of_json_bytes(cls, body: bytes, *, status: int = HTTPStatus.OK) -> Self:
        return cls(status, (("content-type", "application/json"),), body)

    def with_headers(self, *headers: tuple[str, str]) -> HttpResponse:
        return replace(self, headers=self.headers + headers)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the management page. `tag`: changes with its content."""

    kind: str
    body: bytes
    tag: str


def not_found() -> RequestRefused:
    return RequestRefused(HTTPStatus.NOT_FOUND, "Object Not Found", "Not Found")


def bad_request(reason: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.BAD_REQUEST, "bad_request", reason)


def not_authorised(reason: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.UNAUTHORIZED, "not_authorised", reason)


def json_text(value: Any) -> str:
    """Encode a value as JSON, a number that is not finite as text. Raises `TypeError` for other types."""
    try:
        return _JSON.encode(value)
    except ValueError:
        return _JSON.encode(finite(value))


def finite(value: Any) -> Any:
    """Return a value of a document with its numbers that are not finite, which JSON lacks, as texts."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(finite, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def json_bytes(value: Any) -> bytes:
    """Encode a value as the body of an answer; raises as `json_text`."""
    return json_text(value).encode("utf-8", "backslashreplace")


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        values[name] = f"{values[name]}, {value}" if name in values else value
    return values


def _decoded(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise _bad_target("a part of the path is not UTF-8 when its percent signs are decoded") from None


def _query_of(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX
        )
    except UnicodeDecodeError:
        raise _bad_target("its query is not UTF-8 in percent encoding") from None
    except ValueError:
        raise _bad_target(f"its query has more than {_QUERY_FIELDS_MAX} parameters") from None


def _bad_target(why: str) -> RequestRefused:
    return bad_request(f"the request's target cannot be read: {why}")


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object of a request's body, whatever its content type; an empty body is an empty object."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body.decode())
        # Values that could be stored but never shown again are refused: half of a surrogate pair has no UTF-8
        # form, and NaN, Infinity and 1e999 are not numbers of JSON.
        _JSON.encode(value).encode()
    except (ValueError, RecursionError):
        raise bad_request("not_json") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object, in braces")
    return value


def require(given: Mapping[str, Any], *keys: str) -> None:
    missing = [key for key in keys if key not in given]
    if missing:
        raise bad_request(f"[{','.join(f'{{key_missing,{key}}}' for key in missing)}]")


def flag(given: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return a truth value, which may also be a string."""
    value = given.get(key, default)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise bad_request(f"'{key}' must be true or false")


def integer(given: Mapping[str, Any], key: str, default: int) -> int:
    """Return an integer, which may also be a string of digits."""
    value = given.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            return int(value)
    raise bad_request(f"'{key}' must be a whole number")


def text(given: Mapping[str, Any], key: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        raise bad_request(f"'{key}' must be a string")
    return value


def table(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object, empty if the key is absent."""
    value = given.get(key)
    # RabbitMQ's older clients write an empty table as an empty array.
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{key}' must be an object")
    return value
