"""The interface of the journal for stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amqp10broker.queues.classic.extents import Accounts


class JournalRecord(Protocol):
    """A record of the journal (`storage.record.Record`)."""

    @property
    def group(self) -> int:
        """Number of the queue that has the record."""

    @property
    def kind(self) -> int:
        """As in `records`, and of quorum queues `quorum_records`; so are index and payload."""

    @property
    def index(self) -> int: ...

    @property
    def term(self) -> int: ...

    @property
    def payload(self) -> bytes: ...

    @property
    def file(self) -> int:
        """The number of the journal's file."""

    @property
    def offset(self) -> int: ...

    @property
    def length(self) -> int:
        """Bytes that the record takes in its file."""


class RecordLog(Accounts, Protocol):
    """The journal (`storage.journal.Journal`) for reading and appending records."""

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        """Collect a record, and return ticket, file and offset."""

    def read(self, file: int, offset: int) -> bytes:
        """Return the payload of a record."""

    def read_run(self, file: int, offset: int, length: int) -> Sequence[JournalRecord]:
        """Return consecutive records of a file."""
