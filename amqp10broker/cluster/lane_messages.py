"""What the two ends of a lane tell each other; as bytes in `letters_codec` and `effects_codec`.

A lane leads from all sessions of one start of a node to one queue. Its letters are numbered from 1 in one
sequence, so that the queue carries out each once, wherever it is led. Within a node these records go as they
are, between nodes as bytes. Whoever has one does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import Command, ConsumerRef, PeerId
from amqp10broker.queues.effects import Deliver, Effect
from amqp10broker.queues.quorum.node_lanes import ConsumerFacts


@dataclass(slots=True, eq=False)
class LetterBatch:
    """Letters, each with the number behind that of the one before.

    Attributes:
        token: of the last `Resume`, u32.
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
    """What browsers of a quorum queue ask, in order; in no log, so it is neither numbered nor said again.

    Attributes:
        token: of the last `Resume`, u32.
    """

    token: int
    commands: Sequence[Command]


@dataclass(slots=True, eq=False)
class Resume:
    """A node has found where the queue is led: what it has heard so far.

    Attributes:
        token: of this try, u32; what is told from now on bears it.
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
class Resumed:
    """The answer to `Resume`: the queue's state as far as it is about the node.

    Attributes:
        index: of the entry whose state it is: what comes of later ones is told as it happens.
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
class Told:
    """Effects for the sessions of a node.

    Attributes:
        index: of the entry that made them, u64; 0 of a queue that has no log.
        done: number of the last letter that was carried out, u64.
    """

    token: int
    index: int
    done: int
    effects: Mapping[PeerId, list[Effect]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaderIs:
    """The node that says so leads the queue and takes letters.

    Attributes:
        term: since which term, u64; 0 of a queue that stays where it is.
        again: it missed letters, or does not know the lane's token: say `Resume` even if you have.
        full: its disk is: it takes all but publishes, which stay where they are until it says otherwise.
    """

    term: int
    again: bool = False
    no_more: bool = False
    full: bool = False


LaneMessage = LetterBatch | Browse | Resume | Resumed | Told | LeaderIs
