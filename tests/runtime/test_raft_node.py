"""The groups of a node and their task: when they get their turns, and what comes of an error of the disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from amqp10broker.cluster.wire import ConnectionPurpose, FrameKind, PeerFrame
from amqp10broker.errors import BrokerError, StorageFailed
from amqp10broker.runtime.cluster.cluster import Cluster
from amqp10broker.runtime.cluster.system_node import RaftNode, now_ms
from tests.support.trioclient import alongside

BROKEN = StorageFailed("journal", "cannot be written", "look at the disk")


@pytest.mark.parametrize("due_ms", [4031, 4035, 8033])
async def test_a_turn_is_given_when_its_millisecond_has_come(due_ms: int) -> None:
    """Seconds as a float may fall short of it: the task waits, without a busy loop."""
    looks = 0

    def deadline() -> int | None:
        nonlocal looks
        looks += 1
        assert looks < 100, "it turns in a circle"
        return None if now_ms() >= due_ms else due_ms

    raft = RaftNode(lambda *_: None)
    raft.give_turns(deadline, lambda: None)
    async with alongside(raft.run):
        await trio.sleep(due_ms / 1000 + 1)


async def test_an_error_of_the_disk_in_a_turn_is_told() -> None:
    def turn() -> None:
        raise BROKEN

    raft, told = RaftNode(lambda *_: None), []
    raft.on_failed = told.append
    raft.give_turns(lambda: None, turn)
    async with alongside(raft.run):
        await trio.sleep(1)
    assert told[:1] == [BROKEN]


@pytest.mark.parametrize("event", ["frames", "suspected", "heard"])
def test_a_disk_that_fails_while_other_nodes_are_heard_stops_the_broker(event: str) -> None:
    """The connection is not blamed for it: a group with a lost write would wait for ever."""

    def fails(*_: Any) -> None:
        raise BROKEN

    failed: list[BrokerError] = []
    cluster = cast("Any", Cluster.__new__(Cluster))
    cluster._node_context = SimpleNamespace(journal_task=SimpleNamespace(failed=failed.append))
    groups = SimpleNamespace(suspect=fails, heard=fails)
    cluster.raft = SimpleNamespace(received=fails, groups=groups)
    cluster._hear = lambda node, facts: None
    cluster.facts, cluster.queues, cluster.system = {}, None, None
    match event:
        case "frames":
            cluster.frames(2, ConnectionPurpose.RAFT, [PeerFrame(FrameKind.RAFT, 7, b"")])
        case "suspected":
            cluster.suspected(2)
        case _:
            cluster.heard(2, 1)
    assert failed == [BROKEN]
