"""A flow event, a run, and the layout of their files; and the buffer of events.

An event is a record of fixed size (`PACK`); its columns in Parquet have the same names and order. The meaning
of a column depends on the `EventKind`; a column that it does not mention is 0. A recording is a folder::

    DIR/runs.parquet/RUN_ID.parquet               one row (`observe.recording.RunRecord`)
    DIR/events/run_id=RUN_ID/part-WRITER-NUMBER.parquet   zstd; WRITER: broker, clients
    DIR/names/RUN_ID.jsonl                        names of the links (`observe.recording`)

The name of an incomplete file begins with ``_``, which readers ignore. A run id belongs to the one broker
that created the folder of its events. Numpy and Arrow forms are derived from `FIELDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.sessions.diagnosis.wait_reasons import Wait

SCHEMA_VERSION: Final = 1
"""The version in the metadata of every file (`VERSION_KEY`)."""
VERSION_KEY: Final = b"amqp10broker.observe.recording.version"

EVENTS: Final = "events"
"""Folder of the event files, partitioned by run."""
RUNS: Final = "runs.parquet"
NAMES: Final = "names"
RUN_PARTITION: Final = "run_id="

CHANNEL_HANDLE: Final = 1 << 31
"""The first handle in AMQP 0-9-1, of the publishing side of a channel; its consumers have the next ones.
Those of AMQP 1.0 are below, so that a handle determines the protocol.
"""


class EventKind(IntEnum):
    """The kind of an event. Numbers never change.

    *Elapsed* is the time since the same object was last observed, in ns, in `value_ns`; the sum of a link's
    elapsed times is the time it was observed. `n` and `bytes` count since then, too.
    """

    LINK_IN = 1
    """A link (0-9-1: a channel, handle `CHANNEL_HANDLE`) on which a client publishes. n: deliveries that
    arrived. value_ns: elapsed. reason: why it waited meanwhile. link_credit, incoming_window: what the client
    has left. queue_credit: deliveries without confirmation. queue_depth: ready messages of its queue, 0 if it
    publishes to an exchange.
    """
    LINK_OUT = 2
    """A link (0-9-1: a consumer, handle above `CHANNEL_HANDLE`) on which a client receives. n: deliveries
    written. value_ns: elapsed. reason. link_credit: what the broker has left. incoming_window: of the client,
    likewise. queue_credit: deliveries that the queue may still make of the last grant. queue_depth: ready
    messages of its queue.
    """
    CONFIRM = 3
    """n deliveries that queues confirmed, value_ns after they arrived: the broker's own confirm latency."""
    SETTLE = 4
    """n deliveries that the client settled, value_ns after they were written."""
    CLIENT_CONFIRM = 5
    """A load generator: n messages confirmed value_ns after they were sent. channel: number of the stream."""
    CLIENT_DELIVERY = 6
    """A load generator: n messages received value_ns after they were sent (end to end). channel likewise."""
    CONNECTION_IN = 7
    """bytes read from the socket; value_ns: elapsed; reason CREDIT_FLOW: reading has stopped (0-9-1)."""
    CONNECTION_OUT = 8
    """bytes written to the socket; value_ns: elapsed; queue_depth: bytes that waited to be written."""
    QUEUE = 9
    """queue_depth: ready messages of the queue with the number handle (in this run, by its `settings`). n:
    unsettled. value_ns: elapsed.
    """
    DROPPED = 10
    """n events were lost since the last one of this kind: the recorder's buffers were full."""
    CLIENT_SENT = 11
    """A load generator: n messages (bytes of payload) sent in the elapsed value_ns. channel: the stream."""
    CLIENT_RECEIVED = 12
    """A load generator: n messages (bytes of payload) received in the elapsed value_ns. channel likewise."""
    PROCESS = 13
    """The broker's process. bytes: resident memory at the end. n: ns of processor time in value_ns."""
    LIMIT = 14
    """The automatic limit of a link's credit is link_credit from now on; for a receiving client, the messages
    requested from its queue at a time. reason: a `LimitReason`.
    """


class LimitReason(IntEnum):
    """Why an automatic limit of a link's credit has its value. Numbers never change; names are those of
    `sessions.credit.Why`.
    """

    DEFAULT = 0
    GROWING = 1
    GROWN = 2
    NO_GAIN = 3
    CONFIRMS_SLOW = 4
    MEMORY_TIGHT = 5
    MESSAGES_BOUND = 6
    BYTES_BOUND = 7


NO_REASON: Final = 0
"""The link does not wait."""
NO_CREDIT: Final = 1
"""The general reason of links without credit; events have its cases."""

