"""A Raft group under steps that Hypothesis chooses, and shrinks when an invariant breaks.

The same invariants as in the simulation (`tests.support.raft_group`), without its nodes: any message may
arrive at any time, any member may be told anything of any other, and time passes for one member alone. So
nothing here rests on what the simulated nodes believe of each other. In the end everything arrives.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.examples import tried
from tests.support.journal_harness import LONG
from tests.support.raft_group import Group, Node
from tests.support.raft_modules import raft_modules

ROOM = raft_modules()
MEMBERS = st.integers(1, 5)
PLACES = st.integers(0, 1_000)


class AnyOrder(RuleBasedStateMachine):
    """Three to five members, of which one may join late."""

    group: Group

    @initialize(size=st.integers(1, 4), seed=st.integers(0, 99))
    def begin(self, size: int, seed: int) -> None:
        self.group = Group(ROOM, range(1, size + 1), Random(seed).random)
        self.count = 0
        self.elect(1)

    def running(self, me: int) -> Node | None:
        node = self.group.nodes.get(me)
        return node if node is not None and node.up else None

    def ask(self, me: int, what: Any) -> None:
        node = self.running(me)
        if node is None:
            return
        try:
            what(node)
        except ROOM.RaftError:
            return
        node.turn()

    @rule(place=PLACES, twice=st.booleans(), lost=st.booleans())
    def message(self, place: int, twice: bool, lost: bool) -> None:
        network = self.group.network
        if network:
            at = place % len(network)
            message = network[at] if twice else network.pop(at)
            if twice or not lost:
                self.group.deliver(message)

    @rule(rounds=st.integers(1, 6))
    def some_peace(self, rounds: int) -> None:
        """All messages under way arrive in order and become durable."""
        self.everything(rounds)

    @rule(me=MEMBERS, count=st.integers(1, 3))
    def durable(self, me: int, count: int) -> None:
        node = self.running(me)
        if node is not None:
            node.persist(count)

    @rule(me=MEMBERS)
    def time_out(self, me: int) -> None:
        node = self.running(me)
        if node is not None and node.raft.deadline is not None:
            self.group.now = max(self.group.now, node.raft.deadline)
            node.raft.tick(self.group.now)
            node.turn()

    @rule(me=MEMBERS)
    def elect(self, me: int) -> None:
        """The leader is cut off and this member times out first; then there is peace."""
        leader = self.group.leader()
        for node in list(self.group.up()):
            if leader is not None and leader.me not in (me, node.me):
                node.raft.suspect(leader.me, self.group.now)
                node.raft.heard(leader.me, self.group.now)
                node.turn()
        self.time_out(me)
        self.everything(6)

    @rule(me=MEMBERS, count=st.integers(1, 3))
    def propose(self, me: int, count: int) -> None:
        self.count += count
        payloads = [b"%d" % (self.count - each) for each in range(count)]
        self.ask(me, lambda node: node.raft.propose(payloads))

    @rule(me=MEMBERS, other=MEMBERS, kind=st.sampled_from(["Add", "Promote", "Remove"]))
    def change(self, me: int, other: int, kind: str) -> None:
        """Change the members; an added one begins empty, unless it was a member before."""
        self.ask(me, lambda node: node.raft.change(getattr(ROOM, kind)(other), self.group.now))
        if kind == "Add" and other not in self.group.nodes:
            self.group.add(other, ROOM.new_member())

    @rule(me=MEMBERS, other=MEMBERS)
    def transfer(self, me: int, other: int) -> None:
        self.ask(me, lambda node: node.transfer(other))

    @rule(me=MEMBERS)
    def compact(self, me: int) -> None:
        self.ask(me, lambda node: node.compact())

    @rule(me=MEMBERS, other=MEMBERS, heard=st.booleans())
    def rumour(self, me: int, other: int, heard: bool) -> None:
        if me != other:
            tell = "heard" if heard else "suspect"
            self.ask(me, lambda node: getattr(node.raft, tell)(other, self.group.now))

    @rule(me=MEMBERS, written=st.integers(0, 2))
    def crash(self, me: int, written: int) -> None:
        node = self.running(me)
        if node is not None:
            node.crash(written)

    @rule(me=MEMBERS)
    def start(self, me: int) -> None:
        node = self.group.nodes.get(me)
        if node is not None and not node.up:
            node.start()
            node.turn()

    def everything(self, rounds: int) -> None:
        for _ in range(rounds):
            arriving, self.group.network = self.group.network, []
            for message in arriving:
                self.group.deliver(message)
            for node in list(self.group.up()):
                node.persist(len(node.disk.writes))

    def teardown(self) -> None:
        """Applied entries are equal; `Group` checks each of them."""
        if hasattr(self, "group"):
            self.everything(20)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=3000 if LONG else tried(150), stateful_step_count=80 if LONG else 50, deadline=None
)
