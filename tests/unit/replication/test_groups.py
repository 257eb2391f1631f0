"""A node's members get news and time some at once, so that thousands of them never hold it up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.raft.config import Configuration
from amqp10broker.replication.groups import MEMBERS_A_TURN, Groups
from amqp10broker.replication.ids import member_id
from amqp10broker.replication.member import Member

ME, OTHER, THIRD = 1, 2, 3


class Told:
    """A member that notes what it is told."""

    def __init__(self, node: Node, group: int, nodes: tuple[int, ...]) -> None:
        self.group = group
        self.me = member_id(ME)
        self.due: int | None = None
        self.config: Configuration | None = None
        self.stopped = False
        config = Configuration(tuple(member_id(number) for number in nodes))
        self.raft = SimpleNamespace(config=config, deadline=None, backward=False)
        self.log: list[tuple[str, int]] = []
        self._node = node

    def suspect(self, peer: int) -> None:
        self.log.append(("suspect", peer))

    def heard(self, peer: int) -> None:
        self.log.append(("heard", peer))

    def tick(self) -> None:
        self._node.told += 1
        self.log.append(("tick", 0))
        self.raft.deadline = None

    def advance(self) -> None:
        self._node.told += 1


class Node:
    """Groups with members that note; time stands still."""

    def __init__(self, members: int, nodes: tuple[int, ...] = (ME, OTHER, THIRD)) -> None:
        self.told = self.woken = 0
        self.groups = Groups(lambda: 0, lambda *_: None)
        self.groups.on_deadline = self._wake
        self.members = [Told(self, group, nodes) for group in range(1, members + 1)]
        for member in self.members:
            self.groups.add(cast(Member, member))
        self.told = 0

    def _wake(self) -> None:
        self.woken += 1

    def run(self) -> list[int]:
        """Give it its turns until nothing is due; how many members each told."""
        turns = []
        while self.groups.deadline is not None:
            before = self.told
            self.groups.tick()
            turns.append(self.told - before)
        return turns


def test_news_for_a_few_members_are_told_at_once() -> None:
    """Nothing is left for a turn."""
    node = Node(20)
    node.groups.suspect(OTHER)
    assert all(each.log == [("suspect", member_id(OTHER))] for each in node.members)
    assert node.groups.deadline is None
    assert not node.woken


def test_news_for_thousands_are_told_some_a_turn() -> None:
    """The node is woken for the rest, which is due at once."""
    node = Node(1_000)
    node.groups.suspect(OTHER)
    assert node.told == MEMBERS_A_TURN
    assert node.woken == 1
    assert max(node.run()) <= MEMBERS_A_TURN
    assert all(each.log == [("suspect", member_id(OTHER))] for each in node.members)


def test_members_without_a_member_there_are_told_nothing() -> None:
    """They count for nothing, either."""
    node = Node(1_000, (ME, THIRD))
    node.groups.suspect(OTHER)
    assert node.told == 0
    assert not any(each.log for each in node.members)


def test_a_member_that_has_stopped_meanwhile_is_told_nothing() -> None:
    """Its queue was deleted."""
    node = Node(1_000)
    node.groups.suspect(OTHER)
    last = node.members[-1]
    last.stopped = True
    node.groups.remove(last.group)
    node.run()
    assert last.log == []


def test_thousands_that_are_due_have_their_time_some_a_turn() -> None:
    """An election of each, after a node is lost."""
    node = Node(1_000)
    for member in node.members:
        member.raft.deadline = 0
        node.groups.noted(cast(Member, member))
    turns = node.run()
    assert max(turns) <= 2 * MEMBERS_A_TURN  # each ticks and advances
    assert all(each.log == [("tick", 0)] for each in node.members)


@given(
    st.lists(
        st.tuples(st.sampled_from(["suspect", "heard", "turn"]), st.sampled_from([OTHER, THIRD])), max_size=20
    ),
    st.integers(1, 3 * MEMBERS_A_TURN),
)
def test_every_member_is_told_all_news_in_order(steps: list[tuple[str, int]], members: int) -> None:
    """Whenever turns come between."""
    node = Node(members)
    news = []
    for what, about in steps:
        if what == "turn":
            node.groups.tick()
            continue
        news.append((what, about))
        (node.groups.suspect if what == "suspect" else node.groups.heard)(about)
    node.run()
    for member in node.members:
        assert member.log == [(what, member_id(about)) for what, about in news]
