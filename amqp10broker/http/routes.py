"""Which endpoint a path means.

A pattern is a path whose parts in braces stand for anything: ``/api/queues/{vhost}/{name}``. Of two patterns
that fit, the one counts that says more, from left to right: ``/api/queues/detailed`` is no virtual host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.http.messages import Answer, Request
from amqp10broker.http.rights import Credentials, Tag, header_credentials

T = TypeVar("T")

JSON_TYPES: Final = ("application/json", "application/*", "*/*")


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[T]):
    """What one method of a path does.

    Attributes:
        tag: that the user must have; None: anybody may, without a login.
        run: what carries it out.
        types: of its answers; a client must take one of them.
        onward: the member of its answers' object, and parameter of its query, that asks for what came behind
            an answer; None: each answer is all that there is.
        login: reads who asks.
        forms: types of forms that it takes, of those that it posts.
    """

    tag: Tag | None
    run: T
    types: tuple[str, ...] = JSON_TYPES
    onward: tuple[str, str] | None = None
    login: Callable[[Request], Credentials | Answer] = header_credentials
    forms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route(Generic[T]):
    """A path and its methods; HEAD comes with GET, OPTIONS with all.

    Attributes:
        pattern: of paths.
        endpoints: by method.
    """

    pattern: str
    endpoints: Mapping[str, Endpoint[T]]

    @property
    def allow(self) -> str:
        """The methods, as the header of that name lists them."""
        head = ("HEAD",) if "GET" in self.endpoints else ()
        return ", ".join((*head, *self.endpoints, "OPTIONS"))

    @property
    def parts(self) -> tuple[str | None, ...]:
        """Between slashes: what must stand there, None for anything."""
        return tuple(
            None if part.startswith("{") else part for part in self.pattern.removesuffix("/").split("/")[1:]
        )

    def values(self, segments: tuple[str, ...]) -> dict[str, str]:
        """What stands for the braces in a path that fits."""
        names = self.pattern.removesuffix("/").split("/")[1:]
        return {
            name[1:-1]: value for name, value in zip(names, segments, strict=True) if name.startswith("{")
        }

    def endpoint(self, method: str) -> Endpoint[T] | None:
        """What the method does; None if the path does not have it."""
        return self.endpoints.get("GET" if method == "HEAD" else method)


class Router(Generic[T]):
    """All routes of a listener."""

    def __init__(self, routes: Iterable[Route[T]]) -> None:
        """Sort them.

        Raises:
            ValueError: two patterns mean the same paths.
        """
        self._by_length: dict[int, list[tuple[tuple[str | None, ...], Route[T]]]] = defaultdict(list)
        for route in routes:
            parts = route.parts
            same = [other for there, other in self._by_length[len(parts)] if there == parts]
            if same:
                raise ValueError(f"{route.pattern} and {same[0].pattern} mean the same paths")
            self._by_length[len(parts)].append((parts, route))
        for found in self._by_length.values():
            found.sort(key=lambda each: [part is None for part in each[0]])

    def find(self, segments: tuple[str, ...]) -> tuple[Route[T], dict[str, str]] | None:
        """The route of a path, and what stands for its braces; None if there is none."""
        for parts, route in self._by_length.get(len(segments), ()):
            if all(part is None or part == segment for part, segment in zip(parts, segments, strict=True)):
                return route, route.values(segments)
        return None
