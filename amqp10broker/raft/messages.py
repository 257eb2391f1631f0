"""The messages between members of a group, the log's entries, the output of a member, and their bytes.

Every message has sender, receiver, and the sender's term. Records have slots and are not frozen: up to eight
are made for a proposal, and a frozen one takes three times as long. They must not be changed. The enclosing
frame has the group's number. Malformed bytes raise `BadBytes`.

Entries are passed as *runs*: consecutive entries of one term and kind. The entries of a step are one run, so
256 proposals take little more time than one. Members change one at a time (the dissertation, chapter 4).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.layout import BLOBS, FLAG, REST, U64, Field, Layout, Many, OneOf, choice, optional


class RaftError(BrokerError): ...


class NotLeader(RaftError):
    """Another member leads, or none."""

    def __init__(self, leader: int | None) -> None:
        super().__init__(
            "this member does not lead; " + (f"ask member {leader}" if leader else "none is known")
        )
        self.leader = leader


class NotReady(RaftError):
    """This member leads, and accepts no proposals at the moment: try again."""


class Full(RaftError):
    """Uncommitted proposals have reached their limit: try again when some are committed."""


class ChangeRefused(RaftError):
    """A change of members or a transfer cannot begin."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of a group. Ids are 1 to 2**64 - 1, ascending and unique. `learners` get the log; they
    count for no majority and never stand for election.
    """

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def members(self) -> tuple[int, ...]:
        return self.voters + self.learners


@dataclass(frozen=True, slots=True)
class Add:
    """A change: a new member, as a learner."""

    member: int


@dataclass(frozen=True, slots=True)
class Promote:
    """A change: a learner that has caught up becomes a voter."""

    member: int


@dataclass(frozen=True, slots=True)
class Remove:
    """A change: a member is removed, even the leader, when the change is committed."""

    member: int


Change = Add | Promote | Remove


def changed(config: Configuration, change: Change) -> Configuration:
    """Return the changed configuration. Raises `ChangeRefused` without a change, or without voters."""
    member = change.member
    voters, learners = set(config.voters), set(config.learners)
    match change:
        case Add():
            if member in voters or member in learners:
                raise ChangeRefused(f"{member} is a member already")
            learners.add(member)
        case Promote():
            if member not in learners:
                raise ChangeRefused(f"{member} is no learner; add it first")
            learners.remove(member)
            voters.add(member)
        case Remove():
            if member not in voters and member not in learners:
                raise ChangeRefused(f"{member} is no member")
            if voters == {member}:
                raise ChangeRefused(f"{member} is the last voter")
            voters.discard(member)
            learners.discard(member)
        case _:
            assert_never(change)
    return Configuration(tuple(sorted(voters)), tuple(sorted(learners)))


class Kind(enum.IntEnum):
    EMPTY = 0
    """The first entry of a leader's term (the paper, section 8)."""
    COMMAND = 1
    CONFIG = 2


class Run(NamedTuple):
    """Consecutive entries of one term and kind. It is a tuple, because one is made for each proposal."""

    first: int
    """1 or more."""
    term: int
    kind: Kind
    payloads: tuple[bytes, ...]
    size: int

    @property
    def last(self) -> int:
        return self.first + len(self.payloads) - 1

    def since(self, index: int) -> Run:
        """Return the part from this index on, which is at most `last`."""
        if index <= self.first:
            return self
        return run_of(index, self.term, self.kind, self.payloads[index - self.first :])

    def until(self, index: int) -> Run:
        """Return the part up to this index, which is at least `first`."""
        if index >= self.last:
            return self
        return run_of(self.first, self.term, self.kind, self.payloads[: index - self.first + 1])

    def within(self, size: int) -> Run:
        """Return as many of the first entries as fit these bytes, and at least one."""
        if self.size <= size:
            return self
        total = count = 0
        for payload in self.payloads:
            total += len(payload)
            if total > size:
                break
            count += 1
        return self.until(self.first + max(count, 1) - 1)


def run_of(first: int, term: int, kind: Kind, payloads: tuple[bytes, ...]) -> Run:
    return Run(first, term, kind, payloads, sum(map(len, payloads)))


