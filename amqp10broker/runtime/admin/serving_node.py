"""This node as a server of clients (`operations.node.ClusterNode`), here without a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

import trio

from amqp10broker.cluster.membership import is_promotable
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.node import ClusterNode, MemberState
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.raft.groups import Member
from amqp10broker.raft.messages import Role
from amqp10broker.runtime.admin.admin import AdminContext
from amqp10broker.runtime.connections.listener import Listener
from amqp10broker.runtime.queues.queue_task import QueueTask


class ServingContext(AdminContext):
    """The broker as the acceptor of clients."""

    listener: Listener


MAINTENANCE: Final = "Node was put into maintenance mode"
"""The reason that clients get when the node is drained; the text is RabbitMQ's."""


class ServingNode(ClusterNode):
    """The running node without a cluster. Its quorum queues have one member, which leads."""

    def __init__(self, broker: ServingContext) -> None:
        self._broker = broker

    async def run(self) -> None:
        """Do nothing: this node has no background work."""

    def alarms(self) -> Mapping[int, Collection[str]]:
        return {0: self._broker.alarms}

    def listeners(self) -> Sequence[tuple[str, str, int]]:
        broker, scheme = self._broker, "https" if self._broker.config.http_tls else "http"
        by_protocol = {
            "amqp": broker.addresses,
            "amqp/ssl": broker.tls_addresses,
            scheme: broker.http_addresses,
        }
        if broker.config.websocket:
            by_protocol[f"{scheme}/web-amqp"] = broker.http_addresses
        return [(protocol, host, port) for protocol, found in by_protocol.items() for host, port in found]

    async def member_states(
        self, queue: DeclaredQueue | None, nodes: Collection[int]
    ) -> Mapping[int, MemberState]:
        handle = None if queue is None else queue.handle
        if not isinstance(handle, QueueTask) or not handle.backend.by_log:
            return {0: MemberState("leader", "voter")}  # a queue in memory has no log
        return {0: state_of(cast("QuorumInLog", handle.backend).member)}

    async def drain(self) -> None:
        self._broker.listener.shut()
        self._broker.connections.turn_out(MAINTENANCE)

    async def revive(self) -> None:
        """Accept clients again. Raises `OSError` or `ConfigError` if another program uses an address now."""
        await self._broker.listener.reopen(self._broker.config)

    async def leave(self) -> None:
        return

    async def pause(self, seconds: float) -> None:
        await trio.sleep(seconds)


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
        last_written=raft.log.stable,
        last_applied=member.machine.applied,
        commit_index=raft.hard.commit,
        snapshot_index=raft.log.base,
        term=raft.status.term,
        machine_version=member.machine.version,
    )
