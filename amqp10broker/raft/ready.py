"""The output of a member, one record a step."""

from __future__ import annotations

import enum
from typing import NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.raft.entries import Hard, Run, Snapshot
from amqp10broker.raft.messages import Message


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Status:
    role: Role
    term: int
    leader: int | None
    """As far as it is known; itself, if it leads."""
    open: bool
    """It leads, and an entry of its own term is committed: it takes proposals, and what is applied from
    then on may be told."""


class Ready(NamedTuple):
    """Output to execute now. Returned once; all but `messages` in the order of the fields. A tuple, because
    two are made an entry. Messages that depend on `Raft.persisted` are already held back: `messages` may be
    sent at once, and may be lost, doubled and reordered.
    """

    ticket: int | None
    """Of what is to be written: `hard`, `snapshot`, `entries`, all or nothing, behind what earlier tickets
    hold. None: nothing is to be written."""
    hard: Hard | None
    snapshot: Snapshot | None
    """Takes the place of the whole log. The machine takes the state when it is durable."""
    entries: tuple[Run, ...]
    """The first may have an index that is in the log: it replaces that entry, and all behind it go."""
    messages: list[Message]
    commit: int | None
    """Entries up to this index may be applied; they are durable here. None: no more than before."""
    snapshots_to: tuple[int, ...]
    """Members that need a state: send each an `InstallSnapshot` by a way of its own, and call
    `Raft.snapshot_done` in any case."""
    status: Status | None
    """If it has changed."""
