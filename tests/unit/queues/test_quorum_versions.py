"""Y2: a quorum queue's machine version goes up by an entry of its log, and counts from there on."""

from __future__ import annotations

import pytest

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import Credit, Purge, Subscribe
from amqp10broker.queues.machine_version import NewerMachine
from amqp10broker.queues.quorum.commands import (
    APPLIED,
    COMMANDS,
    INSTALLED,
    PLACES,
    RaiseVersion,
    decode_commands,
    entry_head,
)
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.snapshot import decode_snapshot, encode_snapshot, version_of
from tests.support import next_version
from tests.support.next_version import VERSION as NEXT
from tests.support.quorum_nodes import Node, World
from tests.support.selecting import selector


@pytest.fixture
def next_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes run the next version of the broker."""
    next_version.become(monkeypatch.setattr)


def opened(world: World, used: int) -> Node:
    """The leader of a group in a cluster that uses this version."""
    use(world, used)
    world.settle_down(lambda: world.leader() is not None and world.even())
    leader = world.leader()
    assert leader is not None
    return leader


def use(world: World, version: int) -> None:
    for node in world.nodes.values():
        node.usable = version
        node.woken = True


def marks(node: Node) -> list[int]:
    """Of each entry of commands in a node's journal, in its order: which version wrote it; 0: it raises."""
    found = {}
    for record in node.journal.records:
        if record.kind == COMMANDS:
            payload = record.payload[APPLIED.size :]
            start = PLACES.decode_part(payload)[1]
            raised = entry_head(payload, start)[2]
            marked = payload[start + next_version.HEAD_BYTES :].startswith(next_version.MARK)
            found[record.index] = 0 if raised else 1 + marked
    return [found[index] for index in sorted(found)]


def test_entries_are_written_by_the_version_in_force_where_they_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of before, that which raises it, and those behind, though it was not applied when they came."""
    next_version.become(monkeypatch.setattr)
    world = World(1)
    leader = opened(world, 1)
    world.publish(leader, 2)
    world.settle_down(world.even)
    assert {node.backend.version for node in world.nodes.values()} == {1}
    use(world, NEXT)
    leader.work()
    world.publish(leader, 2)
    assert leader.backend.version == 1, "nobody has decided on it yet"
    world.settle_down(world.even)
    world.publish(leader)
    world.settle_down(world.even)
    for node in world.nodes.values():
        assert node.backend.version == NEXT
        assert marks(node) == [1, 0, 2, 2]
        assert len(world.bodies(node)) == 5


def test_what_is_carried_out_is_of_the_version_of_its_place_at_all_members(next_broker: None) -> None:
    """Members compare their states at each entry; a purge of the next one leaves everything there."""
    world = World(2)
    leader = opened(world, 1)
    world.publish(leader, 3)
    leader.work(Purge(world.client.request()))
    use(world, NEXT)
    leader.work()
    world.publish(leader, 3)
    leader.work(Purge(world.client.request()))
    world.settle_down(world.even)
    assert [len(world.bodies(node)) for node in world.nodes.values()] == [3, 3, 3]


def test_a_version_that_is_not_decided_on_goes_with_its_leader(next_broker: None) -> None:
    world = World(3)
    old = opened(world, 1)
    world.part(old.number)
    old.usable = NEXT
    old.work()
    assert (old.store.version, old.backend.version) == (NEXT, 1)
    world.settle_down(lambda: not old.leads and world.leader() not in (None, old))
    leader = world.leader()
    assert leader is not None
    world.publish(leader)
    old.usable = 1
    world.heal(old.number)
    world.settle_down(lambda: world.even() and world.confirmed == {0})
    assert (old.store.version, old.backend.version) == (1, 1)
    assert 0 not in marks(leader)


def test_it_is_kept_in_the_journal_and_in_states(next_broker: None) -> None:
    world = World(4)
    leader = opened(world, NEXT)
    world.settle_down(lambda: leader.backend.version == NEXT and world.even())
    world.publish(leader, 3)
    world.settle_down(world.even)
    follower = next(number for number, node in world.nodes.items() if node is not leader)
    world.crash(follower)
    world.start(follower)
    use(world, NEXT)
    world.settle_down(lambda: world.nodes[follower].backend.version == NEXT and world.even())
    world.crash(follower)
    for _ in range(200):  # its log is cleaned away, so it comes back with a state
        world.publish(leader, 3, size=200)
        world.settle_down(world.even)
        leader.journal.clean(leader.store, lambda: None)
    world.start(follower)
    use(world, NEXT)
    world.settle_down(world.even)
    assert world.nodes[follower].backend.version == NEXT
    assert INSTALLED in {record.kind for record in world.nodes[follower].journal.records}


def test_a_member_that_cannot_carry_it_out_stays_behind_and_says_which(
    next_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the log, votes, answers, and never tells what it has not understood."""
    world = World(5)
    leader = opened(world, 1)
    world.settle_down(world.even)
    old = next(node for node in world.nodes.values() if node is not leader)
    lets = old.store.__class__.newer
    monkeypatch.setattr(
        old.store.__class__,
        "newer",
        property(lambda store: NEXT if store is old.store and _next_is_newer(old) else lets.fget(store)),
    )
    use(world, NEXT)
    leader.work()
    world.publish(leader, 3)
    world.settle_down(lambda: world.confirmed == {0, 1, 2})
    assert (old.backend.version, old.backend.newer) == (1, NEXT)
    world.settle_down(lambda: old.store.last == leader.store.last)
    assert world.bodies(old) == {}
    assert old.backend.applied < leader.backend.applied


