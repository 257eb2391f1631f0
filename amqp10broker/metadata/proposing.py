"""Decisions on requests: the answer comes at once, or later as a message.

On one node the answer exists when the call returns. In a cluster it arrives later as a `Decided` message for
the `RequestRef` of the request. A front end that waits handles no later input of its client.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from amqp10broker.dataclass import dataclass

if TYPE_CHECKING:
    from amqp10broker.errors import RefusedError
    from amqp10broker.metadata.catalog import Catalog, CatalogRequest
    from amqp10broker.queues.commands import RequestRef


class Postponed(Enum):
    LATER = "later"


LATER: Final = Postponed.LATER


Propose: TypeAlias = "Callable[[CatalogRequest[Any], RequestRef], Any]"
"""Has a request decided: returns its answer, or `LATER`."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A letter: what became of a request. `refusal`: why not; None if it is applied."""

    ref: RequestRef
    answer: Any = None
    refusal: RefusedError | None = None

    def result(self) -> Any:
        """The answer. Raises `RefusedError` if it was refused; nothing was changed."""
        if self.refusal is not None:
            raise self.refusal
        return self.answer


def at_once(catalog: Catalog) -> Propose:
    """Decide requests by one catalog, without other nodes."""
    return lambda request, ref: catalog.propose(request)
