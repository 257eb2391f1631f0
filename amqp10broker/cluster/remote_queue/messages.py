"""The messages between the two ends of a link; their bytes are in `codec`.

A link leads from all sessions of one start of a node to one queue. Its commands are numbered from 1 in one
sequence, so that the queue executes each once under any leader. Within a node the records are passed by
reference and must not be changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import Command, ConsumerRef, PeerId
from amqp10broker.queues.effects import Deliver, Effect
from amqp10broker.queues.quorum.node_links import ConsumerFacts


@dataclass(slots=True, eq=False)
class LetterBatch:
    """Consecutively numbered commands.

    Attributes:
        token: of the last `ResumeRemote`, u32.
        commands: at least one.
        first: number of the first, u64.
        heard: index of the last entry whose effects the node has, u64.
    """

    token: int
    first: int
    heard: int
    commands: Sequence[Command]

    @property
    def last(self) -> int:
        return self.first + len(self.commands) - 1


@dataclass(slots=True, eq=False)
class Browse:
    """Requests of browsers of a quorum queue, in order; not in a log, so neither numbered nor repeated.
    `token`: of the last `ResumeRemote`, u32. `commands`: at least one.
    """

    token: int
    commands: Sequence[Command]


@dataclass(slots=True, eq=False)
class ResumeRemote:
    """A node has found the leader of the queue, and reports its position.

    Attributes:
        token: of this attempt, u32; later messages carry it.
        incarnation: which start of the node it is, u32.
        heard: index of the last entry whose effects it has, u64; 0: of none.
        first: number of the first letter that it keeps, u64: all before are done.
        seen: of each consumer that lives there, the deliveries of the present epoch that its session had,
            as the queue counts them, u64.
    """

    token: int
    incarnation: int
    heard: int
    first: int
    seen: Mapping[ConsumerRef, int]


@dataclass(slots=True, eq=False)
class RemoteResumed:
    """The answer to `ResumeRemote`: the part of the queue's state that concerns the node.

    Attributes:
        index: of the entry whose state it is: what comes of later ones is told as it happens.
        deleted: the queue is gone.
        consumers: all that exist at the node.
        last: number of the last letter that was carried out; all answers of those before are in the state,
            or in `kept`.
        kept: effects that the state cannot give again, which the node has not heard, in order.
        deliveries: what its consumers were handed out and have not seen, in order.
    """

    token: int
    index: int
    last: int
    deleted: bool
    kept: Sequence[Effect]
    deliveries: Sequence[Deliver]
    consumers: Mapping[ConsumerRef, ConsumerFacts]


@dataclass(slots=True, eq=False)
class RemoteEffects:
    """Effects for the sessions of a node.

    Attributes:
        token: of the `ResumeRemote` that they follow.
        index: of the entry that made them, u64; 0 of a queue that has no log.
        done: number of the last letter that was carried out, u64.
        effects: by session, in order.
    """

    token: int
    index: int
    done: int
    effects: Mapping[PeerId, list[Effect]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaderIs:
    """The sender leads the queue and accepts commands.

    Attributes:
        term: since which term, u64; 0 of a queue that stays where it is.
        again: it missed letters, or the link's token is unknown: `ResumeRemote` must be sent again.
        no_more: the sender does not lead the queue any more.
        full: its disk is: it takes all but publishes, which stay where they are until the next `LeaderIs`.
    """

    term: int
    again: bool = False
    no_more: bool = False
    full: bool = False


LinkMessage = LetterBatch | Browse | ResumeRemote | RemoteResumed | RemoteEffects | LeaderIs
