"""The broker's state at one moment, as immutable records, and their document for `amqp10broker status`.

They are made between two awaits, so their values are consistent. None means that a protocol or a kind of
queue does not have the field, or that a node cannot determine the fact (`Inspection`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.queue import LastError
from amqp10broker.queues.queue_status import QueueStats

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WaitView:
    """Why something waits (`sessions.diagnosis.wait_reasons`). `waits`: a code; None: it does not wait.
    `waits_for_s`: None: it does not wait, or the duration is not known.
    """

    waits: str | None = None
    waits_why: str | None = None
    waits_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link of AMQP 1.0.

    Attributes:
        handle: the client's; None: it has detached the link.
        address: that of the source or target; None: the anonymous terminus.
        queue: None: it has none, or any.
        available: messages that the sending end has ready; None: it has not stated any.
        pending: for a receiver, messages from the queue that are not written yet.
        snd_settle_mode: 1: all deliveries are sent settled.
        max_message_size: bytes that the receiving end accepts; 0: no limit.
        credit_limit: for a sender, the credit after a grant; for a receiver, messages requested from a queue.
        credit_limit_why: why an automatic limit has its value (`sessions.credit`); None: it is fixed.
    """

    name: str
    handle: int | None
    role: str
    address: str | None
    queue: str | None
    credit: int
    delivery_count: int | None
    unsettled: int
    available: int | None
    drain: bool
    queue_credit: int | None
    queue_delivery_count: int | None
    pending: int | None
    properties: Mapping[str, Any] | None
    last_error: LastError | None
    counters: Mapping[str, int | None]
    wait: WaitView
    snd_settle_mode: int = 2
    max_message_size: int = 0
    credit_limit: int | None = None
    credit_limit_why: str | None = None
    credit_limit_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class TransactionView:
    """An open transaction of AMQP 1.0. `failed`: why it can only be rolled back, or None."""

    id: str
    link: str
    age_s: float
    messages: int
    bytes: int
    deliveries: int
    failed: str | None


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session of AMQP 1.0; windows and ids as in the specification, section 2.5.6."""

    channel: int
    incoming_window: int
    remote_incoming_window: int
    next_incoming_id: int | None
    next_outgoing_id: int
    unsettled_in: int
    unsettled_out: int
    pending_out: int
    last_error: LastError | None
    counters: Mapping[str, int | None]
    links: tuple[LinkView, ...]
    remote_outgoing_window: int = 0
    handle_max: int = 0
    incoming_window_limit: int = 0
    transactions: tuple[TransactionView, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer of AMQP 0-9-1. `prefetch`: 0: no limit. `timeout_ms`: the requested limit, or None."""

    tag: str
    queue: str
    no_ack: bool
    prefetch: int
    unacknowledged: int
    unsent: int
    wait: WaitView
    exclusive: bool = False
    timeout_ms: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelView:
    number: int
    state: str
    confirm: bool
    transactional: bool
    unconfirmed: int
    unacknowledged: int
    prefetch: int
    global_prefetch: int
    reader_credit: int
    consumers: tuple[ConsumerView, ...]
    last_error: LastError | None
    counters: Mapping[str, int | None]
    wait: WaitView


@dataclass(frozen=True, slots=True)
class OriginView:
    local: str = ""
    connected_at_ms: int = 0
    mechanism: str = ""
    tls: bool = False
    properties: Mapping[Any, Any] = field(default_factory=dict)
    transport: str = "tcp"


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """A connection. `client`: for AMQP 0-9-1, the known ones of connection_name, product and version. `node`:
    to which it is connected; empty: the node of the request.
    """

    id: int
    protocol: str
    peer: str
    user: str
    vhost: str
    container_id: str | None
    client: Mapping[str, str]
    state: str
    channel_max: int
    frame_max: int
    idle_timeout_ms: int | None
    bytes_in: int
    bytes_out: int
    writer_waiting_bytes: int
    last_error: LastError | None
    counters: Mapping[str, int | None]
    sessions: tuple[SessionView, ...] = ()
    channels: tuple[ChannelView, ...] = ()
    origin: OriginView = field(default_factory=OriginView)
    node: str = ""


@dataclass(frozen=True, slots=True)
class QueueView:
    name: str
    vhost: str
    type: str
    durable: bool
    figures: QueueStats
    dead_lettered: Mapping[str, int]
    counters: Mapping[str, int]
    last_error: LastError | None


