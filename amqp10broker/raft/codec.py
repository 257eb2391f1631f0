"""The bytes of messages between members, and of what a store keeps of a group.

Which group a message is about stands in the frame around it. Malformed bytes raise `BadBytes`.
"""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.layout import BLOBS, FLAG, REST, U64, Field, Layout, Many, OneOf, choice, optional
from amqp10broker.raft.config import Configuration
from amqp10broker.raft.entries import Hard, Kind, Point, Run, Snapshot, run_of
from amqp10broker.raft.messages import (
    Append,
    AppendAnswer,
    InstallSnapshot,
    Message,
    NewerTerm,
    PreVote,
    PreVoteAnswer,
    TimeoutNow,
    Vote,
    VoteAnswer,
)  # fmt: skip


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
