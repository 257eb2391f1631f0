"""What the HTTP engine hands over and gets back: a request, an answer, and the answer that refuses."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from http import HTTPStatus
from typing import Any, Final, Protocol, Self, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

from amqp10broker.dataclass import dataclass

_QUERY_FIELDS_MAX: Final = 100

Send: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Hands a piece of a body to the client; returns when it is on its way."""


class Feed(Protocol):
    """A body that is made while it goes out, piece by piece."""

    async def run(self, send: Send) -> None:
        """Send all of it; cancelled when the client goes."""

    def close(self) -> None:
        """Called once when the answer is over, also one whose body never began."""


class Refused(Exception):
    """A request is not carried out.

    Attributes:
        answer: what the client gets.
    """

    def __init__(self, status: int, error: str, reason: str) -> None:
        """Make the answer.

        Args:
            status: of HTTP.
            error: a short identifier, for programs.
            reason: a sentence, for people. Clients decode it as a string: it is never anything else.
        """
        super().__init__(f"{status} {error}: {reason}")
        self.answer = Answer.of_json({"error": error, "reason": reason}, status=status)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, whole.

    Attributes:
        method: GET, PUT...
        segments: of the path between slashes, decoded; a trailing slash makes none.
        query: the last value of each parameter.
        pairs: the whole query, in its order.
        slash: the path ends with one, as that of a folder.
        headers: by name in lower case; of a name that occurs again the values, with commas between them.
        body: all of it, without its transfer encoding.
    """

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    pairs: Sequence[tuple[str, str]] = ()
    slash: bool = False

    def every(self, name: str) -> list[str]:
        """All values of a parameter."""
        return [value for each, value in self.pairs if each == name]

    @classmethod
    def read(
        cls, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b""
    ) -> Self:
        """Understand what an engine has parsed.

        Args:
            method: as it came.
            target: path and query, as they came; a scheme and a host before them are left out.
            headers: names in lower case, and values.
            body: of the request.

        Raises:
            Refused: 400, the target is not what it should be.
        """
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
class Answer:
    """What a request is answered with.

    Attributes:
        status: of HTTP.
        headers: names in lower case, and values; content-length is the engine's to add.
        body: of the answer.
        feed: what makes the body instead, after which the connection is over.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    feed: Feed | None = None

    @classmethod
    def of_json(cls, value: Any, *, status: int = HTTPStatus.OK) -> Self:
        """An answer with a JSON body.

        Raises:
            ValueError, TypeError: there is no JSON for it.
        """
        return cls.of_json_bytes(json_bytes(value), status=status)

    @classmethod
    def of_json_bytes(cls, body: bytes, *, status: int = HTTPStatus.OK) -> Self:
        """The same of what `json_bytes` has written already."""
        return cls(status, (("content-type", "application/json"),), body)

    def with_headers(self, *headers: tuple[str, str]) -> Answer:
        """The same with more headers."""
        return replace(self, headers=self.headers + headers)


def json_text(value: Any) -> str:
    """A value as JSON.

    Raises:
        ValueError, TypeError: there is no JSON for it.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    """A value as the body of an answer.

    Raises:
        ValueError, TypeError: there is no JSON for it.
    """
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


def _bad_target(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, "bad_request", f"the request's target cannot be read: {why}")
