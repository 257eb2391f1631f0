"""Interaction scripts of the room `raft`: commands, and under each what came of it.

A line that begins with two spaces is output; all others are commands, comments (``#``) or empty. What members
say is shown when they say it, with ``->``, and again, with ``<-``, when it arrives. Commands::

    group 1 2 3                 members of a new group; what follows until the first other command may be
    log 2: 1 1 4                    the terms of a member's entries from index 2 on
    hard 2: 4 1 2                   its term, vote (0: none) and commit
    time-out 1                  the clock moves to the member's deadline, and it is told
    wait 300                    the clock moves, and members are told whose deadline it passes
    deliver 1 2 [Append]        all that is on its way from 1 to 2 [of a kind] arrives; * is every member
    drop 1 2 [Append]           ... is lost
    keep 1 2 [Append]           ... arrives, and is on its way still
    durable 1 [2]               its oldest writes [so many] are durable
    run                         everything arrives and is durable, until nothing is left
    propose 1 a b               commands
    change 1 add 4              also: promote, remove
    transfer 1 2 / campaign 1 / compact 1
    suspect 1 2 / hear 1 2      the node of 1 about that of 2
    part 1 2                    both suspect each other, and what is on its way is lost; join 1 2 ends it
    crash 1 / start 1 / add 4
    say 1 2 append term 3 behind 4/2 commit 4: 5/3 6/3
                                a message that the script makes up; also: snapshot term 3 at 4/2,
                                now term 1, newer term 5, has term 1 match 3
    show                        all members
    quiet / loud                output stops and begins again
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from tests.support.raft_group import Broken, Group, Node
from tests.support.raft_modules import RaftModules


class Watched(Group):
    """A group that says what happens."""

    def __init__(self, room: RaftModules, voters: list[int]) -> None:
        self.out: list[str] = []
        self.made_up = False
        """Logs or messages are the script's: nobody knows who committed what is in them."""
        super().__init__(room, voters, Random(1).random)

    @property
    def newest_commit(self) -> int:
        return 1 << 60 if self.made_up else super().newest_commit

    def on_ready(self, node: Node, ready: Any) -> None:
        me = node.me
        if ready.status is not None:
            status = ready.status
            known = f", leader {status.leader}" if status.leader else ""
            opened = ", open" if status.open else ""
            self.out.append(f"{me} is {status.role.value} in term {status.term}{known}{opened}")
        if ready.hard is not None:
            self.out.append(f"{me} writes term {ready.hard.term}, vote {ready.hard.vote or 'none'}")
        if ready.snapshot is not None:
            self.out.append(f"{me} writes {point(ready.snapshot.point)}")
        if ready.entries:
            self.out.append(f"{me} writes {entries(ready.entries)}")
        if ready.commit is not None:
            self.out.append(f"{me} applies up to {ready.commit}")
        self.out += [f"-> {said(message)}" for message in ready.messages]
        self.out += [f"{me} sends a snapshot to {to}" for to in ready.snapshots_to]


def said(message: Any) -> str:
    kind = type(message).__name__
    words = f"{message.sender} to {message.to} {kind} term {message.term}"
    match kind:
        case "Append":
            words += f", behind {message.prev_index}/{message.prev_term}, commit {message.commit}"
            if message.runs:
                words += f": {entries(message.runs)}"
        case "AppendAnswer" if message.rejected is not None:
            words += f", not behind {message.rejected}, perhaps {message.match}/{message.match_term}"
        case "AppendAnswer":
            words += f", has {message.match}, commit {message.commit}"
        case "Vote" | "PreVote":
            words += f", log {message.last_index}/{message.last_term}"
        case "VoteAnswer" | "PreVoteAnswer":
            words += f", {'yes' if message.granted else 'no'}"
        case "InstallSnapshot":
            words += f", {point(message.snapshot.point)}"
    return words


def entries(runs: Any) -> str:
    """Show index, term and kind of entries."""
    words = []
    for run in runs:
        for index, payload in enumerate(run.payloads, run.first):
            kind = run.kind.name.lower()
            words.append(f"{index}/{run.term} {payload.decode() if kind == 'command' else kind}")
    return ", ".join(words)


