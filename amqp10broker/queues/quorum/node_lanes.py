"""What a quorum queue knows of the nodes whose sessions ask it: how far it has carried out what they asked,
and what they have to hear of it.

A node numbers all its letters to the queue, so that one which is sent again, because the leader of the queue
was lost, is carried out once. Effects are told by the leader and kept by no member: what the node missed is
given again by the state (deliveries, credit, who is active) or follows from how far the letters were carried
out (confirms). What neither can say is kept here until the node has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from operator import attrgetter
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import (
    AttachPublisher,
    Cancel,
    ConsumerRef,
    Credit,
    Delete,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    Purge,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.effects import Answer, CreditReply, Deliver, Rejected, TimedOut
from amqp10broker.queues.quorum.commands import Letters, QuorumCommand

KeptEffect = Rejected | Answer | TimedOut | CreditReply
"""Neither the state says these again, nor how far the letters were carried out: a `CreditReply` to a drain of
a consumer that selects comes later, when that has looked through the queue."""


@dataclass(slots=True)
class NodeLane:
    """One start of one node.

    Attributes:
        last: number of the last letter that was carried out.
        heard: index of the last entry whose effects the node has said to have.
        kept: of later entries: their index, who is told, and what.
    """

    last: int = 0
    heard: int = 0
    kept: list[tuple[int, PeerId, KeptEffect]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """A consumer of a node that asks how things stand.

    Attributes:
        delivery_count: as in `CreditReply`.
        credit: as in `CreditReply`; 0 after a drain.
        available: as in `CreditReply`.
        epoch: of its last `GiveBack` that was carried out.
        active: as in `ActiveChanged`; None: the queue has no single active consumer, or this one can be none.
        missed: deliveries that never reached the node, and were taken back meanwhile: they were held for too
            long, or the node was away for too long. They are in `delivery_count`. The node adds them to what
            it says of this consumer from now on (`seen` and `delivery_count`), also in letters that it sends
            again, and takes them off `CreditReply.delivery_count`.
    """

    delivery_count: int
    credit: int
    available: int
    epoch: int
    active: bool | None
    missed: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a node has to know to go on with a leader that it has not talked to, or lost touch with.

    Attributes:
        last: number of the last of its letters that was carried out; later ones have to be sent again.
        kept: what else it has to hear, in order: index of the entry, who, and what.
        deliveries: what did not reach it, one for each consumer that has any.
        consumers: its consumers that the queue has.
        unknown: consumers that it asked about and that the queue does not have.
        publishers: its publishers that are attached.
        deleted: the queue is gone.
    """

    last: int
    kept: list[tuple[int, PeerId, KeptEffect]]
    deliveries: list[Deliver]
    consumers: Mapping[ConsumerRef, ConsumerFacts]
    unknown: list[ConsumerRef]
    publishers: list[PublisherRef]
    deleted: bool


class NodeLanes:
    """All nodes of one queue.

    Attributes:
        by_node: node and incarnation -> what is known of it.
        gone: node -> the last start of it that is gone.
        entry: index of the entry that is carried out, under which effects are kept.
    """

    __slots__ = ("by_node", "entry", "gone")

    def __init__(self) -> None:
        self.by_node: dict[tuple[int, int], NodeLane] = {}
        self.gone: dict[int, int] = {}
        self.entry = 0

    def take(self, letters: Letters) -> bool:
        """Whether these letters are the next ones of their node, and are to be carried out now."""
        key = letters.node, letters.incarnation
        lane = self.by_node.get(key)
        if lane is None:
            if letters.first != 1 or letters.incarnation <= self.gone.get(letters.node, -1):
                return False
            lane = self.by_node[key] = NodeLane()
        elif letters.first != lane.last + 1:
            return False
        lane.last = letters.last
        if letters.heard > lane.heard:
            lane.heard = letters.heard
            if lane.kept:
                lane.kept = [each for each in lane.kept if each[0] > letters.heard]
        return True

    def keep(self, reply_to: PeerId, effect: KeptEffect) -> None:
        """Something is told that has to be told again, should it get lost."""
        lane = self.by_node.get(reply_to[:2])
        if lane is not None:
            lane.kept.append((self.entry, reply_to, effect))

    def lose(self, node: int, incarnation: int) -> None:
        """This start of a node and those before are gone."""
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
    """Whether a session of this start of a node may say this."""
    if type(command) is Delete and command.request is None:
        return False
    asker = _ASKERS.get(type(command))
    return asker is not None and asker(command)[:2] == (node, incarnation)
