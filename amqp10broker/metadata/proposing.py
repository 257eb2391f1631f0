"""How a door has a request decided: the answer comes at once, or later as a letter.

On one node the answer is there when the call returns. Where nodes must agree, it comes to whoever asked when
they have: as a `Decided` letter for the `RequestRef` under which it was asked. A door that waits handles
nothing of what its client has sent behind the request.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.catalog import Catalog, Request
from amqp10broker.queues.commands import RequestRef


class Later(Enum):
    LATER = "later"


LATER: Final = Later.LATER


class Propose(Protocol):
    def __call__(self, request: Request[Any], ref: RequestRef) -> Any: ...


@dataclass(frozen=True, slots=True)
class Decided:
    """A letter: what became of a request.

    Attributes:
        refusal: why not; None if it is applied.
    """

    ref: RequestRef
    answer: Any = None
    refusal: RefusedError | None = None

    def result(self) -> Any:
        """The answer. Raises `RefusedError` if it was refused; nothing was changed."""
        if self.refusal is not None:
            raise self.refusal
        return self.answer


def at_once(catalog: Catalog) -> Propose:
    """Have requests decided by one catalog, which asks nobody else."""
    return lambda request, ref: catalog.propose(request)
