"""The state of a member in every role, and the leader's part of it: the log, the leader, its followers.

`Leadership` is created by a won election and dropped with the leadership, so a follower has none. Appends are
made once a step (`replicate`).
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.raft.messages import (
    CONFIG,
    Append,
    AppendAnswer,
    Change,
    ChangeRefused,
    Configuration,
    Full,
    Hard,
    Kind,
    LogStore,
    Message,
    NotReady,
    Point,
    Promote,
    Run,
    Stored,
    TimeoutNow,
    changed,
    run_of,
)

_FIRST: Final = itemgetter(0)


class MemberState:
    """The common state of leader and followers (the paper, figure 2)."""

    __slots__ = (
        "commit", "commit_wait_ms", "configs", "log", "me", "outbox", "suspected", "term", "vote",
    )  # fmt: skip

    def __init__(self, me: int, stored: Stored, store: LogStore) -> None:
        self.me = me
        self.term = stored.hard.term
        self.vote = stored.hard.vote
        # The commit index may be ahead of the entries: nothing orders the two within one write.
        self.commit = max(min(stored.hard.commit, stored.last), stored.point.index)
        self.log = LogView(stored, store)
        self.configs = ConfigLog(stored.point.index, stored.point.config, stored.configs)
        self.suspected: frozenset[int] = frozenset()
        self.outbox: list[Message] = []
        self.commit_wait_ms = 0

    @property
    def hard(self) -> Hard:
        return Hard(self.term, self.vote, self.commit)

    @property
    def config(self) -> Configuration:
        return self.configs.latest

    @property
    def last(self) -> int:
        return self.log.last

    @property
    def votes(self) -> bool:
        return self.me in self.configs.latest.voters

    @property
    def may_campaign(self) -> bool:
        """Whether it may stand for election. A member with a removal that is not known to be committed may:
        the others may not be able to win without it (the dissertation, section 4.2.2); its own vote does not
        count then.
        """
        return self.votes or self.me in self.configs.at(self.commit).voters

    @property
    def reaches_majority(self) -> bool:
        config = self.configs.latest
        return sum(voter not in self.suspected for voter in config.voters) >= config.majority

    def append(self, run: Run) -> None:
        self.log.append(run)
        if run.kind is Kind.CONFIG:
            for index, payload in enumerate(run.payloads, run.first):
                self.configs.append(index, CONFIG.decode(payload))

    def truncate(self, first: int) -> None:
        assert first > self.commit, (first, self.commit)
        self.log.truncate(first)
        self.configs.truncate(first)


class ConfigLog:
    """The configurations in the log, oldest first, back to the one in force at the last snapshot. A
    configuration is in force as soon as it is in the log, and a truncation removes it.
    """

    __slots__ = ("_entries",)

    def __init__(
        self, index: int, config: Configuration, behind: Sequence[tuple[int, Configuration]]
    ) -> None:
        self._entries = [(index, config), *behind]

    @property
    def latest(self) -> Configuration:
        return self._entries[-1][1]

    @property
    def index(self) -> int:
        return self._entries[-1][0]

    def at(self, index: int) -> Configuration:
        """Return the configuration in force when this was the last entry; not before the last `compact`."""
        return next(config for first, config in reversed(self._entries) if first <= index)

    def append(self, index: int, config: Configuration) -> None:
        self._entries.append((index, config))

    def truncate(self, first: int) -> None:
        while self._entries[-1][0] >= first:
            self._entries.pop()

    def compact(self, index: int) -> None:
        config = self.at(index)
        self._entries = [(index, config), *(each for each in self._entries if each[0] > index)]

    def restore(self, index: int, config: Configuration) -> None:
        self._entries = [(index, config)]


class LogView:
    """The log of one member as the core uses it: terms of all entries, as stretches, and the payloads of
    those that are not durable yet.

    A durable *ticket* means that the whole log at its creation is durable. A truncation makes that untrue for
    the removed entries, even if the same index and term come again later, so it lowers the index of older
    tickets. `base`: the index of the last entry that a snapshot covers; its term is known, and nothing before
    it. `ticket`: the last one that was returned.
    """

    __slots__ = (
        "_handed",
        "_store",
        "_terms",
        "_tickets",
        "_unstable",
        "base",
        "last",
        "persisted",
        "stable",
        "ticket",
    )

    def __init__(self, stored: Stored, store: LogStore) -> None:
        point = stored.point
        self.base = point.index
        self.last = self.stable = self._handed = stored.last
        self.ticket = self.persisted = 0
        self._store = store
        self._terms = [(point.index, point.term)]
        for first, term in stored.terms:
            if term != self._terms[-1][1]:
                self._terms.append((first, term))
        self._unstable: list[Run] = []
        self._tickets: deque[tuple[int, int]] | None = None

    @property
    def last_term(self) -> int:
        return self._terms[-1][1]

    def term(self, index: int) -> int | None:
        """Return the term of an entry; None if it does not exist, or only in a snapshot."""
        if not self.base <= index <= self.last:
            return None
        terms = self._terms
        if index >= terms[-1][0]:
            return terms[-1][1]
        return terms[bisect_right(terms, index, key=_FIRST) - 1][1]

    def up_to_date(self, last_index: int, last_term: int) -> bool:
        """Return whether such a log has all that this one may have to keep (the paper, section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last)

    def agreement(self, index: int, term: int) -> int:
        """Return the largest index up to `index` at which no entry has a term above `term`. Where two logs
        differ at an index, they cannot agree after the result for the other's term. It skips a term at a time
        (the paper, end of section 5.3).
        """
        index = min(index, self.last)
        for first, of in reversed(self._terms):
            if first <= index:
                if of <= term:
                    return index
                index = first - 1
        return min(index, self.base)

    def conflict(self, runs: Iterable[Run]) -> int | None:
        """Return the first index of these consecutive entries at which the log has another entry, or none;
        None if the log has them all. The entry before them is in this log, as in theirs.
        """
        for run in runs:
            if self.term(run.first) != run.term:
                return run.first
            end = self._end_of_term(run.first)
            if end < run.last:
                return end + 1
        return None

    def append(self, run: Run) -> None:
        assert run.first == self.last + 1, (run.first, self.last)
        if run.term != self._terms[-1][1]:
            self._terms.append((run.first, run.term))
        self._unstable.append(run)
        self.last += len(run.payloads)

    def truncate(self, first: int) -> None:
        assert first > self.base, (first, self.base)
        last = first - 1
        while self._terms[-1][0] > last:
            self._terms.pop()
        self._unstable = [run.until(last) for run in self._unstable if run.first <= last]
        self.last = last
        self._handed = min(self._handed, last)
        self._lower(last)

    def entries(self, first: int, size: int) -> tuple[Run, ...]:
        """Return entries from `first` on, about `size` bytes of payloads, and at least one if there is one.
        `first`: after `base`, and at most one after `last`.
        """
        if first <= self.stable:
            return _some(self._store.read(first, self.stable, size), first, size)
        return _some(self._unstable, first, size)

    def hand_out(self) -> tuple[Run, ...]:
        if self._handed == self.last:
            return ()
        first = self._handed + 1
        self._handed = self.last
        newest = self._unstable[-1]
        if newest.first == first:
            return (newest,)
        return tuple(run.since(first) for run in self._unstable if run.last >= first)

    def issue(self) -> int:
        self.ticket += 1
        if self._tickets is None:
            self._tickets = deque()
        self._tickets.append((self.ticket, self._handed))
        return self.ticket

    def persist(self, ticket: int) -> None:
        assert ticket <= self.ticket, f"ticket {ticket} was not handed out"
        self.persisted = max(self.persisted, ticket)
        tickets = self._tickets
        while tickets and tickets[0][0] <= ticket:
            self.stable = max(self.stable, tickets.popleft()[1])
        if not tickets:
            self._tickets = None
        unstable = self._unstable
        if self.stable == self.last:
            unstable.clear()
        elif unstable and unstable[0].first <= self.stable:
            self._unstable = [run.since(self.stable + 1) for run in unstable if run.last > self.stable]

    def compact(self, index: int) -> None:
        assert self.base <= index <= self.stable, (self.base, index, self.stable)
        term = self.term(index)
        assert term is not None
        self._terms = [(index, term), *(each for each in self._terms if each[0] > index)]
        self.base = index

    def restore(self, point: Point, stable: int) -> None:
        """Replace the whole log by a snapshot. `stable`: the durable index until the snapshot is durable: not
        above the commit index.
        """
        self._terms = [(point.index, point.term)]
        self._unstable = []
        self.base = self.last = self._handed = point.index
        self._lower(stable)

    def _lower(self, last: int) -> None:
        self.stable = min(self.stable, last)
        if self._tickets:
            self._tickets = deque((ticket, min(until, last)) for ticket, until in self._tickets)

    def _end_of_term(self, index: int) -> int:
        behind = bisect_right(self._terms, index, key=_FIRST)
        return self._terms[behind][0] - 1 if behind < len(self._terms) else self.last


