"""Requests of an operator at the administration socket of a broker in this program."""

from __future__ import annotations

import json
from typing import Any

from amqp10broker.runtime.admin import admin
from amqp10broker.runtime.broker import Broker


async def asked(broker: Broker, op: str, vhost: str | None = None, /, **given: Any) -> dict[str, Any]:
    request = {"op": op, "vhost": vhost, "arguments": given}
    return await admin.answer(broker, json.dumps(request).encode())


async def ask(broker: Broker, op: str, vhost: str | None = None, /, **given: Any) -> Any:
    """Send a request that must be carried out; return its result."""
    response = await asked(broker, op, vhost, **given)
    assert response["ok"], response
    return response["result"]
