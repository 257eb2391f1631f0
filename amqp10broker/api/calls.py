"""The input of an endpoint: the request, the user's rights, and the broker behind the API.

An endpoint is an ``async def`` of a `EndpointCall` that returns an `HttpResponse`. It waits only for methods
of `BrokerApi`, so it is tested without a socket. A refusal is raised as `RequestRefused`, or as the broker's
own `RefusedError`, which `refusals` converts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

from amqp10broker.api.fields import read_object
from amqp10broker.api.lists import ListQuery
from amqp10broker.api.live import Following
from amqp10broker.api.messages import Feed, HttpRequest, HttpResponse, RequestRefused
from amqp10broker.api.rights import SUFFICIENT, Tag
from amqp10broker.api.routes import Endpoint, HttpRoute
from amqp10broker.api.samples import RateSamples, Span, Values, rated
from amqp10broker.api.static_files import PageFile
from amqp10broker.auth.authorise import Access
from amqp10broker.auth.grants import Grants, account_of
from amqp10broker.auth.login import Attempts
from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.users import User
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.observe.metrics.wanted import ScrapeRequest
from amqp10broker.operations.caller import Actor
from amqp10broker.operations.inspection import CertificateSeen
from amqp10broker.operations.snapshot import ConnectionView, NodeView
from amqp10broker.queues.commands import DeliveryOutcome

CREATED: Final = HttpResponse(HTTPStatus.CREATED)
NO_CONTENT: Final = HttpResponse(HTTPStatus.NO_CONTENT)


class BrokerApi(Protocol):
    """The interface of endpoints to the broker."""

    @property
    def catalog(self) -> Catalog:
        """The declared objects of the broker."""

    @property
    def node_name(self) -> str:
        """The name of this node in paths and objects."""

    def node(self) -> NodeView:
        """Return the figures of this process."""

    def process(self) -> Mapping[str, int]:
        """Return the process's figures by RabbitMQ's names: processors; tasks, and those of them that are
        ready to run; file descriptors, as far as the system reports them.
        """

    def clients(self) -> Mapping[str, Mapping[str, int | None]]:
        """Return the counters of all clients since the start, by virtual host (`sessions.counters`)."""

    @property
    def interval_ms(self) -> int:
        """Milliseconds between two samples of an object."""

    @property
    def samples(self) -> RateSamples:
        """Samples of objects taken at earlier requests, for rates."""

    @property
    def attempts(self) -> Attempts:
        """The counters of login attempts."""

    def settings(self) -> str:
        """Return the present settings as a configuration file."""

    @property
    def permits_global_qos(self) -> bool:
        """Whether an AMQP 0-9-1 client may limit all consumers of a channel together."""

    async def certificates(self) -> Sequence[CertificateSeen]:
        """Return the certificate files of the settings."""

    def connections_open(self) -> tuple[int, int]:
        """Return the number of connections to this node, including those not logged in, and the limit."""

    async def connections_elsewhere(self) -> Sequence[ConnectionView]:
        """Return the connections of the cluster's other nodes, as far as they answer."""

    async def connections(self) -> Sequence[ConnectionView]:
        """Return the open connections of this node, collected in portions."""

    async def metrics(self, wanted: ScrapeRequest) -> bytes:
        """Return all metrics as text, computed in portions."""

    async def page_file(self, path: str) -> PageFile | None:
        """Return a file of the page; None if there is none of this path."""

    def follow(self, following: Following, grants: Grants) -> Feed:
        """Return a feed of the changes at paths."""

    def random(self, size: int) -> bytes:
        """Return `size` unguessable random bytes."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""

    async def pause(self) -> None:
        """Let other tasks run, within a long answer."""

    async def publish(
        self, access: Access, exchange: str, routing_key: str, properties: Mapping[str, Any], body: bytes
    ) -> bool:
        """Publish a message, and wait until its queues have stored it. Raises `BrokerError` if it was
        refused, or not stored in time.
        """

    async def get(
        self, access: Access, queue: str, most: int, delivery_outcome: DeliveryOutcome
    ) -> tuple[Sequence[Message], int]:
        """Get messages from the head of a queue. Returns the messages, and the number of ready ones behind
        the last one. Raises `BrokerError` if it was refused, or not answered in time.
        """

    def begin(self, operation: str, given: Mapping[str, Any], *, user: str) -> None:
        """Start an operation in the background; its result is logged."""

    async def run(self, operation: str, given: Mapping[str, Any], vhost: str | None, actor: Actor) -> Any:
        """Run an operation of `operations.registry`. `vhost`: the virtual host of the names; None is the
        configured default. Raises `BrokerError` if it was refused, or not answered in time.
        """


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """One request of an endpoint. `grants`: the user's rights; None at endpoints without a login."""

    request: HttpRequest
    values: Mapping[str, str]
    grants: Grants | None
    broker_api: BrokerApi

    @property
    def granted(self) -> Grants:
        """The user's rights, at an endpoint that requires a login."""
        assert self.grants is not None, "the endpoint needs no login"
        return self.grants

    @property
    def user(self) -> User:
        """The user, at an endpoint that requires a login."""
        return account_of(self.granted)

    @property
    def body(self) -> dict[str, Any]:
        return read_object(self.request.body)

    @property
    def with_stats(self) -> bool:
        """Whether statistics are requested, too."""
        return self.request.query.get("disable_stats") != "true"

    def has(self, tag: Tag) -> bool:
        """Return whether the user has a tag, or one that includes it."""
        return not SUFFICIENT[tag].isdisjoint(self.user.tags)

    def sees(self, vhost: str) -> bool:
        """Return whether the user may see the objects of a virtual host."""
        return self.has(Tag.ADMINISTRATOR) or self.granted.entry(vhost) is not None

    def vhost(self, name: str | None = None) -> VirtualHost:
        """Return a virtual host; one that the user may not see counts as missing (404)."""
        found = self.broker_api.catalog.find_vhost(self.values["vhost"] if name is None else name)
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
        return await self.broker_api.run(operation, given, vhost, self._actor(self.access(vhost)))

    async def administer(self, operation: str, vhost: str | None = None, /, **given: Any) -> Any:
        """Run an operation for which the endpoint's tag is sufficient (`BrokerApi.run`)."""
        return await self.broker_api.run(operation, given, vhost, self._actor(None))

    def _actor(self, access: Access | None) -> Actor:
        return over_http(self.user.name, access)

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
        """Answer with objects ordered by virtual host and name, as the query requests; `long_lists` has one
        for long lists.
        """
        return HttpResponse.of_json(ListQuery.read(self.request.query, paged=False).shown(items))


def over_http(user: str, access: Access | None = None) -> Actor:
    """Return a user of the API; without `access` the endpoint has checked the permissions."""
    return Actor(f"user '{user}' over HTTP", access)


RunEndpoint: TypeAlias = Callable[[EndpointCall], Awaitable[HttpResponse]]


def route(
    pattern: str,
    tag: Tag | None = Tag.MANAGEMENT,
    **methods: RunEndpoint | tuple[Tag, RunEndpoint] | Endpoint[RunEndpoint],
) -> HttpRoute[RunEndpoint]:
    """Make a route of the API.

    Args:
        tag: required by the methods; None: no login.
        **methods: endpoints by name in lower case; with another tag before it where it needs that tag, or
            as a whole `Endpoint`.
    """
    endpoints = {}
    for name, run in methods.items():
        if not isinstance(run, Endpoint):
            run = Endpoint(*run) if isinstance(run, tuple) else Endpoint(tag, run)
        endpoints[name.upper()] = run
    return HttpRoute(f"/api{pattern}", endpoints)
