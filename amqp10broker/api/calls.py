"""The input of an endpoint (the request, the user's rights, the broker behind the API), and lists as answers.

An endpoint is an ``async def`` of a `EndpointCall` that returns an `HttpResponse`. It waits only for methods
of `BrokerApi`, so it is tested without a socket. A refusal is raised as `RequestRefused`, or as the broker's
own `RefusedError`, which `messages.refused` converts.

Lists with possibly ten thousands of items are made without blocking other tasks. The cheap columns are enough
to find, and if possible to sort, the requested items; only these are completed and encoded, in portions, with
the requested columns.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias, TypeVar

from amqp10broker.api.front import (
    JSON_TYPES,
    SUFFICIENT,
    Endpoint,
    HttpRoute,
    ReadLogin,
    RunEndpoint,
    Tag,
    header_credentials,
)
from amqp10broker.api.live import Following
from amqp10broker.api.messages import (
    Feed,
    HttpRequest,
    HttpResponse,
    PageFile,
    RequestRefused,
    bad_request,
    json_bytes,
    not_found,
    read_object,
)
from amqp10broker.api.samples import RateSamples, Span, Values, rated
from amqp10broker.auth.authorise import Access, Grants
from amqp10broker.auth.login import LoginAttempts
from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.patterns import PatternSearch, is_expression
from amqp10broker.metadata.users import User
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.observe.metrics import ScrapeRequest
from amqp10broker.operations.node import Actor
from amqp10broker.operations.snapshot import CertificateSeen, ConnectionView, NodeView
from amqp10broker.queues.commands import DeliveryOutcome

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
_DIGITS_MAX: Final = 9
_ABSENT: Final = object()

Item: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The list options of a query. `columns`: keys to include, with dots into objects; None: all. `sort`: the
    key to sort by, with dots. `page`: from 1; None: everything, as a plain array. `name`: part of the names;
    it applies to pages only.
    """

    columns: tuple[str, ...] | None = None
    sort: str | None = None
    descending: bool = False
    page: int | None = None
    page_size: int = PAGE_SIZE
    name: str | None = None
    regex: bool = False

    @classmethod
    def read(cls, query: Mapping[str, str], *, paged: bool) -> Self:
        """Parse the list options of a query. `paged`: whether this list has pages at all."""
        columns = query.get("columns")
        page = _number(query, "page") if paged and "page" in query else None
        size = _number(query, "page_size") if page is not None and "page_size" in query else PAGE_SIZE
        if page == 0 or not 1 <= size <= PAGE_SIZE_MAX:
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST,
                "invalid_pagination_parameters",
                f"page must be at least 1 and page_size from 1 to {PAGE_SIZE_MAX}; "
                f"they are {page} and {size}",
            )
        return cls(
            None if not columns else tuple(filter(None, columns.split(","))),
            query.get("sort") or None,
            query.get("sort_reverse") == "true",
            page,
            size,
            query.get("name") or None,
            query.get("use_regex") == "true",
        )

    async def found(self, items: Sequence[Item], pause: Callable[[], Awaitable[None]]) -> Sequence[Item]:
        """Return the items with matching names; all, if there are no pages. Raises `InvalidArgument` if the
        regular expression would take too long.
        """
        name = self.name
        if self.page is None or name is None:
            return items
        if not self.regex:
            return [item for item in items if name in _name(item)]
        # As in RabbitMQ, an invalid expression matches nothing.
        return await PatternSearch(name, "name").among(items, _name, pause) if is_expression(name) else []

    def shown(self, items: Sequence[Item]) -> list[Item]:
        return [self.pick(item) for item in self.sorted(items)]

    def on_page(self, found: Sequence[Item]) -> Sequence[Item]:
        """Return the items of the page; all, if there are no pages."""
        if self.page is None:
            return found
        if self.page > max(-(-len(found) // self.page_size), 1):
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST,
                "page_out_of_range",
                f"Page out of range, page: {self.page} page size: {self.page_size}, len: {len(found)}",
            )
        begin = (self.page - 1) * self.page_size
        return found[begin : begin + self.page_size]

    def facts(self, total: int, found: int, shown: int) -> dict[str, int] | None:
        """Return a page's counts beside its items; None if there are no pages."""
        if self.page is None:
            return None
        return {
            "filtered_count": found,
            "item_count": shown,
            "page": self.page,
            "page_count": -(-found // self.page_size),
            "page_size": self.page_size,
            "total_count": total,
        }

    def pick(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the requested columns of one object; missing ones are left out."""
        if self.columns is None:
            return item
        picked: dict[str, Any] = {}
        for column in self.columns:
            value = _at(item, column)
            if value is _ABSENT:
                continue
            *outer, last = column.split(".")
            place = picked
            for key in outer:
                inner = place.get(key)
                # A column that was requested as a whole contains this one already.
                place = inner if isinstance(inner, dict) else place.setdefault(key, {})
            place[last] = dict(value) if isinstance(value, Mapping) else value
        return picked

    def sorted(self, items: Sequence[Item]) -> Sequence[Item]:
        if self.sort is None:
            return items[::-1] if self.descending else items
        first, *inner = self.sort.split(".")
        # Each lookup counts with ten thousands of items, because no other task runs meanwhile.
        if not inner:
            ranks = [_rank(item.get(first, _ABSENT)) for item in items]
        else:
            by = self.sort
            ranks = [_rank(_at(item, by)) for item in items]
        order = sorted(range(len(items)), key=ranks.__getitem__, reverse=self.descending)
        return [items[place] for place in order]


def _name(item: Item) -> str:
    return str(item.get("name", ""))


def _at(item: Mapping[str, Any], path: str) -> Any:
    value: Any = item
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _ABSENT
        value = value[key]
    return value


def _rank(value: Any) -> tuple[int, Any]:
    if value is _ABSENT:
        return (0, 0)
    if type(value) is int:  # the commonest type of a column
        return (0, value)
    if value is None:
        return (1, -1)
    if isinstance(value, bool):
        return (1, int(value))
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (3, value)
    return (2, json.dumps(value, sort_keys=True, default=str))


def _number(query: Mapping[str, str], name: str) -> int:
    text = query[name]
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise bad_request(f"{name} must be a whole number, not '{text[:40]}'")
    return int(text)


T = TypeVar("T")

PORTION: Final = 50
"""Items that are made, or encoded, in one go: some milliseconds."""

Make: TypeAlias = Callable[[Sequence[Item], Collection[str] | None], Awaitable[Sequence[Item]]]
"""Completes items in order, with at least these keys, None for all. Deleted items are left out."""


async def described(call: EndpointCall, things: Sequence[T], describe: Callable[[T], Item]) -> list[Item]:
    """Make an item of each object, in portions; objects may be deleted meanwhile."""
    made: list[Item] = []
    for portion in _portions(things):
        made += map(describe, portion)
        await call.broker_api.pause()
    return made


async def listed(
    call: EndpointCall, known: Sequence[Item], make: Make | None = None, *, paged: bool = True
) -> HttpResponse:
    """Answer with a list. `known`: the cheap columns of each item, in the order of virtual host and name; all
    have the same keys, ``name`` among them. `make`: completes items; None: they are complete. Raises
    `InvalidArgument` if the regular expression would take too long.
    """
    listing = ListQuery.read(call.request.query, paged=paged)
    keys = set(known[0]) if known else set[str]()
    found = await listing.found(known, call.broker_api.pause)
    by = None if listing.sort is None else listing.sort.partition(".")[0]
    if make is not None and by is not None and by not in keys:
        found = await _with(by, keys, call, found, make)
    chosen = listing.on_page(listing.sorted(found))
    columns = None if listing.columns is None else {name.partition(".")[0] for name in listing.columns}
    wanted = None if columns is None else columns - keys
    shown, parts = 0, []
    for portion in _portions(chosen):
        items = portion if make is None or wanted == set() else await make(portion, wanted)
        shown += len(items)
        parts.append(_part(map(listing.pick, items)))
        await call.broker_api.pause()
    facts = listing.facts(len(known), len(found), shown)
    if facts is None:
        return HttpResponse.of_json_bytes(_joined(parts))
    return HttpResponse.of_json_bytes(_joined(parts, json_bytes(facts)[:-1] + b',"items":[', b"]}"))


async def written(
    call: EndpointCall, things: Sequence[T], describe: Callable[[T], Item], size: int | None = None
) -> bytes:
    """Encode a JSON array in portions."""
    parts = []
    for portion in _portions(things, size):
        parts.append(_part(map(describe, portion)))
        await call.broker_api.pause()
    return _joined(parts)


async def _with(
    key: str, keys: Collection[str], call: EndpointCall, items: Sequence[Item], make: Make
) -> Sequence[Item]:
    # All other columns that are computed for the key are dropped: together they would be large.
    made: list[Item] = []
    for portion in _portions(items):
        made += [
            {name: value for name, value in item.items() if name in keys or name == key}
            for item in await make(portion, {key})
        ]
        await call.broker_api.pause()
    return made


def _part(items: Iterable[Item]) -> bytes:
    return json_bytes(list(items))[1:-1]


def _joined(parts: Iterable[bytes], before: bytes = b"[", behind: bytes = b"]") -> bytes:
    pieces = [before]
    for part in filter(None, parts):
        pieces += (part, b",")
    if len(pieces) > 1:
        pieces.pop()
    return b"".join((*pieces, behind))


def _portions(items: Sequence[T], size: int | None = None) -> list[Sequence[T]]:
    size = PORTION if size is None else size
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


CREATED: Final = HttpResponse(HTTPStatus.CREATED)
NO_CONTENT: Final = HttpResponse(HTTPStatus.NO_CONTENT)


class BrokerApi:
    """The broker as endpoints use it; `runtime.http.http_api` has the values.

    Attributes:
        node_name: of this node in paths and objects.
        interval_ms: between two samples of an object.
        process: returns figures with RabbitMQ's names, as far as the system reports them.
        clients: returns the counters of all clients since the start, by virtual host (`sessions.counters`).
        settings: returns the present settings as a configuration file.
        connections: returns the open connections of this node, collected in portions.
        connections_open: returns how many there are, including those not logged in, and the limit.
        connections_elsewhere: returns those of the cluster's other nodes, as far as they answer.
        follow: returns a feed of the changes at paths.
        pause: lets other tasks run, within a long answer.
        run: runs an operation of `operations.registry`: its name, its arguments, the virtual host of the
            names, None for the configured default, and the user; `begin` in the background, with a log.
        publish: publishes a message, and waits until its queues have stored it.
        get: returns messages from the head of a queue, and the number of ready ones behind the last one.

    The last three raise `BrokerError` if it was refused, or not answered in time.
    """

    catalog: Catalog
    node_name: str
    interval_ms: int
    samples: RateSamples
    attempts: dict[str, LoginAttempts]
    node: Callable[[], NodeView]
    process: Callable[[], Mapping[str, int]]
    clients: Callable[[], Mapping[str, Mapping[str, int | None]]]
    random: Callable[[int], bytes]
    now_ms: Callable[[], int]
    settings: Callable[[], str]
    certificates: Callable[[], Awaitable[Sequence[CertificateSeen]]]
    connections: Callable[[], Awaitable[Sequence[ConnectionView]]]
    connections_open: Callable[[], tuple[int, int]]
    connections_elsewhere: Callable[[], Awaitable[Sequence[ConnectionView]]]
    metrics: Callable[[ScrapeRequest], Awaitable[bytes]]
    page_file: Callable[[str], Awaitable[PageFile | None]]
    follow: Callable[[Following, Grants], Feed]
    pause: Callable[[], Awaitable[None]]
    run: Callable[[str, Mapping[str, Any], str | None, Actor], Awaitable[Any]]
    begin: Callable[..., None]
    publish: Callable[[Access, str, str, Mapping[str, Any], bytes], Awaitable[bool]]
    get: Callable[[Access, str, int, DeliveryOutcome], Awaitable[tuple[Sequence[Message], int]]]


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """One request of an endpoint. `grants`: the rights of `account`; None without a login."""

    request: HttpRequest
    values: Mapping[str, str]
    broker_api: BrokerApi
    grants: Grants | None = None
    account: User | None = None

    @property
    def granted(self) -> Grants:
        assert self.grants is not None, "the endpoint needs no login"
        return self.grants

    @property
    def user(self) -> User:
        assert self.account is not None, "the endpoint needs no login"
        return self.account

    @property
    def body(self) -> dict[str, Any]:
        return read_object(self.request.body)

    @property
    def with_stats(self) -> bool:
        return self.request.query.get("disable_stats") != "true"

    def has(self, tag: Tag) -> bool:
        """Return whether the user has a tag, or one that includes it."""
        return not SUFFICIENT[tag].isdisjoint(self.user.tags)

    def sees(self, vhost: str) -> bool:
        """Return whether the user may see the objects of a virtual host."""
        return self.has(Tag.ADMINISTRATOR) or self.granted.entry(vhost) is not None

    def vhost(self, name: str | None = None) -> VirtualHost:
        """Return a virtual host; one that the user may not see counts as missing (404)."""
        found = self.broker_api.catalog.vhosts.get(self.values["vhost"] if name is None else name)
        if found is None or not self.sees(found.name):
            raise RequestRefused(HTTPStatus.NOT_FOUND, "not_found", "Not Found")
        return found

    def vhosts(self) -> list[VirtualHost]:
        """Return the virtual host of the path, or without one all that this user sees, by name."""
        if "vhost" in self.values:
            return [self.vhost()]
        every = self.broker_api.catalog.vhosts
        return [every[name] for name in sorted(every) if self.sees(name)]

    def access(self, vhost: str) -> Access:
        return Access(self.granted, vhost)

    async def act(self, operation: str, vhost: str, /, **given: Any) -> Any:
        """Run an operation with this user's permissions (`BrokerApi.run`)."""
        return await self.broker_api.run(
            operation, given, vhost, over_http(self.user.name, self.granted, vhost)
        )

    async def administer(self, operation: str, vhost: str | None = None, /, **given: Any) -> Any:
        """Run an operation for which the endpoint's tag is sufficient (`BrokerApi.run`)."""
        return await self.broker_api.run(operation, given, vhost, over_http(self.user.name))

    def rated(self, *key: str, **families: Values) -> dict[str, dict[str, Any]]:
        """Return values with their rates, and with the histories that the query requests."""
        every = {name: value for values in families.values() for name, value in values.items()}
        series = self.broker_api.samples.look(key, self.broker_api.now_ms(), every)
        query = self.request.query
        return {
            family: rated(values, series, Span.read(query, family)) for family, values in families.items()
        }

    def idle(self, *key: str, seen: Values) -> dict[str, str]:
        """Return since when an object's values have been unchanged, if known; call `rated` before."""
        since_ms = self.broker_api.samples.unchanged_since(key, seen)
        if since_ms is None:
            return {}
        at = datetime.fromtimestamp(since_ms / 1000, UTC)
        return {"idle_since": at.isoformat(timespec="milliseconds")}

    def shown(self, item: Mapping[str, Any]) -> HttpResponse:
        """Answer with one object, with the requested columns."""
        return HttpResponse.of_json(ListQuery.read(self.request.query, paged=False).pick(item))

    def listed(self, items: Sequence[Mapping[str, Any]]) -> HttpResponse:
        """Answer with objects ordered by virtual host and name, as the query requests; the function `listed`
        is for long lists.
        """
        return HttpResponse.of_json(ListQuery.read(self.request.query, paged=False).shown(items))


def over_http(user: str, grants: Grants | None = None, vhost: str = "") -> Actor:
    """Return a user of the API; without `grants` the endpoint has checked the permissions."""
    return Actor(f"user '{user}' over HTTP", None if grants is None else Access(grants, vhost))


F = TypeVar("F", bound=RunEndpoint)

REGISTERED: Final[dict[str, HttpRoute]] = {}
"""Routes by pattern; `api.endpoints` imports all of them."""


def route(
    method: str,
    *patterns: str,
    tag: Tag = Tag.MANAGEMENT,
    types: tuple[str, ...] = JSON_TYPES,
    onward: tuple[str, str] | None = None,
    login: ReadLogin = header_credentials,
    forms: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Register the decorated function as the endpoint of a method of paths below ``/api`` (`Endpoint`)."""

    def register(run: F) -> F:
        for pattern in patterns:
            endpoints = REGISTERED.setdefault(pattern, HttpRoute(f"/api{pattern}", {})).endpoints
            if method in endpoints:
                raise ValueError(f"{method} {pattern} has two endpoints")
            endpoints[method] = Endpoint(tag, run, types, onward, login, forms)
        return run

    return register


def is_node(call: EndpointCall, name: str) -> bool:
    """Return whether there is a node of this name, ignoring a part behind an @."""
    known = {node.name for node in call.broker_api.catalog.nodes.values()} or {call.broker_api.node_name}
    return bool({name, name.partition("@")[0]} & known)


def check_here(call: EndpointCall) -> None:
    """Check that the path names this node; raises `RequestRefused` (404)."""
    if call.values["node"] != call.broker_api.node_name:
        raise not_found()