REASONS: Final[Mapping[int, str]] = {
    NO_REASON: "none",
    NO_CREDIT: "no-credit",
    **{wait.number: wait.value for wait in Wait},
}
"""Codes of the reasons of waits, by number."""

_NUMBERS: Final = {code: number for number, code in REASONS.items()}
GENERAL: Final[Mapping[int, int]] = {wait.number: _NUMBERS[wait.general] for wait in Wait}
"""The more general reason of a reason, or itself; sums group by it."""
NOT_HELD_UP: Final = frozenset({NO_REASON, *(GENERAL[wait.number] for wait in Wait if wait.idle)})
"""General reasons of links without an obstacle."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column of an event. `parquet`: the Arrow type. Spark has no unsigned integers: larger values have a
    wider type.
    """

    name: str
    code: str
    parquet: str


FIELDS: Final[tuple[Field, ...]] = (
    Field("ts_ns", "q", "int64"),  # wall clock since 1970, at the end of the elapsed time
    Field("kind", "b", "int8"),
    Field("reason", "b", "int8"),
    Field("connection", "I", "int64"),
    Field("channel", "H", "int32"),
    Field("handle", "I", "int64"),
    Field("link_credit", "I", "int64"),
    Field("incoming_window", "I", "int64"),
    Field("queue_credit", "I", "int64"),
    Field("n", "q", "int64"),
    Field("bytes", "q", "int64"),
    Field("value_ns", "q", "int64"),
    Field("queue_depth", "q", "int64"),
)

PACK: Final = Struct("<" + "".join(field.code for field in FIELDS))
"""Packs the values of `FIELDS`, in order."""

CONFIGURATION: Final[tuple[str, ...]] = (
    "benchmark", "case", "protocol", "queue_type", "message_size_bytes", "publishers", "consumers",
    "rate_limit_per_s", "durable", "max_link_credit", "max_incoming_window", "max_queue_credit",
)  # fmt: skip
"""Columns that are equal in repetitions of a run."""


_SIZE: Final = PACK.size
# The kind is one byte after `ts_ns` in a packed event.
_KIND_AT: Final = 8
_N: Final = [field.name for field in FIELDS].index("n")

# 4 MB: seconds of a busy broker with few probed links.
EVENTS_MAX: Final = 65_536


class EventRing:
    """A bounded buffer of packed events that never blocks. `events_max`: 2 or more.

    When it is full, events are lost and counted. When there is room again, an event `DROPPED` comes first, so
    that a reader finds the gap.
    """

    __slots__ = ("_buffer", "_capacity", "_pack", "_untold", "dropped", "offered", "waiting")

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        assert events_max >= 2, "one event, and one that says what was lost"
        self._buffer = bytearray(events_max * PACK.size)
        self._capacity = events_max
        self._pack = PACK.pack_into
        self._untold = 0
        self.offered = 0
        self.dropped = 0
        self.waiting = 0

    def add(self, ts_ns: int, *rest: int) -> None:
        """Add an event, or count it as lost; the columns are `FIELDS`. Raises `struct.error` if a value does
        not fit, or their number is wrong; nothing was added.
        """
        if self._untold and self.waiting < self._capacity - 1:
            self._tell(ts_ns)
        at = self.waiting
        if at >= self._capacity or self._untold:
            self.offered += 1
            self.dropped += 1
            self._untold += 1
            return
        self._pack(self._buffer, at * _SIZE, ts_ns, *rest)
        self.offered += 1
        self.waiting = at + 1

    def lose(self, events: bytes) -> None:
        """Count events from `take_all` as lost, with the counts of their `DROPPED` events."""
        kinds = events[_KIND_AT :: PACK.size]
        again = 0
        at = kinds.find(EventKind.DROPPED)
        while at >= 0:
            again += PACK.unpack_from(events, at * PACK.size)[_N]
            at = kinds.find(EventKind.DROPPED, at + 1)
        lost = len(kinds) - kinds.count(EventKind.DROPPED)
        self.dropped += lost
        self._untold += lost + again

    def take_all(self) -> bytes:
        taken = bytes(memoryview(self._buffer)[: self.waiting * PACK.size])
        self.waiting = 0
        return taken

    def settle(self, ts_ns: int) -> None:
        """Add an event for those lost, if there is room; call it when no event may follow."""
        if self._untold and self.waiting < self._capacity:
            self._tell(ts_ns)

    def _tell(self, ts_ns: int) -> None:
        PACK.pack_into(
            self._buffer,
            self.waiting * PACK.size,
            *(ts_ns, EventKind.DROPPED, 0, 0, 0, 0, 0, 0, 0, self._untold, 0, 0, 0),
        )
        self.waiting += 1
        self._untold = 0
