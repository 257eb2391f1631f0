"""Where a stream begins and ends now: asked of the broker's management, or found by probing.

This broker says both numbers in the answer to ``GET /queues/:queue``. RabbitMQ 4 says neither, but any broker
with streams can be asked for the first message, and for the last chunk: what comes carries its offset, and
a drain says that nothing follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from amqp10broker.amqp10.types import Described, Symbol, Timestamp, ULong
from amqp10broker.client.blocking import Client
from amqp10broker.client.bulk import BulkReceiver, bulk_receiver
from amqp10broker.client.errors import ClientError, LinkError, SessionEndedError
from amqp10broker.client.management import Management
from amqp10broker.client.url import queue_address
from amqp10broker.dataclass import dataclass
from amqp10broker.spark.connection import OFFSET_SPEC, dial, with_retries
from amqp10broker.spark.errors import FilterRefused, QueueUnusable, ReadStalled
from amqp10broker.spark.message_row import read_row
from amqp10broker.spark.options import StreamOptions

END_OFFSET: Final = "amqp10broker:stream-end-offset"
"""The first offset that is not wanted. A filter of this broker; others leave it out of their reply."""
SQL_FILTER: Final = "sql-filter"
ENQUEUED_TIME: Final = "amqp10broker:enqueued-time"
"""Desired of the broker: that messages say when they were written to the stream. Others ignore it."""
_SQL_DESCRIPTOR: Final = "amqp:sql-filter"
_PROBE_CREDIT: Final = 1000
_ANSWER_TIMEOUT_MIN_S: Final = 2.0
"""The management may be busy where a stream is not."""
_KEEP_S: Final = 10.0
"""A connection is kept for the next question if the last one was so recent."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """A stream's offsets.

    Attributes:
        first: of the oldest message.
        next: of the message that will be published next; `first` if there is none.
        dense: every number between is a message. RabbitMQ uses some for itself.
        declaration_id: another one if the stream was deleted and declared again; None if the broker does
            not say it, as RabbitMQ.
    """

    first: int
    next: int
    dense: bool
    declaration_id: str | None = None


class StreamEnds(Protocol):
    """Something that knows where a stream begins and ends."""

    def bounds(self) -> Bounds:
        """As it is now.

        Raises:
            ClientError: the connection, or what is used of it, has ended.
        """


class ManagedEnds:
    """Asks the management node of a broker that says `first_offset` and `next_offset`."""

    def __init__(self, management: Management, stream: str) -> None:
        self._management = management
        self._stream = stream

    def bounds(self) -> Bounds:
        """See `StreamEnds`."""
        answer = queue_entry(self._management, self._stream)
        return Bounds(
            int(answer["first_offset"]),
            int(answer["next_offset"]),
            dense=True,
            declaration_id=answer.get("declaration_id"),
        )


class ProbedEnds:
    """Looks at the first message and at the last chunk."""

    def __init__(self, client: Client, stream: str, timeout_s: float) -> None:
        self._client = client
        self._stream = stream
        self._timeout_s = timeout_s

    def bounds(self) -> Bounds:
        """See `StreamEnds`."""
        first = self.offset_at("first")
        if first is None:
            return Bounds(0, 0, dense=False)
        receiver = attach(self._client, self._stream, "last")
        last = first
        while not receiver.exhausted:
            self._fetch(receiver, _PROBE_CREDIT)
            for payload in receiver.take()[-1:]:
                last = offset_of(payload)
        receiver.detach()
        return Bounds(first, last + 1, dense=False)

    def offset_at(self, spec: str | Timestamp) -> int | None:
        """The offset of the message that comes first for an offset specification, None if none comes.

        Raises:
            ClientError: as `bounds`.
        """
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
    """What the management says of a stream; nothing if it does not tell this user.

    Raises:
        QueueUnusable: there is no such queue, or it is no stream.
        ClientError: the connection, or what is used of it, has ended.
    """
    status, body = management.ask("GET", queue_address(queue))
    if status == 404:
        raise QueueUnusable(f"there is no stream '{queue}': declare it first, or correct the option stream")
    if status in (401, 403):
        return {}  # it does not tell this user, who may read the stream all the same
    if status != 200 or not isinstance(body, dict):
        raise QueueUnusable(f"the broker's management says {status} of stream '{queue}': {body}")
    if body.get("type") != "stream":
        raise not_a_stream(queue, str(body.get("type")))
    return body


def not_a_stream(queue: str, kind: str) -> QueueUnusable:
    """The error for a queue of another kind."""
    return QueueUnusable(
        f"'{queue}' is a {kind} queue and no stream: read it with the option queue (and spoolLocation), or "
        "name a stream"
    )


def ends_of(client: Client, stream: str, timeout_s: float) -> StreamEnds:
    """The way that this broker offers.

    Raises:
        QueueUnusable: there is no such queue, or it is no stream.
        ClientError: the connection has ended.
    """
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
    """A receiver on a stream, without credit so far.

    Args:
        client: connected.
        stream: its name.
        spec: ``first``, ``last``, ``next``, an offset, or a time.
        sql: a filter that the broker applies.
        end: the first offset that is not wanted; see `ends_there` for whether the broker heeds it.

    Raises:
        QueueUnusable: it is no stream.
        FilterRefused: the broker does not apply the filter.
        ClientError: the link was refused, or the connection has ended.
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
    """Whether the broker sends nothing from the `end` of `attach` on, and looks at nothing there."""
    return END_OFFSET in receiver.end.filters_in_place


def offset_of(payload: bytes) -> int:
    """The offset that an encoded message of a stream says.

    Raises:
        ReadStalled: it says none.
    """
    offset = read_row(payload).offset
    if offset is None:
        raise ReadStalled("a message came without the annotation x-stream-offset: is this a stream?")
    return offset


class Questions:
    """Asks about one stream from the driver, with a connection that is kept while questions are frequent.

    Spark asks a hundred times a second for the latest offset, or once an hour, and says nothing in between.

    Args:
        options: of the source.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._ends: StreamEnds | None = None
        self._asked_at = float("-inf")

    def bounds(self) -> Bounds:
        """Where the stream begins and ends now.

        Raises:
            SparkSourceError: the broker cannot be reached, or does not have such a stream.
        """
        return self._ask(lambda client, ends: ends.bounds())

    def offset_at(self, time_ms: int) -> int | None:
        """The first offset for a time, as exact as chunks are; None if all messages are older.

        Raises:
            SparkSourceError: as `bounds`.
        """

        def ask(client: Client, ends: StreamEnds) -> int | None:
            probe = ProbedEnds(client, self._options.stream, self._options.idle_timeout_s)
            return probe.offset_at(Timestamp(time_ms))

        return self._ask(ask)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = self._ends = None

    def _ask(self, question: Callable[[Client, StreamEnds], T]) -> T:
        now = time.monotonic()
        frequent = now - self._asked_at < _KEEP_S
        self._asked_at = now
        if not frequent:
            self.close()  # the broker has perhaps given it up for its silence

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
