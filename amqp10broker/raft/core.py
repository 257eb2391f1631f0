"""One member of a Raft group: roles, elections, following, and output.

The member gets time and random numbers from its caller. Storage is asynchronous: many steps may lie between a
`Ready` and its `persisted`. Messages that depend on durable data are held back here, so the caller cannot
send them too early.

The node checks liveness (`suspect`, `heard`): groups have no heartbeats, and an idle group has no deadline.
The package relies on this:

- suspicion is mutual: a node that gets no heartbeats of another one is suspected by that one, even if its own
  arrive there;
- a restarted node is suspected, and then heard, even if no member noticed that it was down;
- a node that has no such member (any more), or has a stopped one, is suspected by this group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Final, assert_never

from amqp10broker.dataclass import dataclass
from amqp10broker.raft.leader import Leadership, MemberState
from amqp10broker.raft.messages import (
    CONFIG,
    Append,
    AppendAnswer,
    Change,
    Configuration,
    InstallSnapshot,
    Kind,
    LogStore,
    Message,
    NewerTerm,
    NotLeader,
    Point,
    PreVote,
    PreVoteAnswer,
    Ready,
    Role,
    Snapshot,
    Status,
    Stored,
    TimeoutNow,
    Vote,
    VoteAnswer,
    run_of,
)

ELECTION_MS: Final = 50
"""The least time between the loss of the leader, or an attempt, and the next attempt."""
BACKWARD_MS: Final = 2_000
"""The additional wait of a member that must not lead, so that it leads only if no other can."""
ELECTION_SPREAD_MS: Final = 300
"""The maximum of the random addition, which doubles after each failed attempt."""
PATIENCE_MAX: Final = 4
"""The number of times that it is doubled: one attempt each 5 s at most, unless answers take longer."""
ROUNDS_SPREAD: Final = 4
"""The least random range, as a multiple of the time of answers: attempts that collide in a round all fail."""
TOOK_MS_MAX: Final = 60_000
"""The longest time of an answer that counts: in a longer time requests may have been lost."""
YIELD_MS: Final = 1_000
"""The additional wait of a member that was restarted and has voted for another, which goes first."""


class Raft(MemberState):
    """One member of one group.

    `now_ms`: of a clock that never runs back. `random_source`: returns numbers from 0 to below 1.
    `commit_wait_ms`: how long the commit index may wait for the next append, which saves a message where
    followers do not need it at once. `backward`: it must not lead: it takes over from no leader, and waits
    longer than others.
    """

    __slots__ = (
        "_after", "_asked_ms", "_due", "_first_ms", "_first_token", "_hard_due", "_late", "_leading",
        "_owed", "_patience", "_random_source", "_role", "_snapshot", "_tally", "_token",
        "_told_commit", "_told_status", "_took_ms", "_yields", "backward", "leader",
    )  # fmt: skip

    def __init__(
        self,
        me: int,
        stored: Stored,
        store: LogStore,
        *,
        now_ms: int,
        random_source: Callable[[], float],
        commit_wait_ms: int = 0,
    ) -> None:
        super().__init__(me, stored, store)
        self.commit_wait_ms = commit_wait_ms
        self._random_source = random_source
        self.backward = False
        self._hard_due = False
        self._role = Role.FOLLOWER
        self.leader: int | None = None
        self._leading: Leadership | None = None
        self._tally: Tally | None = None
        self._token = 0
        self._patience = 0
        self._first_token = self._first_ms = self._asked_ms = self._took_ms = 0
        """Token and time of an attempt's first request; when it was repeated; how long answers take."""
        self._yields = stored.hard.vote not in (None, me)
        self._due: int | None = None
        self._owed: tuple[int, int] | None = None
        self._snapshot: Snapshot | None = None
        self._late: list[Message] = []
        self._after: deque[tuple[int, Message]] | None = None
        self._told_commit = stored.point.index
        self._told_status: Status | None = None
        self._await_election(now_ms)

    @property
    def status(self) -> Status:
        opened = self._leading is not None and self._leading.open
        return Status(self._role, self.term, self.leader, opened)

    @property
    def stands(self) -> bool:
        return self._role is Role.PRE_CANDIDATE or self._role is Role.CANDIDATE

    @property
    def settled(self) -> bool:
        """Whether the newest configuration is committed."""
        return self.configs.index <= self.commit

    @property
    def deadline(self) -> int | None:
        """When `tick` is due, in ms, or None."""
        return self._due if self._leading is None else self._leading.deadline

    def matches(self) -> dict[int, int]:
        """Return up to which index the log of each other member is known to agree durably with this one;
        empty if this member does not lead.
        """
        return {} if self._leading is None else {to: peer.match for to, peer in self._leading.peers.items()}

    def point(self, index: int) -> Point:
        """Return the Raft part of a snapshot of the state at this index, that of an applied entry; not before
        the last `compact`, and not while a snapshot of the leader is being written.
        """
        term = self.log.term(index)
        assert term is not None, index
        return Point(index, term, self.configs.at(index))

    def propose(self, payloads: Sequence[bytes]) -> int:
        """Append commands; return the index of the first. It is committed when an entry of this index *and
        this term* is applied. Raises `NotLeader`; `NotReady`: no entry of its term is committed, or it is
        handing over; `Full`.
        """
        return self._must_lead().propose(payloads)

    def has_room(self, size: int) -> bool:
        return self._leading is not None and self._leading.has_room(size)

    def change(self, change: Change, now_ms: int) -> int:
        """Begin a change of members. It is in force at once, and permanent when it is committed. Raises as
        `propose`, and `ChangeRefused`.
        """
        return self._must_lead().change(change, now_ms)

    def transfer(self, to: int, now_ms: int) -> None:
        """Hand the leadership over. Nothing is proposed meanwhile, for 2 s at most. Raises as `change`."""
        self._must_lead().transfer_to(to, now_ms)

    def _must_lead(self) -> Leadership:
        if self._leading is None:
            raise NotLeader(self.leader)
        return self._leading

    def campaign(self, now_ms: int) -> None:
        """Request pre-votes now, in a new group that has its leader by agreement."""
        if self._leading is None:
            self._ask_for_pre_votes(now_ms)

    def campaign_at_tick(self, now_ms: int) -> None:
        """Stand for election at the next `tick`, without the random delay."""
        if self._leading is None and self._due is not None:
            self._due = min(self._due, now_ms)

    def force_alone(self, now_ms: int) -> None:
        """Make this member the only one of the group, when the others are lost for good. An operator decides
        this, without a vote.
        """
        self._follow(self.term + 1, None, now_ms)
        alone = CONFIG.encode(Configuration((self.me,)))
        self.append(run_of(self.log.last + 1, self.term, Kind.CONFIG, (alone,)))
        self._stand(now_ms)

    def suspect(self, peer: int, now_ms: int) -> None:
        self.suspected |= {peer}
        if self._leading is not None:
            self._leading.suspect(peer, now_ms)
        elif self.leader == peer:
            self._patience = self._took_ms = 0
            self._lose_leader(now_ms)

    def heard(self, peer: int, now_ms: int) -> None:
        self.suspected -= {peer}
        if self._leading is not None:
            self._leading.heard(peer, now_ms)
        elif self.leader is None:
            # An attempt has better chances now than when the time was last drawn.
            self._patience = self._took_ms = 0
            self._await_election(now_ms)

    def tick(self, now_ms: int) -> None:
        if self._leading is not None:
            if not self._leading.tick(now_ms):
                self._follow(self.term, None, now_ms)
        elif self._due is not None and self._due <= now_ms:
            if self._after is not None:
                self._be_impatient(
                    now_ms
                )  # its disk is slower than the time-out: no message of it counts yet
            elif self._role is Role.CANDIDATE and self._tally is not None and not self._tally.refused:
                self._ask_for_votes(now_ms)
            else:
                self._ask_for_pre_votes(now_ms)

    def persisted(self, ticket: int, now_ms: int) -> None:
        self.log.persist(ticket)
        if self._after is not None:
            self._speak(self._after, now_ms)
        if self._leading is not None:
            self._leading.advance()

    def _speak(self, after: deque[tuple[int, Message]], now_ms: int) -> None:
        while after and after[0][0] <= self.log.persisted:
            message = after.popleft()[1]
            if message.term != self.term:
                continue
            if message.to == self.me:
                self.step(message, now_ms)
            else:
                self.outbox.append(message)
        if not after:
            self._after = None

    def snapshot_done(self, to: int, index: int | None) -> None:
        """Note that a state was sent to a member of `Ready.snapshots_to`. `index`: None: it was lost."""
        if self._leading is not None:
            self._leading.snapshot_done(to, index)

    def compact(self, index: int) -> None:
        """Note that a snapshot at this index is durable: entries up to it are not needed."""
        assert index <= self._told_commit, (index, self._told_commit)
        self.configs.compact(index)
        self.log.compact(index)

    def step(self, message: Message, now_ms: int) -> None:
        """Handle a message from another member. Stale and misdirected messages are dropped."""
        if message.to != self.me:
            return
        if message.term != self.term and not isinstance(message, PreVote | PreVoteAnswer):
            if message.term < self.term:
                self._refuse_old_term(message)
                return
            self._follow(message.term, None, now_ms)
        match message:
            case Append():
                self._on_append(message, now_ms)
            case AppendAnswer():
                if self._leading is not None:
                    self._leading.on_append_answer(message)
            case NewerTerm():
                pass  # only its term counts
            case PreVote():
                self._on_pre_vote(message, now_ms)
            case PreVoteAnswer():
                self._on_pre_vote_answer(message, now_ms)
            case Vote():
                self._on_vote(message, now_ms)
            case VoteAnswer():
                self._on_vote_answer(message, now_ms)
            case TimeoutNow():
                self._on_timeout_now(now_ms)
            case InstallSnapshot():
                self._on_snapshot(message, now_ms)
            case _:
                assert_never(message)

    def _refuse_old_term(self, message: Message) -> None:
        # Without an answer a leader whose follower has a newer term, but cannot win with it, would never
        # reach the follower again.
        match message:
            case Append() | TimeoutNow() | InstallSnapshot():
                self.outbox.append(NewerTerm(self.me, message.sender, self.term))
            case Vote():
                self.outbox.append(VoteAnswer(self.me, message.sender, self.term, False))
            case _:
                pass

    def _follow(self, term: int, leader: int | None, now_ms: int) -> None:
        if term > self.term:
            self.term = term
            self.vote = None
            self._hard_due = True
        self._role = Role.FOLLOWER
        self._leading = None
        self._tally = None
        self._owed = None
        self.leader = leader
        self._due = None
        if leader is None:
            self._await_election(now_ms)

    def _hear_leader(self, sender: int, now_ms: int) -> None:
        assert self._leading is None, f"two leaders in term {self.term}"
        if self.leader == sender:
            return
        if sender in self.suspected:
            # The message may be old. Its sender is followed when its node is heard again.
            if self._role is not Role.FOLLOWER:
                self._follow(self.term, None, now_ms)
            return
        self._patience = self._took_ms = 0
        self._yields = False
        self._follow(self.term, sender, now_ms)

    def _lose_leader(self, now_ms: int) -> None:
        self.leader = None
        self._await_election(now_ms)

    def _await_election(self, now_ms: int) -> None:
        config = self.configs.latest
        alone = all(voter in self.suspected for voter in config.voters if voter != self.me)
        if alone and not self.reaches_majority:
            self._due = None
            return
        spread = max(ELECTION_SPREAD_MS << self._patience, ROUNDS_SPREAD * self._took_ms)
        least = ELECTION_MS + self._took_ms + self.backward * BACKWARD_MS + self._yields * YIELD_MS
        self._due = now_ms + least + int(self._random_source() * spread)

    def _ask_for_pre_votes(self, now_ms: int) -> None:
        # Request whether an election would be won. While the member stands in the same term it is the same
        # request, and late answers to it count: where a round takes longer than the time-out, no other would
        # ever be won.
        asked = self._role is Role.PRE_CANDIDATE and self._tally is not None
        self._be_impatient(now_ms)
        if self._due is None:
            return
        self.leader = None
        if not (asked and self._tally is not None and self._tally.config == self.configs.latest):
            self._first_ms = now_ms
            self._first_token = self._token = int(self._random_source() * (1 << 53))
            self._tally = Tally(self.configs.latest)
        else:
            self._token += 1
        self._asked_ms = now_ms
        log = self.log
        for voter in self.configs.latest.voters:
            if voter != self.me:
                question = PreVote(self.me, voter, self.term, log.last, log.last_term, self._token)
                self.outbox.append(question)
        if not self.may_campaign:
            # A removed member sends requests as well, and counts no answers. It may have led, and its
            # followers must still be notified that it does not lead. The same holds for a learner without a
            # leader: a leader that it suspected by mistake does not notice that, may have nothing to send,
            # and answers by sending.
            self._role = Role.FOLLOWER
            return
        self._role = Role.PRE_CANDIDATE
        self._count_pre_vote(self.me, granted=True, now_ms=now_ms)

    def _be_impatient(self, now_ms: int) -> None:
        self._yields = False
        self._await_election(now_ms)
        if self._due is not None:
            self._patience = min(self._patience + 1, PATIENCE_MAX)

    def _count_pre_vote(self, sender: int, *, granted: bool, now_ms: int) -> None:
        assert self._tally is not None
        self._tally.count(sender, granted=granted)
        if self._tally.won:
            self._stand(now_ms)

    def _stand(self, now_ms: int) -> None:
        # The term grows only now. Otherwise a member that is elected by others, sends entries, crashes and
        # loses its term could be elected again in the same term by the same voters, with other entries.
        self.term += 1
        self.vote = self.me
        self._hard_due = True
        self._role = Role.CANDIDATE
        self.leader = None
        self._owed = None
        self._tally = Tally(self.configs.latest)
        self._await_election(now_ms)
        self._first_ms = now_ms
        self._late.append(VoteAnswer(self.me, self.me, self.term, True))
        self._send_votes()

    def _ask_for_votes(self, now_ms: int) -> None:
        self._be_impatient(now_ms)
        if self._due is not None:
            self._send_votes()

    def _send_votes(self) -> None:
        log = self.log
        for voter in self.configs.latest.voters:
            if voter != self.me:
                self._late.append(Vote(self.me, voter, self.term, log.last, log.last_term))

    def _on_pre_vote(self, question: PreVote, now_ms: int) -> None:
        if self.leader == question.sender and question.term >= self.term:
            self._lose_leader(now_ms)  # the sender has just stated that it does not lead
        granted = (
            self.leader is None
            and question.term >= self.term
            and self.log.up_to_date(question.last_index, question.last_term)
        )
        answer = PreVoteAnswer(self.me, question.sender, self.term, question.token, granted)
        self.outbox.append(answer)
        if granted and not self.stands:
            self._await_election(now_ms)  # time for the candidate that would get its vote
        if self._leading is not None:
            self._leading.on_lost(question.sender)

    def _on_pre_vote_answer(self, answer: PreVoteAnswer, now_ms: int) -> None:
        if answer.term > self.term:
            self._follow(answer.term, None, now_ms)
        elif self._role is Role.PRE_CANDIDATE and self._first_token <= answer.token <= self._token:
            if answer.token == self._token:
                self._note_round(now_ms - self._asked_ms)
            elif answer.token == self._first_token:
                self._note_round(now_ms - self._first_ms)
            self._count_pre_vote(answer.sender, granted=answer.granted, now_ms=now_ms)

    def _note_round(self, took_ms: int) -> None:
        self._took_ms = max(self._took_ms, min(took_ms, TOOK_MS_MAX))

    def _on_vote(self, request: Vote, now_ms: int) -> None:
        granted = self.vote in (None, request.sender) and self.log.up_to_date(
            request.last_index, request.last_term
        )
        answer = VoteAnswer(self.me, request.sender, self.term, granted)
        if not granted:
            self.outbox.append(answer)
            return
        if self.vote is None:
            self.vote = request.sender
            self._hard_due = True
        if self.leader is None:
            self._role = Role.FOLLOWER if self._role is Role.PRE_CANDIDATE else self._role
            self._await_election(now_ms)  # time for the candidate that got its vote
        self._late.append(answer)

    def _on_vote_answer(self, answer: VoteAnswer, now_ms: int) -> None:
        if self._role is not Role.CANDIDATE:
            return
        assert self._tally is not None
        self._note_round(now_ms - self._first_ms)
        self._tally.count(answer.sender, granted=answer.granted)
        if self._tally.won:
            self._lead(now_ms)
        elif self._tally.lost:
            self._role = Role.FOLLOWER

    def _lead(self, now_ms: int) -> None:
        self._role = Role.LEADER
        self.leader = self.me
        self._tally = None
        self._due = None
        self._patience = self._took_ms = 0
        self._leading = Leadership(self, now_ms)

    def _on_timeout_now(self, now_ms: int) -> None:
        if self.may_campaign and self._leading is None and not self.backward:
            self._stand(now_ms)

    def _on_append(self, append: Append, now_ms: int) -> None:
        self._hear_leader(append.sender, now_ms)
        log = self.log
        if append.prev_index < self.commit:
            self._take_behind_commit(append, now_ms)
        elif log.term(append.prev_index) == append.prev_term:
            self._take(append, now_ms)
        else:
            match = max(log.agreement(append.prev_index, append.prev_term), self.commit)
            self.outbox.append(
                AppendAnswer(
                    self.me, append.sender, self.term, match, self.commit,
                    append.prev_index, log.term(match) or 0,
                )
            )  # fmt: skip

    def _take_behind_commit(self, append: Append, now_ms: int) -> None:
        commit = self.commit
        runs = tuple(run.since(commit + 1) for run in append.runs if run.last > commit)
        if runs:
            self._take(replace(append, prev_index=commit, runs=runs), now_ms)
        else:
            self._owe(append.sender, commit)

    def _take(self, append: Append, now_ms: int) -> None:
        log = self.log
        before = self.configs.index
        first = log.conflict(append.runs)
        if first is not None:
            if first <= log.last:
                self.truncate(first)
            for run in append.runs:
                if run.last >= first:
                    self.append(run.since(first))
        match = append.runs[-1].last if append.runs else append.prev_index
        self.commit = max(self.commit, min(append.commit, match))
        self._owe(append.sender, match)
        if self.configs.index != before and self.leader is None:
            self._await_election(now_ms)  # it may have become a voter, or have been one

    def _on_snapshot(self, message: InstallSnapshot, now_ms: int) -> None:
        self._hear_leader(message.sender, now_ms)
        snapshot = message.snapshot
        point = snapshot.point
        if point.index > self.commit:
            self.commit = point.index
            # With the same entry at that index the log is right, and may continue after it.
            if self.log.term(point.index) != point.term:
                self.log.restore(point, self._told_commit)
                self.configs.restore(point.index, point.config)
                self._snapshot = snapshot
        self._owe(message.sender, self.commit)

    def _owe(self, leader: int, match: int) -> None:
        self._owed = (leader, match if self._owed is None else max(match, self._owed[1]))

    def ready(self, now_ms: int) -> Ready | None:
        """Return the output since the last call, if there is any; once after all inputs of a step."""
        log, leading = self.log, self._leading
        needing: tuple[int, ...] = ()
        if leading is not None and (leading.peers or leading.retry_due or leading.commit_due):
            needing = leading.replicate(now_ms)
        hard = self.hard if self._hard_due else None
        snapshot = self._snapshot
        runs = log.hand_out()
        ticket = None
        if hard is not None or snapshot is not None or runs:
            self._hard_due = False
            self._snapshot = None
            ticket = log.issue()
        if self._owed is not None:
            leader, match = self._owed
            self._owed = None
            self._late.append(AppendAnswer(self.me, leader, self.term, match, self.commit))
        if self._late:
            self._keep_back()
        commit = min(self.commit, log.stable)
        if commit > self._told_commit:
            self._told_commit = commit
        else:
            commit = 0
        status = self._new_status() if leading is None or not leading.told else None
        messages = self.outbox
        if not (messages or ticket or commit or needing or status):
            return None
        self.outbox = []
        return Ready(ticket, hard, snapshot, runs, messages, commit or None, needing, status)

    def _new_status(self) -> Status | None:
        told, leading = self._told_status, self._leading
        if (
            told is not None
            and told.role is self._role
            and told.term == self.term
            and told.leader == self.leader
            and told.open == (leading is not None and leading.open)
        ):
            return None
        status = self._told_status = self.status
        if leading is not None:
            leading.told = status.open
        return status

    def _keep_back(self) -> None:
        log = self.log
        late, self._late = self._late, []
        if log.ticket <= log.persisted:
            self.outbox.extend(late)
            return
        if self._after is None:
            self._after = deque()
        self._after.extend((log.ticket, message) for message in late)


@dataclass(slots=True, eq=False)
class Tally:
    """The answers of one election, or of one request for pre-votes."""

    config: Configuration
    _granted: set[int] = field(default_factory=set)
    _denied: set[int] = field(default_factory=set)

    def count(self, member: int, *, granted: bool) -> None:
        """Count an answer, which replaces an earlier one; that of a member that is not a voter is ignored."""
        if member in self.config.voters:
            now, before = (self._granted, self._denied) if granted else (self._denied, self._granted)
            now.add(member)
            before.discard(member)

    @property
    def won(self) -> bool:
        return len(self._granted) >= self.config.majority

    @property
    def refused(self) -> bool:
        return bool(self._denied)

    @property
    def lost(self) -> bool:
        return len(self.config.voters) - len(self._denied) < self.config.majority
