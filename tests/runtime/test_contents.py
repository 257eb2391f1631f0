"""`storage check` on the folder of a cluster's node: it reads what the node's next start would read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from amqp10broker.cluster.bootstrap import Address, ClusterIdentity, MemberAt
from amqp10broker.cluster.transactions import found, joined
from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.queues.quorum.commands import CONFIG
from amqp10broker.raft.ids import member_id
from amqp10broker.raft.messages import Add, Promote
from amqp10broker.runtime.journal.bootstrap import Contents
from amqp10broker.runtime.journal.data import INCARNATION, MEMBERSHIP
from tests.runtime.test_standalone import queue
from tests.support.metadata_group import first_entries
from tests.support.quorum_harness import GROUP, Harness, Node
from tests.support.system_cluster import MemoryLog

NODES = tuple(MemberAt(each, chr(96 + each), Address("host", each)) for each in (1, 2, 3, 4))


def folder_of(node: int, *, members: Sequence[int] = (), here: bool = True) -> MemoryLog:
    """Build a node's catalog log with the queue `GROUP` and another one only."""
    log = MemoryLog()
    first = members or [member_id(each) for each in (1, 2, 3)]
    entries = [
        *first_entries(4),
        queue("q", GROUP, members=[each for each in first if here or each >> 32 != node]),
        queue("theirs", GROUP + 1, members=[member_id(5)]),
        (("queue_numbers",), {"highest": GROUP + 1}),
    ]
    found(log, member_id(node), entries)
    log.change(
        [(MEMBERSHIP, ClusterIdentity("c", node, chr(96 + node), NODES).document()), (INCARNATION, 3)], []
    )
    return log


def records_of(node: Node) -> list[Any]:
    return list(chain.from_iterable(node.journal.files.values()))


def faults_of(log: MemoryLog, records: Sequence[Any]) -> list[StorageError]:
    contents = Contents()
    contents.declare("catalog", log.entries())
    contents.take(records)
    return list(contents.faults())


def a_world() -> Harness:
    """Run three nodes, and a fourth that was added and has become a voter."""
    world = Harness(1, file_bytes=10**6)
    world.settle_down(lambda: world.leader() is not None)
    leader = world.leader()
    assert leader is not None
    world.publish(leader, 5)
    world.settle_down(world.even)
    new = world.join(4)
    for change in (Add(new), Promote(new)):
        leader.member.change(change)
        leader.member.advance()
        world.settle_down(world.even)
    return world


def test_members_of_several_nodes_are_whole() -> None:
    """Their logs include changes of members, and are read again in the end."""
    world = a_world()
    for number, node in world.nodes.items():
        node.journal.sync()
        records = records_of(node)
        assert any(record.kind == CONFIG for record in records) or number == 4
        assert faults_of(folder_of(number, members=world.members), records) == []


def damaged(records: Sequence[Any]) -> list[Any]:
    return [record._replace(payload=record.payload[:9]) for record in records]


def test_records_that_cannot_be_understood_are_told() -> None:
    records = records_of(a_world().nodes[1])
    with pytest.raises(DamagedFile, match="quorum queue 'q'"):
        faults_of(folder_of(1), damaged(records))


def test_records_of_a_queue_that_has_no_member_here_are_not_looked_at() -> None:
    records = records_of(a_world().nodes[1])
    assert faults_of(folder_of(1, here=False), damaged(records)) == []


def test_a_node_that_has_joined_and_got_nothing_yet_has_no_fault() -> None:
    log = MemoryLog()
    log.change([(MEMBERSHIP, ClusterIdentity("c", 2, "b", NODES).document())], [])
    joined(log, lambda key: key == MEMBERSHIP)
    assert faults_of(log, []) == []


@pytest.mark.parametrize("key", [("raft", "hard"), ("raft", "point"), MEMBERSHIP])
def test_what_cannot_be_understood_of_the_cluster_is_told(key: Any) -> None:
    log = folder_of(1)
    log.change([(key, "no such thing")], [])
    with pytest.raises(StorageError, match="what it says of the cluster cannot be understood"):
        Contents().declare("catalog", log.entries())
