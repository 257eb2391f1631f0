"""A quorum queue's log in the journal: its commands, and now and then its state.

What a wake decides is one record. A snapshot is appended when the log since the last one is long enough,
and whenever the file with the last one is cleaned; so the first snapshot that is still in the journal has
all commands behind it that there are, and recovery begins with it. What an older record holds are messages
only, and those that live are found by their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from amqp10broker.errors import DamagedFile
from amqp10broker.message.batch import BATCH_MAX, decode_batch, encode_batch
from amqp10broker.persistence.extents import Accounts
from amqp10broker.persistence.quorum_bodies import JournalBodies
from amqp10broker.persistence.quorum_records import (
    COMMANDS,
    RELOCATED,
    SNAPSHOT,
    Place,
    decode_places,
    encode_places,
)
from amqp10broker.queues.commands import Configure, Publish
from amqp10broker.queues.quorum import QuorumQueue
from amqp10broker.queues.quorum_bodies import Packs
from amqp10broker.queues.quorum_commands import NodeRestarted, QuorumCommand
from amqp10broker.queues.quorum_log import decode_commands, encode_commands
from amqp10broker.queues.quorum_refs import Refs
from amqp10broker.queues.quorum_snapshot import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import QueueSettings

SNAPSHOT_AFTER_BYTES: Final = 32 * 1024 * 1024
"""Log after which the state is written again; carrying out so much takes below a second at start."""

SNAPSHOT_GROWTH: Final = 4
"""And not before the log is so many times as long as the last snapshot."""


class Entry(Protocol):
    """A record of the journal (`storage.record.Record`)."""

    @property
    def kind(self) -> int:
        """See `quorum_records`."""

    @property
    def payload(self) -> bytes:
        """See `quorum_records`."""

    @property
    def file(self) -> int:
        """The number of the journal's file."""

    @property
    def offset(self) -> int:
        """Where in it."""


class Log(Accounts, Protocol):
    """The journal, as far as a store uses it (`storage.journal.Journal`)."""

    def append(self, group: int, kind: int, index: int, payload: Sequence[bytes]) -> tuple[int, int, int]:
        """Collect a record: ticket, file, offset."""


