"""All routes of the HTTP API."""

from __future__ import annotations

from typing import Final

from amqp10broker.api.calls import REGISTERED
from amqp10broker.api.endpoints import (
    auth,
    bindings,
    connections,
    definitions,
    exchanges,
    flow,
    health,
    messages,
    overview,
    parameters,
    policies,
    queues,
    users,
    vhosts,
)

MODULES: Final = (
    *(auth, bindings, connections, definitions, exchanges, flow, health, messages),
    *(overview, parameters, policies, queues, users, vhosts),
)
"""The modules that register endpoints."""
ROUTES: Final = tuple(REGISTERED.values())
