"""What the log says of queues that have no leader, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import SYSTEM_GROUP, member_id
from amqp10broker.runtime.cluster.node_queues import LeaderlessQueues
from tests.runtime.conftest import LogRecorder

VOTERS = tuple(member_id(node) for node in (1, 2, 3))


class Seen:
    """A node's groups, catalog and nodes, as far as they are looked at."""

    def __init__(self, queues: int) -> None:
        self.members = {number: self._member(number) for number in (SYSTEM_GROUP, *range(10, 10 + queues))}
        self.suspected: set[int] = set()
        self.elections, self.elects = 2, True
        self.catalog = [SimpleNamespace(name=f"q{each}", vhost="/", number=each) for each in self.members]
        self.queues = LeaderlessQueues(cast(Any, self.catalog), cast(Groups, self), lambda node: "-abc"[node])

    def _member(self, number: int) -> Any:
        raft = SimpleNamespace(config=SimpleNamespace(voters=VOTERS))
        return SimpleNamespace(group=number, lacks_leader=False, raft=raft)

    def __iter__(self) -> Any:
        return iter(self.members.values())

    def get(self, group: int) -> Any:
        return self.members.get(group)

    def lose_leaders(self, *, lacks: bool = True) -> None:
        for member in self.members.values():
            member.lacks_leader = lacks


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    recorder = LogRecorder()
    monkeypatch.setattr("amqp10broker.runtime.cluster.node_queues._log", recorder)
    return recorder


async def test_queues_without_a_leader_are_logged_with_names_until_they_have_one(
    nursery: trio.Nursery, told: LogRecorder
) -> None:
    """Every ten seconds the log has their number, names and recovery step; then it reports the end."""
    seen = Seen(7)
    nursery.start_soon(seen.queues.run)
    await trio.sleep(5.5)
    assert told.entries == []
    seen.lose_leaders()
    await trio.sleep(14)
    names = "q10 in /, q11 in /, q12 in /, q13 in /, q14 in /"
    reason = "7 elect one, 2 at a time from here"
    assert (
        told.of("warning") == [("queues have no leader", {"queues": 7, "names": names, "reason": reason})] * 2
    )
    seen.lose_leaders(lacks=False)
    await trio.sleep(20)
    (over,) = told.of("info")
    assert over[0] == "every queue here has a leader"
    nursery.cancel_scope.cancel()


async def test_an_election_that_is_over_in_a_moment_is_not_logged(
    nursery: trio.Nursery, told: LogRecorder
) -> None:
    """A node is lost, and other nodes take its leaderships."""
    seen = Seen(7)
    nursery.start_soon(seen.queues.run)
    await trio.sleep(5.5)
    seen.lose_leaders()
    await trio.sleep(1)
    seen.lose_leaders(lacks=False)
    await trio.sleep(20)
    assert told.entries == []
    nursery.cancel_scope.cancel()


def test_queues_wait_until_the_node_has_begun_its_queues() -> None:
    seen = Seen(3)
    seen.lose_leaders()
    seen.elects = False
    found = seen.queues.found()
    assert found.reason == "3 elect one, when this node has begun all its queues"


def test_queues_without_a_majority_say_which_nodes_they_lack() -> None:
    seen = Seen(3)
    seen.lose_leaders()
    seen.suspected = {2, 3}
    found = seen.queues.found()
    assert (found.queues, found.stuck, found.missing) == (3, 3, ("b", "c"))
    assert found.reason == "3 have no majority without b, c: start these nodes"
