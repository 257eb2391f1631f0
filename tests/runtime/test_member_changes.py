"""Changes of members by the node that leads, with members of a real queue on nodes without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from amqp10broker.cluster.membership import MemberRole
from amqp10broker.config import Config
from amqp10broker.errors import PreconditionFailed, Unavailable
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.queue import DeclaredQueue, Placed
from amqp10broker.metadata.vhost_requests import JoinNode, SetDraining, SetMembers
from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import node_of
from amqp10broker.runtime.cluster import node_of_cluster
from amqp10broker.runtime.cluster.node_of_cluster import LeaderMoved, MemberChanges, hand_all_over, transfer
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import declare
from tests.support.declaring import remove as delete_queue
from tests.support.queue_handles import QueueHost
from tests.support.quorum_harness import GROUP, Harness, Journal, Node
from tests.support.trioclient import alongside

PROMOTABLE, VOTER = MemberRole.PROMOTABLE, MemberRole.VOTER


class Scene:
    """Three nodes that have a queue, and more that may.

    Attributes:
        absent: nodes that begin no member whatever the catalog says.
        decides: set while the catalog can be changed.
    """

    def __init__(self) -> None:
        self.world = Harness(1)
        self.config = Config()
        self.absent: set[int] = set()
        self.decides = trio.Event()
        self.decides.set()
        self.catalog = Catalog(QueueHost().start_queue)
        self.catalog.placement = self.place
        self.catalog.highest_number = GROUP - 1
        self.queue: DeclaredQueue = declare(self.catalog, "/", "q", arguments={"x-queue-type": "quorum"})[0]
        assert self.queue.number == GROUP
        self.world.settle_down(lambda: self.world.leader() is not None)

    def place(self, *wanted: object) -> Placed:
        return Placed(members=tuple(self.world.members))

    @property
    def leader(self) -> Node:
        found = self.world.leader()
        assert found is not None
        return found

    def changes(self, node: Node | None = None) -> MemberChanges:
        node = node or self.leader
        return MemberChanges(node.number, self.catalog, node.groups, self.propose, self.config)

    async def propose(self, request: CatalogRequest[Any]) -> Any:
        assert isinstance(request, SetMembers)
        await self.decides.wait()
        answer = self.catalog.propose(request)
        for member in request.members:
            number = node_of(member)
            if number not in self.world.nodes and number not in self.absent:
                self.world.members.append(member)
                self.world.nodes[number] = Node(self.world, member, Journal(3000))
        for number in set(self.world.nodes) - set(map(node_of, request.members)):
            self.world.nodes.pop(number).member.stop()
            self.world.members = [each for each in self.world.members if node_of(each) != number]
        return answer

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:

        async def live() -> None:
            while True:
                self.world.step_all()
                await trio.sleep(0.02)

        async with alongside(live):
            yield

    def declared(self) -> list[int]:
        """Nodes with a member; the catalog and the log must agree."""
        by_log = sorted(map(node_of, self.leader.member.raft.config.members))
        assert sorted(map(node_of, self.queue.members)) == by_log
        return by_log


async def test_a_member_is_added_and_another_removed() -> None:
    scene = Scene()
    async with scene.alive():
        assert await scene.changes().add(scene.queue, 4, VOTER, 20, among_voters=True) == 4
        assert scene.declared() == [1, 2, 3, 4]
        assert await scene.changes().remove(scene.queue, 2, 20) == 3
        assert scene.declared() == [1, 3, 4]
    assert scene.world.nodes[4].store.point.index > 0


async def test_a_member_that_does_not_catch_up_in_time_is_taken_back() -> None:
    scene = Scene()
    scene.absent = {4}
    async with scene.alive():
        with pytest.raises(Unavailable, match="in time"):
            await scene.changes().add(scene.queue, 4, VOTER, 2, among_voters=True)
        assert scene.declared() == [1, 2, 3]
        scene.absent.clear()
        await scene.changes().add(scene.queue, 4, VOTER, 20, among_voters=True)
        assert scene.declared() == [1, 2, 3, 4]


async def test_grow_does_not_add_beside_one_that_is_still_to_vote() -> None:
    """Section 9: `non_voters_found`; a check by the leader makes it a voter."""
    scene = Scene()
    changes = scene.changes()
    async with scene.alive(), trio.open_nursery() as nursery:
        await changes.add(scene.queue, 4, PROMOTABLE, 20, among_voters=True)
        with pytest.raises(PreconditionFailed, match="non_voters_found"):
            await changes.add(scene.queue, 5, PROMOTABLE, 20, among_voters=True)
        nursery.start_soon(changes.run)
        await trio.sleep(3)
        assert await changes.add(scene.queue, 5, PROMOTABLE, 20, among_voters=True) == 5
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    assert len(scene.leader.member.raft.config.voters) == 5


async def test_of_many_queues_some_are_looked_at_each_time_and_none_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check of 10 000 queues each second would hold up the node."""
    monkeypatch.setattr(node_of_cluster, "REPAIR_QUEUES", 2)
    scene = Scene()
    for number in range(4):
        declare(scene.catalog, "/", f"other{number}", arguments={"x-queue-type": "quorum"})
    looked: dict[float, list[int]] = {}

    def look(number: int) -> None:
        looked.setdefault(trio.current_time(), []).append(number)

    groups = SimpleNamespace(get=look)
    changes = MemberChanges(1, scene.catalog, cast("Groups", groups), scene.propose, scene.config)
    async with alongside(changes.run):
        await trio.sleep(4.5)
    numbers = [queue.number for queue in scene.catalog]
    assert list(looked.values()) == [numbers[:2], numbers[2:4], numbers[4:], numbers[:2]]


