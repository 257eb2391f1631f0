"""The node's journal, for queues, and notifications of its durability and room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.record import Record


class RecordLog(Protocol):
    """Records of the journal (`storage.journal.Journal`), and counters of needed bytes by file."""

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        """Collect a record, and return ticket, file and offset."""

    def read(self, file: int, offset: int) -> bytes:
        """Return the payload of a record."""

    def read_run(self, file: int, offset: int, length: int) -> Sequence[Record]:
        """Return consecutive records of a file."""

    def add_live(self, file: int, length: int) -> None:
        """Count bytes of a file as needed."""

    def add_dead(self, file: int, length: int) -> None:
        """Count bytes as not needed any more."""


class Commits(Protocol):
    """The journal of the node, which a task of it commits."""

    journal: Journal

    def when_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        """Call a function when a ticket is durable; never, if storage fails."""

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call a function once when there is no shortage of room."""

    def write_early(self) -> int:
        """Write appended records as far as possible now, and return the ticket up to which they are written.
        `write_soon` must be called too, or they stay unsynced until the next request. Raises `StorageError`
        if the journal cannot be written.
        """

    def write_soon(self) -> None:
        """Request a sync soon, for records for which no client waits."""

    def forget(self, group: int) -> None:
        """Forget a queue that is gone."""

    def abandoned(self, group: int) -> None:
        """Leave a failed queue's records to the next start: until then nothing is cleaned."""

    def progress(self, *, busy: bool, waits: bool) -> QueueProgress:
        """Return the reasons that keep a queue from going on."""
