"""The running broker as the source of metrics (`observe.metrics.MetricSource`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter, time
from typing import Final, cast

import trio

from amqp10broker import portable
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.observe.metrics import PROTOCOLS, MetricSource, NodeState
from amqp10broker.operations.node import MemberState
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.runtime.admin.admin import AdminContext
from amqp10broker.runtime.admin.serving_node import state_of
from amqp10broker.runtime.connections.connections import ClosedConnections, Connection
from amqp10broker.runtime.queues.queue_task import QueueTask
from amqp10broker.sessions.counters import ClientCounters

TURN_S: Final = 0.004
"""The time after which gathering lets other tasks run, when its step is complete."""


class Turn:
    """One portion of gathering metrics, between two runs of other tasks."""

    def __init__(self) -> None:
        self._began = perf_counter()

    async def yield_when_over(self) -> None:
        if perf_counter() - self._began > TURN_S:
            await trio.lowlevel.checkpoint()
            self._began = perf_counter()


async def source_of(broker: AdminContext, client_version: str = "") -> MetricSource:
    """Return the source of metrics of a broker. `client_version`: of the library that writes the text for
    Prometheus; empty: no text is written.
    """
    source = _Source(broker, client_version)
    if broker.catalog.cluster is not None:
        here = broker.as_member.number
        source.coordination = (await broker.as_member.member_states(None, {here})).get(here)
    return source


class _Source(MetricSource):
    coordination: MemberState | None = None

    def __init__(self, broker: AdminContext, client_version: str) -> None:
        self._broker = broker
        self._client_version = client_version
        self.catalog = broker.catalog
        tried = broker.logins.attempts
        self.attempts = {
            PROTOCOLS.get(name, name): (each.succeeded, each.failed) for name, each in tried.items()
        }

    def node(self) -> NodeState:
        broker = self._broker
        facts = broker.node_view()
        cluster, memory, disk = broker.catalog.cluster, facts.resources.memory, facts.resources.disk
        name = broker.config.node_name or broker.container_id
        return NodeState(
            name=name,
            cluster=name if cluster is None else cluster.name,
            cluster_id=broker.container_id if cluster is None else cluster.id,
            version=facts.version,
            client_version=self._client_version,
            now_s=time(),
            uptime_s=facts.uptime_s,
            open_fds=portable.open_files(),
            max_fds=portable.limit("RLIMIT_NOFILE"),
            memory=memory.used_bytes,
            memory_limit=memory.resource.limit_bytes,
            disk_free=disk.free_bytes,
            disk_limit=disk.resource.limit_bytes,
            alarms=facts.alarms,
            peers_lost=self._peers_lost(),
            commits=None if facts.journal is None else facts.journal.commits,
        )

    def clients(self) -> tuple[ClosedConnections, Mapping[str, ClientCounters], Sequence[Connection]]:
        connections = self._broker.connections
        return connections.past, connections.gone.by_protocol(), list(connections.values())

    def member(self, queue: DeclaredQueue) -> MemberState | None:
        handle = queue.handle
        if not isinstance(handle, QueueTask) or not handle.backend.by_log:
            return None
        return state_of(cast("QuorumInLog", handle.backend).member)

    def is_here(self, queue: DeclaredQueue) -> bool:
        catalog = self._broker.catalog
        if catalog.node_directory is None:
            return True
        leader = catalog.leader_of(queue)
        return leader is not None and leader.number == self._broker.as_member.number

    def _peers_lost(self) -> int:
        catalog = self._broker.catalog
        node_directory = catalog.node_directory
        if node_directory is None:
            return 0
        return sum(not node_directory.runs(node.number) for node in catalog.nodes.values())