@dataclass(slots=True)
class Point:
    """A place in the log that a snapshot covers. It is not frozen, because one is made for each entry, but
    must not be changed.
    """

    index: int
    """That of the last entry that is part of the state; 1 for the state in which a group begins."""
    term: int
    config: Configuration
    """The one in force *at that index*, not the newest (the dissertation, section 5.1.2)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    point: Point
    data: bytes
    """The state, or a reference by which the caller finds it."""


@dataclass(frozen=True, slots=True)
class Hard:
    """The state that must be durable before messages depend on it (the paper, figure 2: persistent state)."""

    term: int
    vote: int | None
    commit: int
    """A hint, so that a start can apply at once: at least this is committed. It is never written alone."""


@dataclass(frozen=True, slots=True)
class Stored:
    point: Point
    hard: Hard
    last: int
    """That of `point` if there is no later entry."""
    terms: Sequence[tuple[int, int]] = ()
    """(first index, term) of each stretch of equal terms after `point`, ascending."""
    configs: Sequence[tuple[int, Configuration]] = ()
    """(index, configuration) of each entry of kind CONFIG after `point`, ascending."""


def new_group(config: Configuration) -> Stored:
    """Return the initial state of each first member of a group. It counts as a snapshot at index 1. So a
    member that is added later, and is empty, gets a snapshot first, and with it a configuration.
    """
    return Stored(Point(1, 0, config), Hard(0, None, 0), 1)


def new_member() -> Stored:
    return Stored(Point(0, 0, Configuration(())), Hard(0, None, 0), 0)


class LogStore(Protocol):
    """The store of durable entries."""

    def read(self, first: int, last: int, size: int, /) -> Sequence[Run]:
        """Return entries from index `first` on, about `size` bytes of payloads, and at least one."""


@dataclass(slots=True)
class _Addressed:
    sender: int
    to: int
    term: int


@dataclass(slots=True)
class Append(_Addressed):
    """Entries from the leader (the paper, section 5.3). Without entries it finds where the logs agree, and
    reports the commit index.
    """

    prev_index: int
    prev_term: int
    commit: int
    """That of the leader. It counts up to the last entry of this message only."""
    runs: tuple[Run, ...] = ()


@dataclass(slots=True)
class AppendAnswer(_Addressed):
    """The log is the leader's up to `match`, durably; or, `rejected`, it does not agree at that index."""

    match: int
    """If rejected: where the logs may agree, by the sender's log."""
    commit: int
    rejected: int | None = None
    match_term: int = 0


@dataclass(slots=True)
class NewerTerm(_Addressed):
    """The answer to a leader of an older term."""

    round: int = 0
    """Always 0; the field is from a version with rounds of requests."""


@dataclass(slots=True)
class PreVote(_Addressed):
    """A request whether the receiver would vote for the sender (the dissertation, section 9.6). It changes no
    term: `term` is the present one.
    """

    last_index: int
    last_term: int
    token: int
    """The answer has it, too: answers to an earlier request do not count."""


@dataclass(slots=True)
class PreVoteAnswer(_Addressed):
    token: int
    granted: bool


@dataclass(slots=True)
class Vote(_Addressed):
    """A request for a vote (the paper, section 5.2)."""

    last_index: int
    last_term: int


@dataclass(slots=True)
class VoteAnswer(_Addressed):
    """The answer to a request for a vote. A granted vote is durable."""

    granted: bool


@dataclass(slots=True)
class TimeoutNow(_Addressed):
    """A request to stand for election: the receiver has the whole log (the dissertation, section 3.10)."""


@dataclass(slots=True)
class InstallSnapshot(_Addressed):
    """A state from the leader (the paper, section 7). The caller passes the complete one to the member."""

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
    open: bool
    """It leads and has committed an entry of its term: it accepts proposals and sends effects."""


class Ready(NamedTuple):
    """Output to execute now, in the order of the fields. It is a tuple, because two are made for each entry.
    Messages that depend on `Raft.persisted` are held back until then: `messages` may be sent at once, and may
    be lost, doubled and reordered.
    """

    ticket: int | None
    """That of `hard`, `snapshot` and `entries`, all or nothing, after earlier tickets; or None."""
    hard: Hard | None
    snapshot: Snapshot | None
    """Replaces the whole log. The machine takes the state when it is durable."""
    entries: tuple[Run, ...]
    """The first may have an index that is in the log: it replaces that entry and all later ones."""
    messages: list[Message]
    commit: int | None
    """Entries up to this index may be applied; they are durable here. None: it is unchanged."""
    snapshots_to: tuple[int, ...]
    """Members that need a state: send each an `InstallSnapshot` on a separate connection, and call
    `Raft.snapshot_done`.
    """
    status: Status | None
    """The status, if it has changed."""


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
