"""The queue source: messages of a classic or quorum queue, through a spool, as batch or as stream.

A queue cannot return settled messages again, as Spark requires after a failure; the spool can. Spark's offset
is the number of a segment. Readers are made on the driver, which alone communicates with the broker; their
copies in tasks read files.

Messages are received, written, synced, and only then settled. Nothing is in flight between two calls: credit
is granted for the messages wanted, and drain takes back the rest (part 2, section 2.6.10). Messages that
arrive after a segment is full (`CreditPacing`) are released. On any failure before a segment is in the spool,
the connection is dropped, and the messages return to the queue. If the process ends between the sync and the
settling, they are in the spool and in the queue: hence "at least once", and the option `deduplicate`.
"""

from __future__ import annotations

import logging
import math
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from amqp10broker.client.blocking import BulkReceiver, Client, Management, bulk_receiver
from amqp10broker.client.errors import ClientError, LinkError, SessionEndedError
from amqp10broker.client.options import queue_address
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.spark.connection import OFFSET_SPEC, dial, with_retries
from amqp10broker.spark.errors import QueueUnusable, SpoolError
from amqp10broker.spark.options import QueueOptions
from amqp10broker.spark.rows import RowDecoder
from amqp10broker.spark.spool import (
    DIGEST_BYTES,
    SEGMENT_BYTES_MAX,
    QueueSpool,
    SpoolFile,
    SpoolOwner,
    check,
    open_spool,
)

# The first grant, to find out how large the messages are.
FIRST_CREDIT: Final = 10
# A grant is at most this many times the largest that the one before might have been.
GROWTH: Final = 8
# Of a message besides its bytes: the objects that hold it, and its places in the columns.
MESSAGE_COST_BYTES: Final = 256


