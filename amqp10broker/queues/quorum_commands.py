"""What a quorum queue is told beside `queues.commands`: by its own shell, and by who hands on dead messages.

Everything that changes the state of a quorum queue is a command, the passing of time too: the commands
are its log, and the same log makes the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amqp10broker.queues.commands import Command


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed and something is due: messages expire, consumers hold theirs for too long."""


@dataclass(frozen=True, slots=True)
class NodeRestarted:
    """All consumers and publishers of the life before are gone, as if their connections had been lost."""


@dataclass(frozen=True, slots=True)
class DlxSettle:
    """Dead messages have been taken by all their target queues.

    Attributes:
        keys: as `QuorumQueue.take_dlx` gave them; unknown ones are ignored.
    """

    keys: Sequence[int]


QuorumCommand = Command | Tick | NodeRestarted | DlxSettle
