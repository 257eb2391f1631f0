"""Everything that doors show of a node, put together of what its parts show."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.management.snapshot import (
    BrokerView,
    ConnectionView,
    ExchangeView,
    NodeView,
    QueueView,
    TotalsView,
)
from amqp10broker.service.survey import Selection, Survey


class Viewed(Protocol):
    """A connection, as far as it is shown."""

    number: int
    user: str

    def view(self) -> ConnectionView:
        """What doors show of it."""


def overview(
    node: NodeView,
    totals: TotalsView,
    connections: Collection[Viewed],
    catalog: Catalog,
    selection: Selection,
) -> BrokerView:
    """Everything, as of now.

    Args:
        node: the process.
        totals: what clients did since the start.
        connections: those that are there.
        catalog: what is declared.
        selection: what of connections and queues.
    """
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
    """What is shown of one queue."""
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
