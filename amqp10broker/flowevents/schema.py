"""The one definition of a flow event, of a run, and of where their files lie.

An event is a record of fixed size (`PACK`); its columns in Parquet have the same names and order. What a
column means depends on the kind of event: the table is `Kind`. A column that a kind does not mention is 0.

A recording is a folder::

    DIR/runs.parquet/RUN_ID.parquet               one row, see `RUN_FIELDS`
    DIR/events/run_id=RUN_ID/part-WHO-NUMBER.parquet   zstd; WHO wrote it: broker, clients
    DIR/names/RUN_ID.jsonl                        whose the links were, see `recording.link_names`

``runs.parquet`` is a data set of one file a run, so that several processes can add to one recording and
none of them rewrites what another wrote. A file appears under its name when it is complete; until then
its name begins with ``_``, which Spark and we leave out. (Recordings before 2026-11-22 have no ``part-`` in
front; all that does not begin with ``_`` is read.) A run is written by one broker, whose alone its id is:
it made the folder of its events.

Standard library only: numpy and Arrow forms are made from `FIELDS` where they are needed.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

from amqp10broker.dataclass import dataclass

SCHEMA_VERSION: Final = 1
"""In the metadata of every file (`VERSION_KEY`); another number is another layout."""
VERSION_KEY: Final = b"amqp10broker.recording.version"

EVENTS: Final = "events"
"""Folder of the event files, partitioned by run."""
RUNS: Final = "runs.parquet"
"""Folder of the rows of runs."""
NAMES: Final = "names"
"""Folder of the names of links, a file a run."""
RUN_PARTITION: Final = "run_id="

CHANNEL_HANDLE: Final = 1 << 31
"""The first handle of AMQP 0-9-1, which has none of its own: what is published on a channel has this one,
its consumers have the next ones. Handles of AMQP 1.0 are below, so that a handle tells the protocol."""


class Kind(IntEnum):
    """What an event tells. Numbers are for ever.

    *Elapsed* is the time since the same thing was last observed, in ns, in `value_ns`; the sum of a
    link's elapsed times is the time it was observed. `n` and `bytes` count since then, too. What is no
    count (reason, credit, window, depth) is what held during the elapsed time, as it was found at its
    beginning: so sums of `value_ns` by reason, and averages weighted by `value_ns`, are right.
    """

    LINK_IN = 1
    """A link (0-9-1: a channel, handle `CHANNEL_HANDLE`) on which a client publishes. n: deliveries that
    arrived. value_ns: elapsed. reason: why it waits, held for all of the elapsed time. link_credit: what the
    client has left.
    incoming_window: what is left of the session's, as the client knows it. queue_credit: deliveries without
    confirmation. queue_depth: ready messages of its queue, 0 if it publishes to an exchange."""
    LINK_OUT = 2
    """A link (0-9-1: a consumer, handle above `CHANNEL_HANDLE`) on which a client receives. n: deliveries
    written. value_ns: elapsed. reason. link_credit: what we have left. incoming_window: what is left of the
    client's. queue_credit: what the queue may still hand out of the last grant. queue_depth: ready messages
    of its queue."""
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
    """queue_depth: ready messages of the queue whose number (as of this run) is handle. n: unsettled.
    value_ns: elapsed. `settings` of the run has the queues by number."""
    DROPPED = 10
    """n events were lost since the last one of this kind: the recorder's buffers were full."""
    CLIENT_SENT = 11
    """A load generator: n messages (bytes of payload) sent in the elapsed value_ns. channel: the stream."""
    CLIENT_RECEIVED = 12
    """A load generator: n messages (bytes of payload) received in the elapsed value_ns. channel likewise."""
    PROCESS = 13
    """The broker's process. bytes: its resident memory at the end of the elapsed value_ns. n: ns of
    processor time in it."""
    LIMIT = 14
    """The limit of a link's credit is automatic, and is link_credit from now on; of a link on which a client
    receives what its queue is asked for at a time. reason: a `LimitReason`."""


class LimitReason(IntEnum):
    """Why the limit of a link's credit, which finds its own size, is what it is (`Kind.LIMIT`).

    Numbers are for ever; members are named as those of `service.auto_limit.Why`.
    """

    DEFAULT = 0
    GROWING = 1
    GROWN = 2
    NO_GAIN = 3
    CONFIRMS_SLOW = 4
    MEMORY_TIGHT = 5
    MESSAGES_BOUND = 6
    BYTES_BOUND = 7