class CreditPacing:
    """The credit of one link. `held_bytes` is the weight of the messages kept in this segment."""

    def __init__(self, credit_max: int, room_bytes: int = SEGMENT_BYTES_MAX) -> None:
        self.held_bytes = 0
        self._credit_max = credit_max
        self._room_bytes = room_bytes
        self._step = min(FIRST_CREDIT, credit_max)
        self._largest = 0
        self._came_largest = 0

    @property
    def full(self) -> bool:
        return self.held_bytes >= self._room_bytes

    def next(self, wanted: int) -> int:
        """Return how many messages to request, from 1 to `wanted`; call it only while not `full`."""
        count = min(wanted, self._step)
        if self._largest:
            count = min(count, (self._room_bytes - self.held_bytes) // self._largest)
        return max(1, count)

    def keep(self, sizes: Sequence[int]) -> int:
        """Weigh messages that arrived within a grant, in order of their sizes in bytes. Returns how many of
        them, from the first on, are kept. The others must be returned to the queue, and so must all that
        still arrive within this grant: `full` holds then.
        """
        if not sizes:
            return 0
        self._came_largest = max(self._came_largest, max(sizes) + MESSAGE_COST_BYTES)
        total = sum(sizes) + len(sizes) * MESSAGE_COST_BYTES
        if self.held_bytes + total < self._room_bytes:
            self.held_bytes += total
            return len(sizes)
        for number, size in enumerate(sizes):
            if self.full:
                return number
            self.held_bytes += size + MESSAGE_COST_BYTES
        return len(sizes)

    def end_grant(self) -> None:
        if self._came_largest:
            fitting = max(1, self._room_bytes // self._came_largest)
            self._step = min(self._credit_max, self._step * GROWTH, fitting)
            self._largest = self._came_largest
            self._came_largest = 0


# After such a silence the broker may have closed the connection: a new one is opened.
IDLE_S: Final = 15.0
_LOG: Final = logging.getLogger("amqp10broker.spark")


class QueueLink:
    """A receiver for one queue that connects on demand.

    `losses` counts the lost connections, after which messages that were settled may arrive again.
    """

    def __init__(self, options: QueueOptions) -> None:
        self.losses = 0
        self._options = options
        self._client: Client | None = None
        self._receiver: BulkReceiver | None = None
        self._used_at = 0.0
        self._grants = CreditPacing(options.link_credit)

    def count(self) -> int | None:
        """Return how many messages the queue has now; None if that is unknown. Raises as `receive`."""
        return with_retries(self._options.connection, self._count, queue=self._options.queue)

    def receive(self, count: int, wait_s: float) -> Sequence[bytes]:
        """Return encoded messages, which stay unsettled until `settle` or `drop`.

        Args:
            wait_s: how long to wait for the first one; 0 takes only messages that are there.

        Raises:
            SparkSourceError: the broker is away for too long, or refuses. All messages are in the queue
                again.
        """
        return with_retries(
            self._options.connection, lambda: self._receive(count, wait_s), queue=self._options.queue
        )

    def settle(self) -> None:
        """Settle the messages received. Those that cannot be settled arrive again."""
        assert self._client is not None
        assert self._receiver is not None
        count = len(self._receiver.end.unsettled)
        try:
            self._receiver.accept()
            self._client.flush()
        except ClientError as error:
            _LOG.warning(
                "queue '%s': the connection was lost before %d messages could be settled; they are in the "
                "spool, and will come again: %s",
                self._options.queue,
                count,
                error,
            )
            self.losses += 1
            self.close()

    def drop(self) -> None:
        """Return the unsettled messages to the queue."""
        # Released explicitly: RabbitMQ 4.3 counts messages that return from a lost connection as failed
        # deliveries, which a quorum queue limits, but does not count released ones.
        if self._receiver is not None:
            try:
                self._receiver.release()
            except ClientError:
                pass  # the connection is lost, which returns them to the queue
        self.close()

    def close(self) -> None:
        if self._client is not None:
            if not self._client.close():
                self.losses += 1
            self._client = self._receiver = None

    # --- parts --------------------------------------------------------------------------------------

    def _count(self) -> int | None:
        with dial(self._options.connection, purpose="queue") as client:
            found = self._entry(client).get("message_count")
        return found if isinstance(found, int) else None

    def _entry(self, client: Client) -> dict[Any, Any]:
        try:
            management = Management(client)
            status, body = management.ask("GET", queue_address(self._options.queue))
            management.close()
        except (LinkError, SessionEndedError):
            return {}
        return body if status == 200 and isinstance(body, dict) else {}

    def _receive(self, count: int, wait_s: float) -> list[bytes]:
        try:
            receiver = self._attached()
            grants = self._grants
            grants.held_bytes = 0
            found: list[bytes] = []
            while len(found) < count and not grants.full:
                wanted = grants.next(count - len(found))
                some = self._fetch(receiver, wanted, 0.0 if found else wait_s)
                found += some
                if len(some) < wanted:
                    break
        except BaseException:
            self.losses += 1
            self.drop()
            raise
        self._used_at = time.monotonic()
        return found

    def _fetch(self, receiver: BulkReceiver, count: int, wait_s: float) -> list[bytes]:
        end, grants, idle_s = receiver.end, self._grants, self._options.idle_timeout_s
        receiver.grant(count)
        if wait_s:
            receiver.wait(wait_s)  # if there is none, drain will confirm it
        if not end.drained and not grants.full:
            receiver.grant(receiver.credit, drain=True)
            receiver.wait_for("answer to our drain", idle_s, lambda: end.drained or grants.full)
        if not end.drained:
            end.stop()
            receiver.wait_for("answer to our link-credit of 0", idle_s, lambda: end.stopped)
        grants.end_grant()
        receiver.release_surplus()
        return receiver.take()

    def _attached(self) -> BulkReceiver:
        if self._receiver is not None and time.monotonic() - self._used_at < IDLE_S:
            return self._receiver
        self.close()
        self._client = client = dial(self._options.connection, purpose="queue")
        kind = self._entry(client).get("type")
        # Where the management does not return the kind of queue, a stream confirms this filter, and no other
        # queue of this broker does. RabbitMQ confirms it for every queue, but reports the kind to all.
        filters = None if kind else {OFFSET_SPEC: Described(Symbol(OFFSET_SPEC), "next")}
        receiver = bulk_receiver(client, queue_address(self._options.queue), settled=False, filters=filters)
        if kind == "stream" if kind else OFFSET_SPEC in receiver.end.filters_in_place:
            raise QueueUnusable(
                f"'{self._options.queue}' is a stream: read it with the option stream, which needs no spool, "
                "or name a classic or quorum queue"
            )
        receiver.end.keep = self._grants.keep
        self._receiver = receiver
        return receiver


WINDOW: Final = 1_000_000
"""Ids remembered; this many need about 150 MB of memory and 16 MB of disk."""


def digest(message_id: str) -> bytes:
    return blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


class SeenIds:
    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._segment_of: dict[bytes, int] = {}
        self._segments: deque[tuple[int, tuple[bytes, ...]]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def fresh(self, message_ids: Sequence[str | None]) -> list[int] | None:
        """Return the places of messages with new ids, also among themselves; None if all are.

        Messages without an id (None) are always new. Places ascend.
        """
        known = self._segment_of
        now: set[bytes] = set()
        places = []
        for place, message_id in enumerate(message_ids):
            if message_id is not None:
                one = digest(message_id)
                if one in known or one in now:
                    continue
                now.add(one)
            places.append(place)
        return None if len(places) == len(message_ids) else places

    def add(self, number: int, digests: Iterable[bytes]) -> list[int]:
        """Remember the ids of a segment; segments arrive in ascending order. Returns numbers of segments that
        lose their ids in exchange.
        """
        kept = tuple(digests)
        self._segments.append((number, kept))
        self._count += len(kept)
        for one in kept:
            self._segment_of[one] = number
        forgotten = []
        while self._count > self._window and len(self._segments) > 1:
            old, gone = self._segments.popleft()
            self._count -= len(gone)
            for one in gone:
                # A later segment may have it again, if deduplicate was not always given.
                if self._segment_of.get(one) == old:
                    del self._segment_of[one]
            forgotten.append(old)
        return forgotten

    def of(self, number: int) -> bytes:
        """Return the ids of a segment as they are stored; empty if it has none or they were dropped."""
        for known, digests in self._segments:
            if known == number:
                return b"".join(digests)
        return b""


@dataclass(frozen=True)
class SegmentPart(InputPartition):
    """The input of one task: record batches from `first` to below `stop`; None for all that follow."""

    path: str
    crc: int
    first: int = 0
    stop: int | None = None


def segment_bytes(rows: pa.RecordBatch, batch_rows: int) -> list[bytes]:
    """Encode at least one row as the bytes of a segment, with `batch_rows` rows in a record batch."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_file(stream, rows.schema) as writer:
        for start in range(0, rows.num_rows, batch_rows):
            writer.write_batch(rows.slice(start, batch_rows))
    return [stream.getvalue().to_pybytes()]


def parts(spool: QueueSpool, segments: Sequence[SpoolFile], min_partitions: int | None) -> list[SegmentPart]:
    """Plan the tasks: a segment each, or part of one if more tasks are wanted and it has several batches.
    `min_partitions`: tasks wanted; None for one per segment.
    """
    total = sum(segment.count for segment in segments)
    found: list[SegmentPart] = []
    for segment in segments:
        path = spool.file_path(segment)
        share = 1 if min_partitions is None else math.ceil(min_partitions * segment.count / total)
        if share <= 1:
            found.append(SegmentPart(path, segment.crc))
            continue
        batches = pa.ipc.open_file(pa.py_buffer(spool.read(segment))).num_record_batches
        share = min(share, batches)
        cuts = [batches * number // share for number in range(share + 1)]
        found += [SegmentPart(path, segment.crc, *pair) for pair in pairwise(cuts)]
    return found


def read_part(part: SegmentPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part; in a task, on any machine of the cluster."""
    try:
        with open(part.path, "rb") as file:
            data = file.read()
    except FileNotFoundError as error:
        raise SpoolError(
            f"{part.path} is not on {platform.node()}: spoolLocation must be a folder that the driver "
            "and all workers see under the same path, such as a mounted share"
        ) from error
    except OSError as error:
        raise SpoolError(
            f"cannot read {part.path} on {platform.node()}: {error.strerror or error}; workers must run "
            "as the user who runs the driver"
        ) from error
    check(part.path, data, part.crc)
    reader = pa.ipc.open_file(pa.py_buffer(data))
    stop = reader.num_record_batches if part.stop is None else part.stop
    for number in range(part.first, stop):
        yield reader.get_batch(number)


def message_ids(spool: QueueSpool, segment: SpoolFile) -> list[str | None]:
    """Return the message-ids of a segment, by row."""
    reader = pa.ipc.open_file(pa.py_buffer(spool.read(segment)))
    found: list[str | None] = []
    for number in range(reader.num_record_batches):
        found += reader.get_batch(number).column("messageId").to_pylist()
    return found


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
            data = spool.read(file)
            digests = (data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))
            forgotten += seen.add(file.number, digests)
    for segment in spool.segments:
        forgotten += seen.add(segment.number, _digests(ids_of(segment)))
    _forget(spool, forgotten)
    return seen


def _digests(ids: Sequence[str | None]) -> list[bytes]:
    return [digest(each) for each in ids if each is not None]


def _forget(spool: QueueSpool, numbers: Sequence[int]) -> None:
    for file in [file for file in spool.ids if file.number in numbers]:
        spool.remove_ids(file)


# How long to wait on an empty queue before a streaming query gets no data.
WAIT_S: Final = 0.2
Offset = dict[str, Any]


class QueueOffsets:
    """Maps a queue and its spool to offsets. `parts`: how many a batch is cut into; None for one
    per segment.
    """

    def __init__(
        self,
        spool: QueueSpool,
        filler: SegmentFiller,
        seen: SeenIds | None,
        segment_rows: int,
        parts: int | None,
    ) -> None:
        self.spool = spool
        self._filler = filler
        self._seen = seen
        self._segment_rows = segment_rows
        self._parts = parts
        self._available_now = False
        self._left: int | None = None

    def initial(self) -> Offset:
        """Return the offset before the oldest segment: a new checkpoint on an old spool reads all that it
        holds.
        """
        return self._offset(self.spool.oldest - 1)

    def stop_at_what_is_there(self) -> None:
        """Take no more messages than the queue has at the next call of `latest`."""
        self._available_now = True
        self._left = None

    def latest(self, start: Mapping[str, Any], rows_max: int | None) -> Offset:
        """Store messages in the spool, unless it has some that Spark has not recorded.

        Args:
            rows_max: of this batch; None for no limit. A segment already in the spool is not divided, even if
                it has more.

        Returns:
            The end of this batch; `start` if there is nothing.

        Raises:
            SparkSourceError: the broker or the spool failed. Messages not in the spool are still in the
                queue.
        """
        number = self._number(start)
        known = self.spool.between(number, self.spool.newest)
        if known and rows_max is not None:
            end, rows = known[0].number, known[0].count
            for segment in known[1:]:
                rows += segment.count
                if rows > rows_max:
                    break
                end = segment.number
            return self._offset(end)
        if rows_max is None:
            left = self._left if self._available_now else None
            self._filler.take_all_of(self._segment_rows, left)
            self._left = 0
        elif not self._available_now:
            self._filler.take(rows_max, WAIT_S)
        elif self._left is None or self._left > 0:
            self._left = self._filler.take_of(rows_max, self._left)
        newest = self.spool.newest
        return self._offset(newest) if newest > number else dict(start)

    def segments(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[SpoolFile]:
        """Return the segments of a range; the result for a range never changes."""
        return self.spool.between(self._number(start), self._number(end))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Remove the segments up to `end`, which Spark will not request again."""
        seen = self._seen
        ids_of = None if seen is None else lambda segment: seen.of(segment.number)
        self.spool.remove_through(self._number(end), ids_of)

    def close(self) -> None:
        self._filler.close()
        self.spool.close()

    def _offset(self, number: int) -> Offset:
        # One part in all is one per segment, since no part spans two.
        return {"spool": self.spool.id, "segment": number, "parts": self._parts or 1}

    def _number(self, offset: Mapping[str, Any]) -> int:
        spool = self.spool
        if offset["spool"] != spool.id:
            raise SpoolError(
                f"the checkpoint belongs to another spool than {spool.path} (it says {offset['spool']}, this "
                f"is {spool.id}): give the spoolLocation that was used with this checkpointLocation, or, if "
                "that spool is gone for good, begin anew with another checkpointLocation"
            )
        number = int(offset["segment"])
        if number > spool.newest:
            raise SpoolError(
                f"{spool.path}: the checkpoint has read up to segment {number}, and the newest here is "
                f"{spool.newest}: files are gone from the spool. Restore them from a copy, or begin anew "
                "with another checkpointLocation and another spoolLocation"
            )
        return number


class QueueReader(DataSourceReader):
    """The reader of a batch query: the messages that the queue has when the query is first planned.

    The first planning stores the messages in the spool and seals it; every later one reads the same rows from
    there, whatever has arrived in the queue since. So a DataFrame can be counted, cached and written, its
    tasks can be repeated, and nothing is lost. Another batch needs another spoolLocation.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        spool = _open(self._options, "batch")
        try:
            if spool.sealed is None:
                filler = _filler(self._options, spool, _seen(self._options, spool))
                try:
                    filler.take_all_of(self._options.max_messages_per_trigger, None)
                finally:
                    filler.close()
                spool.seal()
            assert spool.sealed is not None
            return parts(spool, spool.between(0, spool.sealed), self._options.min_partitions)
        finally:
            spool.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Runs in a task. Spark calls it once without a value if there are no partitions.
        if isinstance(partition, SegmentPart):
            yield from read_part(partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query. One object on the driver plans; its copies read in tasks."""

    def __init__(self, options: QueueOptions) -> None:
        # Nothing is opened: Spark also makes objects only to inspect what they support.
        self._options = options
        self._offsets: QueueOffsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies in tasks have neither spool nor connection.
        return {"_options": self._options, "_offsets": None}

    def initialOffset(self) -> dict[str, Any]:
        return self._opened().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._opened().stop_at_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._opened().latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offsets = self._opened()
        return parts(offsets.spool, offsets.segments(start, end), int(end["parts"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SegmentPart):
            yield from read_part(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._opened().commit(end)

    def stop(self) -> None:
        # Spark may end the process without calling this.
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None

    def _opened(self) -> QueueOffsets:
        if self._offsets is None:
            spool = _open(self._options, "stream")
            try:
                seen = _seen(self._options, spool)
            except BaseException:
                spool.close()
                raise
            filler = _filler(self._options, spool, seen)
            self._offsets = QueueOffsets(
                spool, filler, seen, self._options.max_messages_per_trigger, self._options.min_partitions
            )
        return self._offsets


def _open(options: QueueOptions, use: str) -> QueueSpool:
    connection = options.connection
    owner = SpoolOwner(use, options.queue, f"{connection.host}:{connection.port}", connection.vhost or "")
    return open_spool(options.spool_location, owner)


def _seen(options: QueueOptions, spool: QueueSpool) -> SeenIds | None:
    if not options.deduplicate:
        return None
    return recall(spool, WINDOW, lambda segment: message_ids(spool, segment))


def _filler(options: QueueOptions, spool: QueueSpool, seen: SeenIds | None) -> SegmentFiller:
    decoder = RowDecoder(options.queue, of_stream=False)
    return SegmentFiller(QueueLink(options), spool, decoder.batch, seen, options.arrow_batch_rows)
