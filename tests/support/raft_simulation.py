"""Random lives of a Raft group: everything that can go wrong does, and then it must get on.

A run is a seed. First the faults, each with a probability that the seed draws: messages that are dropped,
doubled, late and out of order, one-way cuts and partitions, slow disks, crashes that lose what was not
durable, changes of members, transfers, snapshots. Then the faults end, for all or for most of the members,
and within 30 s of the group's clock there must be one leader, what is proposed must be everywhere, and the
group must fall silent: no message, no deadline.

Nodes find out who is alive as the broker's nodes do: a heartbeat a pair of nodes each 50 ms, which says whom
its sender hears; who was not heard for 300 ms, or does not hear us, is suspected.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from tests.support.raft_group import Broken, Group, Node, check
from tests.support.raft_modules import RaftModules

HEARTBEAT_MS: Final = 50
SUSPECT_MS: Final = 300
PROGRESS_MS: Final = 30_000
STEADY_MS: Final = 5_000


class Failure(AssertionError):
    """A run has failed; says the seed."""


class Simulation:
    """One run.

    Args:
        seed: all chance comes from it.
        room: the code.
        steps: of the first phase.
        codec: messages go through their bytes.
    """

    def __init__(
        self, seed: int, room: RaftModules, *, steps: int = 600, codec: bool = False, trace: bool = False
    ) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.room = room
        self.steps = steps
        self.codec = codec
        self.trace: list[str] | None = [] if trace else None
        size = self._size()
        wait_ms = 20 if seed % 4 == 3 else 0
        self.group = Group(room, range(1, size + 1), rng.random, commit_wait_ms=wait_ms)
        self.newest = size
        self.cuts: set[tuple[int, int]] = set()
        self.heard: dict[tuple[int, int], tuple[int, int]] = {}
        self.mutual: dict[tuple[int, int], bool] = {}
        self.next_heartbeat = 0
        self.drop = rng.choice((0.0, 0.02, 0.1, 0.3))
        self.double = rng.choice((0.0, 0.05, 0.2))
        self.shuffle = rng.choice((0.0, 0.2, 1.0))
        self.slow_disk = rng.choice((0.0, 0.3, 0.8))
        self.pace = rng.choice((3, 10, 30))
        self.proposed = 0
        self.stuck: set[int] = set()
        """CountersOwner disk is slow for now."""
        self.actions = self._draw_actions()

    def _size(self) -> int:
        return self.rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5))

    def _draw_actions(self) -> tuple[list[Any], list[float]]:
        rng = self.rng
        weights = {
            self.one_message: 40.0,
            self.one_write: 16.0,
            self.some_time: 14.0,
            self.propose: rng.choice((2.0, 8.0)),
            self.crash: rng.choice((0.0, 0.3, 1.5)),
            self.restart: 2.0,
            self.cut: rng.choice((0.0, 0.3, 1.5)),
            self.heal: 1.0,
            self.change: rng.choice((0.0, 0.5, 2.5)),
            self.transfer: rng.choice((0.0, 0.5, 2.0)),
            self.compact: rng.choice((0.0, 0.5, 2.5)),
            self.nudge: rng.choice((0.0, 0.0, 0.5)),
        }
        return list(weights), list(weights.values())

    # -- the run

    def run(self) -> None:
        """Both phases.

        Raises:
            Failure: something does not hold; says what.
        """
        try:
            for _ in range(self.steps):
                action = self.rng.choices(*self.actions)[0]
                action()
            self.recover()
        except Failure:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise Failure(f"seed {self.seed} at {self.group.now} ms: {what}") from error

    def note(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.group.now} {what}")

    def some(self, nodes: Any) -> Node | None:
        nodes = list(nodes)
        return self.rng.choice(nodes) if nodes else None

    # -- what happens

    def one_message(self) -> None:
        network, rng = self.group.network, self.rng
        if not network:
            self.some_time()
            return
        at = rng.randrange(len(network)) if rng.random() < self.shuffle else 0
        message = network[at] if rng.random() < self.double else network.pop(at)
        lost = (message.sender, message.to) in self.cuts or rng.random() < self.drop
        if self.trace is not None:
            self.note(f"{'lost' if lost else 'got'} {message}")
        if not lost:
            self.deliver(message)

    def deliver(self, message: Any) -> None:
        """Deliver it by its bytes, if the run encodes messages."""
        if self.codec:
            message = self.room.MESSAGE.decode(self.room.MESSAGE.encode(message))
        self.group.deliver(message)

    def one_write(self) -> None:
        waiting = [node for node in self.group.up() if node.disk.writes and node.me not in self.stuck]
        node = self.some(waiting)
        if self.rng.random() < 0.05:
            self.stuck.clear()
        if node is None:
            self.one_message()
            return
        if self.rng.random() < self.slow_disk * 0.3:
            self.stuck.add(node.me)
            return
        count = self.rng.randint(1, len(node.disk.writes))
        self.note(f"durable {node.me} {count}")
        node.persist(count)

    def some_time(self) -> None:
        self.pass_time(self.rng.randint(1, self.pace))

    def pass_time(self, ms: int) -> None:
        group = self.group
        group.now += ms
        if group.now >= self.next_heartbeat:
            self.next_heartbeat = group.now + HEARTBEAT_MS
            self.heartbeats()
        for node in list(group.up()):
            due = node.raft.deadline
            if due is not None and due <= group.now:
                self.note(f"tick {node.me}")
                node.raft.tick(group.now)
                node.turn()

    def heartbeats(self) -> None:
        """Exchange heartbeats between all nodes and their effects."""
        group, now = self.group, self.group.now
        nodes = list(group.up())
        for one in nodes:
            for other in nodes:
                pair = (one.me, other.me)
                if one is other or pair in self.cuts or (self.drop and self.rng.random() < self.drop):
                    continue
                self.heard[other.me, one.me] = (now, one.life)
        for one in nodes:
            reachable = {one.me}
            for peer in group.nodes:
                if peer != one.me and self.judge(one, peer):
                    reachable.add(peer)
            group.check_quorum(one, reachable)

    def judge(self, one: Node, peer: int) -> bool:
        """Return whether a node reaches a peer both ways; notify it of a change."""
        pair = (one.me, peer)
        mutual = self.hears(*pair) and self.hears(peer, one.me)
        life = self.group.nodes[peer].life
        known = self.mutual.get(pair)
        state = life if mutual else None
        if known != state or pair not in self.mutual:
            if known is not None or state is None:
                self.note(f"{one.me} suspects {peer}")
                one.raft.suspect(peer, self.group.now)
                one.turn()
            if state is not None and one.up:
                self.note(f"{one.me} hears {peer}")
                one.raft.heard(peer, self.group.now)
                one.turn()
            self.mutual[pair] = state  # type: ignore[assignment]
        return mutual

    def hears(self, one: int, peer: int) -> bool:
        """Return whether the node lately heard this life of the peer."""
        when, life = self.heard.get((one, peer), (-SUSPECT_MS, 0))
        return self.group.now - when < SUSPECT_MS and life == self.group.nodes[peer].life

    def propose(self) -> None:
        leaders = [node for node in self.group.up() if node.role == "leader"]
        node = self.some(self.group.up()) if self.rng.random() < 0.05 else self.some(leaders)
        if node is None:
            return
        payloads = []
        for _ in range(self.rng.choice((1, 1, 3))):
            self.proposed += 1
            payloads.append(b"%d" % self.proposed)
        try:
            node.raft.propose(payloads)
        except self.room.RaftError:
            return
        self.note(f"propose {node.me} {payloads}")
        node.turn()

    def crash(self) -> None:
        nodes = list(self.group.up())
        if self.rng.random() < 0.85:
            nodes = nodes and [self.rng.choice(nodes)]
        for node in nodes:
            durable = self.rng.randint(0, len(node.disk.writes))
            self.note(f"crash {node.me} {durable}")
            self.kill(node, durable)

    def kill(self, node: Node, durable: int = 0) -> None:
        """A killed node loses its knowledge of the other nodes."""
        node.crash(durable)
        for pair in list(self.mutual):
            if pair[0] == node.me:
                del self.mutual[pair]

    def restart(self) -> None:
        node = self.some(each for each in self.group.nodes.values() if not each.up and not each.destroyed)
        if node is not None:
            self.note(f"start {node.me}")
            node.start()
            node.turn()

    def cut(self) -> None:
        """Cut one direction, one pair, or one half from the other."""
        ids = list(self.group.nodes)
        kind = self.rng.random()
        if len(ids) < 2:
            return
        leader = self.group.leader()
        if kind < 0.4 and leader is not None:
            # Alone, or with one other: it goes on proposing, and the others elect.
            side = {leader.me, *self.rng.sample(ids, self.rng.randint(0, 1))}
            pairs = {(a, b) for a in ids for b in ids if (a in side) != (b in side)}
        elif kind < 0.8:
            one, other = self.rng.sample(ids, 2)
            pairs = {(one, other)} if kind < 0.6 else {(one, other), (other, one)}
        else:
            side = set(self.rng.sample(ids, self.rng.randint(1, len(ids) - 1)))
            pairs = {(a, b) for a in ids for b in ids if (a in side) != (b in side)}
        self.note(f"cut {sorted(pairs)}")
        self.cuts |= pairs

    def heal(self) -> None:
        self.cuts.clear()

    def change(self) -> None:
        group, rng = self.group, self.rng
        node = group.leader()
        if node is None:
            return
        config = node.raft.config
        kind = rng.choice(("add", "promote", "promote", "remove"))
        room = self.room
        try:
            if kind == "add" and len(config.members) < 6:
                me = self.newest + 1
                node.raft.change(room.Add(me), group.now)
                self.newest = me
                group.add(me, room.new_member())
            elif kind == "promote" and config.learners:
                node.raft.change(room.Promote(rng.choice(config.learners)), group.now)
            elif kind == "remove" and len(config.members) > 1:
                node.raft.change(room.Remove(rng.choice(config.members)), group.now)
            else:
                return
        except room.RaftError:
            return
        self.note(f"{kind}: {node.raft.config}")
        node.turn()

    def transfer(self) -> None:
        node, to = self.group.leader(), self.some(self.group.nodes.values())
        if node is None or to is None:
            return
        try:
            node.transfer(to.me)
        except self.room.RaftError:
            return
        self.note(f"transfer {node.me} {to.me}")
        node.turn()

    def compact(self) -> None:
        node = self.some(self.group.up())
        if node is not None:
            self.note(f"compact {node.me} {node.applied}")
            node.compact()
            node.turn()

    def nudge(self) -> None:
        node = self.some(self.group.up())
        if node is not None:
            self.note(f"campaign {node.me}")
            node.raft.campaign(self.group.now)
            node.turn()

    # -- the second phase

    def recover(self) -> None:
        group, rng = self.group, self.rng
        self.drop = self.double = self.shuffle = 0.0
        self.stuck.clear()
        self.cuts.clear()
        for node in group.nodes.values():
            if not node.up and not node.destroyed:
                node.start()
                node.turn()
        cut = None
        kind = rng.random()
        candidates = [node for node in group.nodes.values() if self.can_do_without(node.me)]
        if kind < 0.25 and candidates:
            down = rng.choice(candidates)
            self.note(f"without {down.me}")
            self.kill(down)
        elif kind < 0.5 and len(group.nodes) >= 3:
            one, other = cut = rng.sample(list(group.nodes), 2)
            if all(set(config.voters) != {one, other} for config in self.known_configs()):
                self.note(f"without the way between {one} and {other}")
                self.cuts = {(one, other), (other, one)}
        leader = self.must_lead()
        self.must_commit(leader)
        if cut is not None:
            self.must_stay(leader)
            self.cuts.clear()
            leader = self.must_lead()
        elif kind > 0.6 and self.cut_from(leader):
            self.must_stay(leader)
            self.cuts.clear()
            self.must_stay(leader)
        self.must_be_still(leader)

    def cut_from(self, leader: Node) -> bool:
        """Cut a member from the leader but not from other members."""
        others = [me for me in leader.raft.config.voters if me != leader.me]
        if len(others) < 2:
            return False
        one = self.rng.choice(others)
        self.note(f"without the way between {leader.me} and {one}")
        self.cuts = {(leader.me, one), (one, leader.me)}
        return True

    def can_do_without(self, me: int) -> bool:
        """Every configuration in any member's log has a majority without this member."""
        gone = {node.me for node in self.group.nodes.values() if node.destroyed} | {me}
        return all(len(set(config.voters) - gone) >= config.majority for config in self.known_configs())

    def known_configs(self) -> list[Any]:
        known = [node.raft.configs._entries for node in self.group.up()]
        return [config for entries in known for _, config in entries if config.voters]

    def quick(self, ms: int) -> None:
        """Advance time with every message delivered and every write durable."""
        group = self.group
        for _ in range(0, ms, 10):
            self.pass_time(10)
            for _ in range(60):
                if not group.network and not any(node.disk.writes for node in group.up()):
                    break
                arriving, group.network = group.network, []
                for message in arriving:
                    if (message.sender, message.to) not in self.cuts:
                        self.deliver(message)
                for node in list(group.up()):
                    node.persist(len(node.disk.writes))

    def must_lead(self) -> Node:
        """Require a leader that accepts proposals and continues to lead."""
        until = self.group.now + PROGRESS_MS
        while self.group.now < until:
            self.quick(200)
            node = self.group.leader()
            if node is not None and node.raft.status.open and node.me in node.raft.config.voters:
                term = node.term
                self.quick(1_000)
                if node.up and node.raft.status.open and node.term == term:
                    return node
        raise Broken("no leader within 30 s: " + ", ".join(str(n.raft.status) for n in self.group.up()))

    def must_commit(self, leader: Node) -> None:
        """Require that all reachable members apply a proposal."""
        for _ in range(100):
            try:
                last = leader.raft.propose([b"last"])
                break
            except self.room.NotReady:
                self.quick(50)
        else:
            raise Broken("the leader takes nothing")
        leader.turn()
        self.quick(2_000)
        ways = [node for node in self.members(leader) if (leader.me, node.me) not in self.cuts]
        check(all(node.applied >= last for node in ways), "a member does not get what is committed")

    def members(self, leader: Node) -> list[Node]:
        return [self.group.nodes[me] for me in leader.raft.config.members if self.group.nodes[me].up]

    def must_be_still(self, leader: Node) -> None:
        """Require that removed members end, and the others are equal and idle."""
        for node in list(self.group.up()):
            if node.me not in leader.raft.config.members:
                node.destroyed = True
                self.kill(node)
        self.quick(2_000)
        members = self.members(leader)
        check(self.group.same_logs(members), "logs differ in the end")
        check(not self.group.network, f"a message in the end: {self.group.network[:1]}")
        dues = {node.me: node.raft.deadline for node in members if node.raft.deadline is not None}
        check(not dues, f"an idle group has deadlines: {dues} at {self.group.now}")
        check(leader.raft.status.open, "the leader has changed without need")

    def must_stay(self, leader: Node) -> None:
        """Require that a member cut from the leader does not disturb it."""
        term = leader.term
        self.quick(STEADY_MS)
        kept = leader.term == term and leader.raft.status.open
        check(kept, "a leader that a majority hears is deposed")
