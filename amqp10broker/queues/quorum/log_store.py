"""A quorum queue's member of its Raft group, in the journal: entries, term and vote, and snapshots.

The commands of one step are one entry: `propose` encodes them, the group has the entry written (`write`), and
`apply` applies it when it is committed. Entries between these two are the *tail*; another leader's entries
may replace them.

A snapshot of the state is appended when the log since the last one is long enough, and whenever the file with
the last one is cleaned; the tail is appended again after it. So recovery begins with the first state that is
still in the journal, and older records matter for their messages only. In a group of one everything in it is
committed: a start applies it, and appends the loss of the former sessions, before the group begins.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.message.message import Message, decode_batch, encode_batch
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import Configure
from amqp10broker.queues.journal import RecordLog, Spool
from amqp10broker.queues.quorum.bodies import BodyPlace, JournalBodies
from amqp10broker.queues.quorum.commands import (
    APPLIED,
    BEGINS,
    COMMANDS,
    CONFIG,
    EMPTY,
    ENTRIES,
    HARD,
    INSTALLED,
    MEMBER,
    PLACES,
    RELOCATED,
    STAGED,
    STATE,
    STATE_OF,
    TRANSFER,
    NodeGone,
    QuorumCommand,
    RaiseVersion,
    decode_commands,
    encode_commands,
    entry_head,
)
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.quorum.snapshot import version_of
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.raft import messages
from amqp10broker.raft.messages import (
    Configuration,
    Hard,
    Kind,
    Point,
    Ready,
    Run,
    Snapshot,
    Stored,
    new_member,
    run_of,
)
from amqp10broker.storage.record import Record

_INDEX: Final = itemgetter(0)
_OFFSET_BITS: Final = 32
"""A record begins within the first 4 GiB of its file (`storage.journal.FILE_BYTES_MAX`)."""


class EntryIndex:
    """The places of a group's entries in the journal, added in the order of their indexes, without gaps. It
    takes 8 bytes an entry: a queue has hundreds of thousands of entries between two states.
    """

    def __init__(self) -> None:
        self._first = 0
        self._places = array("Q")  # each is file << _OFFSET_BITS | offset
        self._terms: list[tuple[int, int, Kind]] = []

    def add(self, index: int, term: int, kind: Kind, file: int, offset: int) -> None:
        terms = self._terms
        if not terms or terms[-1][1] != term or terms[-1][2] is not kind:
            terms.append((index, term, kind))
        if not self._places:
            self._first = index
        self._places.append(file << _OFFSET_BITS | offset)

    def truncate(self, first: int) -> None:
        del self._places[max(0, first - self._first) :]
        while self._terms and self._terms[-1][0] >= first:
            self._terms.pop()

    def move(self, index: int, file: int, offset: int) -> None:
        self._places[index - self._first] = file << _OFFSET_BITS | offset

    def clear(self) -> None:
        del self._places[:]
        self._terms.clear()

    def forget_until(self, index: int) -> None:
        gone = max(0, index + 1 - self._first)
        del self._places[:gone]
        self._first += gone
        if not self._places:
            self._terms.clear()
        while len(self._terms) > 1 and self._terms[1][0] <= index + 1:
            del self._terms[0]

    def last_in(self, file: int) -> int | None:
        # Entries that were appended again before a loss of power are in later files than the entries after
        # them.
        behind, first, places = file + 1 << _OFFSET_BITS, self._first, self._places
        return next((first + at for at in reversed(range(len(places))) if places[at] < behind), None)

    def kind(self, index: int) -> tuple[int, Kind]:
        _, term, kind = self._terms[bisect_right(self._terms, index, key=_INDEX) - 1]
        return term, kind

    def terms(self, behind: int) -> Iterator[tuple[int, int, Kind]]:
        """Iterate over (first index, term, kind) of each run of one term and kind after an index."""
        for at, (first, term, kind) in enumerate(self._terms):
            following = self._terms[at + 1][0] if at + 1 < len(self._terms) else None
            if following is None or following > behind + 1:
                yield max(first, behind + 1), term, kind

    def places(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        for index in range(first, last + 1):
            yield index, *divmod(self._places[index - self._first], 1 << _OFFSET_BITS)


SNAPSHOT_AFTER_BYTES: Final = 32 * 1024 * 1024
"""The log after which the state is written again; a start applies so much in less than a second."""

SNAPSHOT_GROWTH: Final = 4
"""The state is only written again when the log is so many times as long as the last snapshot."""

STAGED_BYTES: Final = 768 * 1024

FOUNDER: Final = 1 << 32
"""The member of a group of one on a node that is in no cluster (`raft.ids.member_id(1)`)."""

WhenDurable = Callable[[int, Callable[[], None]], None]


@dataclass(slots=True, eq=False)
class LogEntry:
    """One entry of the log. `commands`: as proposed by this member, including those without effect, to be
    answered in order; None: they are in the payload only. `version`: the machine version after the entry.
    """

    index: int
    term: int
    kind: Kind
    payload: bytes
    now_ms: int
    end: int
    places: Sequence[BodyPlace]
    commands: Sequence[QuorumCommand] | None
    file: int
    version: int


_NO_ENTRIES: Final[deque[LogEntry]] = deque()
"""One object for all queues at rest, because an empty deque takes 600 bytes."""


class QuorumStore:
    """One member's part of the journal. `on_compact`: called with the index up to which entries cannot be
    read any more. `compact_max`: an upper bound for it, while entries are applied before the group has
    committed them.
    """

    __slots__ = (
        "_again", "_base", "_before", "_begin_file", "_entries", "_failing", "_gone", "_hard", "_hard_file",
        "_joins", "_log", "_mine", "_name", "_next_index", "_now_ms", "_proposal", "_queue", "_since",
        "_snapshot", "_spool", "_staged", "_staged_state", "_transfer", "_version", "_when_durable",
        "_write_soon", "bodies", "compact_max", "group", "last", "me", "newer_state", "next_index", "now_ms",
        "on_compact", "on_installed", "point", "stored", "tail", "ticket", "version",
    )  # fmt: skip

    def __init__(
        self,
        group: int,
        name: str,
        log: RecordLog,
        spool: Spool | None = None,
        *,
        when_durable: WhenDurable,
        write_soon: Callable[[], None] = lambda: None,
        me: int = FOUNDER,
        members: Sequence[int] = (),
        joins: bool = False,
        node: int = 0,
        incarnation: int = 1,
    ) -> None:
        """Create the store of a new or existing queue. `joins`: the member is added to a group, and gets its
        state from the leader. `incarnation`: that of this start of the node; sessions of earlier ones have
        ended.
        """
        self.group = group
        self.me = me
        self.bodies = JournalBodies(log, spool)
        self.tail = _NO_ENTRIES
        self.stored: Stored | None = None
        self.on_compact: Callable[[int], None] = lambda index: None
        self.compact_max: int | None = None
        self._name = name
        self._log = log
        self._when_durable = when_durable
        self._write_soon = write_soon
        self.newer_state = 0
        """The version of a state that was sent, if this broker does not support it."""
        self._spool = spool
        self._joins = joins
        self._mine = not joins
        """Records that are read belong to this member, not to an earlier one of this node."""
        self._begin_file = 0
        self.on_installed: Callable[[QuorumQueue], None] = lambda queue: None
        self._staged: JournalBodies | None = None
        self._transfer = 0
        self._staged_state = b""
        self._gone = NodeGone(node, incarnation - 1)
        self._queue: QuorumQueue | None = None
        self._hard = Hard(0, None, 0)
        self._hard_file = 0
        # The state after the last entry: the time, the index of the next message, and the machine version by
        # which the next entry is encoded.
        self.now_ms = 0
        self.next_index = 0
        self.version = 1
        # The place in the log up to which entries are applied, and the same values after it.
        first = Point(1, 0, Configuration(tuple(sorted(members)) or (me,)))
        self.point = new_member().point if joins else first
        self._next_index = 0
        self._now_ms = 0
        self._version = 1
        self.last = self.point.index
        self._entries = EntryIndex()
        self._base = self.point
        """Entries after this point can be read."""
        self._proposal: LogEntry | None = None
        self._failing: LogEntry | None = None
        self._before = self._again = 0
        """The last index before the last state that was read, and the last one repeated after it."""
        self._snapshot: tuple[int, int] | None = None
        """The file and length of the last state."""
        self._since = 0
        """The bytes of entries appended since that state."""
        self.ticket = 0

    @property
    def newer(self) -> int:
        """The version of the next entry, if this broker does not support it; else 0."""
        newer = bool(self.tail) and self.tail[0].version > machine_version.NEWEST
        return self.tail[0].version if newer else 0

    @property
    def alone(self) -> bool:
        """Whether this member is certainly the whole group."""
        changing = any(entry.kind is Kind.CONFIG for entry in self.tail)
        return self.point.config.members == (self.me,) and not changing

    def propose(self, commands: Sequence[QuorumCommand], now_ms: int) -> LogEntry:
        """Encode commands, at least one, as the next entry, without changing anything. It has no index and
        term yet. The time of an entry is never before that of the last one.
        """
        now_ms = max(now_ms, self.now_ms)
        version = self.version
        encoded = encode_commands(commands, now_ms, self.next_index, version)
        payload = b"".join((PLACES.encode(encoded.places), *encoded.pieces))
        if type(commands[0]) is RaiseVersion:
            version = max(version, commands[0].version)
        self._proposal = LogEntry(
            0, 0, Kind.COMMAND, payload, now_ms, encoded.end, encoded.places, commands, 0, version
        )
        return self._proposal

    def write(self, ready: Ready, on_durable: Callable[[], None]) -> None:
        if ready.hard is not None:
            # Applied entries are certainly committed; a part of the others written here may be lost.
            self._write_hard(replace(ready.hard, commit=self.point.index))
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        for run in ready.entries:
            if run.first <= self.last:
                self._truncate(run.first)
            for index, payload in enumerate(run.payloads, run.first):
                self._append(self._entry(index, run.term, run.kind, payload))
        self._proposal = None
        self._when_durable(self.ticket, on_durable)

    def _entry(self, index: int, term: int, kind: Kind, payload: bytes) -> LogEntry:
        proposal = self._proposal
        if proposal is not None and proposal.payload is payload:
            proposal.index, proposal.term = index, term
            return proposal
        if kind is not Kind.COMMAND:
            return LogEntry(index, term, kind, payload, self.now_ms, self.next_index, (), (), 0, self.version)
        places, start = PLACES.decode_part(payload)
        now_ms, first, raised = entry_head(payload, start)
        end = places[-1].first + places[-1].messages if places else first
        version = max(raised, self.version)
        return LogEntry(index, term, kind, payload, now_ms, end, places, None, 0, version)

    def _append(self, entry: LogEntry) -> None:
        offset = self._append_record(entry)
        self._entries.add(entry.index, entry.term, entry.kind, entry.file, offset)
        self._add_to_tail(entry)

    def _add_to_tail(self, entry: LogEntry) -> None:
        if self.tail is _NO_ENTRIES:
            self.tail = deque()
        self.tail.append(entry)
        self.last = entry.index
        self.now_ms, self.next_index, self.version = entry.now_ms, entry.end, entry.version

    def _append_record(self, entry: LogEntry) -> int:
        payload = (APPLIED.pack(self.point.index), entry.payload)
        self.ticket, entry.file, offset = self._log.append(
            self.group, ENTRIES + entry.kind, entry.index, payload, term=entry.term
        )
        self._since += len(entry.payload)
        return offset

    def _truncate(self, first: int) -> None:
        # Entries from this index on are those of another leader, and were not committed.
        assert first > self.point.index, "an entry that was applied is replaced"
        while self.tail and self.tail[-1].index >= first:
            self.tail.pop()
        self._entries.truncate(first)
        self.last = first - 1
        if self.tail:
            entry = self.tail[-1]
            self.now_ms, self.next_index, self.version = entry.now_ms, entry.end, entry.version
        else:
            self.now_ms, self.next_index, self.version = self._now_ms, self._next_index, self._version

    def _write_beginning(self, again: int) -> None:
        payload = [MEMBER.pack(self.me)]
        self.ticket, self._begin_file, _ = self._log.append(self.group, BEGINS, again, payload)

    def _write_hard(self, hard: Hard) -> None:
        self._hard = hard
        self.ticket, self._hard_file, _ = self._log.append(self.group, HARD, 0, [messages.HARD.encode(hard)])

    def snapshot(self) -> tuple[Point, bytes, Iterator[bytes], Callable[[], None]]:
        """Return the place, state, and message records of the applied part. The last item is a function that
        must be called once when the records have been read.
        """
        queue = self._queue
        assert queue is not None
        indexes = sorted(queue.live_indexes())
        records = (_record_of(*run) for run in self.bodies.read_all(indexes, STAGED_BYTES))
        return self.point, encode_snapshot(queue), records, self.bodies.read_done

    def stage(self, transfer: int, messages: bytes) -> None:
        """Store a record of messages. If its transfer is a new one, drop the records of the earlier one."""
        self._find(self._append_staged(transfer, messages), messages, 0, self._stage_of(transfer))
        self._write_soon()

    def staged(self, transfer: int, state: bytes) -> bytes:
        """Complete a transfer; return the data of `Ready.snapshot` for it. Raises `NewerMachine`."""
        version = version_of(state)
        try:
            machine_version.check(version)
        except machine_version.NewerMachine:
            self.newer_state = version
            raise
        self._stage_of(transfer)
        self._staged_state = state
        return TRANSFER.pack(transfer)

    def _append_staged(self, transfer: int, messages: bytes) -> int:
        self.ticket, file, _ = self._log.append(self.group, STAGED, transfer, [messages])
        return file

    def _stage_of(self, transfer: int) -> JournalBodies:
        if self._staged is None or self._transfer != transfer:
            self.unstage()
            self._staged = JournalBodies(self._log, self._spool)
            self._transfer = transfer
        return self._staged

    def unstage(self) -> None:
        """Drop staged data, unless a `Ready` refers to it."""
        if self._staged is not None:
            self._staged.clear()
        self._staged, self._staged_state, self._transfer = None, b"", 0

    def _install(self, snapshot: Snapshot) -> None:
        # The state takes effect before it is durable: no effect depends on it before, and a start without it
        # has the old state.
        state, staged = self._staged_state, self._staged
        assert staged is not None, "what was staged has been dropped"
        assert TRANSFER.pack(self._transfer) == snapshot.data, "what is staged is of another transfer"
        pieces = [snapshot.data, *STATE_OF.pieces((snapshot.point, state))]
        self.ticket, file, _ = self._log.append(
            self.group, INSTALLED, snapshot.point.index, pieces, term=snapshot.point.term
        )
        queue = self._take_state(snapshot.point, state, staged)
        self._remember_snapshot(file, sum(map(len, pieces)))
        missing = staged.keep_only(queue.live_indexes())
        assert not missing, f"the leader has not sent message {missing[0]}, and {len(missing) - 1} others"
        self.on_installed(queue)

    def _take_state(self, point: Point, state: bytes, staged: JournalBodies) -> QuorumQueue:
        self.bodies.clear()
        self.bodies, self._staged = staged, None
        self.unstage()
        return self._begin_with(point, state)

    def _begin_with(self, point: Point, state: bytes) -> QuorumQueue:
        queue = self._queue = decode_snapshot(self._name, state, self.bodies)
        queue.follow()
        self.point = self._base = point
        self.last = point.index
        self.next_index = self._next_index = queue.messages.next_index
        self.now_ms, self.version = self._now_ms, self._version = queue.messages.now_ms, queue.version
        self.tail.clear()
        self._entries.clear()
        return queue

    def read(self, first: int, last: int, size: int, /) -> Sequence[Run]:
        runs: list[Run] = []
        payloads: list[bytes] = []
        start, of = first, self._entries.kind(first)
        for index, file, offset in self._entries.places(first, last):
            kind = self._entries.kind(index)
            if kind != of:
                runs.append(run_of(start, *of, tuple(payloads)))
                start, of, payloads = index, kind, []
            payloads.append(self._log.read(file, offset)[APPLIED.size :])
            size -= len(payloads[-1])
            if size <= 0:
                break
        runs.append(run_of(start, *of, tuple(payloads)))
        return runs

    def apply(self, committed: int) -> LogEntry | None:
        """Let the queue apply the next entry of the log, and return the entry. Returns None if none is
        committed, or its machine version is newer: applying it might lead to another state than on other
        members.
        """
        if not self.tail or self.tail[0].index > committed or self.newer:
            return None
        queue = self._queue
        assert queue is not None, "recover first"
        entry = self._failing = self.tail[0]
        if entry.kind is Kind.COMMAND:
            commands = entry.commands
            if commands is None:
                commands = decode_commands(entry.payload[PLACES.decode_part(entry.payload)[1] :]).commands
            queue.node_links.entry = entry.index
            for command in commands:
                queue.apply(command, entry.now_ms)
        self._failing = None
        self._applied(entry)
        for first, end in self.bodies.placed(entry.file, entry.places):
            self._relocate(self.bodies, first, end)
        last = 0 if self._snapshot is None else self._snapshot[1]
        if self._since > max(SNAPSHOT_AFTER_BYTES, SNAPSHOT_GROWTH * last) and not queue.deleted:
            self._write_state(queue)
        return entry

    def _applied(self, entry: LogEntry) -> None:
        self.tail.popleft()
        if not self.tail:
            self.tail = _NO_ENTRIES
        config = messages.CONFIG.decode(entry.payload) if entry.kind is Kind.CONFIG else self.point.config
        self.point = Point(entry.index, entry.term, config)
        self._next_index, self._now_ms, self._version = entry.end, entry.now_ms, entry.version

    def _relocate(self, bodies: JournalBodies, first: int, end: int) -> None:
        record = _record_of(first, bodies.fetch(range(first, end)))
        if bodies is self._staged:
            file = self._append_staged(self._transfer, record)
        else:
            self.ticket, file, _ = self._log.append(
                self.group, RELOCATED, first, [record], term=self.point.index
            )
        bodies.relocated(file, PLACES.decode_part(record)[0])

    def _write_state(self, queue: QuorumQueue) -> None:
        pieces = STATE_OF.pieces((self.point, encode_snapshot(queue)))
        self.ticket, file, _ = self._log.append(
            self.group, STATE, self.point.index, pieces, term=self.point.term
        )
        self._remember_snapshot(file, sum(map(len, pieces)))
        self._append_tail_again()
        if self.alone:
            self._compact(self.point.index)  # other members do not read entries

    def _append_tail_again(self) -> None:
        for entry in self.tail:
            offset = self._append_record(entry)
            self._entries.move(entry.index, entry.file, offset)

    def _remember_snapshot(self, file: int, length: int) -> None:
        if self._snapshot is not None:
            self._log.add_dead(*self._snapshot)
        self._snapshot = file, length
        self._log.add_live(file, length)
        self._since = 0

    def _compact(self, index: int) -> None:
        if self.compact_max is not None:
            index = min(index, self.compact_max)
        self._entries.forget_until(index)
        self.on_compact(index)

    def relocate(self, file: int) -> Iterator[None]:
        # Apply the committed entries first: otherwise their messages would be in the file.
        if any(entry.file <= file for entry in self.tail):
            self._append_tail_again()
            yield
        # Staged messages may become the queue's at each pause: then its messages are collected again.
        while True:
            for bodies in (self.bodies, self._staged):
                if bodies is not None and (run := next(bodies.in_file(file), None)):
                    self._relocate(bodies, *run)
                    break
            else:
                break
            yield
        if self._queue is None:
            return
        begins = 0 < self._begin_file <= file
        if begins:
            self._write_beginning(1)
        # Messages in the file may be settled by entries that no record states to be committed: the next start
        # would miss the messages.
        settled = not self.alone and self._hard.commit < self.point.index
        if begins or 0 < self._hard_file <= file or settled:
            self._write_hard(replace(self._hard, commit=max(self._hard.commit, self.point.index)))
            yield
        if self._snapshot is not None and (begins or self._snapshot[0] <= file):
            self._write_state(self._queue)
            yield
        if (last := self._entries.last_in(file)) is not None:
            self._compact(last)

    def delete(self) -> None:
        self.unstage()
        self.bodies.delete()
        if self._snapshot is not None:
            self._log.add_dead(*self._snapshot)
            self._snapshot = None
        self.tail.clear()
        self._queue = None

    def abandon(self) -> None:
        """Give up the queue's state, and leave the journal's records to the next start: no file with records
        of it may be cleaned. In a group of one, the entry at which the queue failed, and later ones, are
        replaced by empty ones, because the next start would fail, too.
        """
        entry, self._failing = self._failing, None
        if entry is not None and self.alone:
            term = max(self._hard.term, self.tail[-1].term) + 1
            self._write_hard(Hard(term, self.me, self.point.index))
            self._truncate(entry.index)
            self._append(self._entry(entry.index, term, Kind.EMPTY, b""))
        self.tail.clear()
        self.bodies.abandon()
        self._queue = None

    def restore(self, records: Sequence[Record]) -> None:
        self.bodies.recovering = True
        for record in records:
            try:
                self._restore(record)
            except ValueError as error:
                where = f"file {record.file} of the journal at offset {record.offset}"
                raise self._damaged(where, error) from error

    def _damaged(self, where: str, error: Exception) -> StorageError:
        if isinstance(error, machine_version.NewerMachine):
            return StorageError(
                where, f"quorum queue '{self._name}' {error}", "nothing was changed; start a newer broker"
            )
        return DamagedFile(
            where, f"{error} (quorum queue '{self._name}')", "restore the data folder from a copy"
        )

    def _restore(self, record: Record) -> None:
        kind, payload = record.kind, record.payload
        if kind == BEGINS:
            self._restore_beginning(record)
            return
        if not self._mine and kind in (HARD, STATE, INSTALLED):
            return
        if kind in (EMPTY, COMMANDS, CONFIG):
            self._restore_entry(record)
        elif kind == HARD:
            self._hard, self._hard_file = messages.HARD.decode(payload), record.file
        elif kind == STATE:
            self._restore_state(record, *STATE_OF.decode(payload))
        elif kind == STAGED:
            self._find(record.file, payload, 0, self._stage_of(record.index))
        elif kind == INSTALLED:
            (transfer,) = TRANSFER.unpack_from(payload)
            staged = self._stage_of(transfer)
            point, state = STATE_OF.decode(payload[TRANSFER.size :])
            self._take_state(point, state, staged)
            staged.recovering = True
            self._remember_snapshot(record.file, len(payload))
        elif kind == RELOCATED:
            if self._queue is not None:
                self._replay(record.term)
            self._find(record.file, payload, 0, self.bodies)
        else:
            raise ValueError(f"a record has kind {kind}, which this version does not know")

    def _restore_beginning(self, record: Record) -> None:
        self._mine = MEMBER.unpack(record.payload)[0] == self.me
        self._begin_file = record.file
        if record.index == 0 or not self._mine:
            # The existing records belong to another member.
            self.unstage()
            self.bodies.clear()
            self._queue = None
            self._hard, self._hard_file = Hard(0, None, 0), 0
            self.point = self._base = new_member().point
            self.last = self.point.index
            self.next_index = self.now_ms = self._next_index = self._now_ms = self._before = self._again = 0
            self.version = self._version
            self.tail.clear()
            self._entries.clear()

    @staticmethod
    def _find(file: int, payload: bytes, at: int, bodies: JournalBodies) -> None:
        # Other parts of the record belong to a state that is being received.
        places, start = PLACES.decode_part(payload, at)
        for place in places:
            begin = start + place.at
            messages = decode_batch(payload[begin : begin + place.length])
            bodies.found(file, place, messages)

    def _restore_state(self, record: Record, point: Point, state: bytes) -> None:
        self._remember_snapshot(record.file, len(record.payload))
        if self._queue is not None:
            self._replay(point.index)
            if point.index == self.point.index:
                self._before, self._again = self.last, point.index
                return
            if point.index < self.point.index:
                raise ValueError(f"a state of entry {point.index} stands behind entry {self.point.index}")
            # Missing entries in between have been cleaned away: this state includes them.
        self._begin_with(point, state)
        self._before = self._again = 0

    def _restore_entry(self, record: Record) -> None:
        if self._queue is None:
            if record.kind == COMMANDS:
                self._find(record.file, record.payload, APPLIED.size, self.bodies)
            return
        (applied,) = APPLIED.unpack_from(record.payload)
        self._replay(applied)
        index, term, kind = record.index, record.term, Kind(record.kind - ENTRIES)
        if self._base.index < index <= self.last and self._entries.kind(index)[0] == term:
            self._entries.move(index, record.file, record.offset)
            if index == self._again + 1:
                self._again = index
            if index > self.point.index:
                self.tail[index - self.tail[0].index].file = record.file
            return
        if index <= self.point.index:
            raise ValueError(f"entry {index} of term {term} does not follow entry {self.point.index}")
        if index <= self.last:
            self._truncate(index)
        elif index > self.last + 1:
            self._skip_to(index)
        self._before = min(self._before, self.last)
        entry = self._entry(index, term, kind, record.payload[APPLIED.size :])
        entry.file = record.file
        self._entries.add(index, term, kind, record.file, record.offset)
        self._add_to_tail(entry)
        self._since += len(entry.payload)

    def _skip_to(self, index: int) -> None:
        # Earlier entries are in a file that was given up (`amqp10broker storage accept`).
        self._replay(self.last)
        self.point = self._base = Point(index - 1, self.point.term, self.point.config)
        self._entries.clear()

    def _replay(self, until: int) -> None:
        # Apply only entries that were applied before the stop, or are recorded as committed.
        queue = self._queue
        assert queue is not None
        while self.tail and self.tail[0].index <= until:
            entry = self.tail[0]
            machine_version.check(entry.version)
            if entry.kind is Kind.COMMAND:
                decoded = decode_commands(entry.payload[PLACES.decode_part(entry.payload)[1] :])
                if decoded.first < queue.messages.next_index:
                    raise ValueError(
                        f"entry {entry.index} has message {decoded.first}, and before it was message "
                        f"{queue.messages.next_index - 1}"
                    )
                # Entries in between are missing only if a lost file was given up.
                queue.messages.next_index = decoded.first
                # The entry that this one replaced may have had messages, in a record before the first state.
                self.bodies.forget(entry.places)
                queue.node_links.entry = entry.index
                for command in decoded.commands:
                    queue.apply(command, decoded.now_ms)
            self._applied(entry)
            if self.bodies.placed(entry.file, entry.places):
                raise ValueError("an entry puts messages that its record does not say")

    def recovered(self, settings: QueueSettings, now_ms: int) -> QuorumQueue:
        """Return the recovered or new queue, without clients, when all records have been read. Raises
        `DamagedFile` if messages are missing.
        """
        self.unstage()  # the rest did not come before the stop
        if self._queue is None:
            return self._begin_new(settings, now_ms)
        queue = self._queue
        # In a group of one, all entries are committed; otherwise those recorded as committed.
        known = self.last if self.alone else self._hard.commit
        try:
            self._replay(known)
        except ValueError as error:
            raise self._damaged("the journal", error) from error
        if missing := self.bodies.keep_only(queue.live_indexes()):
            raise DamagedFile(
                "the journal",
                f"{len(missing)} messages of quorum queue '{self._name}' are in no record, the first of them "
                f"with index {missing[0]}",
                "restore the data folder from a copy",
            )
        # The power was lost between the record of a decision of the queue, and those of the messages that it
        # added again.
        for first, end in self.bodies.unplaced():
            self._relocate(self.bodies, first, end)
        if self._again < self._before and not queue.deleted:
            # The power was lost between a state and the records that had to follow it.
            self._write_state(queue)
        if self.alone:
            queue.lead()
            self._begin_alone(queue, settings, now_ms)
        self.stored = self._what_is_stored()
        return queue

    def _begin_new(self, settings: QueueSettings, now_ms: int) -> QuorumQueue:
        # All first members begin with the same state: without time and settings, if there are several.
        self.bodies.keep_only([])
        if not self.alone:
            settings, now_ms = DEFAULTS, 0
        queue = self._queue = QuorumQueue(self._name, settings=settings, now_ms=now_ms, bodies=self.bodies)
        if not self.alone:
            queue.follow()
        self.now_ms = self._now_ms = now_ms
        if self._joins:
            self._write_beginning(0)
        else:
            self._write_state(queue)
        self.stored = self._what_is_stored()
        return queue

    def _begin_alone(self, queue: QuorumQueue, settings: QueueSettings, now_ms: int) -> None:
        # Former sessions have ended: this needs an entry of a new term, as if this member had been elected.
        # Its effects are sent when a later record is durable, and this one with it.
        term = self._hard.term + 1
        self._write_hard(Hard(term, self.me, self.point.index))
        commands: list[QuorumCommand] = [self._gone]
        if self._gone.node:
            # Before the node joined a cluster it had no number.
            commands.append(NodeGone(0, self._gone.incarnation))
        if settings != queue.settings:
            commands.append(Configure(settings))
        payload = self.propose(commands, now_ms).payload
        self._append(self._entry(self.last + 1, term, Kind.COMMAND, payload))
        self._proposal = None
        self.apply(self.last)
        self._base = self.point
        self._entries.clear()

    def _what_is_stored(self) -> Stored:
        base = self._base
        stretches = list(self._entries.terms(base.index))
        configs = [
            (index, messages.CONFIG.decode(self._log.read(file, offset)[APPLIED.size :]))
            for at, (first, _, kind) in enumerate(stretches)
            if kind is Kind.CONFIG
            for index, file, offset in self._entries.places(
                first, stretches[at + 1][0] - 1 if at + 1 < len(stretches) else self.last
            )
        ]
        hard = replace(self._hard, commit=max(self._hard.commit, self.point.index))
        return Stored(base, hard, self.last, [(first, term) for first, term, _ in stretches], configs)


def _record_of(first: int, messages: Sequence[Message]) -> bytes:
    batch = encode_batch(messages)
    place = BodyPlace(first, len(messages), 0, sum(map(len, batch)))
    return b"".join((PLACES.encode([place]), *batch))
