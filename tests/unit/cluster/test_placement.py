"""Which nodes a new queue is at: Q1, Q2, Q3, K1 of RabbitMQ's cluster."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amqp10broker.cluster import membership
from amqp10broker.cluster.membership import ByCount
from amqp10broker.metadata.queue import DeclaredQueue, NodeFacts, Placed, QueueSpec
from amqp10broker.raft.ids import member_id, node_of
from tests.support.handles import IdleHandle

LOCAL = {"x-queue-leader-locator": "client-local"}
EVEN = {"x-queue-leader-locator": "balanced"}


class Cluster:
    """Five nodes, and what is declared at the first."""

    def __init__(self, nodes: int = 5, **options: Any) -> None:
        self.down: set[int] = set()
        self.draining: set[int] = set()
        self.queues: list[DeclaredQueue] = []
        self._count = nodes
        self._placement = ByCount(
            1, 7, random.Random(1).randrange, runs=lambda node: node not in self.down, **options
        )

    def place(
        self,
        kind: str = "quorum",
        arguments: dict[str, Any] | None = None,
        definition: dict[str, Any] | None = None,
        *,
        exclusive: bool = False,
        lasting: bool = True,
    ) -> Placed:
        nodes = [
            NodeFacts(chr(96 + n), n, "h", n, incarnation=10 + n, draining=n in self.draining)
            for n in range(1, self._count + 1)
        ]
        owner = 1 if exclusive else None
        wanted = QueueSpec("/", "q", kind, lasting, False, arguments or {}, owner=owner)
        found = self._placement(wanted, definition or {}, nodes, self.queues, len(self.queues))
        self.add(kind, found)
        return found

    def add(self, kind: str, placed: Placed) -> None:
        number = len(self.queues) + 1
        self.queues.append(
            DeclaredQueue(
                *(str(number), "/", kind, True, None, False, {}, IdleHandle()),
                number=number,
                home=placed.home,
                members=placed.members,
            )
        )

    def members(self, size: int, **options: Any) -> list[int]:
        return [
            node_of(each)
            for each in self.place(arguments={"x-quorum-initial-group-size": size}, **options).members
        ]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "leader_locator_client_local", "quorum_cluster_size_3")
def test_a_quorum_queue_has_three_members_and_leads_where_it_is_declared() -> None:
    placed = Cluster().place()
    assert len(set(placed.members)) == 3
    assert placed.members[0] == member_id(1)
    assert (placed.home, placed.incarnation) == (0, 0)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "quorum_cluster_size_7")
@pytest.mark.parametrize(("size", "members"), [(1, 1), (2, 2), (5, 5), (9, 5)])
def test_the_group_is_never_larger_than_the_cluster(size: int, members: int) -> None:
    assert len(Cluster().members(size)) == members


@pytest.mark.rabbitmq("quorum_queue_SUITE", "select_nodes_with_least_replicas")
def test_the_others_are_the_nodes_with_the_fewest_members() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.add("quorum", Placed(members=(member_id(2), member_id(3))))
    cluster.add("quorum", Placed(members=(member_id(4),)))
    cluster.add("classic", Placed(5))  # another kind does not count
    assert cluster.members(2) == [1, 5]
    assert set(cluster.members(3)) == {1, 4, 5}


@pytest.mark.rabbitmq("quorum_queue_SUITE", "select_nodes_with_least_replicas_node_down")
def test_running_nodes_come_before_stopped_ones_which_are_taken_when_there_are_too_few() -> None:
    cluster = Cluster()
    cluster.down = {2, 3}
    cluster.add("quorum", Placed(members=(member_id(4), member_id(5))))
    assert set(cluster.members(3)) == {1, 4, 5}
    assert set(cluster.members(4)) > {1, 4, 5}


@pytest.mark.rabbitmq("quorum_queue_SUITE", "leader_locator_balanced")
def test_a_balanced_leader_is_where_the_fewest_are() -> None:
    cluster = Cluster(3)
    leaders = [node_of(cluster.place(arguments=EVEN).members[0]) for _ in range(6)]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "leader_locator_policy")
@pytest.mark.rabbitmq("classic_queue_SUITE", "leader_locator_balanced", "leader_locator_client_local")
def test_the_policy_counts_before_the_argument_and_this_before_the_configuration() -> None:
    cluster = Cluster(3, locator="balanced")
    for _ in range(5):
        cluster.add("classic", Placed(1))
    assert cluster.place("classic").home != 1
    assert cluster.place("classic", LOCAL).home == 1
    assert cluster.place("classic", LOCAL, {"queue-leader-locator": "balanced"}).home != 1
    assert cluster.place("classic", EVEN, {"queue-leader-locator": "client-local"}).home == 1
    assert cluster.place("classic", EVEN, {"queue-leader-locator": "no-such"}).home == 1


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "leader_locator_balanced_maintenance", "leader_locator_balanced_random_maintenance"
)
def test_stopped_and_drained_nodes_lead_only_if_there_is_no_other() -> None:
    cluster = Cluster(3)
    cluster.down, cluster.draining = {2}, {3}
    assert {node_of(cluster.place(arguments=EVEN).members[0]) for _ in range(5)} == {1}
    cluster.draining = {1, 3}
    assert node_of(cluster.place().members[0]) == 1
    cluster.draining = {1}
    assert node_of(cluster.place().members[0]) == 3, "this node is drained, and another one is not"


def test_an_exclusive_queue_is_at_its_connections_node_and_ends_with_its_start() -> None:
    cluster = Cluster(locator="balanced")
    for _ in range(3):
        assert cluster.place("classic", exclusive=True, lasting=False) == Placed(1, incarnation=7)


def test_a_transient_queue_elsewhere_ends_with_the_start_of_that_node() -> None:
    cluster = Cluster(2)
    cluster.add("classic", Placed(1))
    assert cluster.place("classic", EVEN, lasting=False) == Placed(2, incarnation=12)


def test_with_a_thousand_queues_chance_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "COUNTED_MAX", 4)
    cluster = Cluster()
    for _ in range(4):
        cluster.add("quorum", Placed(members=(member_id(2), member_id(3), member_id(4))))
    drawn = {tuple(sorted(cluster.members(2))) for _ in range(40)}
    assert drawn == {(1, 2), (1, 3), (1, 4), (1, 5)}
    cluster.down = {2, 3, 4}
    assert {tuple(sorted(cluster.members(2))) for _ in range(10)} == {(1, 5)}