@dataclass(frozen=True, slots=True)
class ExchangeView:
    """An exchange to which a message was published."""

    name: str
    vhost: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A link, channel or consumer that waits."""

    kind: str
    connection: int
    user: str
    vhost: str
    peer: str
    local: str
    channel: int
    name: str | None
    role: str | None
    queue: str | None
    wait: WaitView
    to_do: str
    idle: bool


@dataclass(frozen=True, slots=True)
class SummaryView:
    """The numbers of selected objects, and of those that wait. `idle_reasons`: those of `reasons` of links
    and consumers that have nothing to do.
    """

    chosen: bool
    connections: int
    connections_in_all: int
    links: int
    consumers: int
    channels: int
    waiting: int
    links_waiting: int
    consumers_waiting: int
    channels_waiting: int
    reasons: Mapping[str, int]
    queues: int
    queues_full: int
    idle_reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlowView:
    max_link_credit: int | str
    max_incoming_window: int | str
    max_queue_credit: int | str


@dataclass(frozen=True, slots=True)
class ResourceView:
    """Memory or disk, as the alarms measure it. `limit_bytes`: None: there is no limit."""

    setting: str | None
    limit_bytes: int | None
    alarm_ends_at_bytes: int | None
    alarm: bool
    causes: tuple[str, ...]
    since: str | None
    on_for_s: float | None


@dataclass(frozen=True, slots=True)
class MemoryView:
    used_bytes: int | None
    total_bytes: int | None
    resource: ResourceView


@dataclass(frozen=True, slots=True)
class DiskView:
    free_bytes: int | None
    path: str
    resource: ResourceView


@dataclass(frozen=True, slots=True)
class ResourcesView:
    memory: MemoryView
    disk: DiskView


@dataclass(frozen=True, slots=True)
class JournalView:
    """The journal of durable queues. Until it has been read, all fields but `recovered` are None."""

    recovered: bool
    files: int | None = None
    bytes: int | None = None
    live_bytes: int | None = None
    spool_bytes: int | None = None
    commits: int | None = None
    last_sync_ms: float | None = None
    sync_running: bool | None = None
    disk_full: bool | None = None
    reserve_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RecordingView:
    folder: str
    run_id: str
    every_ms: int
    began_ns: int
    looks: int
    processor_percent: float
    cost_percent: float
    events: int
    events_written: int
    events_dropped: int
    buffered_bytes: int


@dataclass(frozen=True, slots=True)
class RecordingFailed:
    folder: str
    run_id: str
    reason: str
    events: int
    events_written: int
    events_lost: int


@dataclass(frozen=True, slots=True)
class RecordingsView:
    recording: RecordingView | None
    failed: RecordingFailed | None


@dataclass(frozen=True, slots=True)
class TraceView:
    """A trace of frames. `ended`: why it ended; None: it runs."""

    what: str
    target: str
    into: str
    lines: int
    ended: str | None


@dataclass(frozen=True, slots=True)
class WatchView:
    """A watched link of AMQP 1.0, or channel or consumer of AMQP 0-9-1.

    Attributes:
        link: its name, or the consumer's tag; None: all of a channel.
        address, queue: as in `LinkView`.
        began_at_ns: `began_ns` by the wall clock, since 1970.
        client: its name, such as the container-id; empty: none.
    """

    watch: int
    connection: int
    user: str
    channel: int
    link: str | None
    role: str
    handle: int | None
    address: str | None
    queue: str | None
    began_ns: int
    began_at_ns: int
    client: str = ""


@dataclass(frozen=True, slots=True)
class FollowedView:
    """A virtual host in which all links and channels are watched from their beginning on. `left_out`: those
    that are not, because there were too many.
    """

    vhost: str
    watches: tuple[WatchView, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class SuspendedLinkView:
    """A durable link of AMQP 1.0 that is not attached. `left_s`: None: its timer has not started."""

    link: int
    name: str
    container_id: str
    user: str
    vhost: str
    role: str
    unsettled: int
    age_s: float
    left_s: float | None


@dataclass(frozen=True, slots=True)
class FaultView:
    """An injected fault (`observe.faults`).

    Attributes:
        queue: a pattern for queues, or addresses of links; None: any.
        client: a pattern for container-ids and connection names; None: any.
        link: a pattern for names of links; None: any.
        count: messages, attaches or frames, or remaining credit; None: all, or no credit.
        held: messages, confirms, flows and bytes that are held back; for a fault that is injected once, the
            sessions and channels that it has not reached yet.
    """

    fault: int
    kind: str
    vhost: str
    queue: str | None
    client: str | None
    link: str | None
    count: int | None
    hits: int
    held: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """The broker itself. None: `data_dir`: everything is in memory; `journal`: no data folder; `recording`:
    it does not record.
    """

    container_id: str
    version: str
    pid: int
    uptime_s: float
    listeners: tuple[str, ...]
    tls_listeners: tuple[str, ...]
    flow: FlowView
    data_dir: str | None
    journal: JournalView | None
    alarms: tuple[str, ...]
    rss_bytes: int
    resources: ResourcesView
    recording: RecordingView | None
    recording_failed: RecordingFailed | None
    traces: tuple[TraceView, ...]
    suspended_links: tuple[SuspendedLinkView, ...] = ()
    kept_links: int = 0


@dataclass(frozen=True, slots=True)
class TotalsView:
    """Counters of all clients since the start, including ended ones (`sessions.counters`)."""

    protocols: Mapping[str, Mapping[str, int | None]]
    vhosts: Mapping[str, Mapping[str, int | None]]
    users: Mapping[str, Mapping[str, int | None]]
    queues: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class BrokerView:
    broker: NodeView
    totals: TotalsView
    exchanges: tuple[ExchangeView, ...]
    summary: SummaryView
    waiting: tuple[WaitingView, ...]
    connections: tuple[ConnectionView, ...]
    queues: tuple[QueueView, ...]


_INLINE: Final = (WaitView, QueueStats, ResourceView)
"""Records with fields that become fields of the containing record."""


def document(view: Any) -> dict[str, Any]:
    """Convert a record to values for JSON."""
    result: dict[str, Any] = {}
    for name in view.__dataclass_fields__:
        value = getattr(view, name)
        if isinstance(value, _INLINE):
            result |= document(value)
        else:
            result[name] = _plain(value)
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, LastError):
        return value.shown()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return document(value) if is_dataclass(value) else value


def view_of(kind: Callable[..., T], told: Mapping[str, Any]) -> T:
    """Restore a record from a `document` of another node; what JSON cannot represent has become text. Missing
    fields get their defaults, others are ignored. Raises `TypeError` if a field without default is missing.
    """
    fields: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        if hint in _INLINE:
            fields[name] = view_of(hint, told)
        elif name in told:
            fields[name] = _viewed(hint, told[name])
    return kind(**fields)


@cache
def _hints(kind: Callable[..., object]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _viewed(hint: Any, value: Any) -> Any:
    inner = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)
    if inner is None or value is None:
        return value
    if inner is LastError:
        return LastError(value.pop("time"), value.pop("event"), value)
    if isinstance(value, list):
        return tuple(_viewed(inner, each) for each in value)
    return view_of(cast("Callable[..., object]", inner), value)


@dataclass(frozen=True, slots=True)
class ListenerSeen:
    purpose: str
    address: str
    tls: bool
    loopback: bool


@dataclass(frozen=True, slots=True)
class CertificateSeen:
    """A certificate file. `ends_at_ms`: when the first certificate in it expires, since 1970; None: it is not
    readable. `changed`: since the broker has read it.
    """

    setting: str
    path: str
    ends_at_ms: int | None
    changed: bool


@dataclass(frozen=True, slots=True)
class ClockSeen:
    """The machine's clock.

    Attributes:
        ahead_ms: of the time that the broker counts since its start, after a change of the clock.
        synchronised: None: the system does not report it.
        notes: faults of this clock, of other nodes' and of the time of queues, a sentence each.
    """

    ahead_ms: int
    synchronised: bool | None
    told_by: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileSystem:
    type: str
    mounted_at: str
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration of logins and limits. `http_connection_max`: 0: no HTTP."""

    passwords: bool
    plain_needs_tls: bool
    loopback_users: tuple[str, ...]
    anonymous_user: str
    cluster_tls: bool
    connection_max: int
    http_connection_max: int
    trace_frames: bool
    test_mode: bool


