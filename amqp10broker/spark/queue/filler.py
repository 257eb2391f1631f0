"""Moves messages from a queue into a spool: receive, write, sync, and only then settle.

On any failure before a segment is in the spool, the messages return to the queue. If the process ends between
the sync and the settling, they are in the spool and in the queue: hence "at least once", and the option
`deduplicate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from amqp10broker.spark.queue.deduplication import SeenIds, digest, unpack
from amqp10broker.spark.queue.segments import segment_bytes
from amqp10broker.spark.queue.spool import QueueSpool, SpoolFile

if TYPE_CHECKING:
    import pyarrow as pa

    from amqp10broker.spark.queue.link import QueueLink

Decode = Callable[[Sequence[bytes]], "pa.RecordBatch"]
"""Decodes encoded messages into rows, one each, in order."""

_UNKNOWN: Final = 2**63


class SegmentFiller:
    """Moves messages from a queue into a spool. `seen`: message-ids of messages that are not wanted again;
    None for no deduplication.
    """

    def __init__(
        self, source: QueueLink, spool: QueueSpool, decode: Decode, seen: SeenIds | None, batch_rows: int
    ) -> None:
        self._source = source
        self._spool = spool
        self._decode = decode
        self._seen = seen
        self._batch_rows = batch_rows

    def take(self, count: int, wait_s: float) -> bool:
        """Store messages as one segment, which is durable when this returns.

        Args:
            wait_s: how long to wait for the first one; 0 takes only messages that are there.

        Raises:
            SparkSourceError: the broker or the spool failed. Messages not in the spool are still in the
                queue.
        """
        while True:
            messages, stored = self._take(count, wait_s)
            if stored or not messages:
                return stored

    def take_of(self, count: int, left: int | None) -> int | None:
        """Store one segment of the messages that the queue had at a moment in the past. `left`: messages of
        that moment that remain to be taken; None if the moment is now. Returns messages that remain after it;
        None if the moment must be now because a connection was lost: messages that arrive again must not
        replace those not yet taken.
        """
        while True:
            if left is None:
                known = self._source.count()
                # The broker does not provide a count: take all, until the queue is once found empty.
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
        """Store all that the queue had at a moment in the past, as segments; arguments as of `take_of`."""
        while left is None or left > 0:
            left = self.take_of(count, left)

    def close(self) -> None:
        self._source.close()

    # --- parts --------------------------------------------------------------------------------------

    def _take(self, count: int, wait_s: float) -> tuple[int, bool]:
        # Before messages are taken: a queue may discard those that are returned again and again.
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
    """Return the message-ids that a spool has recorded."""
    seen = SeenIds(window)
    kept = {segment.number for segment in spool.segments}
    forgotten: list[int] = []
    for file in list(spool.ids):
        if file.number in kept:
            spool.remove_ids(file)  # a crash happened between writing it and removing the segment
        else:
            forgotten += seen.add(file.number, unpack(spool.read(file)))
    for segment in spool.segments:
        forgotten += seen.add(segment.number, _digests(ids_of(segment)))
    _forget(spool, forgotten)
    return seen


def _digests(ids: Sequence[str | None]) -> list[bytes]:
    return [digest(each) for each in ids if each is not None]


def _forget(spool: QueueSpool, numbers: Sequence[int]) -> None:
    for file in [file for file in spool.ids if file.number in numbers]:
        spool.remove_ids(file)