async def test_a_learner_for_good_stays_one() -> None:
    scene = Scene()
    changes = scene.changes()
    async with scene.alive(), trio.open_nursery() as nursery:
        nursery.start_soon(changes.run)
        await changes.add(scene.queue, 4, MemberRole.NON_VOTER, 20, among_voters=True)
        await trio.sleep(5)
        assert len(scene.leader.member.raft.config.learners) == 1
        assert scene.declared() == [1, 2, 3, 4]
        nursery.cancel_scope.cancel()


async def test_a_queue_at_rest_is_not_looked_at_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader of a thousand queues would otherwise do so a thousand times a second."""
    scene = Scene()
    changes = scene.changes()
    looked: list[str] = []

    async def repaired(queue: DeclaredQueue, member: object) -> None:
        looked.append(queue.name)

    monkeypatch.setattr(changes, "_repaired", repaired)
    async with scene.alive(), trio.open_nursery() as nursery:
        nursery.start_soon(changes.run)
        await trio.sleep(5)
        assert not looked
        await changes.add(scene.queue, 4, MemberRole.NON_VOTER, 20, among_voters=True)
        await trio.sleep(5)
        assert "q" in looked
        nursery.cancel_scope.cancel()


async def test_a_change_ends_when_the_queue_is_deleted_meanwhile() -> None:
    """The missing queue is reported at once; retries without a pause would stop the whole node."""
    scene = Scene()
    asked: list[CatalogRequest[Any]] = []

    async def propose(request: CatalogRequest[Any]) -> Any:
        asked.append(request)
        assert len(asked) == 1, "asked again"
        return scene.catalog.propose(request)

    changes = MemberChanges(1, scene.catalog, scene.leader.groups, propose, scene.config)
    delete_queue(scene.catalog, "/", "q")
    with pytest.raises(LeaderMoved):
        await changes.add(scene.queue, 4, VOTER, 20, among_voters=True)


async def test_a_leader_that_is_removed_hands_over_and_the_next_one_goes_on() -> None:
    scene = Scene()
    async with scene.alive():
        first = scene.leader.number
        with pytest.raises(LeaderMoved):
            await scene.changes().remove(scene.queue, first, 20)
        await trio.sleep(1)
        assert scene.leader.number != first
        assert await scene.changes().remove(scene.queue, first, 20) == 2
        assert first not in scene.declared()


async def test_a_member_that_does_not_lead_changes_nothing() -> None:
    scene = Scene()
    follower = next(node for node in scene.world.nodes.values() if node is not scene.leader)
    async with scene.alive():
        for change in (
            lambda: scene.changes(follower).add(scene.queue, 4, VOTER, 5, among_voters=True),
            lambda: scene.changes(follower).remove(scene.queue, 1, 5),
            lambda: transfer(follower.groups, scene.queue, 1),
        ):
            with pytest.raises(LeaderMoved):
                await change()


async def test_leaderships_are_handed_to_nodes_that_may_lead() -> None:
    """V1: a drained node gives away each leadership it can, and reports the rest."""
    scene = Scene()
    async with scene.alive():
        await trio.sleep(1)
        first = scene.leader.number
        groups = scene.leader.groups
        assert "no other member of it can lead" in (await hand_all_over(first, scene.catalog, groups))[0]
        for number in (1, 2, 3):
            scene.catalog.propose(JoinNode(f"n{number}", "::1", number))
        heir, drained = first % 3 + 1, (first + 1) % 3 + 1
        scene.catalog.propose(SetDraining(f"n{drained}", True))
        assert await hand_all_over(first, scene.catalog, groups) == []
        assert scene.leader.number == heir
        assert scene.leader.number == heir
        with pytest.raises(PreconditionFailed, match="not_a_voter"):
            await transfer(scene.leader.groups, scene.queue, 9)


async def test_a_queue_that_cannot_get_the_members_that_it_should_have_is_logged(
    log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged once a round, with the number of such queues."""
    monkeypatch.setattr(node_of_cluster, "_log", log)
    scene = Scene()
    for target in (3, 5):
        assert not log.of("warning")
        scene.config = Config(quorum_reconciliation_target_group_size=target)
        assert not await scene.changes().round()
    ((event, fields),) = log.of("warning")
    assert event == "queues have fewer members than their target"
    assert (fields["queues"], fields["one_of_them"], fields["members"], fields["target"]) == (1, "q", 3, 5)
