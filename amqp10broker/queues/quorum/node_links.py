"""The remote nodes that have consumers or publishers of a quorum queue.

A node numbers its commands to the queue, so that commands which are sent again after the loss of a leader are
applied once. The leader sends effects, and no member stores them. A node that missed some gets them again
from the state (deliveries, credit, single activity) or derives them from the number of its last applied
command (confirms). Effects that follow from neither are stored here until the node has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from operator import attrgetter
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import (
    Answer,
    AttachPublisher,
    Cancel,
    ConsumerRef,
    Credit,
    CreditReply,
    Delete,
    Deliver,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    PublishRejected,
    Purge,
    Settle,
    Subscribe,
    TimedOut,
    Unsubscribe,
)
from amqp10broker.queues.quorum.commands import NodeBatch, QuorumCommand

StoredEffect = PublishRejected | Answer | TimedOut | CreditReply
"""Effects that neither the state nor the number of the last command replaces. The `CreditReply` to a drain of
a consumer that selects is one, because it comes when the search has ended.
"""


@dataclass(slots=True)
class NodeLink:
    """The state of one start of one node. `heard`: the last entry whose effects the node has."""

    last: int = 0
    heard: int = 0
    kept: list[tuple[int, PeerId, StoredEffect]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """The state of a consumer, for its node. `missed`: deliveries that never reached the node and have been
    returned. They are included in `delivery_count`. From now on the node adds them to `seen` and
    `delivery_count` of its commands for this consumer, even of repeated ones, and subtracts them from
    `CreditReply.delivery_count`.
    """

    delivery_count: int
    credit: int
    available: int
    epoch: int
    active: bool | None
    missed: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """The state that a node needs in order to continue with a new leader, or after a lost contact. `last`:
    the number of its last command that was applied. `deliveries`: those that it has missed.
    """

    last: int
    kept: list[tuple[int, PeerId, StoredEffect]]
    deliveries: list[Deliver]
    consumers: Mapping[ConsumerRef, ConsumerFacts]
    unknown: list[ConsumerRef]
    publishers: list[PublisherRef]
    deleted: bool


class NodeLinks:
    """All remote nodes of one queue. `entry`: index of the applied entry; effects are stored under it."""

    __slots__ = ("by_node", "entry", "gone")

    def __init__(self) -> None:
        self.by_node: dict[tuple[int, int], NodeLink] = {}
        self.gone: dict[int, int] = {}
        self.entry = 0

    def take(self, batch: NodeBatch) -> bool:
        """Return whether a batch is the next one of its node, and must be applied now."""
        key = batch.node, batch.incarnation
        link = self.by_node.get(key)
        if link is None:
            if batch.first != 1 or batch.incarnation <= self.gone.get(batch.node, -1):
                return False
            link = self.by_node[key] = NodeLink()
        elif batch.first != link.last + 1:
            return False
        link.last = batch.last
        if batch.heard > link.heard:
            link.heard = batch.heard
            if link.kept:
                link.kept = [each for each in link.kept if each[0] > batch.heard]
        return True

    def keep(self, reply_to: PeerId, effect: StoredEffect) -> None:
        link = self.by_node.get(reply_to[:2])
        if link is not None:
            link.kept.append((self.entry, reply_to, effect))

    def lose(self, node: int, incarnation: int) -> None:
        self.gone[node] = max(incarnation, self.gone.get(node, incarnation))
        for key in [each for each in self.by_node if each[0] == node and each[1] <= incarnation]:
            del self.by_node[key]


_ASKERS: Final[Mapping[type, Callable[[Any], PeerId]]] = {
    **dict.fromkeys((Publish, AttachPublisher, DetachPublisher), attrgetter("publisher.reply_to")),
    **dict.fromkeys(
        (Subscribe, Cancel, Unsubscribe, Credit, Settle, GiveBack), attrgetter("consumer.reply_to")
    ),
    **dict.fromkeys((Inspect, Purge, Delete), attrgetter("request.reply_to")),
}


def is_of(command: QuorumCommand, node: int, incarnation: int) -> bool:
    if type(command) is Delete and command.request is None:
        return False
    asker = _ASKERS.get(type(command))
    return asker is not None and asker(command)[:2] == (node, incarnation)
