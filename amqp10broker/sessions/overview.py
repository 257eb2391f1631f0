"""The view of a node for the management API, assembled from the views of its parts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.snapshot import (
    BrokerView,
    ConnectionView,
    ExchangeView,
    NodeView,
    QueueView,
    TotalsView,
)
from amqp10broker.sessions.diagnosis.survey import Selection, Survey


class Viewed(Protocol):
    """A connection that can be viewed."""

    number: int
    user: str

    def view(self) -> ConnectionView: ...


def overview(
    node: NodeView,
    totals: TotalsView,
    connections: Collection[Viewed],
    catalog: Catalog,
    selection: Selection,
) -> BrokerView:
    """Return the view of the whole node, as of now."""
    survey = Survey(selection, len(connections))
    for connection in connections:
        if selection.wants(connection.number, connection.user):
            survey.add(connection.view())
    queues = survey.queues(map(queue_view, catalog))
    return BrokerView(
        broker=node,
        totals=totals,
        exchanges=tuple(
            ExchangeView(exchange.name, vhost.name, exchange.counted())
            for vhost in catalog.vhosts.values()
            for exchange in vhost.topology
            if exchange.published
        ),
        summary=survey.summary(queues),
        waiting=survey.waiting(),
        connections=survey.connections(),
        queues=tuple(queues[: selection.limit]),
    )


def queue_view(queue: DeclaredQueue) -> QueueView:
    return QueueView(
        name=queue.name,
        vhost=queue.vhost,
        type=queue.type,
        durable=queue.durable,
        figures=queue.handle.figures(),
        dead_lettered=dict(queue.handle.counters.dead_lettered),
        counters=queue.counted(),
        last_error=queue.last_error,
    )
