"""R1, R5: a stream stays on its node, and operations on its replicas say so."""

from __future__ import annotations

import pytest

from amqp10broker.errors import NotFound, NotSupported
from amqp10broker.metadata.queue import Placed
from amqp10broker.queues.queue_status import QueueStats
from tests.support.declaring import declare
from tests.unit.operations.test_members import World


@pytest.fixture
def world() -> World:
    """Asked at node a; a stream at each of a and b, and a quorum queue."""
    world = World()
    for name, node in (("here", 1), ("there", 2)):
        world.cluster._placed = Placed(node)
        declare(world.catalog, "/", name, arguments={"x-queue-type": "stream", "x-initial-cluster-size": 3})
    world.cluster.declare("quorum", 1, 2)
    return world


def test_a_stream_has_one_replica_whatever_size_was_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With RabbitMQ's columns; one elsewhere is asked of its node."""
    figures = QueueStats(consumers=2, first_offset=3, next_offset=10, segments=4)
    monkeypatch.setattr(world.vhost.lookup("here").handle, "figures", lambda: figures)
    row = {
        "role": "leader", "node": "a", "epoch": 1, "offset": 9, "committed_offset": 9,
        "committed_chunk_id": None, "first_offset": 3, "readers": 2, "segments": 4,
    }  # fmt: skip
    assert world.run("stream-status", name="here") == [row]
    world.cluster.there = {(2, "stream-status"): [{**row, "node": "b"}]}
    assert world.run("stream-status", name="there") == [{**row, "node": "b"}]


def test_only_a_stream_has_a_status_of_one(world: World) -> None:
    with pytest.raises(NotSupported, match="is no stream"):
        world.run("stream-status", name="quorum")
    with pytest.raises(NotFound, match="no queue 'no'"):
        world.run("stream-status", name="no")


def test_a_stream_whose_node_is_down_cannot_be_asked(world: World) -> None:
    """As a classic queue there: it is said which node."""
    world.vhost.lookup("there").handle.down = "b"
    with pytest.raises(NotFound, match="home node 'b' of durable queue 'there' .* is down or inaccessible"):
        world.run("stream-status", name="there")
