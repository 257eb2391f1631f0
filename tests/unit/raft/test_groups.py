"""A node's members get news and time some at once, so that thousands of them never hold it up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.raft.groups import ELECTIONS_MAX, MEMBERS_A_TURN, Groups, Member
from amqp10broker.raft.ids import member_id
from amqp10broker.raft.messages import Configuration

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
        self.raft = SimpleNamespace(config=config, deadline=None, backward=False, stands=False)
        self.lacks_leader = self.new = False
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
        if self.lacks_leader:
            self.raft.stands, self.raft.deadline = True, self._node.now_ms + 1_000
            self._node.asked.append(self)

    def hears_leader(self) -> None:
        """The member has a leader: it requests no more votes and awaits nothing."""
        self.lacks_leader = self.raft.stands = False
        self.raft.deadline = None
        self._node.groups.noted(cast(Member, self))

    def awaits_election(self) -> None:
        self.lacks_leader, self.raft.deadline = True, 0
        self._node.groups.noted(cast(Member, self))

    def advance(self) -> None:
        self._node.told += 1
        self._node.groups.noted(cast(Member, self))


class Node:
    """Groups with members that note; time stands still."""

    def __init__(self, members: int, nodes: tuple[int, ...] = (ME, OTHER, THIRD)) -> None:
        self.told = self.woken = self.now_ms = 0
        self.asked: list[Told] = []
        self.groups = Groups(lambda: self.now_ms, lambda *_: None)
        self.groups.on_deadline = self._wake
        self.members = [Told(self, group, nodes) for group in range(1, members + 1)]
        for member in self.members:
            self.groups.add(cast(Member, member))
        self.told = 0

    def _wake(self) -> None:
        self.woken += 1

    def all_await_election(self) -> None:
        for member in self.members:
            member.awaits_election()
        self.run()

    def run(self) -> list[int]:
        turns = []
        while (due := self.groups.deadline) is not None and due <= self.now_ms:
            before = self.told
            self.groups.tick()
            turns.append(self.told - before)
        return turns


def test_news_for_thousands_are_told_some_a_turn() -> None:
    node = Node(1_000)
    node.groups.suspect(OTHER)
    assert node.told == MEMBERS_A_TURN
    assert node.woken == 1
    assert max(node.run()) <= MEMBERS_A_TURN
    assert all(each.log == [("suspect", member_id(OTHER))] for each in node.members)


def test_thousands_that_are_due_have_their_time_some_a_turn() -> None:
    node = Node(1_000)
    for member in node.members:
        member.raft.deadline = 0
        node.groups.noted(cast(Member, member))
    turns = node.run()
    assert max(turns) <= 2 * MEMBERS_A_TURN  # each ticks and advances
    assert all(each.log == [("tick", 0)] for each in node.members)


def test_a_few_members_ask_for_votes_at_a_time() -> None:
    """With thousands at once a round takes longer than its time-out. Others begin after some elections."""
    node = Node(1_000)
    node.all_await_election()
    assert len(node.asked) == node.groups.elections == ELECTIONS_MAX
    for count in (1, 10, ELECTIONS_MAX):
        before = len(node.asked)
        for member in [each for each in node.asked if each.raft.stands][:count]:
            member.hears_leader()
        node.run()
        assert len(node.asked) == before + count
        assert node.groups.elections == ELECTIONS_MAX


def test_a_member_that_asks_in_vain_makes_room_for_others() -> None:
    """Its group may have no majority: it asks again behind all others that are due."""
    node = Node(3 * ELECTIONS_MAX)
    node.all_await_election()
    for _ in range(3):
        node.now_ms += 1_000
        node.run()
    assert len(node.asked) == 4 * ELECTIONS_MAX
    assert node.asked[: 3 * ELECTIONS_MAX] == node.members
    assert node.asked[3 * ELECTIONS_MAX :] == node.members[:ELECTIONS_MAX]


def test_members_of_queues_ask_for_votes_when_the_node_has_begun_them() -> None:
    """Before that the node has other work, and the members of other nodes may not exist."""
    node = Node(10)
    node.groups.elects = False
    node.all_await_election()
    assert node.asked == []
    node.groups.elects = True
    node.groups.on_deadline()
    node.run()
    assert node.asked == node.members


def test_the_first_member_of_a_new_group_asks_before_those_that_were_there() -> None:
    """This holds while those begin, too: a client that has declared a queue waits for it."""
    node = Node(10)
    node.groups.elects = False
    node.all_await_election()
    new = Told(node, 11, (ME, OTHER, THIRD))
    new.new = True
    node.groups.add(cast(Member, new))
    new.awaits_election()
    node.run()
    assert node.asked == [new]


@given(
    st.lists(
        st.tuples(st.sampled_from(["suspect", "heard", "turn"]), st.sampled_from([OTHER, THIRD])), max_size=20
    ),
    st.integers(1, 3 * MEMBERS_A_TURN),
)
def test_every_member_is_told_all_news_in_order(steps: list[tuple[str, int]], members: int) -> None:
    node = Node(members)
    notifications = []
    for what, about in steps:
        if what == "turn":
            node.groups.tick()
            continue
        notifications.append((what, about))
        (node.groups.suspect if what == "suspect" else node.groups.heard)(about)
    node.run()
    for member in node.members:
        assert member.log == [(what, member_id(about)) for what, about in notifications]
