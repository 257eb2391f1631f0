"""Members of a Raft group with simulated disks, a network and a clock, and what must always hold of them.

Nothing happens by itself: a test says which message arrives, which write is durable, what time it is. After
everything that happens, `Group` checks the invariants (`docs/proofs.md` has the list):

1 at most one leader a term; 2 a leader never rewrites its log; 3 entries of equal index and term are equal,
and so are those before them; 4 what is committed is in the log of every later leader; 5 nobody applies
another entry at an index; 6 term and commit never go back on a disk; 7 one vote a term, over crashes; 8 a
change of members touches one, and begins when the last is committed.

Besides: what is told is durable (votes, answers, a majority's copies of what is committed), nothing is
proposed while a leadership is handed over, a read is not older than what was committed when it was asked for,
and a leader that cannot reach a majority stops leading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tests.support.raft_modules import RaftModules

QUORUM_MS = 1000
"""How long a leader may lead without a majority that it can reach."""


class Broken(AssertionError):
    """An invariant does not hold."""


def check(held: bool, what: str) -> None:
    if not held:
        raise Broken(what)


@dataclass
class Disk:
    """What is durable, and what has been handed to it and is not yet."""

    hard: Any
    point: Any
    data: bytes = b""
    entries: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(term, kind, payload) of those behind `point`."""
    writes: list[Any] = field(default_factory=list)
    """Each a Ready with a ticket."""

    @property
    def last(self) -> int:
        return int(self.point.index) + len(self.entries)

    def has(self, index: int, term: int) -> bool:
        """Return whether the entry, or a covering snapshot, exists."""
        if index <= self.point.index:
            return True
        return index <= self.last and self.entries[index - self.point.index - 1][0] == term

    def write(self) -> Any:
        ready = self.writes.pop(0)
        if ready.hard is not None:
            old = self.hard
            check(ready.hard.term >= old.term, "6: a term goes back on a disk")
            check(ready.hard.commit >= old.commit, "6: a commit goes back on a disk")
            kept = ready.hard.vote == old.vote or old.vote is None or ready.hard.term > old.term
            check(kept, "7: a vote is taken back")
            self.hard = ready.hard
        if ready.snapshot is not None:
            self.point, self.data = ready.snapshot.point, ready.snapshot.data
            self.entries.clear()
        for run in ready.entries:
            at = run.first - self.point.index - 1
            check(0 <= at <= len(self.entries), "entries with a gap on the disk")
            del self.entries[at:]
            self.entries += [(run.term, int(run.kind), payload) for payload in run.payloads]
        return ready