def point(of: Any) -> str:
    learners = f" and {' '.join(map(str, of.config.learners))}" if of.config.learners else ""
    return f"snapshot {of.index}/{of.term} of {' '.join(map(str, of.config.voters))}{learners}"


class ScriptRunner:
    """Runs one script."""

    def __init__(self, room: RaftModules) -> None:
        self.room = room
        self.group: Watched = Watched(room, [])
        self.loud = True
        self.away: set[frozenset[int]] = set()

    def run(self, text: str) -> str:
        """Return the script with the current output of its commands."""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("  "):
                continue
            lines.append(line)
            if line and not line.startswith("#"):
                lines += [f"  {each}" for each in self.output(line)]
        return "\n".join(lines) + "\n"

    def output(self, line: str) -> list[str]:
        name, *words = line.split()
        try:
            getattr(self, "do_" + name.replace("-", "_"))(words)
        except self.room.RaftError as error:
            self.group.out.append(f"refused: {type(error).__name__}: {error}")
        except (Broken, AssertionError) as error:
            self.group.out.append(f"BROKEN: {error}")
        out, self.group.out = self.group.out, []
        return out if self.loud else [each for each in out if "BROKEN" in each]

    def node(self, word: str) -> Node:
        return self.group.nodes[int(word)]

    # -- commands

    def do_group(self, words: list[str]) -> None:
        self.group = Watched(self.room, [int(word) for word in words])
        self.away = set()

    def do_log(self, words: list[str]) -> None:
        node = self.node(words[0].rstrip(":"))
        self.group.made_up = True
        node.crash()
        config = self.room.CONFIG.encode(node.disk.point.config)
        node.disk.entries = [
            (int(word.rstrip("c")), 2 if word.endswith("c") else 1, config if word.endswith("c") else b"old")
            for word in words[1:]
        ]
        node.start()
        node.turn()

    def do_hard(self, words: list[str]) -> None:
        node = self.node(words[0].rstrip(":"))
        term, vote, commit = map(int, words[1:])
        self.group.made_up = True
        node.crash()
        node.disk.hard = self.room.Hard(term, vote or None, commit)
        node.start()
        node.turn()

    def do_time_out(self, words: list[str]) -> None:
        node = self.node(words[0])
        due = node.raft.deadline
        if due is None:
            self.group.out.append(f"{node.me} awaits nothing")
            return
        self.group.now = max(self.group.now, due)
        node.raft.tick(self.group.now)
        node.turn()

    def do_wait(self, words: list[str]) -> None:
        until = self.group.now + int(words[0])
        for _ in range(1000):
            dues = [
                (node.raft.deadline, node.me) for node in self.group.up() if node.raft.deadline is not None
            ]
            due, me = min(dues, default=(until + 1, 0))
            if due > until:
                break
            self.do_time_out([str(me)])
        else:
            self.group.out.append("time does not pass")
        self.group.now = until

    def take(self, words: list[str], *, keep: bool = False) -> list[Any]:
        one, other, *kinds = words
        taken = [
            message
            for message in self.group.network
            if one in ("*", str(message.sender))
            and other in ("*", str(message.to))
            and (not kinds or type(message).__name__ in kinds)
        ]
        if not keep:
            self.group.network = [
                each for each in self.group.network if not any(each is one for one in taken)
            ]
        return taken

    def arrive(self, messages: list[Any]) -> None:
        for message in messages:
            if frozenset((message.sender, message.to)) not in self.away:
                self.group.out.append(f"<- {said(message)}")
                self.group.deliver(message)

    def do_deliver(self, words: list[str]) -> None:
        self.arrive(self.take(words))

    def do_keep(self, words: list[str]) -> None:
        self.arrive(self.take(words, keep=True))

    def do_drop(self, words: list[str]) -> None:
        self.group.out += [f"lost: {said(message)}" for message in self.take(words)]

    def do_durable(self, words: list[str]) -> None:
        node = self.node(words[0])
        node.persist(int(words[1]) if len(words) > 1 else len(node.disk.writes))

    def do_run(self, words: list[str]) -> None:
        for _ in range(100):
            writing = [node for node in self.group.up() if node.disk.writes]
            if not writing and not self.group.network:
                return
            self.arrive(self.take(["*", "*"]))
            for node in writing:
                node.persist(len(node.disk.writes))
        self.group.out.append("it does not end")

    def do_propose(self, words: list[str]) -> None:
        node = self.node(words[0])
        node.raft.propose([word.encode() for word in words[1:]])
        node.turn()

    def do_change(self, words: list[str]) -> None:
        node, member = self.node(words[0]), int(words[2])
        room = self.room
        kind = {"add": room.Add, "promote": room.Promote, "remove": room.Remove}[words[1]]
        node.raft.change(kind(member), self.group.now)
        node.turn()

    def do_transfer(self, words: list[str]) -> None:
        node = self.node(words[0])
        node.transfer(int(words[1]))
        node.turn()

    def do_campaign(self, words: list[str]) -> None:
        node = self.node(words[0])
        node.raft.campaign(self.group.now)
        node.turn()

    def do_compact(self, words: list[str]) -> None:
        node = self.node(words[0])
        node.compact()
        self.group.out.append(f"{node.me} has {point(node.disk.point)}")

    def do_suspect(self, words: list[str]) -> None:
        node = self.node(words[0])
        node.raft.suspect(int(words[1]), self.group.now)
        node.turn()

    def do_hear(self, words: list[str]) -> None:
        node = self.node(words[0])
        node.raft.heard(int(words[1]), self.group.now)
        node.turn()

    def do_part(self, words: list[str]) -> None:
        one, *others = words
        for other in others:
            self.away.add(frozenset((int(one), int(other))))
            for pair in ((one, other), (other, one)):
                self.take(list(pair))
                if self.node(pair[0]).up:
                    self.do_suspect(list(pair))

    def do_join(self, words: list[str]) -> None:
        one, *others = words
        for other in others:
            self.away.discard(frozenset((int(one), int(other))))
            for pair in ((one, other), (other, one)):
                if self.node(pair[0]).up:
                    self.do_hear(list(pair))

    def do_crash(self, words: list[str]) -> None:
        for word in words:
            self.node(word).crash()

    def do_start(self, words: list[str]) -> None:
        for word in words:
            self.node(word).start()
            self.node(word).turn()

    def do_add(self, words: list[str]) -> None:
        self.group.add(int(words[0]), self.room.new_member())

    def do_say(self, words: list[str]) -> None:
        sender, to, kind = int(words[0]), int(words[1]), words[2]
        value = dict(pairwise(words[3:]))
        term, room = int(value["term"].rstrip(":")), self.room
        self.group.made_up = True
        match kind:
            case "append":
                index, of = map(int, value["behind"].rstrip(":").split("/"))
                commit = int(value.get("commit", "1").rstrip(":"))
                marks = " ".join(words).partition(":")[2].split()
                runs = tuple(
                    room.run_of(int(at), int(its), room.Kind.COMMAND, (b"old",))
                    for at, _, its in (mark.partition("/") for mark in marks)
                )
                message = room.Append(sender, to, term, index, of, commit, runs)
            case "snapshot":
                index, of = map(int, value["at"].split("/"))
                config = self.group.configs[1]
                snapshot = room.Snapshot(room.Point(index, of, config), bytes(8))
                message = room.InstallSnapshot(sender, to, term, snapshot)
            case "now":
                message = room.TimeoutNow(sender, to, term)
            case "newer":
                message = room.NewerTerm(sender, to, term)
            case _:
                message = room.AppendAnswer(sender, to, term, int(value["match"]), 1)
        self.arrive([message])

    def do_quiet(self, words: list[str]) -> None:
        self.loud = False

    def do_loud(self, words: list[str]) -> None:
        self.loud = True
        self.group.out.clear()

    def do_show(self, words: list[str]) -> None:
        for node in self.group.nodes.values():
            if not node.up:
                self.group.out.append(f"{node.me} is down")
                continue
            status, log = node.raft.status, node.raft.log
            terms = " ".join(str(log.term(index)) for index in range(log.base, log.last + 1))
            config = node.raft.config
            learners = f" and {' '.join(map(str, config.learners))}" if config.learners else ""
            self.group.out.append(
                f"{node.me}: {status.role.value}, term {status.term}, leader {status.leader or 'none'}, "
                f"commit {node.raft.hard.commit}, applied {node.applied}, log from {log.base}: {terms}, "
                f"of {' '.join(map(str, config.voters)) or 'none'}{learners}"
            )
