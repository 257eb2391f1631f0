"""Finds where a stream begins and ends now: from the broker's management, or by probing.

This broker returns both offsets for ``GET /queues/:queue``. RabbitMQ 4 returns neither, but any broker with
streams can send the first message and the last chunk: each message carries its offset, and a drain shows that
none follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from amqp10broker.client.blocking import Client
from amqp10broker.client.bulk import BulkReceiver, bulk_receiver
from amqp10broker.client.errors import ClientError, LinkError, SessionEndedError
from amqp10broker.client.management import Management
from amqp10broker.client.url import queue_address
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.types import Described, Symbol, Timestamp, ULong
from amqp10broker.spark.connection import OFFSET_SPEC, dial, with_retries
from amqp10broker.spark.errors import FilterRefused, QueueUnusable, ReadStalled
from amqp10broker.spark.message_row import read_row
from amqp10broker.spark.options import StreamOptions

# A filter of this broker: the first offset that is not wanted. Others omit it from their reply.
END_OFFSET: Final = "amqp10broker:stream-end-offset"
SQL_FILTER: Final = "sql-filter"
# A desired capability: messages carry the time at which they were written. Other brokers ignore it.
ENQUEUED_TIME: Final = "amqp10broker:enqueued-time"
_SQL_DESCRIPTOR: Final = "amqp:sql-filter"
_PROBE_CREDIT: Final = 1000
# The management may be busy while a stream is not.
_ANSWER_TIMEOUT_MIN_S: Final = 2.0
# A connection stays open if the previous request was this recent.
_KEEP_S: Final = 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """The offsets of a stream. `next`: of the message that will be published next; `first` if the stream is
    empty. `declaration_id`: another one if the stream was deleted and declared again; None if the broker does
    not provide it, as RabbitMQ.
    """

    first: int
    next: int
    dense: bool
    declaration_id: str | None = None


class ManagedEnds:
    """Asks the management. As in `ProbedEnds`, `bounds` raises `ClientError` if the connection, its session
    or link has ended.
    """

    def __init__(self, management: Management, stream: str) -> None:
        self._management = management
        self._stream = stream

    def bounds(self) -> StreamBounds:
        answer = queue_entry(self._management, self._stream)
        return StreamBounds(
            int(answer["first_offset"]),
            int(answer["next_offset"]),
            dense=True,
            declaration_id=answer.get("declaration_id"),
        )


class ProbedEnds:
    """Reads the first message and the last chunk."""

    def __init__(self, client: Client, stream: str, timeout_s: float) -> None:
        self._client = client
        self._stream = stream
        self._timeout_s = timeout_s

    def bounds(self) -> StreamBounds:
        first = self.offset_at("first")
        if first is None:
            return StreamBounds(0, 0, dense=False)
        receiver = attach(self._client, self._stream, "last")
        last = first
        while not receiver.exhausted:
            self._fetch(receiver, _PROBE_CREDIT)
            for payload in receiver.take()[-1:]:
                last = offset_of(payload)
        receiver.detach()
        return StreamBounds(first, last + 1, dense=False)

    def offset_at(self, spec: str | Timestamp) -> int | None:
        """Return the offset of the first message for an offset specification, None if none arrives."""
        receiver = attach(self._client, self._stream, spec)
        self._fetch(receiver, 1)
        receiver.detach()
        payloads = receiver.take()
        return offset_of(payloads[0]) if payloads else None

    def _fetch(self, receiver: BulkReceiver, credit: int) -> None:
        receiver.grant(credit, drain=True)
        what = f"answer to a drain on stream '{self._stream}'"
        receiver.wait_for(what, self._timeout_s, lambda: receiver.end.drained)


def queue_entry(management: Management, queue: str) -> dict[Any, Any]:
    """Return the management's entry of a stream, empty if this user may not read it. Raises `QueueUnusable`
    if the queue does not exist, or is not a stream.
    """
    status, body = management.ask("GET", queue_address(queue))
    if status == 404:
        raise QueueUnusable(f"there is no stream '{queue}': declare it first, or correct the option stream")
    if status in (401, 403):
        return {}  # refused to this user, who may read the stream all the same
    if status != 200 or not isinstance(body, dict):
        raise QueueUnusable(f"the broker's management says {status} of stream '{queue}': {body}")
    if body.get("type") != "stream":
        raise not_a_stream(queue, str(body.get("type")))
    return body


def not_a_stream(queue: str, kind: str) -> QueueUnusable:
    return QueueUnusable(
        f"'{queue}' is a {kind} queue and no stream: read it with the option queue (and spoolLocation), or "
        "name a stream"
    )


StreamEnds = ManagedEnds | ProbedEnds


def ends_of(client: Client, stream: str, timeout_s: float) -> StreamEnds:
    """Return the way to find the bounds that this broker supports."""
    try:
        management = Management(client, timeout_s=max(timeout_s, _ANSWER_TIMEOUT_MIN_S))
        entry = queue_entry(management, stream)
    except (LinkError, SessionEndedError):
        return ProbedEnds(client, stream, timeout_s)  # no management here, or not for this user
    if "next_offset" in entry:
        return ManagedEnds(management, stream)
    return ProbedEnds(client, stream, timeout_s)


def attach(
    client: Client,
    stream: str,
    spec: str | int | Timestamp,
    sql: str | None = None,
    *,
    end: int | None = None,
) -> BulkReceiver:
    """Attach a receiver without credit to a stream. `end`: the first offset that is not wanted; `ends_there`
    returns whether the broker applies it. Raises `QueueUnusable` if it is not a stream, and `FilterRefused`
    if the broker does not apply the filter.
    """
    value = ULong(spec) if type(spec) is int else spec
    filters: dict[str, Any] = {OFFSET_SPEC: Described(Symbol(OFFSET_SPEC), value)}
    if end is not None:
        filters[END_OFFSET] = Described(Symbol(END_OFFSET), ULong(end))
    if sql is not None:
        filters[SQL_FILTER] = Described(Symbol(_SQL_DESCRIPTOR), sql)
    receiver = bulk_receiver(
        client, queue_address(stream), filters=filters, desired_capabilities=(ENQUEUED_TIME,)
    )
    in_place = receiver.end.filters_in_place
    if OFFSET_SPEC not in in_place:
        raise not_a_stream(stream, "classic or quorum")
    if sql is not None and SQL_FILTER not in in_place:
        raise FilterRefused(
            f"the broker does not apply the filter {sql!r} to stream '{stream}': look for a mistake in "
            "it (the broker's log says which; the syntax is that of AMQP SQL filters), or filter in Spark"
        )
    return receiver


def ends_there(receiver: BulkReceiver) -> bool:
    """Return whether the broker neither sends nor examines messages from the `end` of `attach` on."""
    return END_OFFSET in receiver.end.filters_in_place


def offset_of(payload: bytes) -> int:
    """Return the offset that an encoded message of a stream carries."""
    offset = read_row(payload).offset
    if offset is None:
        raise ReadStalled("a message came without the annotation x-stream-offset: is this a stream?")
    return offset


class Questions:
    """Requests the bounds of one stream from the driver.

    Spark may request the latest offset a hundred times a second, or once an hour, without notice; the
    connection stays open while requests are frequent.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._ends: StreamEnds | None = None
        self._asked_at = float("-inf")

    def bounds(self) -> StreamBounds:
        """Return the current bounds of the stream. Raises `SparkSourceError` if the broker cannot be reached,
        or does not have such a stream.
        """
        return self._ask(lambda client, ends: ends.bounds())

    def offset_at(self, time_ms: int) -> int | None:
        """Return the first offset for a time, to the precision of chunks; None if all messages are older."""

        def ask(client: Client, ends: StreamEnds) -> int | None:
            probe = ProbedEnds(client, self._options.stream, self._options.idle_timeout_s)
            return probe.offset_at(Timestamp(time_ms))

        return self._ask(ask)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = self._ends = None

    def _ask(self, question: Callable[[Client, StreamEnds], T]) -> T:
        now = time.monotonic()
        frequent = now - self._asked_at < _KEEP_S
        self._asked_at = now
        if not frequent:
            self.close()  # the broker may have closed it because it was silent

        def attempt() -> T:
            options = self._options
            try:
                if self._client is None:
                    self._client = dial(options.connection, purpose="driver")
                if self._ends is None:
                    self._ends = ends_of(self._client, options.stream, options.idle_timeout_s)
                return question(self._client, self._ends)
            except ClientError:
                if self._client is not None:
                    self._client.abort()
                self._client = self._ends = None
                raise

        try:
            return with_retries(self._options.connection, attempt, queue=self._options.stream)
        finally:
            if not frequent:
                self.close()
