"""The error for a request without a decision of a majority in time, in RabbitMQ's words (M5)."""

from __future__ import annotations

from typing import Any

from amqp10broker.errors import Unavailable
from amqp10broker.metadata.catalog import CatalogRequest
from amqp10broker.metadata.exchange_requests import Bind, DeclareExchange, DeleteExchange, Unbind
from amqp10broker.metadata.plan import Plan
from amqp10broker.metadata.queue import QueueType
from amqp10broker.metadata.queue_requests import DeclareQueue, DeleteQueue


def timed_out(request: CatalogRequest[Any], plan: Plan[Any]) -> Unavailable:
    """The refusal of a request that was not decided in time; it may still be carried out (M6)."""
    match request:
        case DeclareQueue():
            name = plan.answer.name
            resource = f"queue '{name}' in vhost '{request.vhost}'"
            if any(put.key[0] == "queue" and put.record.type != QueueType.CLASSIC for put in plan.puts):
                text = f"Could not declare {resource} because the metadata store operation timed out"
            else:
                text = f"failed to declare {resource}, because the operation timed out"
            return Unavailable(f"queue '{name}'", text)
        case DeclareExchange():
            resource = f"exchange '{request.exchange.name}'"
            where = f"{resource} in vhost '{request.vhost}'"
            return Unavailable(resource, f"failed to declare {where}, because the operation timed out")
        case DeleteQueue():
            resource = f"queue '{request.name}'"
            where = f"{resource} in vhost '{request.vhost}'"
            return Unavailable(resource, f"failed to delete {where} due to a timeout")
        case DeleteExchange():
            resource = f"exchange '{request.name}'"
            where = f"{resource} in vhost '{request.vhost}'"
            return Unavailable(resource, f"failed to delete {where} due to a timeout")
        case Bind():
            return Unavailable("binding", "Could not add binding due to timeout")
        case Unbind():
            return Unavailable("binding", "Could not remove binding due to timeout")
        case _:
            return Unavailable(
                "cluster",
                "the operation timed out: no majority of the cluster's nodes can be reached; it may still be "
                "carried out when there is one; to repeat it does no harm",
            )
