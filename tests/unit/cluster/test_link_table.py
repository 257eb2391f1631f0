"""What a node knows of who leads queues that it may have no member of."""

from __future__ import annotations

from amqp10broker.cluster.remote_queue.links import QueueLinks
from amqp10broker.cluster.remote_queue.messages import LeaderIs, LinkPort, encode
from amqp10broker.cluster.wire import PeerFrame

GROUP = 7


def links() -> QueueLinks:
    return QueueLinks(LinkPort(1, 1, lambda *_: True, lambda node: 0, lambda told: None, lambda: 0))


def say(table: QueueLinks, node: int, leader: LeaderIs) -> None:
    kind, body = encode(leader)
    table.received(node, PeerFrame(kind, GROUP, b"".join(body)))


def test_a_leader_that_has_lost_its_majority_is_no_leader_at_any_node() -> None:
    """Else a node without a member says that the queue runs, and one with a member that it does not."""
    table = links()
    say(table, 2, LeaderIs(5))
    assert table.leader_of(GROUP) == 2
    say(table, 2, LeaderIs(5, no_more=True))
    assert table.leader_of(GROUP) is None


def test_what_an_earlier_leader_says_late_changes_nothing() -> None:
    table = links()
    say(table, 2, LeaderIs(5))
    say(table, 3, LeaderIs(6))
    say(table, 2, LeaderIs(5, no_more=True))
    assert table.leader_of(GROUP) == 3
