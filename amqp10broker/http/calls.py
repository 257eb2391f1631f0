"""What an endpoint is given: the request, who asks, and the broker behind the API.

An endpoint is an ``async def`` of a `Call` that returns an `Answer`. It waits for nothing but what `Door`
offers, so it is tested without a socket. What refuses raises `Refused`, or the broker's own `RefusedError`,
which `refusals` puts into the API's words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.users import User
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.dataclass import dataclass
from amqp10broker.http.fields import read_object
from amqp10broker.http.lists import Listing
from amqp10broker.http.live import Following
from amqp10broker.http.messages import Answer, Feed, Refused, Request
from amqp10broker.http.page import PageFile
from amqp10broker.http.rights import SUFFICIENT, Tag
from amqp10broker.http.routes import Endpoint, Route
from amqp10broker.http.samples import Samples, Span, Values, rated
from amqp10broker.management.inspection import CertificateSeen
from amqp10broker.management.snapshot import ConnectionView, NodeView
from amqp10broker.message.message import Message
from amqp10broker.metrics.wanted import Wanted
from amqp10broker.queues.commands import Verdict
from amqp10broker.security.attempts import Attempts
from amqp10broker.security.authorise import Access
from amqp10broker.security.grants import Grants, account_of

CREATED: Final = Answer(HTTPStatus.CREATED)
NO_CONTENT: Final = Answer(HTTPStatus.NO_CONTENT)


class Door(Protocol):
    """The broker, as endpoints may ask it."""

    @property
    def catalog(self) -> Catalog:
        """What is declared."""

    @property
    def node_name(self) -> str:
        """Of this node, as paths and objects name it."""

    def node(self) -> NodeView:
        """This node's process."""

    def process(self) -> Mapping[str, int]:
        """Of this process, by RabbitMQ's names: processors; tasks, and those of them that are ready to run;
        file descriptors, as far as the system says."""

    def clients(self) -> Mapping[str, Mapping[str, int | None]]:
        """What all clients did and got since the start, by virtual host; see `service.counters`."""

    @property
    def interval_ms(self) -> int:
        """Between two looks at what has rates."""

    @property
    def samples(self) -> Samples:
        """What earlier requests have seen of objects, for rates."""

    @property
    def attempts(self) -> Attempts:
        """Who tried to log in."""

    def settings(self) -> str:
        """The settings as they are now, as a file that gives the same ones."""

    @property
    def permits_global_qos(self) -> bool:
        """Whether a client of AMQP 0-9-1 may limit all consumers of a channel together."""

    async def certificates(self) -> Sequence[CertificateSeen]:
        """The files with certificates that the settings name."""

    def connections_open(self) -> tuple[int, int]:
        """Connections to this node, those that have not logged in counted, and how many there may be."""

    async def connections_elsewhere(self) -> Sequence[ConnectionView]:
        """Those of the cluster's other nodes, as far as they answer."""

    async def connections(self) -> Sequence[ConnectionView]:
        """The open connections of this node, looked at a few at a time."""

    async def metrics(self, wanted: Wanted) -> bytes:
        """Everything that is counted, as text; others run meanwhile."""

    async def page_file(self, path: str) -> PageFile | None:
        """A file of the page; None if there is none of this path."""

    def follow(self, following: Following, grants: Grants) -> Feed:
        """What a user hears of paths, as it changes.

        Raises:
            Refused: 503, too many streams are open.
        """

    def random(self, size: int) -> bytes:
        """So many unguessable bytes."""

    def now_ms(self) -> int:
        """The time of day, milliseconds since the epoch."""

    async def pause(self) -> None:
        """Let others run, within a long answer."""

    async def publish(
        self, access: Access, exchange: str, routing_key: str, properties: Mapping[str, Any], body: bytes
    ) -> bool:
        """Publish a message, and wait until its queues have taken it.

        Args:
            access: what the user may do in the virtual host.
            exchange: its name, empty for the default one.
            routing_key: of the message.
            properties: by name, see `message.plain`.
            body: of the message.

        Returns:
            Whether it went to any queue.

        Raises:
            BrokerError: it was refused, or not taken in time.
        """

    async def get(
        self, access: Access, queue: str, most: int, verdict: Verdict
    ) -> tuple[Sequence[Message], int]:
        """Get messages from the head of a queue.

        Args:
            access: what the user may do in the virtual host.
            queue: its name.
            most: messages to get.
            verdict: what becomes of them when all are there.

        Returns:
            The messages, and how many were ready behind the last one.

        Raises:
            BrokerError: it was refused, or not answered in time.
        """

    def begin(self, operation: str, given: Mapping[str, Any], *, user: str) -> None:
        """Have an operation run behind the answer; how it ends, the log says.

        Args:
            operation: its name, see `run`; it is about no virtual host.
            given: its arguments by name.
            user: who asks, for the log.
        """

    async def run(
        self, operation: str, given: Mapping[str, Any], *, vhost: str | None, user: str, access: Access | None
    ) -> Any:
        """Run an operation of `management.table`.

        Args:
            operation: its name.
            given: its arguments by name.
            vhost: the virtual host that names mean; None is the one of the configuration.
            user: who asks, for the log.
            access: what the user may do; None: the endpoint has checked it.

        Raises:
            BrokerError: it was refused, or not answered in time.
        """


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way through an endpoint.

    Attributes:
        request: itself.
        values: what stands for the braces of the route's pattern.
        grants: what the user may do who asks; None where nobody has to log in.
        door: the broker.
    """

    request: Request
    values: Mapping[str, str]
    grants: Grants | None
    door: Door

    @property
    def granted(self) -> Grants:
        """What the user may do, at an endpoint that needs a login."""
        assert self.grants is not None, "the endpoint needs no login"
        return self.grants

    @property
    def who(self) -> User:
        """Who asks, at an endpoint that needs a login."""
        return account_of(self.granted)

    @property
    def body(self) -> dict[str, Any]:
        """The object of the body.

        Raises:
            Refused: 400, it is none.
        """
        return read_object(self.request.body)

    @property
    def with_stats(self) -> bool:
        """Whether more than what is declared is asked for."""
        return self.request.query.get("disable_stats") != "true"

    def has(self, tag: Tag) -> bool:
        """Whether the user has a tag, or one that includes it."""
        return not SUFFICIENT[tag].isdisjoint(self.who.tags)

    def sees(self, vhost: str) -> bool:
        """Whether the objects of a virtual host are there for this user."""
        return self.has(Tag.ADMINISTRATOR) or self.granted.entry(vhost) is not None

    def vhost(self, name: str | None = None) -> VirtualHost:
        """A virtual host; without a name that of the path.

        Raises:
            Refused: 404, there is none, or none for this user.
        """
        found = self.door.catalog.find_vhost(self.values["vhost"] if name is None else name)
        if found is None or not self.sees(found.name):
            raise Refused(HTTPStatus.NOT_FOUND, "not_found", "Not Found")
        return found

    def vhosts(self) -> list[VirtualHost]:
        """Those that the path means: all that this user sees, by name, or the one that it names.

        Raises:
            Refused: 404, as `vhost` does.
        """
        if "vhost" in self.values:
            return [self.vhost()]
        every = self.door.catalog.vhosts
        return [every[name] for name in sorted(every) if self.sees(name)]

    def access(self, vhost: str) -> Access:
        """What this user may do in a virtual host."""
        return Access(self.granted, vhost)

    async def act(self, operation: str, vhost: str, /, **given: Any) -> Any:
        """Run an operation with this user's permissions; see `Door.run`."""
        access = self.access(vhost)
        return await self.door.run(operation, given, vhost=vhost, user=self.who.name, access=access)

    async def administer(self, operation: str, vhost: str | None = None, /, **given: Any) -> Any:
        """Run an operation that the tag of the endpoint is enough for; see `Door.run`."""
        return await self.door.run(operation, given, vhost=vhost, user=self.who.name, access=None)

    def rated(self, *key: str, **families: Values) -> dict[str, dict[str, Any]]:
        """Values with their rates, and with the histories that the query asks for.

        Args:
            *key: of the object: its kind, and its names.
            **families: values by name, for each family of `Span.read`.

        Returns:
            The same families.

        Raises:
            Refused: 400, a history of too many points is asked for.
        """
        every = {name: value for values in families.values() for name, value in values.items()}
        series = self.door.samples.look(key, self.door.now_ms(), every)
        query = self.request.query
        return {
            family: rated(values, series, Span.read(query, family)) for family, values in families.items()
        }

    def idle(self, *key: str, seen: Values) -> dict[str, str]:
        """Since when nothing has become of an object, if anything is known of that.

        Args:
            *key: as in `rated`, which has been called for it.
            seen: all values of it that were given there.
        """
        since_ms = self.door.samples.unchanged_since(key, seen)
        if since_ms is None:
            return {}
        at = datetime.fromtimestamp(since_ms / 1000, UTC)
        return {"idle_since": at.isoformat(timespec="milliseconds")}

    def shown(self, item: Mapping[str, Any]) -> Answer:
        """One object, with the columns that are asked for."""
        return Answer.of_json(Listing.read(self.request.query, paged=False).pick(item))

    def listed(self, items: Sequence[Mapping[str, Any]]) -> Answer:
        """Objects in the order of virtual host and name, as the query wants them; see also `long_lists`."""
        return Answer.of_json(Listing.read(self.request.query, paged=False).shown(items))


RunEndpoint: TypeAlias = Callable[[Call], Awaitable[Answer]]


def route(
    pattern: str,
    tag: Tag | None = Tag.MANAGEMENT,
    **methods: RunEndpoint | tuple[Tag, RunEndpoint] | Endpoint[RunEndpoint],
) -> Route[RunEndpoint]:
    """A route of the API.

    Args:
        pattern: of paths, below ``/api``.
        tag: that a method needs; None: no login.
        **methods: by name in lower case, what runs; with another tag before it where it needs that tag, or as
            the whole endpoint.
    """
    endpoints = {}
    for name, run in methods.items():
        if not isinstance(run, Endpoint):
            run = Endpoint(*run) if isinstance(run, tuple) else Endpoint(tag, run)
        endpoints[name.upper()] = run
    return Route(f"/api{pattern}", endpoints)