class QuorumStore:
    """One queue's part of the journal.

    Attributes:
        group: the queue's number.
        bodies: its messages.
    """

    def __init__(self, group: int, name: str, log: Log, packs: Packs | None = None) -> None:
        """Make the store of a queue, new or of before.

        Args:
            group: the queue's number in the journal.
            name: of the queue.
            log: the journal; it need not be recovered yet.
            packs: where messages are that nobody is near; None: in memory.
        """
        self.group = group
        self.bodies = JournalBodies(log, packs)
        self._name = name
        self._log = log
        self._refs = Refs()
        self._queue: QuorumQueue | None = None
        self._snapshot: tuple[int, int] | None = None
        """File and length of the last snapshot."""
        self._since = 0
        """Bytes of commands appended since then."""
        self._ticket = 0

    # --- living -------------------------------------------------------------------------------------

    def apply(self, commands: Sequence[QuorumCommand], now_ms: int) -> int:
        """Have the queue carry out commands, and append them as one record.

        Args:
            commands: at least one.
            now_ms: when they are given.

        Returns:
            The ticket with which what was decided is durable.
        """
        queue = self._queue
        assert queue is not None, "recover first"
        commands = _split(commands)
        index = queue.next_index
        bodies = self.bodies
        bodies.batch = 0
        for command in commands:
            queue.apply(command, now_ms)
            if type(command) is Publish and command.messages:
                bodies.batch += 1
        encoded = encode_commands(commands, now_ms, self._refs)
        places = [
            Place(put.first, put.messages, encoded.batches[put.batch], encoded.lengths[put.batch])
            for put in bodies.puts()
        ]
        payload = [encode_places(places), *encoded.pieces]
        self._ticket, file, _ = self._log.append(self.group, COMMANDS, index, payload)
        orphans = bodies.orphans()
        bodies.placed(file, places)
        for first, end in orphans:
            self._relocate(first, end)
        self._since += sum(map(len, payload))
        last = 0 if self._snapshot is None else self._snapshot[1]
        if self._since > max(SNAPSHOT_AFTER_BYTES, SNAPSHOT_GROWTH * last) and not queue.deleted:
            self._write_snapshot(queue)
        return self._ticket

    def _relocate(self, first: int, end: int) -> None:
        batch = encode_batch(self.bodies.fetch(range(first, end)))
        place = Place(first, end - first, 0, sum(map(len, batch)))
        payload = [encode_places([place]), *batch]
        self._ticket, file, _ = self._log.append(self.group, RELOCATED, first, payload)
        self.bodies.relocated(file, [place])

    def _write_snapshot(self, queue: QuorumQueue) -> None:
        data = encode_snapshot(queue, self._refs)
        self._ticket, file, _ = self._log.append(self.group, SNAPSHOT, queue.next_index, [data])
        self._remember_snapshot(file, len(data))

    def _remember_snapshot(self, file: int, length: int) -> None:
        if self._snapshot is not None:
            self._log.add_dead(*self._snapshot)
        self._snapshot = file, length
        self._log.add_live(file, length)
        self._since = 0

    def relocate(self, file: int) -> Iterator[None]:
        """Append again what lives in a file (see `tasks.keeping.Kept`)."""
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

        From now on nobody can say what of it lives; no file may be cleaned that has something of it.
        """
        self.bodies.abandon()
        self._queue = None

    # --- beginning ----------------------------------------------------------------------------------

    def restore(self, records: Sequence[Entry]) -> None:
        """Take in records of this queue that were found at start, in the order of the journal.

        Raises:
            DamagedFile: one cannot be understood.
        """
        self.bodies.recovering = True
        for record in records:
            try:
                self._restore(record)
            except ValueError as error:
                raise DamagedFile(
                    f"file {record.file} of the journal at offset {record.offset}",
                    f"{error} (quorum queue '{self._name}')",
                    "restore the data folder from a copy",
                ) from error

    def _restore(self, record: Entry) -> None:
        payload = record.payload
        if record.kind == SNAPSHOT:
            if self._queue is None:
                self._queue = decode_snapshot(self._name, payload, self._refs, self.bodies)
                self._queue.replaying = True
            self._remember_snapshot(record.file, len(payload))
            return
        places, end = decode_places(payload)
        if record.kind == COMMANDS:
            if self._queue is not None:
                self._repeat(self._queue, payload[end:], record.file, places)
                self._since += len(payload)
                return
        elif record.kind != RELOCATED:
            raise ValueError(f"a record has kind {record.kind}, which this version does not know")
        for place in places:
            start = end + place.at
            messages = decode_batch(payload[start : start + place.length])[: place.messages]
            self.bodies.found(record.file, place, messages)

    def _repeat(self, queue: QuorumQueue, payload: bytes, file: int, places: Sequence[Place]) -> None:
        decoded = decode_commands(payload, self._refs)
        self.bodies.batch = 0
        for command in decoded.commands:
            queue.apply(command, decoded.now_ms)
            if type(command) is Publish and command.messages:
                self.bodies.batch += 1
        if len(self.bodies.puts()) != len(places):
            raise ValueError("commands do not put the messages that the record says")
        self.bodies.placed(file, places)

    def recovered(self, settings: QueueSettings, now_ms: int) -> QuorumQueue:
        """The queue, when all records have been read: as it was, with nobody attached; or new.

        Args:
            settings: as the catalog has them now.
            now_ms: wall clock.

        Raises:
            DamagedFile: messages are missing that should be there.
        """
        queue = self._queue
        if queue is None:
            self.bodies.keep_only([])
            queue = self._queue = QuorumQueue(
                self._name, settings=settings, now_ms=now_ms, bodies=self.bodies
            )
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
        queue.replaying = False
        # The power went between the record of what a queue decided, and those of the messages it put again.
        for first, end in self.bodies.homeless():
            self._relocate(first, end)
        commands: list[QuorumCommand] = [NodeRestarted()]
        if settings != queue.settings:
            commands.append(Configure(settings))
        self.apply(commands, now_ms)
        return queue


def _split(commands: Sequence[QuorumCommand]) -> Sequence[QuorumCommand]:
    """Publishes with more messages than a batch holds, in parts."""
    if all(type(each) is not Publish or len(each.messages) <= BATCH_MAX for each in commands):
        return commands
    parts: list[QuorumCommand] = []
    for each in commands:
        if type(each) is not Publish:
            parts.append(each)
            continue
        for at in range(0, max(1, len(each.messages)), BATCH_MAX):
            part = slice(at, at + BATCH_MAX)
            parts.append(Publish(each.publisher, each.ids[part], each.messages[part], each.settled))
    return parts
