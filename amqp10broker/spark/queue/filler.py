"""Takes messages out of a queue and into a spool: receive, write, sync, and only then settle.

Whatever goes wrong before a segment stands in the spool, the messages are the queue's again. If the process
ends between the sync and the settling, they are in the spool and in the queue: that is the "at least" of
at least once, and what `deduplicate` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from amqp10broker.spark.queue.deduplication import SeenIds, digest, unpack
from amqp10broker.spark.queue.segments import segment_bytes
from amqp10broker.spark.queue.spool import QueueSpool, SpoolFile

if TYPE_CHECKING:
    import pyarrow as pa

Decode = Callable[[Sequence[bytes]], "pa.RecordBatch"]
"""Encoded messages to rows, one each, in order."""

_UNKNOWN: Final = 2**63


class MessageSource(Protocol):
    """Where messages come from: `link.QueueLink`, or a test's model of a queue."""

    @property
    def losses(self) -> int:
        """Grows when messages that were settled before may come again, for a connection was lost."""

    def count(self) -> int | None:
        """How many messages the queue has now; None if that is not known."""

    def receive(self, count: int, wait_s: float) -> Sequence[bytes]:
        """Up to `count` messages, unsettled."""

    def settle(self) -> None:
        """What was received is ours; if that cannot be told, it comes again later."""

    def drop(self) -> None:
        """What was received goes back to the queue."""

    def close(self) -> None:
        """Nothing more will be asked for."""


class SegmentFiller:
    """A queue and the spool that its messages go to."""

    def __init__(
        self, source: MessageSource, spool: QueueSpool, decode: Decode, seen: SeenIds | None, batch_rows: int
    ) -> None:
        """Prepare.

        Args:
            source: the queue.
            spool: open.
            decode: makes rows of messages.
            seen: message-ids of messages that are not wanted again; None for no deduplication.
            batch_rows: rows of a record batch in a segment.
        """
        self._source = source
        self._spool = spool
        self._decode = decode
        self._seen = seen
        self._batch_rows = batch_rows

    def take(self, count: int, wait_s: float) -> bool:
        """Take messages as one segment, which is durable when this returns.

        Args:
            count: no more than so many.
            wait_s: how long to wait for a first one; 0 takes what is there.

        Returns:
            Whether there is a new segment.

        Raises:
            SparkSourceError: the broker, or the spool. What is not in the spool is still in the queue.
        """
        while True:
            messages, stored = self._take(count, wait_s)
            if stored or not messages:
                return stored

    def take_of(self, count: int, left: int | None) -> int | None:
        """Take one segment of what the queue had at a moment in the past.

        Args:
            count: no more than so many.
            left: messages of then that are still to be taken; None if that moment is now.

        Returns:
            Messages that are left after it; None if that moment must be now, because a connection was lost:
            what comes again is not to take the place of what was not yet taken.

        Raises:
            SparkSourceError: as `take`.
        """
        while True:
            if left is None:
                known = self._source.count()
                # A broker that does not say how many it has: all, until the queue is once found empty.
                left = _UNKNOWN if known is None else known
            if left <= 0:
                return 0
            losses = self._source.losses
            messages, stored = self._take(min(count, left), 0.0)
            if self._source.losses != losses:
                left = None
            else:
                left = left - messages if messages else 0
            if stored:
                return left

    def take_all_of(self, count: int, left: int | None) -> None:
        """Take all that the queue had at a moment in the past, as segments; arguments as of `take_of`."""
        while left is None or left > 0:
            left = self.take_of(count, left)

    def close(self) -> None:
        """Close the connection in order."""
        self._source.close()

    # --- parts --------------------------------------------------------------------------------------

    def _take(self, count: int, wait_s: float) -> tuple[int, bool]:
        """Messages taken, and whether there is a new segment."""
        # First, for a queue may give up messages that are taken and given back again and again.
        self._spool.check_room()
        payloads = self._source.receive(count, wait_s)
        if not payloads:
            return 0, False
        try:
            stored = self._store(payloads)
        except BaseException:
            self._source.drop()
            raise
        self._source.settle()
        return len(payloads), stored

    def _store(self, payloads: Sequence[bytes]) -> bool:
        """Write what is new of them as a segment; False if nothing is."""
        rows = self._decode(payloads)
        ids: list[str | None] = []
        if self._seen is not None:
            ids = rows.column("messageId").to_pylist()
            places = self._seen.fresh(ids)
            if places == []:
                return False
            if places is not None:
                rows = rows.take(places)
                ids = [ids[place] for place in places]
        segment = self._spool.append(segment_bytes(rows, self._batch_rows), rows.num_rows)
        if self._seen is not None:
            _forget(self._spool, self._seen.add(segment.number, _digests(ids)))
        return True


def recall(spool: QueueSpool, window: int, ids_of: Callable[[SpoolFile], Sequence[str | None]]) -> SeenIds:
    """What a spool remembers of message-ids.

    Args:
        spool: open.
        window: how many ids to remember.
        ids_of: the ids of a segment.

    Raises:
        SpoolError: a file cannot be read, or is damaged.
    """
    seen = SeenIds(window)
    kept = {segment.number for segment in spool.segments}
    forgotten: list[int] = []
    for file in list(spool.ids):
        if file.number in kept:
            spool.remove_ids(file)  # a crash came between writing it and removing the segment
        else:
            forgotten += seen.add(file.number, unpack(spool.read(file)))
    for segment in spool.segments:
        forgotten += seen.add(segment.number, _digests(ids_of(segment)))
    _forget(spool, forgotten)
    return seen


def _digests(ids: Sequence[str | None]) -> list[bytes]:
    return [digest(each) for each in ids if each is not None]


def _forget(spool: QueueSpool, numbers: Sequence[int]) -> None:
    """Remove the ids of these segments from the disk, as far as they are there by themselves."""
    for file in [file for file in spool.ids if file.number in numbers]:
        spool.remove_ids(file)
