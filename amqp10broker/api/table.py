"""All routes of the HTTP API."""

from __future__ import annotations

from typing import Final

from amqp10broker.api.calls import RunEndpoint
from amqp10broker.api.endpoints import (
    auth,
    bindings,
    connections,
    definitions,
    exchanges,
    flow,
    health,
    live,
    messages,
    old_checks,
    overview,
    parameters,
    policies,
    queues,
    quorum,
    users,
    vhosts,
    whoami,
)
from amqp10broker.api.routes import HttpRoute

ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    *whoami.ROUTES,
    *auth.ROUTES,
    *queues.ROUTES,
    *exchanges.ROUTES,
    *bindings.ROUTES,
    *messages.ROUTES,
    *quorum.ROUTES,
    *old_checks.ROUTES,
    *users.ROUTES,
    *vhosts.ROUTES,
    *policies.ROUTES,
    *definitions.ROUTES,
    *connections.ROUTES,
    *overview.ROUTES,
    *health.ROUTES,
    *live.ROUTES,
    *flow.ROUTES,
    *parameters.ROUTES,
)
