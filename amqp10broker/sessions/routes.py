"""Routing of published messages to queues, with permission checks and a cache.

A publisher names the same exchange and key over and over: permission and bound queues are cached until the
virtual host's topology or the user's permissions change; both have a version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final

from amqp10broker.auth.authorise import Access
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import AccessRefused
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.queue_requests import is_local
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.routing.exchange import Exchange

ROUTES_MAX: Final = 4096
"""The most routes that one publisher's cache holds."""

HEADS_MAX: Final = 1024
"""The most message heads that these cache together."""

HEAD_BYTES_MAX: Final = 1024

Headers = Callable[[], Mapping[str, object]]


@dataclass(eq=False, slots=True)
class Route:
    """The route of one exchange and key. `queues`: None if they depend on the message. `stamp`: the versions
    of the topology and of the user's permissions.
    """

    exchange: Exchange
    routing_key: str
    queues: Sequence[DeclaredQueue] | None
    stamp: tuple[int, int]
    heads: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Routes:
    """The routes of one user's messages in one virtual host."""

    _vhost: VirtualHost
    _access: Access
    _container: str | None = None
    _known: dict[tuple[str, str], Route] = field(default_factory=dict)
    _heads: list[dict[bytes, bytes]] = field(default_factory=list)
    _heads_count: int = 0

    def find(self, exchange: str, routing_key: str) -> Route:
        """Return the route. Raises `NotFound`, `PermissionDenied`, or `AccessRefused` (internal exchange)."""
        vhost = self._vhost
        stamp = (vhost.version, self._access.changes.version)
        key = (exchange, routing_key)
        route = self._known.get(key)
        if route is not None and route.stamp == stamp:
            return route
        # The permission is checked first: without it a user must not learn which exchanges exist.
        self._access.write("exchange", exchange)
        found = vhost.topology.lookup_exchange(exchange)
        if found.internal:
            raise AccessRefused(
                f"exchange '{exchange}'",
                f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'",
            )
        if found.type == "topic":
            self._access.write_topic(exchange, routing_key)
        # The first attempt has no headers. The result is discarded if an exchange on the way uses headers.
        queues, cacheable = vhost.route(found, (routing_key,), dict)
        queues = self._not_local(queues)
        fresh = Route(found, routing_key, queues if cacheable else None, stamp)
        if route is not None and route.exchange is found and route.stamp[1] == stamp[1]:
            fresh.heads = route.heads
        if len(self._known) >= ROUTES_MAX:
            self._known.clear()
        self._known[key] = fresh
        return fresh

    def remember(self, route: Route, properties: bytes, head: bytes) -> None:
        """Cache the head made of a message's properties."""
        if len(properties) > HEAD_BYTES_MAX:
            return
        if self._heads_count >= HEADS_MAX:
            for heads in self._heads:
                heads.clear()
            self._heads.clear()
            self._heads_count = 0
        if not route.heads:
            self._heads.append(route.heads)
        route.heads[properties] = head
        self._heads_count += 1

    def queues(self, route: Route, extra_keys: Sequence[str], headers: Headers) -> Sequence[DeclaredQueue]:
        """Return the queues of one message, with `extra_keys` (CC, BCC). Raises `PermissionDenied`."""
        if route.queues is not None and not extra_keys:
            return route.queues
        if route.exchange.type == "topic":
            for key in extra_keys:
                self._access.write_topic(route.exchange.name, key)
        queues, _ = self._vhost.route(route.exchange, (route.routing_key, *extra_keys), headers)
        return self._not_local(queues)

    def _not_local(self, queues: list[DeclaredQueue]) -> list[DeclaredQueue]:
        container = self._container
        if container is None or not any(is_local(queue, container) for queue in queues):
            return queues
        return [queue for queue in queues if not is_local(queue, container)]
