"""All endpoints of the HTTP API, a module for each kind of object; and the samples that the broker takes
itself while clients request rates.

Without its samples a rate would cover the time between two requests of a client, and its first requests would
have none. With very many objects only clients' requests count: sampling all would take a good part of a
processor.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.api.calls import REGISTERED, BrokerApi, EndpointCall
from amqp10broker.api.endpoints import connections, exchanges, overview, parameters, queues, users
from amqp10broker.api.front import RunEndpoint
from amqp10broker.api.messages import HttpRequest
from amqp10broker.auth.authorise import Grants
from amqp10broker.metadata.users import User

MODULES: Final = (connections, parameters, exchanges, overview, queues, users)
ROUTES: Final = tuple(REGISTERED.values())


QUIET_S: Final = 600
"""Sampling stops so long after the last request."""
QUEUES_MAX: Final = 1_000
CONNECTIONS_MAX: Final = 1_000
"""With more objects than this they are not sampled."""
USERS_MAX: Final = 8
"""The most users with a sampled overview, which differs by user: those with the latest requests."""

_OF_QUEUES: Final[tuple[RunEndpoint, ...]] = (queues.list_queues, exchanges.list_exchanges)
_OF_CONNECTIONS: Final[tuple[RunEndpoint, ...]] = (connections.list_connections, connections.list_channels)
_REQUEST: Final = HttpRequest("GET", (), {"columns": "message_stats,recv_oct_details"})
"""The request for the columns with rates, and little else."""


_BROKER: Final = User("", None, ("administrator",))
"""The broker itself, as a user that may see everything."""


class RecentUsers:
    """The recent users of the API, and the sampling for them."""

    def __init__(self, broker_api: BrokerApi) -> None:
        self._broker_api = broker_api
        self._asked: dict[str, tuple[Grants, float]] = {}

    def asked(self, grants: Grants, now: float) -> bool:
        """Note a user's request; return whether sampling must begin. `now`: seconds of Trio's clock."""
        begins = not self.wanted(now)
        self._asked.pop(grants.user, None)
        self._asked[grants.user] = grants, now
        if len(self._asked) > USERS_MAX:
            del self._asked[next(iter(self._asked))]
        return begins

    def wanted(self, now: float) -> bool:
        return any(at > now - QUIET_S for _, at in self._asked.values())

    async def look(self) -> None:
        """Sample everything that has rates, in portions."""
        broker_api = self._broker_api
        shared: list[RunEndpoint] = []
        if sum(vhost.declared for vhost in broker_api.catalog.vhosts.values()) <= QUEUES_MAX:
            shared += _OF_QUEUES
        if broker_api.connections_open()[0] <= CONNECTIONS_MAX:
            shared += _OF_CONNECTIONS
        for run in shared:
            await run(EndpointCall(_REQUEST, {}, broker_api, None, _BROKER))
        for grants, _ in list(self._asked.values()):
            if (account := grants.account) is not None:
                await overview.overview(EndpointCall(_REQUEST, {}, broker_api, grants, account))
