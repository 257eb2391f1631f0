"""The router from paths to endpoints.

A pattern is a path with parts in braces that match anything: ``/api/queues/{vhost}/{name}``. Of two
matching patterns the more specific one counts, from left to right: ``/api/queues/detailed`` is not a
virtual host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from amqp10broker.api.messages import HttpRequest, HttpResponse
from amqp10broker.api.rights import Credentials, Tag, header_credentials
from amqp10broker.dataclass import dataclass

T = TypeVar("T")

JSON_TYPES: Final = ("application/json", "application/*", "*/*")


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[T]):
    """One method of a path.

    Attributes:
        tag: that the user must have; None: no login.
        types: of its answers; a client must accept one of them.
        onward: the member of its answers, and parameter of its query, that continues behind an answer;
            None: each answer is complete.
    """

    tag: Tag | None
    run: T
    types: tuple[str, ...] = JSON_TYPES
    onward: tuple[str, str] | None = None
    login: Callable[[HttpRequest], Credentials | HttpResponse] = header_credentials
    forms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HttpRoute(Generic[T]):
    """A path and its methods; HEAD comes with GET, OPTIONS with all."""

    pattern: str
    endpoints: Mapping[str, Endpoint[T]]

    @property
    def allow(self) -> str:
        """The methods, as in the header ``Allow``."""
        head = ("HEAD",) if "GET" in self.endpoints else ()
        return ", ".join((*head, *self.endpoints, "OPTIONS"))

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The segments of the pattern, None for a pair of braces."""
        return tuple(
            None if part.startswith("{") else part for part in self.pattern.removesuffix("/").split("/")[1:]
        )

    def values(self, segments: tuple[str, ...]) -> dict[str, str]:
        """Return the values of the braces for a matching path."""
        names = self.pattern.removesuffix("/").split("/")[1:]
        return {
            name[1:-1]: value for name, value in zip(names, segments, strict=True) if name.startswith("{")
        }

    def endpoint(self, method: str) -> Endpoint[T] | None:
        """Return the endpoint of a method; None if the path does not have it."""
        return self.endpoints.get("GET" if method == "HEAD" else method)


class Router(Generic[T]):
    """All routes of a listener. Raises ValueError if two patterns match the same paths."""

    def __init__(self, routes: Iterable[HttpRoute[T]]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str | None, ...], HttpRoute[T]]]] = defaultdict(list)
        for route in routes:
            parts = route.parts
            same = [other for there, other in self._by_length[len(parts)] if there == parts]
            if same:
                raise ValueError(f"{route.pattern} and {same[0].pattern} mean the same paths")
            self._by_length[len(parts)].append((parts, route))
        for found in self._by_length.values():
            found.sort(key=lambda each: [part is None for part in each[0]])

    def find(self, segments: tuple[str, ...]) -> tuple[HttpRoute[T], dict[str, str]] | None:
        """Return the route of a path, and the values of its braces; None if there is none."""
        for parts, route in self._by_length.get(len(segments), ()):
            if all(part is None or part == segment for part, segment in zip(parts, segments, strict=True)):
                return route, route.values(segments)
        return None
