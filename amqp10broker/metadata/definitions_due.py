"""Queues and bindings that a cluster's founder declares when the expected number of nodes has joined.

A quorum queue gets at most as many members as the cluster has nodes at its declaration, so the queues of the
founder's configuration wait for the other nodes. Users, virtual hosts, exchanges and policies exist from the
beginning, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definitions import ImportDefinitions, ImportReport, importing
from amqp10broker.metadata.plan import CLUSTER, Plan, Put

DUE_LATER: Final = ("queues", "bindings")
"""Sections of a definitions file that wait."""


def without_due(request: ImportDefinitions) -> ImportDefinitions:
    """Return the part of a document that is declared at once."""
    document = {name: value for name, value in request.document.items() if name not in DUE_LATER}
    return replace(request, document=document)


def due_of(document: Mapping[str, Any], queues: Sequence[Mapping[str, Any]]) -> ImportDefinitions:
    """The rest of it, and further queues."""
    section = document.get("queues", [])
    if isinstance(section, list):  # it is refused where it is read if it is none
        section = [*section, *queues]
    return importing({"queues": section, "bindings": document.get("bindings", [])})


@dataclass(frozen=True, slots=True)
class DeclareDue:
    """Declare the waiting part, once."""

    what: ImportDefinitions

    def plan(self, catalog: Catalog) -> Plan[ImportReport]:
        """Plan it; the report is empty if it was declared before. Raises `ConfigError` if something of it
        cannot be; names the place.
        """
        cluster = catalog.cluster
        if cluster is None or not cluster.queues_due:
            return Plan(ImportReport())
        plan = self.what.plan(catalog)
        return Plan(plan.answer, [*plan.puts, Put(CLUSTER, replace(cluster, queues_due=False))])
