"""`Peers` of several nodes on a network in memory, which a test cuts, delays and resets."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from amqp10broker.cluster.hello import Identity
from amqp10broker.cluster.wire import ConnectionPurpose, PeerFrame
from amqp10broker.errors import BrokerError
from amqp10broker.queues.quorum.durability import Clocks
from amqp10broker.runtime.cluster.peer_link import Transport
from amqp10broker.runtime.cluster.peers import Peers
from amqp10broker.runtime.connections.sockets import Address
from tests.support.sim_network import SimNetwork

SECRET = b"the secret of the tests"
CLUSTER = "cluster-of-the-tests"
UNTIL_S = 100.0
"""A clock that jumps gets there at once, and heartbeats would let it jump for ever."""


class Network(SimNetwork):
    """The wires between nodes; bytes take no time unless `slow` says so."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), lambda what: None, 0)

    def delay(self, ends: tuple[str, str]) -> float:
        return self.slow.get(ends, 0.0)

    def cut(self, sender: str, receiver: str, *, both: bool = True) -> None:
        """Hold back packets from one node to the other, and by default the reverse."""
        self.cuts |= {(sender, receiver)} | ({(receiver, sender)} if both else set())

    def isolate(self, name: str) -> None:
        for other in self.names - {name}:
            self.cut(name, other)


def _nothing() -> None:
    pass


class Node:
    """One node's `Peers`, with all that they told.

    Attributes:
        log: (what, node, ...) of all that was told, in order.
        facts_of: the facts that each node told last.
        skew_ms: by how much its clock is ahead.
        clocks: what it makes of those of others.
        frames_of: frames by node and purpose.
        answers: what `asked` answers, or raises; by the question's ``what``. Without one the question
            waits for ever.
        facts, unsynced: what the heartbeat says.
    """

    def __init__(
        self,
        network: Network,
        number: int,
        name: str,
        *,
        incarnation: int = 1,
        secret: bytes = SECRET,
        cluster: str = CLUSTER,
        **options: Any,
    ) -> None:
        self.network = network
        self.number = number
        self.name = name
        self.log: list[tuple[Any, ...]] = []
        self.facts: dict[str, Any] = {}
        self.facts_of: dict[int, dict[str, Any]] = {}
        self.skew_ms = 0
        self.clocks = Clocks()
        self.unsynced = 0
        self.frames_of: dict[tuple[int, ConnectionPurpose], list[PeerFrame]] = {}
        self.answers: dict[str, dict[str, Any] | BrokerError | Exception] = {}
        self.changed = trio.Event()
        identity = Identity(number, name, incarnation, cluster if number else "")
        self.peers = Peers(identity, secret, self, dial=self._dial, random_source=lambda: 1.0, **options)
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.peers.run)
                self._serve = lambda transport: nursery.start_soon(self.peers.serve, transport, _nothing)
                self.network.listens(self.name, self._serve)
                task_status.started()
        self._over.set()

    async def stop(self) -> None:
        self.network.listens_no_more(self.name, self._serve)
        self._scope.cancel()
        await self._over.wait()

    def know(self, *others: Node) -> None:
        for other in others:
            self.peers.know(other.number, other.name, (other.name, 1))

    async def until(self, *entry: Any) -> None:
        with trio.fail_after(UNTIL_S):
            while entry not in self.log:
                await self.changed.wait()
        self.log.remove(entry)

    async def _dial(self, address: Address) -> Transport:
        return await self.network.connect(self.name, address)

    def _note(self, *entry: Any) -> None:
        self.log.append(entry)
        self.changed.set()
        self.changed = trio.Event()

    # -- PeerEvents

    def frames(self, node: int, purpose: ConnectionPurpose, frames: Sequence[PeerFrame]) -> None:
        self.frames_of.setdefault((node, purpose), []).extend(frames)
        self._note("frames", node, purpose)

    def connected(self, node: int, purpose: ConnectionPurpose) -> None:
        self._note("connected", node, purpose)

    def disconnected(self, node: int, purpose: ConnectionPurpose) -> None:
        self._note("disconnected", node, purpose)

    def suspected(self, node: int) -> None:
        self._note("suspected", node)

    def heard(self, node: int, incarnation: int) -> None:
        self._note("heard", node, incarnation)

    async def asked(self, node: int, question: dict[str, Any]) -> dict[str, Any]:
        self._note("asked", node, question["what"])
        answer = self.answers.get(question["what"])
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, dict)
        return answer

    def heartbeat(self) -> dict[str, Any]:
        return dict(self.facts)

    def told(self, node: int, facts: dict[str, Any]) -> None:
        self.facts_of[node] = facts
        self._note("told", node)

    def clock_ms(self) -> int:
        return int(trio.current_time() * 1000) + self.skew_ms

    def clock_compared(self, node: int, ahead_ms: int, within_ms: int) -> None:
        self.clocks.heard(node, ahead_ms, within_ms)

    def unsynced_ms(self) -> int:
        return self.unsynced

    def hand_over(self) -> None:
        self._note("hand over")


@asynccontextmanager
async def running(*nodes: Node, acquainted: bool = True) -> AsyncIterator[trio.Nursery]:
    """Run nodes, which are given each other's addresses if `acquainted`."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        if acquainted:
            for node in nodes:
                node.know(*[other for other in nodes if other is not node])
        yield nursery
        nursery.cancel_scope.cancel()


async def all_hear_all(*nodes: Node) -> None:
    """Wait until every node is alive for every other, and drop earlier events."""
    with trio.fail_after(UNTIL_S):
        for node in nodes:
            while set(node.peers.liveness.alive) != {other.number for other in nodes} - {node.number}:
                await node.changed.wait()
    for node in nodes:
        node.log.clear()


@asynccontextmanager
async def two_nodes(network: Network) -> AsyncIterator[tuple[Node, Node]]:
    """Run two nodes that are alive for each other."""
    a, b = Node(network, 1, "a"), Node(network, 2, "b")
    async with running(a, b):
        await all_hear_all(a, b)
        yield a, b