class Reason(IntEnum):
    """Why a link, a consumer or a channel waits. Numbers are for ever; members are named as those of
    `service.waits.Wait`, which has all but the first two. Many are cases of a more general one, see
    `general`; before 2026-11-22 the general ones alone were recorded."""

    NONE = 0
    NO_CREDIT = 1
    """In recordings before 2026-11-22; later ones tell its cases apart."""
    CREDIT_WITHHELD = 2
    PEER_WINDOW_CLOSED = 3
    BLOCKED_BY_ALARM = 4
    QUEUE_EMPTY = 5
    NOT_ACTIVE = 6
    QUEUE_CREDIT_IN_FLIGHT = 7
    WRITER_BLOCKED = 8
    DRAINING = 9
    CREDIT_FLOW = 10
    """AMQP 0-9-1: the reader of the connection has stopped because one of its queues does not follow."""
    PREFETCH_FULL = 11
    """AMQP 0-9-1: the consumer has as many unacknowledged deliveries as its prefetch-count allows."""
    NO_CREDIT_NEVER_GRANTED = 12
    NO_CREDIT_USED_UP = 13
    NO_CREDIT_SET_TO_ZERO = 14
    NO_CREDIT_REVOKED = 15
    NO_CREDIT_DRAINED = 16
    NO_CREDIT_STALE_FLOW = 17
    QUEUE_EMPTY_EXPIRED = 18
    QUEUE_EMPTY_NOTHING_ROUTED = 19
    UNSETTLED_HERE = 20
    UNSETTLED_ELSEWHERE = 21
    LOWER_PRIORITY = 22
    MESSAGES_DELAYED = 23
    MESSAGES_NOT_SYNCED = 24
    FILTER_PASSED_NONE = 25
    STREAM_END = 26
    CHANNEL_PREFETCH_FULL = 27
    CREDIT_WITHHELD_BY_SYNC = 28
    CREDIT_WITHHELD_BY_FULL_DISK = 29
    DELIVERY_UNFINISHED = 30
    COUNT_JUMPED = 31
    READER_HELD = 32
    METHOD_IN_FLIGHT = 33
    TIMED_OUT = 34
    UNSETTLED_INCOMPLETE = 35
    NO_LEADER = 36
    NO_MESSAGE_MATCHES = 37

    @property
    def general(self) -> Reason:
        """What pictures and sums group it under: itself, or the reason of which it is a case."""
        return _GENERAL.get(self, self)


_GENERAL: Final = {
    Reason.NO_CREDIT_NEVER_GRANTED: Reason.NO_CREDIT,
    Reason.NO_CREDIT_USED_UP: Reason.NO_CREDIT,
    Reason.NO_CREDIT_SET_TO_ZERO: Reason.NO_CREDIT,
    Reason.NO_CREDIT_REVOKED: Reason.NO_CREDIT,
    Reason.NO_CREDIT_DRAINED: Reason.NO_CREDIT,
    Reason.NO_CREDIT_STALE_FLOW: Reason.NO_CREDIT,
    Reason.COUNT_JUMPED: Reason.NO_CREDIT,
    Reason.QUEUE_EMPTY_EXPIRED: Reason.QUEUE_EMPTY,
    Reason.QUEUE_EMPTY_NOTHING_ROUTED: Reason.QUEUE_EMPTY,
    Reason.FILTER_PASSED_NONE: Reason.QUEUE_EMPTY,
    Reason.STREAM_END: Reason.QUEUE_EMPTY,
    Reason.NO_MESSAGE_MATCHES: Reason.QUEUE_EMPTY,
    Reason.LOWER_PRIORITY: Reason.NOT_ACTIVE,
    Reason.CHANNEL_PREFETCH_FULL: Reason.PREFETCH_FULL,
    Reason.CREDIT_WITHHELD_BY_SYNC: Reason.CREDIT_WITHHELD,
    Reason.CREDIT_WITHHELD_BY_FULL_DISK: Reason.CREDIT_WITHHELD,
}


@dataclass(frozen=True, slots=True)
class Field:
    """One column of an event."""

    name: str
    code: str
    """Of `struct`, little-endian, without padding; numpy's letter is the same."""
    parquet: str
    """Name of the Arrow type in the file. Spark has no unsigned integers: what does not fit is wider."""


FIELDS: Final[tuple[Field, ...]] = (
    Field("ts_ns", "q", "int64"),  # wall clock since 1970, at the end of what it tells
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
"""One event: the values of `FIELDS`, in order."""

RUN_FIELDS: Final[tuple[tuple[str, str], ...]] = (
    ("run_id", "string"),
    ("benchmark", "string"),  # "sweep", "two_senders", ...; "broker" if the broker itself recorded
    ("case", "string"),  # what was measured; equal for all repetitions of all settings
    ("repetition", "int32"),  # from 0; the broker counts those of one configuration in one recording
    ("began_ns", "int64"),  # of what counts: events before are warm-up
    ("ended_ns", "int64"),  # null while it runs: up to the last event
    ("max_link_credit", "int64"),
    ("max_incoming_window", "int64"),
    ("max_queue_credit", "int64"),
    ("message_size_bytes", "int64"),  # null where it is not known, as the next ones
    ("queue_type", "string"),
    ("protocol", "string"),  # "amqp10", "amqp091"; null: not known, or both ("protocols" in the settings)
    ("publishers", "int32"),
    ("consumers", "int32"),
    ("rate_limit_per_s", "double"),  # null: as fast as it goes
    ("durable", "bool"),
    ("sample_ms", "int64"),  # null: every wake of every session, in recordings before 2026-11-23
    ("events_dropped", "int64"),  # null while it runs
    ("broker_version", "string"),
    ("python_version", "string"),
    ("machine", "string"),
    ("settings", "string"),  # everything else, as JSON
)
"""Columns of a run: name and Arrow type."""

CONFIGURATION: Final[tuple[str, ...]] = (
    "benchmark", "case", "protocol", "queue_type", "message_size_bytes", "publishers", "consumers",
    "rate_limit_per_s", "durable", "max_link_credit", "max_incoming_window", "max_queue_credit",
)  # fmt: skip
"""Columns of a run that runs must share to be repetitions of each other."""