def _next_is_newer(node: Node) -> bool:
    return bool(node.store.tail) and node.store.tail[0].version == NEXT


def test_a_state_that_it_cannot_read_is_left_and_asked_for_later(
    next_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(6)
    leader = opened(world, NEXT)
    world.publish(leader, 3)
    world.settle_down(lambda: world.even() and leader.backend.version == NEXT)
    state = encode_snapshot(leader.backend.queue)
    monkeypatch.setattr(machine_version, "NEWEST", 1)
    old = next(node for node in world.nodes.values() if node is not leader)
    with pytest.raises(
        NewerMachine, match=f"has machine version {NEXT}, and this broker carries out versions 1 to 1"
    ):
        old.store.staged(7, state)
    assert old.backend.newer == NEXT


def test_an_older_broker_leaves_the_journal_as_it_is(
    next_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, with both numbers, and no advice to restore a copy."""
    world = World(7, 1)
    leader = opened(world, NEXT)
    world.publish(leader, 2)
    world.settle_down(lambda: world.confirmed == {0, 1})
    world.crash(1)
    monkeypatch.setattr(machine_version, "NEWEST", 1)
    with pytest.raises(
        StorageError, match=rf"machine version {NEXT}, .* versions 1 to 1; nothing was .*newer"
    ) as found:
        world.start(1)
    assert not isinstance(found.value, DamagedFile)


def test_a_state_of_a_newer_version_is_refused() -> None:
    state = encode_snapshot(QuorumQueue("q", now_ms=5))
    assert version_of(state) == 1
    with pytest.raises(NewerMachine):
        decode_snapshot("q", NEXT.to_bytes(4, "little") + state[4:])


def test_an_older_broker_cannot_read_what_the_next_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an entry that was written too soon does not go unnoticed."""
    monkeypatch.setattr(machine_version, "NEWEST", NEXT)
    entry = b"".join(next_version.encode_commands([RaiseVersion(NEXT)], 1, 1, NEXT).pieces)
    with pytest.raises(ValueError, match="254 is not the tag"):
        decode_commands(entry)
    assert next_version.decode_commands(entry).commands == [RaiseVersion(NEXT)]


ALL = selector("JMSPriority IS NOT NULL")


def test_what_comes_first_in_a_new_queue_is_of_the_version_that_the_cluster_uses(
    next_broker: None,
) -> None:
    """A queue begins with version 1; what is asked of it before anything else may need a newer one."""
    world = World(10)
    leader = opened(world, 1)
    world.settle_down(world.even)
    leader.usable = NEXT
    world.publish(leader)
    assert marks(leader) == [0, 2]
    world.settle_down(lambda: world.confirmed == {0})


def test_another_leader_looks_on_where_the_one_before_was() -> None:
    """What that had found, and nobody has decided on, is found again."""
    world = World(9)
    old = opened(world, 1)
    ref = world.client.consumer()
    old.work(Subscribe(ref, False, filters=ALL), Credit(ref, 0, 2, False, 0))
    world.publish(old, 4)
    world.settle_down(lambda: len(world.keys) == 2 and world.even())
    world.part(old.number)
    old.work(Credit(ref, 2, 5, False, 2))
    world.settle_down(lambda: not old.leads and world.leader() not in (None, old))
    leader = world.leader()
    assert leader is not None
    leader.work(Credit(ref, 2, 5, False, 2))
    world.settle_down(lambda: len(world.keys) == 4)
    world.heal(old.number)
    world.settle_down(world.even)
    assert sorted(world.keys) == list(old.backend.queue.parts()[1].by_ref[ref].unsettled)
