"""Queues of other nodes as sessions have them: a classic queue at its home, reached from another node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio

from amqp10broker.cluster.wire import ConnectionPurpose, FrameKind, PeerFrame
from amqp10broker.errors import NotFound
from amqp10broker.message.amqp10 import make_head
from amqp10broker.metadata.queue import DeclaredQueue, QueueSpec
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues import commands
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.durability import DurabilityBackend
from amqp10broker.queues.settings import DEFAULTS
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.cluster.node_queues import NodeQueues
from amqp10broker.runtime.cluster.peers import Peers
from amqp10broker.runtime.mailbox import ReplyRegistry
from amqp10broker.runtime.queues.queue_task import QueueTask, RemoteQueue
from amqp10broker.sessions.diagnosis.idle import idle_wait
from amqp10broker.sessions.diagnosis.wait_reasons import Wait
from tests.support.trioclient import alongside

BODY = (make_head(None, None, "", "q"), b"body")
SPEC = QueueSpec("/", "q", "classic", True, False, {}, number=7, home=1)


class Line:
    """A connection between two nodes."""

    def __init__(self) -> None:
        self.up = False
        self.nodes: dict[int, NodeQueues] = {}

    def of(self, node: int) -> Peers:
        return cast("Peers", End(self, node))

    def connect(self) -> None:
        self.up = True
        for node, queues in self.nodes.items():
            queues.connected(3 - node)

    def cut(self) -> None:
        self.up = False
        for node, queues in self.nodes.items():
            queues.disconnected(3 - node)


class End:
    """What of `Peers` links use."""

    def __init__(self, line: Line, node: int) -> None:
        self._line = line
        self._node = node

    def send(
        self, node: int, purpose: ConnectionPurpose, kind: FrameKind, group: int, body: Sequence[bytes]
    ) -> bool:
        assert purpose is ConnectionPurpose.COMMANDS
        if self._line.up:
            self._line.nodes[node].frames(self._node, [PeerFrame(kind, group, b"".join(body))])
        return self._line.up

    def backlog_bytes(self, node: int) -> int:
        return 0


class Box:
    def __init__(self) -> None:
        self.effects: list[commands.Effect] = []

    def put(self, letter: list[commands.Effect]) -> bool:
        assert type(letter) is list
        self.effects += letter
        return True

    def take(self) -> list[commands.Effect]:
        effects, self.effects = self.effects, []
        return effects


class Cluster:
    """Two nodes: the queue is at 1 (and `remote` as node 2 has it), a session with its mailbox at 2."""

    def __init__(self) -> None:
        self.line = Line()
        clock = WallClock()
        self.reply_registry = {node: ReplyRegistry(node=node) for node in (1, 2)}
        self.vhosts: dict[int, dict[str, VirtualHost]] = {1: {}, 2: {}}
        for node in (1, 2):
            self.line.nodes[node] = NodeQueues(
                *(node, self.line.of(node), self.reply_registry[node], clock.now_ms),
                lambda number: f"node {number}",
                self.vhosts[node].get,
            )

        def nothing(*_: Any) -> None:
            return

        queue = ClassicQueue("q", durable=False)
        self.task = QueueTask(
            lambda *given: DurabilityBackend(queue, *given),
            self.reply_registry[1],
            clock,
            nothing,
            nothing,
            cast("Any", nothing),
        )
        self.line.connect()
        assert self.line.nodes[1].reach(SPEC, self.task, lambda: 0) is self.task
        remote = self.line.nodes[2].reach(SPEC, None, lambda: 0)
        assert isinstance(remote, RemoteQueue)
        self.remote = remote
        self.box = Box()
        self.session: commands.ReplyTo = self.reply_registry[2].open("session 1", self.box)

    async def settle(self) -> list[commands.Effect]:
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        return self.box.take()

    def consumer(self) -> commands.ConsumerRef:
        ref = self.session.consumer()
        self.remote.post_all(
            [commands.Subscribe(ref, False, answer=True), commands.Credit(ref, 0, 10, False, 0)]
        )
        return ref


@pytest.mark.real_clock
async def test_a_classic_queue_of_another_node_serves_as_one_of_this() -> None:
    cluster = Cluster()
    async with alongside(cluster.task.run):
        ref, publisher = cluster.consumer(), cluster.session.publisher()
        cluster.remote.post(commands.Publish(publisher, [1], [BODY], settled=False))
        heard = await cluster.settle()
        assert [
            type(each)
            for each in heard
            if isinstance(each, commands.Subscribed | commands.Confirmed | commands.Deliver)
        ] == [commands.Subscribed, commands.Confirmed, commands.Deliver]
        assert cluster.task.unsettled == 1
        assert cluster.remote.down is None
        # To be heard of is no news to what is there.
        cluster.line.nodes[2].links.heard(1, 1)
        assert not await cluster.settle()
        assert ref in cluster.task.queue_status().parts


@pytest.mark.real_clock
async def test_when_the_home_is_lost_its_consumers_end_and_its_publishers_are_refused() -> None:
    cluster = Cluster()
    async with alongside(cluster.task.run):
        ref, publisher = cluster.consumer(), cluster.session.publisher()
        cluster.remote.post(commands.Publish(publisher, [1], [BODY], settled=False))
        await cluster.settle()
        cluster.line.cut()
        cluster.remote.post(commands.Publish(publisher, [2], [BODY], settled=False))
        assert await cluster.settle() == [
            commands.QueueDown(ref, "q"),
            commands.Unconfirmed(publisher, [2], False, failed=True, queue="q"),
        ]
        # At home what the consumer held is there again.
        assert (cluster.task.ready, cluster.task.unsettled) == (1, 0)
        assert not cluster.task.queue_status().parts
        declared = DeclaredQueue("q", "/", "classic", True, None, False, {}, cluster.remote)
        text = "home node 'node 1' of durable queue 'q' in vhost '/' is down or inaccessible"
        with pytest.raises(NotFound, match=text):
            declared.check_up()
        assert idle_wait(declared, ref) is Wait.NO_LEADER
        cluster.line.connect()
        declared.check_up()
        cluster.remote.post(commands.Inspect(cluster.session.request()))
        (answer,) = await cluster.settle()
        assert isinstance(answer, commands.Answer)
        assert (answer.ready, answer.refused) == (1, None)


@pytest.mark.real_clock
async def test_a_queue_that_was_deleted_says_so_at_other_nodes() -> None:
    cluster = Cluster()
    async with alongside(cluster.task.run):
        publisher = cluster.session.publisher()
        cluster.remote.post(commands.AttachPublisher(publisher))
        await cluster.settle()
        cluster.remote.post_all([commands.Configure(DEFAULTS), commands.TOUCH, commands.Delete()])
        assert await cluster.settle() == [commands.QueueDeleted(publisher, "q")]
        for _ in range(2):  # the first leaves it the time for last words
            assert 7 in cluster.line.nodes[2].links.clients
            cluster.line.nodes[2].sweep(())
        assert 7 not in cluster.line.nodes[2].links.clients
        assert not cluster.line.nodes[2].links.clients


async def test_a_node_whose_links_wait_for_nothing_sleeps() -> None:
    """A cluster at rest is woken by heartbeats, and by little else."""
    cluster = Cluster()
    nodes = cluster.line.nodes[2]
    ticks = 0
    tick = nodes.links.tick

    def counted() -> None:
        nonlocal ticks
        ticks += 1
        tick()

    nodes.links.tick = counted  # type: ignore[method-assign]
    async with alongside(nodes.run):
        await trio.sleep(1.0)
        assert not nodes.links.port.stirred
        at_rest = ticks
        await trio.sleep(60.0)
        assert ticks == at_rest
        nodes.links.port.stir(SPEC.number)
        await trio.sleep(1.0)
        assert ticks == at_rest + 1
