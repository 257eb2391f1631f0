"""What a broker with a data folder keeps there besides the catalog: the journal, its commits, its cleaning.

::

    start       journal.recover, batch by batch, while connections are accepted already; what belongs to
                a queue goes to its store
    then        the committer writes and syncs; durable queues begin to work off their letters
    always      when cleaning pays, each queue appends again what lives in the oldest file

A durable queue waits with its first letter until the journal has been read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import trio

from amqp10broker.persistence.classic_store import ClassicStore
from amqp10broker.persistence.spool import Spool
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import DataFolder
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.record import RECORD_BYTES, Record
from amqp10broker.storage.scratch import Scratch
from amqp10broker.tasks.committer import Committer
from amqp10broker.tasks.log import Log

_log = Log("amqp10broker.keeping")

UNSAFE_BYTES_MAX: Final = 4 * 1024 * 1024
"""What cleaning may have appended that is not durable yet, before it waits."""


class Kept(Protocol):
    """What a queue has in the journal."""

    group: int

    def restore(self, records: Sequence[Record]) -> None:
        """Take in records found at start."""

    def relocate(self, file: int) -> Iterator[None]:
        """Append again what lives in a file."""


class Keeping:
    """See the module.

    Attributes:
        journal: the node's.
        committer: makes it durable.
        spool: pages of transient messages.
        recovered: set when the journal has been read.
    """

    def __init__(self, disk: Disk, folder: DataFolder, journal: Journal, committer: Committer) -> None:
        self.journal = journal
        self.committer = committer
        self.spool = Spool(lambda: Scratch(disk, folder.journal))
        self.recovered = trio.Event()
        self._kept: dict[int, Kept] = {}

    def classic(self, group: int) -> ClassicStore:
        """The store of a classic queue, new or of before."""
        store = ClassicStore(group, self.journal, self.spool, RECORD_BYTES)
        self._kept[group] = store
        return store

    def add(self, kept: Kept) -> None:
        """Another kind of queue keeps something."""
        self._kept[kept.group] = kept

    def forget(self, group: int) -> None:
        """A queue is gone."""
        self._kept.pop(group, None)

    async def recover(self) -> None:
        """Read the journal, letting others run between its batches.

        Raises:
            DamagedFile: the broker must not start.
        """
        started_at = trio.current_time()
        strangers = 0
        for batch in self.journal.recover():
            strangers += self._hand_out(batch)
            await trio.lowlevel.checkpoint()
        found = self.journal.found
        assert found is not None
        if found.torn is not None:
            _log.warning(
                "the end of the journal was torn and is cut off: it had not been confirmed",
                file=found.torn_path,
                offset=found.torn.offset,
                bytes=found.torn.bytes,
            )
        _log.info(
            "journal read",
            files=found.files,
            records=found.records,
            bytes=found.bytes,
            of_deleted_queues=strangers,
            seconds=round(trio.current_time() - started_at, 3),
        )
        self.recovered.set()

    def _hand_out(self, batch: Sequence[Record]) -> int:
        """Give records to the queues they belong to; how many belong to none."""
        kept: Kept | None = None
        start = strangers = 0
        group = -1
        for index in range(len(batch) + 1):
            if index < len(batch) and batch[index].group == group:
                continue
            if kept is not None:
                kept.restore(batch[start:index])
            else:
                strangers += index - start
            if index < len(batch):
                group = batch[index].group
                kept = self._kept.get(group)
                start = index
        return strangers

    async def clean(self) -> None:
        """Clean the journal whenever it pays, for ever."""
        await self.recovered.wait()
        while True:
            await self.committer.wait_durable(self.journal.ticket + 1)
            while (file := self.journal.to_clean()) is not None:
                await self._clean(file)

    async def _clean(self, file: int) -> None:
        for kept in list(self._kept.values()):
            for _ in kept.relocate(file):
                self.committer.wake()
                if self.journal.collected_bytes > UNSAFE_BYTES_MAX:
                    await self.committer.wait_durable(self.journal.ticket)
                else:
                    await trio.lowlevel.checkpoint()
        self.journal.drop(file)
        self.committer.wake()
        await self.committer.wait_durable(self.journal.ticket)
