"""The running node to operations on the cluster (`operations.cluster_node`), while it is in none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

import trio

from amqp10broker.config import Config
from amqp10broker.errors import NotSupported
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.cluster_node import GroupSeen, MemberState
from amqp10broker.runtime.cluster.member_states import state_of
from amqp10broker.runtime.connections.connections import Connections
from amqp10broker.runtime.connections.listeners import Listeners
from amqp10broker.runtime.queues.queue_task import QueueTask

if TYPE_CHECKING:
    from amqp10broker.cluster.bootstrap import ClusterIdentity as OfCluster
    from amqp10broker.cluster.membership import MemberRole
    from amqp10broker.queues.quorum.durability import QuorumInLog

MAINTENANCE: Final = "Node was put into maintenance mode"
"""What clients hear when the node is drained; RabbitMQ's words."""


class ServedBroker(Protocol):
    """The parts of the broker that maintenance takes out of service. `broker_listeners`: its sockets; None
    before it serves.
    """

    connections: Connections
    broker_listeners: Listeners | None
    addresses: list[tuple[str, int]]
    tls_addresses: list[tuple[str, int]]
    http_addresses: list[tuple[str, int]]

    @property
    def config(self) -> Config: ...

    @property
    def alarms(self) -> frozenset[str]: ...


def stop_serving(broker: ServedBroker) -> None:
    """Accept no clients, and close the connections that there are."""
    if broker.broker_listeners is not None:
        broker.broker_listeners.shut()
    broker.connections.turn_out(MAINTENANCE)


def client_listeners(broker: ServedBroker) -> list[tuple[str, str, int]]:
    """Where clients find it: see `ClusterNode.listeners`."""
    by_protocol = (
        ("amqp", broker.addresses),
        ("amqp/ssl", broker.tls_addresses),
        *((each, broker.http_addresses) for each in _over_http(broker)),
    )
    return [(protocol, host, port) for protocol, addresses in by_protocol for host, port in addresses]


def _over_http(broker: ServedBroker) -> list[str]:
    scheme = "https" if broker.config.http_tls else "http"
    return [scheme, f"{scheme}/web-amqp"] if broker.config.websocket else [scheme]


async def serve_again(broker: ServedBroker) -> None:
    """Accept clients as before. Raises `OSError` or `ConfigError` if another program has an address
    by now.
    """
    if broker.broker_listeners is not None:
        await broker.broker_listeners.reopen(broker.config)


class NodeAlone:
    """A node in no cluster: its quorum queues have one member, which is here and leads."""

    number = 0
    target_size = 1
    rebalancing = False

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker

    async def run(self) -> None:
        """Nothing is to be seen to."""

    async def leave(self) -> None:
        """There is no other that could lead."""

    def group(self, queue: DeclaredQueue | None) -> GroupSeen | None:
        return GroupSeen((0,))

    def chief(self) -> int | None:
        return None

    def leaderless(self) -> None:
        return None

    def alarms(self) -> Mapping[int, Collection[str]]:
        return {0: self._broker.alarms}

    def listeners(self) -> Sequence[tuple[str, str, int]]:
        return client_listeners(self._broker)

    async def add_member(
        self,
        queue: DeclaredQueue,
        node: int,
        membership: MemberRole,
        timeout_s: float,
        *,
        among_voters: bool = False,
    ) -> int:
        _refuse()

    async def delete_member(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        _refuse()

    async def transfer(self, queue: DeclaredQueue, node: int) -> None:
        _refuse()

    async def shrink_to_here(self, queue: DeclaredQueue) -> None:
        _refuse()

    async def member_states(
        self, queue: DeclaredQueue | None, nodes: Collection[int]
    ) -> Mapping[int, MemberState]:
        return {0: self._state(queue)}

    def _state(self, queue: DeclaredQueue | None) -> MemberState:
        handle = None if queue is None else queue.handle
        if not isinstance(handle, QueueTask) or not handle.backend.by_log:
            return MemberState("leader", "voter")  # in memory there is no log

        return state_of(cast("QuorumInLog", handle.backend).member)

    async def drain(self) -> None:
        stop_serving(self._broker)

    async def revive(self) -> None:
        await serve_again(self._broker)

    async def let_in_by(self, node: str) -> OfCluster:
        _refuse()

    async def leave_by(self, node: int) -> None:
        _refuse()

    def begin_anew(self, as_: OfCluster | None) -> None:
        _refuse()

    async def run_at(self, node: int, operation: str, given: Mapping[str, Any], vhost: str | None) -> Any:
        _refuse()

    async def run_at_each(
        self, nodes: Collection[int], operation: str, given: Mapping[str, Any], vhost: str | None
    ) -> Mapping[int, Any]:
        return {}

    async def pause(self, seconds: float) -> None:
        await trio.sleep(seconds)


def _refuse() -> NoReturn:
    raise NotSupported("node", "this node is in no cluster; start it with --cluster-nodes")
