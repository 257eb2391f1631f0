"""A node of a cluster at its start: what others say of queues comes while it does not know any."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from amqp10broker.cluster.bootstrap import Address, ClusterIdentity, MemberAt
from amqp10broker.cluster.remote_queue.messages import BODIES, LeaderIs
from amqp10broker.cluster.wire import ConnectionPurpose, FrameKind, PeerFrame
from amqp10broker.config import Config
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.cluster.cluster import Cluster
from amqp10broker.runtime.mailbox import ReplyRegistry
from amqp10broker.runtime.queues.queue_task import RemoteQueue

SPEC = QueueSpec("/", "q", "classic", True, False, {}, number=7, home=1)


async def started(tmp_path: Path, nursery: trio.Nursery) -> Cluster:
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length\n")
    secret.chmod(0o600)
    config = Config(node_name="b", cluster_secret_file=str(secret))
    broker = SimpleNamespace(
        config=config,
        catalog=SimpleNamespace(node_name=str, vhosts={}),
        reply_registry=ReplyRegistry(node=2),
        clock=WallClock(),
    )
    cluster = Cluster(cast("Any", broker), cast("Any", SimpleNamespace(lost=0)), cast("Any", None))
    here = Address("127.0.0.1", 1)
    cluster.membership = ClusterIdentity("c", 2, "b", (MemberAt(1, "a", here), MemberAt(2, "b", here)))
    liveness = SimpleNamespace(hears={1})
    peers = SimpleNamespace(
        connected=lambda node, purpose: node == 1,
        liveness=liveness,
        send=lambda *frame: True,
        backlog_bytes=lambda node: 0,
    )
    cluster.peers = cast("Any", peers)
    cluster._nursery = nursery
    return cluster


def reached(cluster: Cluster) -> bool:
    handle = cluster.queues.reach(SPEC, None, lambda: 0)
    assert isinstance(handle, RemoteQueue)
    return handle.client.open


async def test_a_home_that_spoke_before_there_were_links_is_heard(tmp_path: Path) -> None:
    """The home sends this once, as soon as the connection exists."""
    async with trio.open_nursery() as nursery:
        cluster = await started(tmp_path, nursery)
        body = BODIES[FrameKind.LEADER_IS].encode(LeaderIs(0))
        cluster.frames(1, ConnectionPurpose.COMMANDS, [PeerFrame(FrameKind.LEADER_IS, 7, body)])
        cluster.prepare()
        assert reached(cluster)
        nursery.cancel_scope.cancel()


async def test_what_it_said_counts_no_more_when_its_connection_is_lost(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        cluster = await started(tmp_path, nursery)
        body = BODIES[FrameKind.LEADER_IS].encode(LeaderIs(0))
        cluster.frames(1, ConnectionPurpose.COMMANDS, [PeerFrame(FrameKind.LEADER_IS, 7, body)])
        cluster.disconnected(1, ConnectionPurpose.COMMANDS)
        cluster.prepare()
        assert not reached(cluster)
        nursery.cancel_scope.cancel()
