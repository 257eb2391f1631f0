"""Requests and results of the placement of a new queue; `cluster.placement` chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from amqp10broker.metadata.nodes import NodeFacts
from amqp10broker.metadata.queue import DeclaredQueue


class WantedQueue(NamedTuple):
    """A queue that is about to be declared."""

    kind: str
    arguments: Mapping[str, Any]
    definition: Mapping[str, Any]
    """What policies set for it; see `queue.Effective`."""
    exclusive: bool
    lasting: bool


class Placed(NamedTuple):
    """See the fields of these names of `queue.QueueSpec`."""

    home: int = 0
    members: tuple[int, ...] = ()
    incarnation: int = 0


Placement = Callable[[WantedQueue, Iterable[NodeFacts], Iterable[DeclaredQueue], int], Placed]
"""Chooses the nodes of a queue that a client of this node declares. Last: the number of existing queues."""
