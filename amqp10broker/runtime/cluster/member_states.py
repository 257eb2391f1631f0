"""How members of groups stand, as commands show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.cluster.membership import is_promotable
from amqp10broker.operations.node import MemberState
from amqp10broker.raft.groups import Member
from amqp10broker.raft.ready import Role

_WORDS: Final[Mapping[Role, str]] = {
    Role.LEADER: "leader",
    Role.FOLLOWER: "follower",
    Role.CANDIDATE: "candidate",
    Role.PRE_CANDIDATE: "pre_vote",
}


def state_of(member: Member | None) -> MemberState:
    if member is None or member.stopped:
        return MemberState()
    state = _WORDS[member.raft.status.role]
    newer = member.machine.newer
    if newer:
        state += f", behind: its broker cannot carry out machine version {newer}"
    raft, config = member.raft, member.raft.config
    if member.me in config.voters:
        membership = "voter"
    elif member.me in config.learners:
        membership = "promotable" if is_promotable(member.me) else "non_voter"
    else:
        membership = "unknown"
    return MemberState(
        state=state,
        membership=membership,
        last_index=raft.last,
        last_written=raft.stable,
        last_applied=member.machine.applied,
        commit_index=raft.hard.commit,
        snapshot_index=raft.base,
        term=raft.status.term,
        machine_version=member.machine.version,
    )
