"""All routes of the HTTP API."""

from __future__ import annotations

from typing import Final

from amqp10broker.api.calls import REGISTERED
from amqp10broker.api.endpoints import (
    connections,
    definitions,
    exchanges,
    flow,
    health,
    messages,
    overview,
    parameters,
    queues,
    users,
    vhosts,
)

MODULES: Final = (
    *(connections, definitions, exchanges, flow, health, messages),
    *(overview, parameters, queues, users, vhosts),
)
"""The modules that register endpoints."""
ROUTES: Final = tuple(REGISTERED.values())
