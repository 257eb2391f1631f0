"""A quorum queue's log in the journal: its entries, and now and then its state.

What is asked in one wake is one entry: `propose` makes its bytes of the commands alone, `append` has them
in the journal, and then `applied` carries it out. On one node that is at once (`carry_out`), and what comes
of it is told when the entry is durable; in a replicated log it would be when the entry is committed.

The state is appended when the log since the last one is long enough, and whenever the file with the last one
is cleaned; so the first state that is still in the journal has all entries behind it that there are, and
recovery begins with it. What an older record holds are messages only, and those that live are found by their
places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from amqp10broker.errors import DamagedFile
from amqp10broker.message.batch import decode_batch, encode_batch
from amqp10broker.persistence.journal_face import JournalRecord, RecordLog
from amqp10broker.persistence.quorum_bodies import JournalBodies
from amqp10broker.persistence.quorum_records import (
    ENTRY,
    OLD_COMMANDS,
    OLD_SNAPSHOT,
    RELOCATED,
    STATE,
    decode_places,
    encode_places,
)
from amqp10broker.queues.commands import Configure
from amqp10broker.queues.quorum.bodies import Packs
from amqp10broker.queues.quorum.command_codec import (
    Place,
    decode_commands,
    decode_old_commands,
    encode_commands,
)
from amqp10broker.queues.quorum.commands import NodeGone, QuorumCommand, split
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.snapshot import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import QueueSettings

SNAPSHOT_AFTER_BYTES: Final = 32 * 1024 * 1024
"""Log after which the state is written again; carrying out so much takes below a second at start."""

SNAPSHOT_GROWTH: Final = 4
"""And not before the log is so many times as long as the last snapshot."""


@dataclass(slots=True, eq=False)
class LogEntry:
    """One entry of a log. Nobody changes it.

    Attributes:
        number: in the log.
        now_ms: its time.
        first: index of its first message.
        commands: what it says; where it was proposed, with what changes nothing, to be answered in its place.
        places: of its messages.
        payload: its bytes, in pieces.
        end: index of the first message behind it.
    """

    number: int
    now_ms: int
    first: int
    commands: Sequence[QuorumCommand]
    places: Sequence[Place]
    payload: Sequence[bytes]
    end: int


def read_entry(number: int, payload: bytes) -> LogEntry:
    """The entry of these bytes.

    Raises:
        ValueError: they are none.
    """
    places, start = decode_places(payload)
    decoded = decode_commands(payload[start:])
    end = places[-1].first + places[-1].messages if places else decoded.first
    return LogEntry(number, decoded.now_ms, decoded.first, decoded.commands, places, [payload], end)


class QuorumStore:
    """One queue's part of the journal.

    Attributes:
        group: the queue's number.
        bodies: its messages.
    """

    def __init__(
        self,
        group: int,
        name: str,
        log: RecordLog,
        packs: Packs | None = None,
        *,
        node: int = 0,
        incarnation: int = 1,
    ) -> None:
        """Make the store of a queue, new or of before.

        Args:
            group: the queue's number in the journal.
            name: of the queue.
            log: the journal; it need not be recovered yet.
            packs: where messages are that nobody is near; None: in memory.
            node: number of this node.
            incarnation: of this start of it; sessions of those before are gone (`recovered`).
        """
        self.group = group
        self.bodies = JournalBodies(log, packs)
        self._name = name
        self._log = log
        self._gone = NodeGone(node, incarnation - 1)
        self._queue: QuorumQueue | None = None
        # Where the log ends: number and time of the last entry, index of the next message.
        self._number = 0
        self._now_ms = 0
        self._next_index = 0
        self._applied = 0
        """Number of the last entry that was carried out."""
        self._under_way: LogEntry | None = None
        """Being carried out."""
        self._held: tuple[JournalRecord, list[Place], int] | None = None
        """The last entry read at start, its places, and where its commands begin: another may replace it."""
        self._snapshot: tuple[int, int] | None = None
        """File and length of the last state."""
        self._since = 0
        """Bytes of entries appended since then."""
        self._ticket = 0

    # --- living -------------------------------------------------------------------------------------

    def carry_out(self, commands: Sequence[QuorumCommand], now_ms: int) -> int:
        """Append commands as one entry, and have the queue carry them out.

        Args:
            commands: at least one that changes something.
            now_ms: when they are given.

        Returns:
            The ticket with which what was decided is durable.
        """
        entry = self.propose(commands, now_ms)
        self.applied(entry, self.append(entry))
        return self._ticket

    @property
    def ticket(self) -> int:
        """When this is durable, all is that was appended here."""
        return self._ticket

    def propose(self, commands: Sequence[QuorumCommand], now_ms: int) -> LogEntry:
        """Commands as the next entry of the log; nothing is changed by it.

        Args:
            commands: at least one.
            now_ms: this node's clock; an entry is never of a time before that of the one before it.
        """
        commands = split(commands)
        now_ms = max(now_ms, self._now_ms)
        first = self._next_index
        encoded = encode_commands(commands, now_ms, first)
        places = encoded.places
        payload = [encode_places(places), *encoded.pieces]
        return LogEntry(self._number + 1, now_ms, first, commands, places, payload, encoded.end)

    def append(self, entry: LogEntry) -> int:
        """Have the journal collect an entry, the next one of the log.

        Returns:
            The number of the journal's file.
        """
        self._ticket, file, _ = self._log.append(self.group, ENTRY, entry.number, entry.payload)
        self._number, self._now_ms, self._next_index = entry.number, entry.now_ms, entry.end
        self._since += sum(map(len, entry.payload))
        return file

    def applied(self, entry: LogEntry, file: int) -> None:
        """Have the queue carry out an entry; effects wait in it.

        Args:
            entry: the next one that was appended.
            file: as `append` said.
        """
        queue = self._queue
        assert queue is not None, "recover first"
        assert entry.number == self._applied + 1, "entries are carried out in their order"
        self._under_way = entry
        for command in entry.commands:
            queue.apply(command, entry.now_ms)
        self._under_way = None
        self._applied = entry.number
        for first, end in self.bodies.placed(file, entry.places):
            self._relocate(first, end)
        last = 0 if self._snapshot is None else self._snapshot[1]
        if self._since > max(SNAPSHOT_AFTER_BYTES, SNAPSHOT_GROWTH * last) and not queue.deleted:
            self._write_snapshot(queue)

    def _relocate(self, first: int, end: int) -> None:
        batch = encode_batch(self.bodies.fetch(range(first, end)))
        place = Place(first, end - first, 0, sum(map(len, batch)))
        payload = [encode_places([place]), *batch]
        self._ticket, file, _ = self._log.append(self.group, RELOCATED, first, payload)
        self.bodies.relocated(file, [place])

    def _write_snapshot(self, queue: QuorumQueue) -> None:
        assert self._number == self._applied, "entries that wait would be before a state without them"
        data = encode_snapshot(queue)
        self._ticket, file, _ = self._log.append(self.group, STATE, self._applied, [data])
        self._remember_snapshot(file, len(data))

    def _remember_snapshot(self, file: int, length: int) -> None:
        if self._snapshot is not None:
            self._log.add_dead(*self._snapshot)
        self._snapshot = file, length
        self._log.add_live(file, length)
        self._since = 0

    def relocate(self, file: int) -> Iterator[None]:
        """Append again what lives in a file (see `tasks.journal_task.Kept`)."""
        for first, end in self.bodies.in_file(file):
            self._relocate(first, end)
            yield
        # The commands behind the last snapshot may be in the file too.
        if self._queue is not None and self._snapshot is not None and self._snapshot[0] <= file:
            self._write_snapshot(self._queue)
            yield

    def delete(self) -> None:
        """The queue is gone."""
        self.bodies.clear()
        if self._snapshot is not None:
            self._log.add_dead(*self._snapshot)
            self._snapshot = None
        self._queue = None

    def abandon(self) -> None:
        """The queue's state cannot be trusted any more: what is in the journal stays for the next start.

        From now on nobody can say what of it lives; no file may be cleaned that has something of it. An entry
        that the queue failed at is replaced by an empty one, or the next start would fail at it, too; whoever
        asked for what is in it hears that it was not done.
        """
        entry, self._under_way = self._under_way, None
        if entry is not None:
            nothing = encode_commands([], entry.now_ms, entry.first)
            payload = [encode_places([]), *nothing.pieces]
            self._ticket, _, _ = self._log.append(self.group, ENTRY, entry.number, payload)
        self.bodies.abandon()
        self._queue = None

    # --- beginning ----------------------------------------------------------------------------------

    def restore(self, records: Sequence[JournalRecord]) -> None:
        """Take in records of this queue that were found at start, in the order of the journal.

        Raises:
            DamagedFile: one cannot be understood.
        """
        self.bodies.recovering = True
        for record in records:
            try:
                self._restore(record)
            except ValueError as error:
                raise self._damaged(record, error) from error

    def _damaged(self, record: JournalRecord, error: ValueError) -> DamagedFile:
        return DamagedFile(
            f"file {record.file} of the journal at offset {record.offset}",
            f"{error} (quorum queue '{self._name}')",
            "restore the data folder from a copy",
        )

    def _restore(self, record: JournalRecord) -> None:
        payload = record.payload
        held = self._held
        if held is not None and not (record.kind == ENTRY and record.index <= held[0].index):
            self._carry_out_held()
        self._held = None
        if record.kind in (STATE, OLD_SNAPSHOT):
            if self._queue is None:
                self._queue = decode_snapshot(self._name, payload, self.bodies)
                self._queue.follow()
                # An entry before that was replaced by an empty one may have had messages.
                self.bodies.forget_from(self._queue.next_index)
                self._applied = record.index if record.kind == STATE else 0
            self._remember_snapshot(record.file, len(payload))
            return
        places, start = decode_places(payload)
        if record.kind not in (ENTRY, OLD_COMMANDS, RELOCATED):
            raise ValueError(f"a record has kind {record.kind}, which this version does not know")
        if record.kind != RELOCATED and self._queue is not None:
            self._since += len(payload)
            if record.kind == OLD_COMMANDS:
                self._repeat_old(self._queue, record, places, start)
            else:
                self._held = record, places, start
            return
        for place in places:
            at = start + place.at
            messages = decode_batch(payload[at : at + place.length])[: place.messages]
            self.bodies.found(record.file, place, messages)

    def _carry_out_held(self) -> None:
        """The last entry that was read is followed by another record: it counts."""
        queue, held = self._queue, self._held
        assert queue is not None
        assert held is not None
        record, places, start = held
        decoded = decode_commands(record.payload[start:])
        if record.index <= self._applied or decoded.first < queue.next_index:
            raise ValueError(
                f"entry {record.index} with message {decoded.first} does not follow entry {self._applied}, "
                f"behind which message {queue.next_index} is the next"
            )
        # Those between are missing only if a lost file was given up (`amqp10broker storage accept`).
        queue.skip_to(decoded.first)
        for command in decoded.commands:
            queue.apply(command, decoded.now_ms)
        self._applied = record.index
        if self.bodies.placed(record.file, places):
            raise ValueError("an entry puts messages that its record does not say")

    def _repeat_old(
        self, queue: QuorumQueue, record: JournalRecord, places: Sequence[Place], start: int
    ) -> None:
        decoded = decode_old_commands(record.payload[start:])
        queue.old_rules = True
        for command in decoded.commands:
            queue.apply(command, decoded.now_ms)
        queue.old_rules = False
        if self.bodies.placed(record.file, places):
            raise ValueError("commands put messages that their record does not say")

    def recovered(self, settings: QueueSettings, now_ms: int) -> QuorumQueue:
        """The queue, when all records have been read: as it was, with nobody attached; or new.

        Args:
            settings: as the catalog has them now.
            now_ms: wall clock.

        Raises:
            DamagedFile: messages are missing that should be there.
        """
        held = self._held
        if held is not None:
            try:
                self._carry_out_held()
            except ValueError as error:
                raise self._damaged(held[0], error) from error
            self._held = None
        queue = self._queue
        if queue is None:
            self.bodies.keep_only([])
            queue = self._queue = QuorumQueue(
                self._name, settings=settings, now_ms=now_ms, bodies=self.bodies
            )
            self._now_ms = now_ms
            self._write_snapshot(queue)
            return queue
        missing = self.bodies.keep_only(queue.live_indexes())
        if missing:
            raise DamagedFile(
                "the journal",
                f"{len(missing)} messages of quorum queue '{self._name}' are in no record, the first of them "
                f"with index {missing[0]}",
                "restore the data folder from a copy",
            )
        queue.lead()
        self._number, self._now_ms, self._next_index = self._applied, queue.now_ms, queue.next_index
        # The power went between the record of what a queue decided, and those of the messages it put again.
        for first, end in self.bodies.unplaced():
            self._relocate(first, end)
        commands: list[QuorumCommand] = [self._gone]
        if settings != queue.settings:
            commands.append(Configure(settings))
        self.carry_out(commands, now_ms)
        return queue