def _some(runs: Sequence[Run], first: int, size: int) -> tuple[Run, ...]:
    # Return the entries of `runs` from `first` on that fit `size` bytes, and at least one.
    taken: list[Run] = []
    for run in runs:
        if run.last < first:
            continue
        wanted = run.since(first)
        part = wanted.within(size)
        if taken and part.size > size:
            break
        taken.append(part)
        size -= part.size
        if part is not wanted or size <= 0:
            break
    return tuple(taken)


RETRY_MS: Final = 300
"""The time without an answer after which sent messages count as lost."""
RETRY_DOUBLED_MAX: Final = 2
"""The number of times that it is doubled: a slower node must get less to do, not more."""
SUSPICION_MS: Final = 1000
"""How long a leader continues without a majority. Its node has waited as long before it suspected."""
TRANSFER_MS: Final = 2000
"""How long a transfer may take; then the leader continues to lead."""
UNCOMMITTED_BYTES_MAX: Final = 64 << 20
"""The payloads proposed and not committed: a leader without a majority must not fill its memory."""


@dataclass(slots=True)
class Transfer:
    to: int
    due: int
    told: bool = False


class Leadership:
    def __init__(self, member: MemberState, now_ms: int) -> None:
        self._member = member
        log = member.log
        self.first = log.last + 1
        self.peers = {
            peer: Progress(log.last + 1, alive=peer not in member.suspected)
            for peer in member.configs.latest.members
            if peer != member.me
        }
        self.retry_due: int | None = None
        self._retries = 0
        """The number of retries in a row."""
        self.commit_due: int | None = None
        """When to check whether the commit index must be sent without an entry."""
        self._untold_since: int | None = None
        """Since when a follower that gets entries does not have the commit index."""
        self._told_last = 0
        """Index of the last entry when `commit_due` was set."""
        self.quorum_due: int | None = None
        self.transfer: Transfer | None = None
        self.told = False
        """Whether the caller has the status that reports it as open, which does not change any more."""
        self._passing = False
        self._proposed: deque[tuple[int, int]] | None = None
        self._proposed_bytes = 0
        # An entry of its own term: older entries are not committed by counting (the paper, section 5.4.2).
        member.append(run_of(self.first, member.term, Kind.EMPTY, (b"",)))
        self.check_quorum(now_ms)

    @property
    def open(self) -> bool:
        return self._member.commit >= self.first

    @property
    def leaving(self) -> bool:
        """Whether it has been removed, and that is committed: it leads only until another member does."""
        configs = self._member.configs
        return bool(self.peers) and not self._member.votes and configs.index <= self._member.commit

    @property
    def deadline(self) -> int | None:
        transfer = self.transfer
        retry_due, commit_due, quorum_due = self.retry_due, self.commit_due, self.quorum_due
        if retry_due is None and commit_due is None and quorum_due is None and transfer is None:
            return None
        dues = (retry_due, commit_due, quorum_due, None if transfer is None else transfer.due)
        return min(due for due in dues if due is not None)

    def has_room(self, size: int) -> bool:
        takes = self._member.commit >= self.first and self.transfer is None and not self.leaving
        return takes and (not self._proposed_bytes or self._proposed_bytes + size <= UNCOMMITTED_BYTES_MAX)

    def propose(self, payloads: Sequence[bytes]) -> int:
        self._must_take()
        member = self._member
        run = run_of(member.log.last + 1, member.term, Kind.COMMAND, tuple(payloads))
        if self._proposed_bytes and self._proposed_bytes + run.size > UNCOMMITTED_BYTES_MAX:
            raise Full(f"{self._proposed_bytes} bytes are proposed and not committed")
        member.append(run)
        if self._proposed is None:
            self._proposed = deque()
        self._proposed.append((member.log.last, run.size))
        self._proposed_bytes += run.size
        return run.first

    def change(self, change: Change, now_ms: int) -> int:
        self._must_take()
        member = self._member
        if member.configs.index > member.commit:
            raise ChangeRefused("the last change is not committed; wait for it")
        config = changed(member.configs.latest, change)
        if isinstance(change, Promote) and self.peers[change.member].match < member.commit:
            raise ChangeRefused(f"{change.member} has not caught up; wait for it")
        run = run_of(member.log.last + 1, member.term, Kind.CONFIG, (CONFIG.encode(config),))
        member.append(run)
        wanted = set(config.members) - {member.me}
        for peer in self.peers.keys() - wanted:
            del self.peers[peer]
        for peer in sorted(wanted - self.peers.keys()):
            self.peers[peer] = Progress(run.first, alive=peer not in member.suspected)
        self.check_quorum(now_ms)
        return run.first

    def transfer_to(self, to: int, now_ms: int) -> None:
        """Accept no more proposals, and let `to` be elected when it has everything."""
        self._must_take()
        member = self._member
        if to == member.me:
            raise ChangeRefused(f"{to} is the leader")
        if to not in member.configs.latest.voters:
            raise ChangeRefused(f"{to} is no voter")
        if to in member.suspected:
            raise ChangeRefused(f"{to} cannot be reached")
        self.transfer = Transfer(to, now_ms + TRANSFER_MS)

    def _must_take(self) -> None:
        if self._member.commit < self.first:
            raise NotReady("nothing of this leader's term is committed yet")
        if self.transfer is not None or self.leaving:
            raise NotReady("the leadership is being handed over")

    def on_append_answer(self, answer: AppendAnswer) -> None:
        peer = self.peers.get(answer.sender)
        if peer is None:
            return
        member = self._member
        peer.active = True
        peer.commit = answer.commit
        if answer.rejected is not None:
            peer.rejected(answer.rejected, member.log.agreement(answer.match, answer.match_term))
            return
        # An index that is already committed adds to no majority.
        advanced = peer.accepted(answer.match) and answer.match > member.commit
        if peer.flow is Flow.PROBE or (peer.flow is Flow.SNAPSHOT and peer.match >= member.log.base):
            peer.replicate()
        if advanced:
            self.advance()

    def on_lost(self, sender: int) -> None:
        """Send to a follower that has no leader."""
        peer = self.peers.get(sender)
        if peer is not None and peer.alive and peer.flow is not Flow.SNAPSHOT:
            peer.probe()

    def snapshot_done(self, to: int, index: int | None) -> None:
        peer = self.peers.get(to)
        if peer is not None and peer.flow is Flow.SNAPSHOT:
            peer.probe(bare=True)
            if index is None:
                peer.waiting = True  # until the timer, so that an immediate failure is not repeated at once
            else:
                peer.next = max(peer.next, index + 1)

    def suspect(self, peer: int, now_ms: int) -> None:
        progress = self.peers.get(peer)
        if progress is not None:
            progress.alive = False
            progress.probe()
        self.check_quorum(now_ms)

    def heard(self, peer: int, now_ms: int) -> None:
        progress = self.peers.get(peer)
        if progress is not None:
            progress.alive = True
            progress.probe()
            progress.commit = progress.commit_sent = -1
        self.check_quorum(now_ms)

    def check_quorum(self, now_ms: int) -> None:
        """End the leadership some time after the loss of the majority (the dissertation, section 6.2)."""
        if self._member.reaches_majority:
            self.quorum_due = None
        elif self.quorum_due is None:
            self.quorum_due = now_ms + SUSPICION_MS

    def tick(self, now_ms: int) -> bool:
        """Handle what is due. False: the leadership ends, for lack of a majority."""
        if self.quorum_due is not None and self.quorum_due <= now_ms:
            return False
        if self.transfer is not None and self.transfer.due <= now_ms:
            self.transfer = None
        if self.retry_due is not None and self.retry_due <= now_ms:
            self.retry_due = None
            self._retry()
        return True

    def advance(self) -> None:
        """Commit the entries that a majority of the voters has durably (the paper, section 5.4.2)."""
        member = self._member
        alone = not self.peers and member.configs.latest.voters == (member.me,)
        index = member.log.stable if alone else self._durable()
        # Entries of its own term begin at its first one.
        if index <= member.commit or index < self.first:
            return
        member.commit = index
        proposed = self._proposed
        while proposed and proposed[0][0] <= index:
            self._proposed_bytes -= proposed.popleft()[1]
        if not proposed:
            self._proposed = None
        self._passing = self.leaving

    def _durable(self) -> int:
        member = self._member
        log = member.log
        voters = member.configs.latest.voters
        matches = sorted([log.stable if voter == member.me else self.peers[voter].match for voter in voters])
        return matches[(len(matches) - 1) // 2]

    def replicate(self, now_ms: int) -> tuple[int, ...]:
        member = self._member
        needing: list[int] = []
        settled = not self.leaving
        wait_ms = member.commit_wait_ms
        since = self._untold_since
        bare = not wait_ms or (since is not None and since + wait_ms <= now_ms)
        untold = False
        for to, peer in self.peers.items():
            if not peer.alive:
                continue
            if peer.flow is Flow.PROBE:
                self._probe(to, peer, needing)
            elif peer.flow is Flow.REPLICATE:
                self._stream(to, peer, needing, bare=bare)
                untold = untold or peer.commit_sent < member.commit
            if peer.match < member.log.last or peer.commit < member.commit:
                settled = False
        self._tell_target()
        if self._passing:
            self._pass_on()
        if wait_ms:
            self._await_entry(now_ms, untold=untold, tried=bare)
        if settled:
            self.retry_due, self._retries = None, 0
        elif self.retry_due is None:
            self.retry_due = now_ms + (RETRY_MS << min(self._retries, RETRY_DOUBLED_MAX))
        return tuple(needing)

    def _await_entry(self, now_ms: int, *, untold: bool, tried: bool) -> None:
        member = self._member
        if not untold:
            self._untold_since = None
        elif tried or self._untold_since is None:
            self._untold_since = now_ms
        due, last = self.commit_due, member.log.last
        if due is not None and due > now_ms:
            return
        if self._untold_since is not None:
            self.commit_due = self._untold_since + member.commit_wait_ms
        elif due is not None and not tried and last != self._told_last:
            self.commit_due = now_ms + member.commit_wait_ms
        else:
            self.commit_due = None
        self._told_last = last

    def _probe(self, to: int, peer: Progress, needing: list[int]) -> None:
        if peer.waiting:
            return
        append = self._append(to, peer, 0 if peer.bare else MESSAGE_BYTES, needing)
        if append is not None:
            peer.waiting = True
            peer.bare = False
            peer.commit_sent = append.commit
            self._member.outbox.append(append)

    def _stream(self, to: int, peer: Progress, needing: list[int], *, bare: bool) -> None:
        member = self._member
        while peer.next <= member.log.last and peer.may_send:
            append = self._append(to, peer, MESSAGE_BYTES, needing)
            if append is None:
                return
            peer.sent(append.runs[-1].last, sum(run.size for run in append.runs))
            peer.commit_sent = append.commit
            member.outbox.append(append)
        if bare and peer.commit_sent < member.commit and peer.may_send:
            append = self._append(to, peer, 0, needing)
            if append is not None:
                peer.commit_sent = append.commit
                member.outbox.append(append)

    def _append(self, to: int, peer: Progress, size: int, needing: list[int]) -> Append | None:
        member = self._member
        log = member.log
        prev = peer.next - 1
        term = log.term(prev)
        if term is None:
            peer.needs_snapshot()
            needing.append(to)
            return None
        runs = log.entries(peer.next, size) if size and prev < log.last else ()
        return Append(member.me, to, member.term, prev, term, member.commit, runs)

    def _tell_target(self) -> None:
        transfer = self.transfer
        if transfer is None or transfer.told:
            return
        peer = self.peers.get(transfer.to)
        if peer is not None and peer.match == self._member.log.last:
            transfer.told = True
            self._member.outbox.append(TimeoutNow(self._member.me, transfer.to, self._member.term))

    def _retry(self) -> None:
        member = self._member
        silent = False
        for peer in self.peers.values():
            if peer.alive and (peer.match < member.log.last or peer.commit < member.commit):
                if peer.active:
                    peer.active = False
                else:
                    peer.retry()
                    silent = True
        self._retries = self._retries + 1 if silent else 0
        self._passing = self.leaving

    def _pass_on(self) -> None:
        # A removed leader makes a voter with the whole log stand for election, until one leads.
        self._passing = False
        member = self._member
        for voter in member.configs.latest.voters:
            peer = self.peers[voter]
            if peer.alive and peer.match == member.log.last:
                member.outbox.append(TimeoutNow(member.me, voter, member.term))
                return


WINDOW_MESSAGES: Final = 256
WINDOW_BYTES: Final = 8 << 20
"""The unanswered bytes of payloads to one follower, exceeded by at most one message."""
MESSAGE_BYTES: Final = 1 << 20
"""The bytes of payloads in one append, unless one entry is larger."""


class Flow(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, eq=False)
class Progress:
    """One follower, and its send window, in one of three states as in etcd's raft.

    *probe*, when the point of agreement is unknown: one message, then wait. *replicate*: messages are sent
    without waiting, up to a window. *snapshot*: the needed entries are not in the log any more, so nothing is
    sent until the caller has sent a state. `commit`: its commit index, as last reported; -1: not reported.
    `bare`: the next probe has no entries, because the last one had no answer.
    """

    next: int
    alive: bool
    flow: Flow = Flow.PROBE
    match: int = 0
    commit: int = -1
    commit_sent: int = -1
    active: bool = True
    waiting: bool = False
    bare: bool = False
    _under_way: deque[tuple[int, int]] | None = None
    _under_way_bytes: int = 0

    @property
    def may_send(self) -> bool:
        return self._under_way is None or (
            len(self._under_way) < WINDOW_MESSAGES and self._under_way_bytes < WINDOW_BYTES
        )

    def sent(self, last: int, size: int) -> None:
        self.next = last + 1
        if self._under_way is None:
            self._under_way = deque()
        self._under_way.append((last, size))
        self._under_way_bytes += size

    def probe(self, *, bare: bool = False) -> None:
        """Find again where the logs agree: from where they are known to, or else from the last position."""
        self._empty_window()
        self.flow = Flow.PROBE
        if self.match:
            self.next = self.match + 1
        self.waiting = False
        self.bare = bare

    def needs_snapshot(self) -> None:
        self._empty_window()
        self.flow = Flow.SNAPSHOT

    def accepted(self, match: int) -> bool:
        """Note that its log agrees up to here. Returns whether that is new."""
        advanced = match > self.match
        if advanced:
            self.match = match
        self.next = max(self.next, self.match + 1)
        under_way = self._under_way
        if under_way:
            while under_way and under_way[0][0] <= match:
                self._under_way_bytes -= under_way.popleft()[1]
            if not under_way:
                self._under_way = None
        return advanced

    def replicate(self) -> None:
        self._empty_window()
        self.flow = Flow.REPLICATE
        self.next = self.match + 1
        self.waiting = False

    def rejected(self, index: int, match: int) -> None:
        """Note that it refused an append after `index`; the logs may agree at the smaller index `match`."""
        if self.flow is Flow.REPLICATE and index > self.match:
            self.probe()
        elif self.flow is Flow.PROBE and index == self.next - 1:
            self.next = max(min(index, match + 1), self.match + 1)
            self.waiting = False

    def retry(self) -> None:
        """Send again after a time without answers: messages may be lost."""
        if self.flow is Flow.REPLICATE:
            self.probe(bare=True)
        elif self.flow is Flow.PROBE:
            self.waiting = False
            self.bare = True
        self.commit_sent = -1

    def _empty_window(self) -> None:
        self._under_way = None
        self._under_way_bytes = 0
