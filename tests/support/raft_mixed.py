"""Groups in which some members are ours, and others are of the crate `raft`, the core of TiKV.

The other members run in a process of their own (`tests/support/raft_rs`), which is told what happens and
answers what is to be done. `OtherMember` has the face of `raft.core.Raft`, so that the simulation and its
invariants know no difference. What votes, agrees on a log, commits and catches up is the crate's own code;
what it has clocks for is told by suspicions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tests.support.raft_modules import RaftModules
from tests.support.raft_simulation import Simulation

SOURCES: Final = Path(__file__).parent / "raft_rs"
ELECTION_MS: Final = 50
ELECTION_SPREAD_MS: Final = 300
PATIENCE_MAX: Final = 4
RETRY_MS: Final = 300
QUORUM_MS: Final = 1000
TRANSFER_MS: Final = 2000

Json = dict[str, Any]


class Type(IntEnum):
    """Of eraftpb.MessageType, those that go between members."""

    APPEND = 3
    APPEND_ANSWER = 4
    VOTE = 5
    VOTE_ANSWER = 6
    SNAPSHOT = 7
    HEARTBEAT = 8
    HEARTBEAT_ANSWER = 9
    TIMEOUT_NOW = 14
    PRE_VOTE = 17
    PRE_VOTE_ANSWER = 18


@cache
def built() -> str:
    """Build the process of the other members; its path.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be; says why.
    """
    cargo = shutil.which("cargo") or os.path.expanduser("~/.cargo/bin/cargo")
    command = [cargo, "build", "--release", "--locked", "--manifest-path", str(SOURCES / "Cargo.toml")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return str(SOURCES / "target" / "release" / "raft_rs_member")


class Process:
    """The process in which the other members live."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([built()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *command: Any) -> Json:
        """Have a command carried out.

        Raises:
            ChildProcessError: the process has ended at it: the crate has found something that cannot be.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        stdin.write(json.dumps(command).encode() + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise ChildProcessError(f"the other members have ended at {command}")
        answer: Json = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class OtherMember:
    """A member of the crate's, with the face of `raft.core.Raft`.

    Args:
        process: where it runs.
        room: our code: its messages, records and errors.
        size: bytes of entries in one message.
        me, stored, store, now_ms, chance: as of `raft.core.Raft`.
    """

    def __init__(
        self,
        process: Process,
        room: RaftModules,
        size: int,
        me: int,
        stored: Any,
        store: Any,
        *,
        now_ms: int,
        random_source: Callable[[], float],
    ) -> None:
        self._process, self._room, self._me, self._random_source = process, room, me, random_source
        point = stored.point
        self._base = point.index
        self._terms = [point.term]
        self._configs = [(point.index, point.config), *stored.configs]
        self.stable = stored.last
        entries = []
        if stored.last > point.index:
            runs = store.read(point.index + 1, stored.last, 1 << 60)
            entries = [each for run in runs for each in self._entries_of(run)]
        self._terms += [term for term, _, _ in entries]
        commit = max(min(stored.hard.commit, stored.last), point.index)
        about = {
            "hard": [stored.hard.term, stored.hard.vote or 0, commit],
            "base": [point.index, point.term, _listed(point.config)],
            "entries": entries,
            "size": size,
        }
        self._suspected: set[int] = set()
        self._tokens: dict[int, int] = {}
        """Of pre-votes that were asked by others and are not answered."""
        self._token = 0
        self._offered: Any = None
        """The last state that came."""
        self._patience = 0
        self._due: int | None = None
        self._retry_due: int | None = None
        self._quorum_due: int | None = None
        self._transfer_due: int | None = None
        self._told_commit = point.index
        self._told_status: Any = None
        self._snapshots_to: list[int] = []
        self._clear()
        self._answer: Json = {}
        self._was = ("", 0, 0, 0)
        self._do(now_ms, "start", about)
        self._await_election(now_ms)

    def _clear(self) -> None:
        self._writes: list[Json] = []
        self._messages: list[Any] = []
        self._snapshots_to = []

    # -- looking

    @property
    def status(self) -> Any:
        room, answer = self._room, self._answer
        role = room.Role(answer["role"])
        opened = role is room.Role.LEADER and self._term(self._commit) == self._hard_term
        return room.Status(role, self._hard_term, answer["leader"] or None, opened)

    @property
    def hard(self) -> Any:
        term, vote, commit = self._answer["hard"]
        return self._room.Hard(term, vote or None, commit)

    @property
    def config(self) -> Any:
        return self._configs[-1][1]

    @property
    def last(self) -> int:
        return self._base + len(self._terms) - 1

    @property
    def deadline(self) -> int | None:
        if not self._leads:
            return self._due
        dues = (self._retry_due, self._quorum_due, self._transfer_due)
        return min((due for due in dues if due is not None), default=None)

    @property
    def _member(self) -> Any:
        log = SimpleNamespace(base=self._base, term=self._term)
        return SimpleNamespace(log=log, configs=SimpleNamespace(_entries=self._configs))

    def point(self, index: int) -> Any:
        term = self._term(index)
        assert term is not None, index
        config = next(config for first, config in reversed(self._configs) if first <= index)
        return self._room.Point(index, term, config)

    def _term(self, index: int) -> int | None:
        return self._terms[index - self._base] if self._base <= index <= self.last else None

    @property
    def _leads(self) -> bool:
        return bool(self._answer["role"] == "leader")

    @property
    def _hard_term(self) -> int:
        return int(self._answer["hard"][0])

    @property
    def _commit(self) -> int:
        return int(self._answer["hard"][2])

    # -- what is wanted

    def propose(self, payloads: Sequence[bytes]) -> int:
        self._must_take()
        first = self.last + 1
        self._do(None, "propose", [each.decode("latin-1") for each in payloads])
        return first

    def change(self, change: Any, now_ms: int) -> int:
        self._must_take()
        room = self._room
        if self._configs[-1][0] > self._told_commit:
            raise room.ChangeRefused("the last change is not committed; wait for it")
        config = room.changed(self.config, change)
        if isinstance(change, room.Remove) and change.member == self._me:
            raise room.ChangeRefused("it leads; hand the leadership over first")
        if isinstance(change, room.Promote) and self._peers()[change.member][0] < self._commit:
            raise room.ChangeRefused(f"{change.member} has not caught up; wait for it")
        first = self.last + 1
        text = json.dumps(_listed(config))
        self._do(now_ms, "change", [type(change).__name__, change.member], text)
        assert self.config == config, "a change of the crate's own"
        return first

    def transfer(self, to: int, now_ms: int) -> None:
        self._must_take()
        if to == self._me or to not in self.config.voters or to in self._suspected:
            raise self._room.ChangeRefused(f"{to} cannot be handed the leadership")
        self._transfer_due = now_ms + TRANSFER_MS
        self._do(now_ms, "transfer", to)

    def _must_take(self) -> None:
        if not self._leads:
            raise self._room.NotLeader(self.status.leader)
        if not self.status.open or self._answer["handing"]:
            raise self._room.NotReady("it takes nothing now")

    # -- what the node knows

    def campaign(self, now_ms: int) -> None:
        # `RawNode.campaign` does not ask, as its clock does, whether the member is a voter.
        if not self._leads and self._me in self.config.voters:
            self._token = int(self._random_source() * (1 << 53))
            self._do(now_ms, "campaign")
            self._await_election(now_ms)
            self._patience = min(self._patience + 1, PATIENCE_MAX)

    def suspect(self, peer: int, now_ms: int) -> None:
        self._suspected.add(peer)
        if self._leads:
            self._do(now_ms, "unreachable", peer)
            self._check_quorum(now_ms)
        elif self._answer["leader"] == peer:
            self._patience = 0
            self._lose(now_ms)
        elif self._due is None and not self._answer["leader"]:
            self._await_election(now_ms)

    def heard(self, peer: int, now_ms: int) -> None:
        self._suspected.discard(peer)
        if self._leads:
            self._check_quorum(now_ms)
            self._do(now_ms, "ping")
        elif not self._answer["leader"]:
            self._patience = 0
            self._await_election(now_ms)

    def tick(self, now_ms: int) -> None:
        if not self._leads:
            if self._due is not None and self._due <= now_ms:
                self.campaign(now_ms)
            return
        if self._quorum_due is not None and self._quorum_due <= now_ms:
            alive = [each for each in self.config.members if each not in self._suspected]
            self._do(now_ms, "quorum", alive)
            assert not self._leads, "a leader without majority goes on"
            return
        if self._transfer_due is not None and self._transfer_due <= now_ms:
            self._transfer_due = None
            self._do(now_ms, "keep")
        if self._retry_due is not None and self._retry_due <= now_ms:
            self._retry_due = None
            self._do(now_ms, "ping")

    def _lose(self, now_ms: int) -> None:
        """Election timeouts do not run; suspicions take their place."""
        self._do(now_ms, "lose")
        self._await_election(now_ms)

    def _await_election(self, now_ms: int) -> None:
        voters = self.config.voters
        reached = sum(each not in self._suspected for each in voters)
        alone = all(each in self._suspected for each in voters if each != self._me)
        self._due = None
        if self._me in voters and (not alone or reached >= self.config.majority):
            self._due = (
                now_ms + ELECTION_MS + int(self._random_source() * (ELECTION_SPREAD_MS << self._patience))
            )

    def _check_quorum(self, now_ms: int) -> None:
        config = self.config
        if sum(each not in self._suspected for each in config.voters) >= config.majority:
            self._quorum_due = None
        elif self._quorum_due is None:
            self._quorum_due = now_ms + QUORUM_MS

    # -- what the disk says

    def persisted(self, ticket: int, now_ms: int) -> None:
        self._do(now_ms, "durable", ticket)

    def snapshot_done(self, to: int, index: int | None) -> None:
        if self._leads:
            self._do(None, "sent", to, index is not None)

    def compact(self, index: int) -> None:
        config = self.point(index).config
        self._do(None, "compact", index)
        del self._terms[: index - self._base]
        self._configs = [(index, config), *(each for each in self._configs if each[0] > index)]
        self._base = index

    # -- messages

    def step(self, message: Any, now_ms: int) -> None:
        if message.to != self._me:
            return
        asks = type(message).__name__ == "PreVote"
        leads_no_more = self._answer["leader"] == message.sender and message.term >= self._hard_term
        if asks and leads_no_more and not self._leads:
            self._lose(now_ms)  # it has just said so
        for each in self._as_eraftpb(message):
            self._do(now_ms, "step", each)
        if asks and self._leads:
            # It answers by speaking: there are no heartbeats that would.
            self._do(now_ms, "ping")

    # -- what is to be done

    def ready(self, now_ms: int) -> Any:
        room = self._room
        self._await_answers(now_ms)
        hard = snapshot = ticket = None
        runs: list[Any] = []
        for write in self._writes:
            term, vote, known = write["hard"]
            ticket, hard = write["number"], room.Hard(term, vote or None, known)
            if write["snapshot"] is not None:
                assert not runs, "entries before a state"
                snapshot = self._offered
            runs += self._runs(write["first"], write["entries"])
        commit = self._answer["apply"] if self._answer["apply"] > self._told_commit else None
        self._told_commit = commit or self._told_commit
        status = self.status if self.status != self._told_status else None
        self._told_status = self.status
        messages, needing = self._messages, tuple(dict.fromkeys(self._snapshots_to))
        if ticket is None and not (messages or commit or needing or status):
            return None
        self._clear()
        return room.Ready(ticket, hard, snapshot, tuple(runs), messages, commit, needing, status)

    def _do(self, now_ms: int | None, *command: Any) -> None:
        answer = self._process.ask(self._me, *command)
        before = self._answer
        self._answer = answer
        for write in answer["writes"]:
            self._note_write(write)
        self._writes += answer["writes"]
        for message in answer["messages"]:
            self._take_message(message)
        if now_ms is not None and before:
            self._follow(before, now_ms)

    def _follow(self, before: Json, now_ms: int) -> None:
        """Reset the clocks when the role, leader or term changes."""
        answer = self._answer
        leader = answer["leader"]
        if self._leads:
            if before["role"] != "leader":
                self._due, self._patience = None, 0
                self._retry_due = self._quorum_due = self._transfer_due = None
            self._check_quorum(now_ms)
            return
        if before["role"] == "leader":
            self._retry_due = self._quorum_due = self._transfer_due = None
        if leader in self._suspected:
            # Its words may be old. It is followed when its node is heard again; until then time runs on.
            self._answer = self._process.ask(self._me, "lose")
            leader = 0
        if leader:
            self._due, self._patience = None, 0
        elif self._due is None or before["leader"] or before["hard"][:2] != answer["hard"][:2]:
            self._await_election(now_ms)

    def _note_write(self, write: Json) -> None:
        if write["snapshot"] is not None:
            # With the configuration that it came with, which this member may not belong to.
            point = self._offered.point
            assert write["snapshot"][:2] == [point.index, point.term]
            self._base, self._terms = point.index, [point.term]
            self._configs = [(point.index, point.config)]
        first = write["first"]
        if first is None:
            return
        del self._terms[first - self._base :]
        while self._configs[-1][0] >= first:
            self._configs.pop()
        for index, (term, kind, text) in enumerate(write["entries"], first):
            self._terms.append(term)
            if kind == self._room.Kind.CONFIG:
                self._configs.append((index, self._config_of(json.loads(text))))

    def _await_answers(self, now_ms: int) -> None:
        """A leader repeats requests while a reachable member lacks entries."""
        if not self._leads:
            return
        last, commit = self.last, self._commit
        lag = any(
            peer not in self._suspected and (matched < last or committed < commit)
            for peer, (matched, committed) in self._peers().items()
        )
        if not lag:
            self._retry_due = None
        elif self._retry_due is None:
            self._retry_due = now_ms + RETRY_MS

    def _peers(self) -> Mapping[int, tuple[int, int]]:
        return {peer: (matched, committed) for peer, matched, committed in self._answer["peers"]}

    # -- translation

    def _as_eraftpb(self, message: Any) -> Iterator[Json]:
        said: Json = {"from": message.sender, "to": message.to, "term": message.term}
        match type(message).__name__:
            case "Append":
                entries = []
                for run in message.runs:
                    entries += [
                        [run.term, int(run.kind), self._text(run.kind, each)] for each in run.payloads
                    ]
                yield said | {
                    "type": Type.APPEND,
                    "index": message.prev_index,
                    "log_term": message.prev_term,
                    "commit": message.commit,
                    "entries": entries,
                }
            case "AppendAnswer":
                said |= {"type": Type.APPEND_ANSWER, "commit": message.commit}
                if message.rejected is None:
                    yield said | {"index": message.match}
                else:
                    yield said | {
                        "index": message.rejected,
                        "reject": True,
                        "reject_hint": message.match,
                        "log_term": message.match_term,
                    }
            case "NewerTerm":
                yield said | {"type": Type.HEARTBEAT_ANSWER, "context": 0}
            case "PreVote":
                self._tokens[message.sender] = message.token
                # It names the term it would stand for.
                yield said | {
                    "type": Type.PRE_VOTE,
                    "term": message.term + 1,
                    "index": message.last_index,
                    "log_term": message.last_term,
                }
            case "PreVoteAnswer" if message.term > self._hard_term:
                yield said | {"type": Type.PRE_VOTE_ANSWER, "reject": True}
            case "PreVoteAnswer" if message.token == self._token:
                # A yes is said in the term that was asked about.
                term = self._hard_term + message.granted
                yield said | {"type": Type.PRE_VOTE_ANSWER, "term": term, "reject": not message.granted}
            case "Vote":
                about = {"index": message.last_index, "log_term": message.last_term}
                yield said | {"type": Type.VOTE} | about
            case "VoteAnswer":
                yield said | {"type": Type.VOTE_ANSWER, "reject": not message.granted}
            case "TimeoutNow":
                yield said | {"type": Type.TIMEOUT_NOW}
            case "InstallSnapshot":
                point = message.snapshot.point
                config = point.config
                if self._me not in config.members:
                    # The crate refuses a state of a group that it is no member of; ours learns it later.
                    config = replace(config, learners=(*config.learners, self._me))
                data = message.snapshot.data.decode("latin-1")
                about = {"snapshot": [point.index, point.term, _listed(config), data]}
                self._offered = message.snapshot
                yield said | {"type": Type.SNAPSHOT} | about
            case _:
                pass

    def _take_message(self, said: Json) -> None:
        room = self._room
        to, term = said["to"], said["term"]
        me, messages = self._me, self._messages
        match said["type"]:
            case Type.APPEND:
                runs = tuple(self._runs(said["index"] + 1, said["entries"]))
                messages.append(
                    room.Append(me, to, term, said["index"], said["log_term"], said["commit"], runs)
                )
            case Type.APPEND_ANSWER if said["reject"]:
                messages.append(
                    room.AppendAnswer(
                        me, to, term, said["reject_hint"], said["commit"], said["index"], said["log_term"]
                    )
                )
            case Type.APPEND_ANSWER:
                messages.append(room.AppendAnswer(me, to, term, said["index"], said["commit"]))
            case Type.HEARTBEAT:
                # Ours has none: an append without entries says who leads, and what is committed.
                at = said["commit"] if said["commit"] >= max(self._base, 1) else 0
                messages.append(room.Append(me, to, term, at, self._term(at) if at else 0, at))
            case Type.HEARTBEAT_ANSWER:
                messages.append(room.NewerTerm(me, to, term))
            case Type.PRE_VOTE:
                messages.append(room.PreVote(me, to, term - 1, said["index"], said["log_term"], self._token))
            case Type.PRE_VOTE_ANSWER:
                granted = not said["reject"]
                asked = term - 1 if granted else term
                messages.append(room.PreVoteAnswer(me, to, asked, self._tokens.get(to, 0), granted))
            case Type.VOTE:
                messages.append(room.Vote(me, to, term, said["index"], said["log_term"]))
            case Type.VOTE_ANSWER:
                messages.append(room.VoteAnswer(me, to, term, not said["reject"]))
            case Type.TIMEOUT_NOW:
                messages.append(room.TimeoutNow(me, to, term))
            case Type.SNAPSHOT:
                self._snapshots_to.append(to)
            case other:
                raise AssertionError(f"a message of type {other} between members")

    def _runs(self, first: int | None, entries: Sequence[tuple[int, int, str]]) -> list[Any]:
        room = self._room
        runs: list[Any] = []
        for index, (term, kind, text) in enumerate(entries, first or 0):
            if kind == room.Kind.CONFIG:
                payload = room.CONFIG.encode(self._config_of(json.loads(text)))
            else:
                payload = text.encode("latin-1")
            if runs and (runs[-1].term, runs[-1].kind) == (term, kind):
                payload_list = (*runs[-1].payloads, payload)
                runs[-1] = room.run_of(runs[-1].first, term, runs[-1].kind, payload_list)
            else:
                runs.append(room.run_of(index, term, room.Kind(kind), (payload,)))
        return runs

    def _entries_of(self, run: Any) -> list[tuple[int, int, str]]:
        return [(run.term, int(run.kind), self._text(run.kind, each)) for each in run.payloads]

    def _text(self, kind: int, payload: bytes) -> str:
        if kind == self._room.Kind.CONFIG:
            return json.dumps(_listed(self._room.CONFIG.decode(payload)))
        return payload.decode("latin-1")

    def _config_of(self, listed: Sequence[Sequence[int]]) -> Any:
        voters, learners = listed
        return self._room.Configuration(tuple(sorted(voters)), tuple(sorted(learners)))


def _listed(config: Any) -> list[list[int]]:
    return [list(config.voters), list(config.learners)]


class MixedSimulation(Simulation):
    """One run of a group in which both cores are.

    Args:
        seed, room, trace: as of `Simulation`.
        ours: how many of the first members are ours.
        others: how many are not.
    """

    def __init__(
        self,
        seed: int,
        room: RaftModules,
        process: Process,
        *,
        ours: int,
        others: int,
        trace: bool = False,
    ) -> None:
        self.ours = ours
        self.size = ours + others
        bytes_of = (0, 4, 1 << 20)[seed % 3]

        def member(me: int, stored: Any, store: Any, *, commit_wait_ms: int, **rest: Any) -> Any:
            if self.is_ours(me):
                return room.Raft(me, stored, store, commit_wait_ms=commit_wait_ms, **rest)
            return OtherMember(process, room, bytes_of, me, stored, store, **rest)

        super().__init__(seed, _Mixed(room, member), trace=trace)

    def _size(self) -> int:
        return self.size

    def is_ours(self, me: int) -> bool:
        if me <= self.size:
            return (me + self.seed) % self.size < self.ours
        return (me + self.seed) % 2 == 0

    def leads(self) -> dict[bool, int]:
        """Return the terms led by one of our members, and by another."""
        counts = {True: 0, False: 0}
        for leader in self.group.leaders.values():
            counts[self.is_ours(leader)] += 1
        return counts

    def can_do_without(self, me: int) -> bool:
        """A crate member that an uncommitted entry removes stands for no election, so this is False."""
        removed = any(
            not self.is_ours(node.me)
            and node.me not in node.raft.config.voters
            and node.me in node.raft.point(node.raft.hard.commit).config.voters
            for node in self.group.up()
        )
        return not removed and super().can_do_without(me)


class _Mixed(RaftModules):
    """Our room, in which members may be of the crate's."""

    def __init__(self, room: RaftModules, member: Callable[..., Any]) -> None:
        self.names = room.names | {"Raft": member, "new_group": self._new_group}
        self._room = room

    def _new_group(self, config: Any) -> Any:
        """The crate uses term 0 for an absent entry, so a group begins after an entry of term 1."""
        room = self._room
        return room.Stored(room.Point(1, 1, config), room.Hard(1, None, 0), 1)