class Node:
    """One member on its disk: its shell."""

    def __init__(self, group: Group, me: int, stored: Any) -> None:
        self.group = group
        self.me = me
        self.disk = Disk(stored.hard, stored.point)
        self.raft: Any = None
        self.up = False
        self.destroyed = False
        self.life = 0
        self.applied = 0
        self.state = 0
        self.role = ""
        self.term = 0
        self.handed = 0
        self.no_majority_since: int | None = None
        self.seen_commit = 0
        self.told_target: int | None = None
        self.transfer_due = 0

    # -- life and death

    def start(self) -> None:
        room, disk = self.group.room, self.disk
        terms: list[tuple[int, int]] = []
        configs = []
        for index, (term, kind, payload) in enumerate(disk.entries, disk.point.index + 1):
            if not terms or terms[-1][1] != term:
                terms.append((index, term))
            if kind == room.Kind.CONFIG:
                configs.append((index, room.CONFIG.decode(payload)))
        stored = room.Stored(disk.point, disk.hard, disk.last, tuple(terms), tuple(configs))
        self.applied, self.state = disk.point.index, int.from_bytes(disk.data, "little")
        self.handed = disk.last
        self.role, self.no_majority_since, self.told_target = "", None, None
        self.seen_commit, self.term = 0, disk.hard.term
        self.up = True
        self.life += 1
        group = self.group
        self.raft = room.Raft(
            self.me,
            stored,
            self,
            now_ms=group.now,
            random_source=group.random_source,
            commit_wait_ms=group.commit_wait_ms,
        )

    def crash(self, durable: int = 0) -> None:
        """Lose all writes but the first `durable`, which are never reported."""
        for _ in range(min(durable, len(self.disk.writes))):
            self._write()
        self.disk.writes.clear()
        self.up = False
        self.raft = None

    def read(self, first: int, last: int, size: int) -> Sequence[Any]:
        room, disk = self.group.room, self.disk
        assert disk.point.index < first <= last <= disk.last, (first, last)
        runs = []
        at = first - disk.point.index - 1
        for index, (term, kind, payload) in enumerate(disk.entries[at : at + last - first + 1], first):
            if runs and size <= 0:
                break
            runs.append(room.run_of(index, term, room.Kind(kind), (payload,)))
            size -= len(payload)
        return runs

    # -- what it does

    def transfer(self, to: int) -> None:
        self.raft.transfer(to, self.group.now)
        self.transfer_due = self.group.now + 2000

    def persist(self, count: int = 1) -> None:
        ticket = None
        for _ in range(min(count, len(self.disk.writes))):
            ticket = self._write()
        if ticket is not None:
            self.raft.persisted(ticket, self.group.now)
            self.turn()

    def _write(self) -> int:
        ready = self.disk.write()
        if ready.snapshot is not None:
            self._take_state(ready.snapshot)
        return int(ready.ticket)

    def _take_state(self, snapshot: Any) -> None:
        if snapshot.point.index > self.applied:
            self.applied = snapshot.point.index
            self.state = int.from_bytes(snapshot.data, "little")
            truth = self.group.states.get(self.applied)
            check(truth is None or truth == self.state, "5: a snapshot of another state")

    def turn(self) -> None:
        group = self.group
        group.look(self)
        ready = self.raft.ready(group.now)
        if ready is None:
            return
        group.look(self)
        group.on_ready(self, ready)
        if ready.status is not None:
            group.on_status(self, ready.status)
        if ready.snapshot is not None:
            self.handed = ready.snapshot.point.index
        if ready.entries:
            group.on_entries(self, ready.entries)
            self.handed = ready.entries[-1].last
        if ready.ticket is not None:
            self.disk.writes.append(ready)
        for message in ready.messages:
            group.on_message(self, message)
            group.network.append(message)
        if ready.commit is not None:
            self._apply(ready.commit)
        for to in ready.snapshots_to:
            group.send_snapshot(self, to)

    def _apply(self, commit: int) -> None:
        disk = self.disk
        check(commit <= disk.last, "what is applied is not durable here")
        while self.applied < commit:
            entry = disk.entries[self.applied - disk.point.index]
            self.applied += 1
            self.state = self.group.on_applied(self, self.applied, entry, self.state)

    def compact(self) -> None:
        """Make a snapshot of the applied state, and drop the log before it."""
        installing = any(ready.snapshot is not None for ready in self.disk.writes)
        if self.applied <= self.disk.point.index or installing:
            return
        point = self.raft.point(self.applied)
        self.group.on_point(point)
        self.raft.compact(self.applied)
        del self.disk.entries[: self.applied - self.disk.point.index]
        self.disk.point, self.disk.data = point, self.state.to_bytes(8, "little")


