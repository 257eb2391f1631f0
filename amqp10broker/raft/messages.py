"""The messages between members of a group, the output of a member, and their bytes.

Every message has sender, receiver, and the sender's term. Records are slotted and not frozen: up to eight are
made a proposal, and a frozen one takes three times as long. They must not be changed. Which group a message
is about stands in the frame around it. Malformed bytes raise `BadBytes`.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.layout import BLOBS, FLAG, REST, U64, Field, Layout, Many, OneOf, choice, optional
from amqp10broker.raft.entries import Configuration, Hard, Kind, Point, Run, Snapshot, run_of


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


def _configuration(voters: tuple[int, ...], learners: tuple[int, ...]) -> Configuration:
    members = voters + learners
    ascending = all(list(side) == sorted(side) for side in (voters, learners))
    if not ascending or len(set(members)) < len(members) or 0 in members:
        raise ValueError("members of a configuration that are not ascending, or stand twice")
    return Configuration(voters, learners)


def _run(first: int, term: int, kind: Kind, payloads: tuple[bytes, ...]) -> Run:
    if not payloads:
        raise ValueError("a run without entries")
    if kind is Kind.CONFIG:
        for payload in payloads:
            CONFIG.decode(payload)
    return run_of(first, term, kind, payloads)


def _append(*values: Any) -> Append:
    append = Append(*values)
    index, newest = append.prev_index, append.prev_term
    for run in append.runs:
        if run.first != index + 1:
            raise ValueError(f"entry {run.first} behind entry {index}")
        if not newest <= run.term <= append.term:
            raise ValueError(
                f"an entry of term {run.term} behind one of {newest}, from a leader of {append.term}"
            )
        index, newest = run.last, run.term
    return append


_HEAD: Final[dict[str, Field]] = {"sender": U64, "to": U64, "term": U64}
_LAST: Final[dict[str, Field]] = {"last_index": U64, "last_term": U64}
_MEMBERS: Final = Many(U64, tuple)
_RUN: Final = Layout(Run, _run, first=U64, term=U64, kind=choice(Kind), payloads=BLOBS)

HARD: Final = Layout(Hard, term=U64, vote=optional(U64), commit=U64)
CONFIG: Final = Layout(Configuration, _configuration, voters=_MEMBERS, learners=_MEMBERS)
"""Equal configurations have equal bytes."""
POINT: Final = Layout(Point, index=U64, term=U64, config=CONFIG)

MESSAGE: Final[OneOf[Message]] = OneOf(
    "message of Raft",
    {
        1: Layout(
            Append, _append, **_HEAD, prev_index=U64, prev_term=U64, commit=U64, runs=Many(_RUN, tuple)
        ),
        2: Layout(AppendAnswer, **_HEAD, match=U64, commit=U64, rejected=optional(U64), match_term=U64),
        4: Layout(NewerTerm, **_HEAD, round=U64),
        5: Layout(PreVote, **_HEAD, **_LAST, token=U64),
        6: Layout(PreVoteAnswer, **_HEAD, token=U64, granted=FLAG),
        7: Layout(Vote, **_HEAD, **_LAST),
        8: Layout(VoteAnswer, **_HEAD, granted=FLAG),
        9: Layout(TimeoutNow, **_HEAD),
        10: Layout(InstallSnapshot, **_HEAD, snapshot=Layout(Snapshot, point=POINT, data=REST)),
    },
)
