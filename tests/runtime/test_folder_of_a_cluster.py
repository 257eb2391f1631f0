"""A folder of a node of a cluster that an earlier version wrote is read, with all that was in it.

``tests/folders/cluster-1`` is that of the first of three nodes, of machine version 1. It has what clients did
at all three nodes while it led, was stopped, and came back. It is not to be made anew. Alone such a node
waits for the others, so it is made the only one of its cluster first.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from amqp10broker import Broker, Config
from amqp10broker.cli.cluster_files import force_standalone
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.queues.machine_version import NEWEST
from amqp10broker.runtime.queues.remote_queue import RemoteQueue
from tests.support.cluster_process import free_ports
from tests.support.http_user import http_user
from tests.support.trioclient import eventually

FOLDER = Path(__file__).parent.parent / "folders" / "cluster-1"


def quorum(queue: DeclaredQueue) -> list[Message]:
    """What a quorum queue has, in the order in which it was published."""
    assert isinstance(queue.handle, RemoteQueue)
    assert queue.handle.member is not None
    keeper = queue.handle.member.keeper
    return keeper._store.bodies.fetch(sorted(keeper.queue.live_indexes()))


async def test_a_single_node_that_gets_a_name_keeps_its_clusters_name_and_tags(tmp_path: Path) -> None:
    """And what a client can ask for where there is no other node."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length\n")
    secret.chmod(0o600)
    config = Config(port=free_ports(1), data_dir=str(tmp_path / "a"), admin_socket="")
    tags, name = {"region": "north"}, {"name": "cluster_name", "value": "shop"}
    async with Broker(config) as broker, http_user(broker) as user:
        assert await user.put("/cluster-name", {"name": "shop"}) == 204
        assert await user.put("/global-parameters/cluster_tags", {"value": tags}) == 204
    async with (
        Broker(replace(config, node_name="a", cluster_secret_file=str(secret))) as broker,
        http_user(broker) as user,
    ):
        assert await user.get("/cluster-name") == {"name": "shop"}
        document = await user.get("/definitions")
        assert document["original_cluster_name"] == "shop"
        assert {"name": "cluster_tags", "value": tags} in document["global_parameters"]
        assert name in document["global_parameters"]
        assert broker.catalog.alone


async def test_what_a_node_had_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    shutil.copytree(FOLDER, folder)
    done = force_standalone(str(folder), lambda told: True)
    assert done is not None
    assert "cluster of one, with 3 queues" in done
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length\n")
    secret.chmod(0o600)
    config = Config(
        port=free_ports(1), data_dir=str(folder), admin_socket="", node_name="a",
        cluster_secret_file=str(secret),
    )  # fmt: skip
    async with Broker(config) as broker:
        vhost = broker.catalog.lookup_vhost("/")
        assert sorted(queue.name for queue in vhost) == ["classic", "quorum", "stream"]
        assert [binding.destination.name for binding in vhost.topology.bindings()] == ["quorum"]
        waiting = {queue.name: queue.handle.figures().messages_ready for queue in vhost}
        assert waiting == {"classic": 6, "quorum": 2, "stream": 6}
        assert [body for _, body in quorum(vhost.lookup("quorum"))] == [b"m1", b"m2"]

        def used() -> int:
            assert broker.catalog.cluster is not None
            return broker.catalog.cluster.version

        # The only node that is left carries out what is newest.
        await eventually(lambda: used() == NEWEST)
        # `status` says how long a queue has had no leader, or a full disk, by the time of day.
        assert broker.cluster is not None
        assert abs(broker.cluster.queues.lanes.now_ms() - broker.clock.now_ms()) < 60_000