class Group:
    """All members of one group, and all that is on its way between them.

    Args:
        room: the code.
        voters: ids of the first members.
        chance: gives numbers from 0 to below 1.
        commit_wait_ms: of all members.
    """

    def __init__(
        self,
        room: RaftModules,
        voters: Iterable[int],
        random_source: Callable[[], float],
        *,
        commit_wait_ms: int = 0,
    ) -> None:
        self.room = room
        self.commit_wait_ms = commit_wait_ms
        self.random_source = random_source
        self.now = 0
        self.network: list[Any] = []
        self.nodes: dict[int, Node] = {}
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.written: dict[tuple[int, int], tuple[int, int, bytes]] = {}
        self.truth: dict[int, tuple[int, int, bytes]] = {}
        self.states: dict[int, int] = {1: 0}
        self.committed: dict[int, tuple[int, int]] = {}
        self.configs: dict[int, Any] = {1: room.Configuration(tuple(sorted(voters)))}
        for voter in sorted(voters):
            self.add(voter, room.new_group(self.configs[1]))

    def add(self, me: int, stored: Any) -> Node:
        node = self.nodes[me] = Node(self, me, stored)
        node.start()
        node.turn()
        return node

    def up(self) -> Iterator[Node]:
        return (node for node in self.nodes.values() if node.up)

    def leader(self) -> Node | None:
        leaders = [node for node in self.up() if node.raft.status.role.value == "leader"]
        return max(leaders, key=lambda node: node.raft.status.term, default=None)

    def deliver(self, message: Any) -> None:
        """Deliver a message that was taken out of the network."""
        node = self.nodes.get(message.to)
        if node is not None and node.up:
            node.raft.step(message, self.now)
            node.turn()

    def send_snapshot(self, node: Node, to: int) -> None:
        """Send a snapshot whole by the same network; the sender assumes that it arrives."""
        disk = node.disk
        snapshot = self.room.Snapshot(disk.point, disk.data)
        self.network.append(self.room.InstallSnapshot(node.me, to, node.raft.status.term, snapshot))
        node.raft.snapshot_done(to, disk.point.index)

    def on_ready(self, node: Node, ready: Any) -> None:
        """A member wants something done: for those who watch."""

    # -- what must hold

    @property
    def newest_commit(self) -> int:
        return max((index for index, _ in self.committed.values()), default=0)

    def look(self, node: Node) -> None:
        status, commit = node.raft.status, node.raft.hard.commit
        check(status.term >= node.term, "6: a term goes back")
        node.term = status.term
        check(commit >= node.seen_commit, "6: a commit goes back")
        leads = status.role.value == "leader"
        if leads and commit > node.seen_commit:
            self._on_commit(node, commit, status.term)
        node.seen_commit = commit

    def _on_commit(self, node: Node, commit: int, term: int) -> None:
        config = node.raft.config
        of = node.raft.point(commit).term
        check(of == term, "an entry of an older term is committed by counting")
        copies = sum(self.nodes[voter].disk.has(commit, of) for voter in config.voters)
        check(copies >= config.majority, f"{commit} is committed with {copies} copies")
        self.committed[term] = max(self.committed.get(term, (0, 0)), (commit, of))

    def on_status(self, node: Node, status: Any) -> None:
        if status.role.value != "leader":
            node.role, node.no_majority_since = status.role.value, None
            return
        term = status.term
        known = self.leaders.setdefault(term, node.me)
        check(known == node.me, f"1: {known} and {node.me} lead in term {term}")
        if node.role != "leader":
            node.told_target = None
            log = node.raft.log
            index, of = max((each for t, each in self.committed.items() if t < term), default=(0, 0))
            has = index <= log.base or log.term(index) == of
            check(has, f"4: the leader of term {term} has not what is committed at {index}")
            configs = (node.raft.config, self._config_of(node, node.raft.hard.commit))
            check(any(node.me in config.voters for config in configs), f"{node.me} leads and is no voter")
        node.role = "leader"

    def _config_of(self, node: Node, index: int) -> Any:
        return node.raft.point(index).config

    def on_entries(self, node: Node, runs: Sequence[Any]) -> None:
        first = runs[0].first
        status = node.raft.status
        if status.role.value == "leader" and node.role == "leader":
            check(first > node.handed, "2: a leader rewrites its log")
        for run in runs:
            before = node.raft.point(run.first - 1).term
            for index, payload in enumerate(run.payloads, run.first):
                self._on_entry(index, run, before, payload)
                before = run.term
                if run.kind == self.room.Kind.CONFIG and run.term == status.term and node.role == "leader":
                    self._on_change(node, index, payload)
                if run.kind == self.room.Kind.COMMAND and node.role == "leader":
                    held = node.told_target is None or self.now >= node.transfer_due
                    check(held, "a proposal after TimeoutNow")

    def _on_entry(self, index: int, run: Any, before: int, payload: bytes) -> None:
        entry = (int(run.kind), before, payload)
        known = self.written.setdefault((index, run.term), entry)
        check(known == entry, f"3: two entries {index} of term {run.term}, or two before it")

    def _on_change(self, node: Node, index: int, payload: bytes) -> None:
        new, old = self.room.CONFIG.decode(payload), self._config_of(node, index - 1)
        commit = node.raft.hard.commit
        check(len(set(new.voters) ^ set(old.voters)) <= 1, "8: a change of two voters")
        check(len(set(new.members) ^ set(old.members)) <= 1, "8: a change of two members")
        check(self._config_of(node, commit) == old, "8: a change before the last one is committed")
        check(
            node.raft.point(commit).term == node.raft.status.term, "8: a change before the own term's entry"
        )

    def on_message(self, node: Node, message: Any) -> None:
        disk, term = node.disk, message.term
        match type(message).__name__:
            case "VoteAnswer" if message.granted:
                self._on_vote(node, term, message.to)
            case "Vote":
                self._on_vote(node, term, node.me)
            case "AppendAnswer" if message.rejected is None:
                check(message.match <= disk.last, "an answer that is not durable")
                self._check_match(node, message)
            case "TimeoutNow":
                disk, last = self.nodes[message.to].disk, node.raft.last
                check(message.to in node.raft.config.voters, "TimeoutNow to who is no voter")
                has = disk.hard.term > term or disk.has(last, node.raft.point(last).term)
                check(has, "TimeoutNow to who lags")
                node.told_target = message.to
            case _:
                pass

    def _check_match(self, node: Node, message: Any) -> None:
        """An acknowledged entry equals the leader's entry in that term."""
        leader = self.nodes.get(message.to)
        if leader is None or not leader.up or leader.raft.status.term != message.term:
            return
        if leader.raft.status.role.value == "leader" and message.match > leader.disk.point.index:
            check(message.match <= leader.raft.last, "an answer beyond the leader's log")
            of = leader.raft.point(message.match).term
            check(node.disk.has(message.match, of), f"{message.match} does not agree, or is not durable")

    def _on_vote(self, node: Node, term: int, candidate: int) -> None:
        known = self.votes.setdefault((node.me, term), candidate)
        check(known == candidate, f"7: {node.me} votes for {known} and {candidate} in term {term}")
        hard = node.disk.hard
        check((hard.term, hard.vote) == (term, candidate) or hard.term > term, "a vote that is not durable")

    def on_applied(self, node: Node, index: int, entry: tuple[int, int, bytes], state: int) -> int:
        """Apply an entry on a member; return the state after it."""
        known = self.truth.setdefault(index, entry)
        check(known == entry, f"5: {node.me} applies another entry at {index}")
        check(index <= self.newest_commit, f"{index} is applied, and not committed")
        if entry[1] == self.room.Kind.CONFIG:
            self.configs[index] = self.room.CONFIG.decode(entry[2])
        after = (state * 31 + index + crc32(entry[2])) % (1 << 64)
        known_state = self.states.setdefault(index, after)
        check(known_state == after, f"5: {node.me} has another state at {index}")
        return after

    def on_point(self, point: Any) -> None:
        at = max(index for index in self.configs if index <= point.index)
        check(
            point.config == self.configs[at], "a snapshot with another configuration than that at its index"
        )

    def check_quorum(self, node: Node, reachable: set[int]) -> None:
        """Check the quorum over time, with the nodes that the member reaches, itself included."""
        config = node.raft.config
        if node.role != "leader" or len(reachable & set(config.voters)) >= config.majority:
            node.no_majority_since = None
        elif node.no_majority_since is None:
            node.no_majority_since = self.now
        else:
            late = self.now - node.no_majority_since - QUORUM_MS
            check(late <= 100, "a leader without majority goes on leading")

    def same_logs(self, nodes: Iterable[Node]) -> bool:
        ends = {(node.raft.last, node.applied, node.state, node.raft.status.term) for node in nodes}
        return len(ends) == 1 and all(last == applied for last, applied, *_ in ends)
