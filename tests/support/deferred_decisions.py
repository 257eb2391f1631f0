"""Changes of a catalog that are decided later, as where nodes must agree."""

from __future__ import annotations

from collections import deque
from typing import Any

from amqp10broker.errors import RefusedError
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.plan import LATER, Decided, Postponed
from amqp10broker.queues.commands import RequestRef


class DeferredDecisions:
    """A `metadata.catalog.Propose` that decides when a test calls for it, what was `proposed` first first."""

    def __init__(self, catalog: Catalog) -> None:
        self.proposed: deque[tuple[CatalogRequest[Any], RequestRef]] = deque()
        self._catalog = catalog

    def __call__(self, request: CatalogRequest[Any], ref: RequestRef) -> Postponed:
        self.proposed.append((request, ref))
        return LATER

    def decide(self) -> Decided:
        """Make the oldest pending decision; the letter goes to its requester."""
        request, ref = self.proposed.popleft()
        try:
            return Decided(ref, self._catalog.propose(request))
        except RefusedError as refusal:
            return Decided(ref, refusal=refusal)

    def refuse(self, refusal: RefusedError) -> Decided:
        return Decided(self.proposed.popleft()[1], refusal=refusal)
