"""The messages between members of a group.

Every message has sender, receiver, and the sender's term. Records are slotted and not frozen: up to eight are
made a proposal, and a frozen one takes three times as long. They must not be changed.
"""

from __future__ import annotations

from amqp10broker.dataclass import dataclass
from amqp10broker.raft.entries import Run, Snapshot


@dataclass(slots=True)
class Append:
    """Entries from the leader (the paper, section 5.3); without any: where do we agree? This is committed."""

    sender: int
    to: int
    term: int
    prev_index: int
    """Index of the entry in front of the first."""
    prev_term: int
    commit: int
    """The leader's commit index; it counts up to the last entry of this message only."""
    runs: tuple[Run, ...] = ()


@dataclass(slots=True)
class AppendAnswer:
    """The log is the leader's up to `match`, durably; or, `rejected`, it does not agree at that index."""

    sender: int
    to: int
    term: int
    match: int
    """If rejected: where it may agree, as the sender sees it."""
    commit: int
    rejected: int | None = None
    match_term: int = 0
    """If rejected: the term of the entry at `match`."""


@dataclass(slots=True)
class NewerTerm:
    """To a leader of an older term: it leads no more."""

    sender: int
    to: int
    term: int
    round: int = 0
    """Always 0; in the bytes since there were rounds of questions."""


@dataclass(slots=True)
class PreVote:
    """Would you vote for me? (the dissertation, section 9.6). It changes no term."""

    sender: int
    to: int
    term: int
    """The sender's present one: it would stand for the next."""
    last_index: int
    last_term: int
    token: int
    """Comes back in the answer: answers to an earlier question do not count."""


@dataclass(slots=True)
class PreVoteAnswer:
    """Yes or no, and the term of the member that answers."""

    sender: int
    to: int
    term: int
    token: int
    granted: bool


@dataclass(slots=True)
class Vote:
    """Vote for me (the paper, section 5.2)."""

    sender: int
    to: int
    term: int
    last_index: int
    last_term: int


@dataclass(slots=True)
class VoteAnswer:
    """Yes or no; a yes is durable."""

    sender: int
    to: int
    term: int
    granted: bool


@dataclass(slots=True)
class TimeoutNow:
    """Stand for election at once: you have all that I have (the dissertation, section 3.10)."""

    sender: int
    to: int
    term: int


@dataclass(slots=True)
class InstallSnapshot:
    """A state from the leader (the paper, section 7). The shell gives it to the member when all is there."""

    sender: int
    to: int
    term: int
    snapshot: Snapshot


Message = (
    Append
    | AppendAnswer
    | NewerTerm
    | PreVote
    | PreVoteAnswer
    | Vote
    | VoteAnswer
    | TimeoutNow
    | InstallSnapshot
)