@dataclass(frozen=True, slots=True)
class Inspection:
    """All facts that a node determines by itself.

    Attributes:
        guest: the user guest has the password guest; None: there is no such user.
        files_max: the limit of open files; None: any number.
        file_system, format: those of the data folder; None without one.
    """

    node: NodeView
    rules: Rules
    listeners: tuple[ListenerSeen, ...]
    guest: bool | None
    certificates: tuple[CertificateSeen, ...]
    clock: ClockSeen
    at_ms: int
    boot_id: str | None
    files_open: int | None
    files_max: int | None
    memory_total_bytes: int | None
    memory_allowed_bytes: int | None
    file_system: FileSystem | None
    format: int | None


def mount_of(path: str, mounts: str) -> tuple[str, str] | None:
    """Return type and mount point of the file system of a path. `mounts`: ``/proc/self/mountinfo``,
    proc_pid_mountinfo(5).
    """
    best = None
    for at, kind in _mounts(mounts):
        # Of two at one place the later one covers the other.
        if (path == at or path.startswith(at.rstrip("/") + "/")) and (
            best is None or len(at) >= len(best[1])
        ):
            best = (kind, at)
    return best


def _mounts(written: str) -> Iterator[tuple[str, str]]:
    for line in written.splitlines():
        front, dash, back = line.partition(" - ")
        fields, kinds = front.split(" "), back.split(" ")
        if dash and len(fields) >= 6:
            # Blanks, tabs and line breaks in a name are written as three octal digits.
            at = fields[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
            yield at, kinds[0]
