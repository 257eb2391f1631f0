"""Durable AMQP 1.0 links in the journal: their termini, and the unsettled deliveries of publishers.

=============  ===============  ==================================================================
kind           index            payload
=============  ===============  ==================================================================
`LINK`         number of link   document of the service, which replaces the one before
`TAKEN`        number of link   delivery-tags of deliveries that queues have, each behind a u8 with its
                                length; they are in one group with the queues' records of the messages
`SETTLED`      number of link   tags likewise: forgotten
`ENDED`        number of link   nothing
=============  ===============  ==================================================================

The group is `GROUP`, which is not a queue's: queues have numbers from 1. All live data are in memory, so a
record is never read again: cleaning appends live data of an old file from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from amqp10broker.errors import DamagedFile
from amqp10broker.queues.journal import RecordLog
from amqp10broker.storage.record import Record

GROUP: Final = 0
LINK: Final = 1
TAKEN: Final = 2
SETTLED: Final = 3
ENDED: Final = 4


class _Record:
    """A record in the journal, needed until the last of its entries is not."""

    __slots__ = ("entries", "file", "length")

    def __init__(self, file: int, length: int, entries: int) -> None:
        self.file = file
        self.length = length
        self.entries = entries


class _DurableLink:
    """The live data of one link; `document` is None until its record was read."""

    __slots__ = ("document", "record", "tags")

    def __init__(self) -> None:
        self.document: bytes | None = None
        self.record: _Record | None = None
        self.tags: dict[bytes, _Record] = {}


class ResumableLinksInJournal:
    def __init__(self, log: RecordLog, write_soon: Callable[[], None]) -> None:
        self.group = GROUP
        self._log = log
        self._write_soon = write_soon
        self._links: dict[int, _DurableLink] = {}

    def put(self, number: int, document: bytes) -> None:
        self._put(number, document, self._append(LINK, number, document, 1))
        self._write_soon()

    def take(self, number: int, tags: Sequence[bytes]) -> None:
        """Record deliveries of a link that queues have accepted; to be called within the group of their
        records. `tags`: of up to 255 octets; present ones are replaced by the new deliveries.
        """
        if tags:
            self._take(number, tags, self._append(TAKEN, number, _packed(tags), len(tags)))

    def settle(self, number: int, tags: Iterable[bytes]) -> None:
        """Forget deliveries of a link; unknown ones are ignored."""
        link = self._links.get(number)
        there = [] if link is None else [tag for tag in tags if tag in link.tags]
        if there:
            self._log.append(GROUP, SETTLED, number, [_packed(there)])
            self._settle(number, there)
            self._write_soon()

    def end(self, number: int) -> None:
        if number in self._links:
            self._log.append(GROUP, ENDED, number, ())
            self._end(number)
            self._write_soon()

    def found(self) -> Iterator[tuple[int, bytes, Sequence[bytes]]]:
        """Iterate over number, document and tags of each link, when all records were read."""
        for number, link in list(self._links.items()):
            if link.document is None:
                self.end(number)  # or the next link of this number would have its deliveries
            else:
                yield number, link.document, list(link.tags)

    def _append(self, kind: int, number: int, payload: bytes, entries: int) -> _Record:
        _, file, _ = self._log.append(GROUP, kind, number, [payload])
        return _Record(file, len(payload), entries)

    def _put(self, number: int, document: bytes, record: _Record) -> None:
        link = self._links.setdefault(number, _DurableLink())
        before, link.document, link.record = link.record, document, record
        self._log.add_live(record.file, record.length)
        if before is not None:
            self._drop(before)

    def _take(self, number: int, tags: Sequence[bytes], record: _Record) -> None:
        link = self._links.setdefault(number, _DurableLink())
        self._log.add_live(record.file, record.length)
        for tag in tags:
            before = link.tags.pop(tag, None)
            if before is not None:
                self._drop(before)
            link.tags[tag] = record

    def _settle(self, number: int, tags: Iterable[bytes]) -> None:
        link = self._links.get(number)
        if link is None:
            return
        for tag in tags:
            record = link.tags.pop(tag, None)
            if record is not None:
                self._drop(record)

    def _end(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            for record in link.tags.values():
                self._drop(record)
            if link.record is not None:
                self._drop(link.record)

    def _drop(self, record: _Record) -> None:
        record.entries -= 1
        if not record.entries:
            self._log.add_dead(record.file, record.length)

    def restore(self, records: Sequence[Record]) -> None:
        for record in records:
            number, payload = record.index, bytes(record.payload)
            if record.kind == LINK:
                self._put(number, payload, _Record(record.file, len(payload), 1))
            elif record.kind == TAKEN:
                tags = _unpacked(payload)
                self._take(number, tags, _Record(record.file, len(payload), len(tags)))
            elif record.kind == SETTLED:
                self._settle(number, _unpacked(payload))
            elif record.kind == ENDED:
                self._end(number)
            else:
                raise DamagedFile(
                    f"file {record.file} of the journal at offset {record.offset}",
                    f"this version does not know kind {record.kind} of a record of links that are kept",
                    "start the version that wrote it, or restore the data folder from a copy",
                )

    def relocate(self, file: int) -> Iterator[None]:
        for number in list(self._links):
            link = self._links.get(number)
            if link is None:
                continue
            if link.record is not None and link.document is not None and link.record.file <= file:
                self.put(number, link.document)
                yield
            tags = [tag for tag, record in link.tags.items() if record.file <= file]
            if tags and self._links.get(number) is link:
                # In this order: newer records in other files come behind them again.
                self.take(number, tags)
                yield


def _packed(tags: Sequence[bytes]) -> bytes:
    return b"".join(bytes((len(tag),)) + tag for tag in tags)


def _unpacked(payload: bytes) -> list[bytes]:
    tags, at = [], 0
    while at < len(payload):
        end = at + 1 + payload[at]
        tags.append(payload[at + 1 : end])
        at = end
    return tags
