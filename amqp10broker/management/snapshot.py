"""What a broker is doing at one moment: frozen records, and their document for `amqp10broker status`.

Each door reads these records, the command line through `document`. They are made between two awaits of a
single-threaded program, so what stands in them belongs together. A field that a protocol or a kind of queue
does not have is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

from amqp10broker.catalog.last_error import LastError
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.figures import QueueFigures

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WaitView:
    """Why something waits; see `service.waits`.

    Attributes:
        waits: the reason's code, None: it does not wait.
        waits_why: one sentence with what shows it.
        waits_for_s: how long, None if it does not wait or nobody can know.
    """

    waits: str | None = None
    waits_why: str | None = None
    waits_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class LinkView:
    """One link of AMQP 1.0.

    Attributes:
        name: of the link.
        handle: the client's, None: the client has detached the link.
        role: of the client: ``sender`` or ``receiver``.
        address: of the source or target, None: the anonymous terminus.
        queue: the queue's name, None: it has none, or any.
        credit: link-credit.
        delivery_count: of the link.
        unsettled: deliveries.
        available: messages that the sending end has ready, None: it has not said.
        drain: whether the client drains the link.
        queue_credit: what the queue may still send, of a receiver.
        queue_delivery_count: the delivery-count between queue and session, of a receiver.
        pending: messages from the queue that are not written yet, of a receiver.
        properties: of the client's attach.
        last_error: what went wrong last.
        counters: see `service.counters`; null where they mean nothing for the role.
        wait: why it waits.
        snd_settle_mode: that both ends agreed on; 1: all deliveries are sent settled.
        max_message_size: bytes that the receiving end takes; 0: no limit.
        credit_limit: to how much the credit of a sender is topped up; a receiver: what a queue is asked for.
        credit_limit_why: why it is that, if it finds its own size (`service.auto_limit`); None: it is fixed.
        credit_limit_for_s: for how long it is so.
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
    """One transaction of AMQP 1.0 that is open.

    Attributes:
        id: its txn-id, in hexadecimal.
        link: name of the control link.
        age_s: since its declare.
        messages: posted in it.
        bytes: of their contents.
        deliveries: that it has decided on.
        failed: why it can only be rolled back; None: it can be committed.
    """

    id: str
    link: str
    age_s: float
    messages: int
    bytes: int
    deliveries: int
    failed: str | None


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session of AMQP 1.0; windows and ids are those of the specification, section 2.5.6.

    Attributes:
        channel: the client's.
        incoming_window: transfers that the client may still send.
        remote_incoming_window: transfers that the client still takes.
        next_incoming_id: of the next transfer from the client.
        next_outgoing_id: of the next transfer to the client.
        unsettled_in: deliveries from the client.
        unsettled_out: deliveries to the client.
        pending_out: messages from queues that are not written yet.
        last_error: what went wrong last.
        counters: of its links, those that are gone included.
        links: by handle.
        remote_outgoing_window: transfers that the client says it may still send.
        handle_max: the highest handle.
        transactions: that are open, the oldest first.
    """

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
    """One consumer of AMQP 0-9-1.

    Attributes:
        tag: the consumer-tag.
        queue: the queue's name.
        no_ack: it acknowledges nothing.
        prefetch: messages that it may hold, 0: any number.
        unacknowledged: messages that it holds.
        unsent: messages from the queue that are not written yet.
        wait: why it waits.
        exclusive: it is the only one that the queue may have.
        timeout_ms: how long it asked to be allowed to hold a message, None: it did not ask.
        arguments: x-arguments that it gave.
    """

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
    """One channel of AMQP 0-9-1.

    Attributes:
        number: the client's.
        state: of the channel.
        confirm: whether publishes are confirmed.
        transactional: whether it is in transaction mode.
        unconfirmed: publishes that queues have not answered.
        unacknowledged: messages that its consumers hold.
        prefetch: of its next consumers.
        global_prefetch: of all its consumers together.
        reader_credit: what the connection may still read for it; see credit_flow.
        consumers: in the order of their beginning.
        last_error: what went wrong last.
        counters: see `service.counters`.
        wait: why it waits.
    """

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
    """How a client came.

    Attributes:
        local: our address, to which it came; empty if it came by none.
        connected_at_ms: when, milliseconds since the epoch.
        mechanism: of SASL; empty before the login.
        tls: whether the connection is encrypted.
        properties: that the client said of itself: client-properties, or those of its open.
        transport: ``tcp`` or ``websocket``.
    """

    local: str = ""
    connected_at_ms: int = 0
    mechanism: str = ""
    tls: bool = False
    properties: Mapping[Any, Any] = field(default_factory=dict)
    transport: str = "tcp"


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """One connection of either protocol.

    Attributes:
        id: its number.
        protocol: name and version.
        peer: the client's address.
        user: who logged in.
        vhost: the virtual host.
        container_id: of AMQP 1.0.
        client: of AMQP 0-9-1: connection_name, product and version, as far as they are told; else empty.
        state: in a word.
        channel_max: the highest channel number.
        frame_max: bytes.
        idle_timeout_ms: what the client asked for.
        bytes_in: from the client.
        bytes_out: to the client.
        writer_waiting_bytes: that the socket does not take.
        last_error: what went wrong last.
        counters: of its sessions or channels, those that are gone included.
        sessions: of AMQP 1.0, by channel.
        channels: of AMQP 0-9-1, by number.
        origin: how the client came.
        node: name of the node to which it is connected; empty: the one that was asked.
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
    """One queue.

    Attributes:
        name: of the queue.
        vhost: its virtual host.
        type: its kind.
        durable: whether it outlives the broker.
        figures: how it stands.
        dead_lettered: messages that went on to a dead-letter exchange, by reason.
        counters: what became of messages, see `queues.counters`.
        last_error: what went wrong last.
    """

    name: str
    vhost: str
    type: str
    durable: bool
    figures: QueueFigures
    dead_lettered: Mapping[str, int]
    counters: Mapping[str, int]
    last_error: LastError | None


@dataclass(frozen=True, slots=True)
class ExchangeView:
    """One exchange to which something was published.

    Attributes:
        name: of the exchange.
        vhost: its virtual host.
        counters: published; unroutable of these; returned to their publisher of these.
    """

    name: str
    vhost: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WaitingView:
    """One link, channel or consumer that waits, by itself.

    Attributes:
        kind: ``link``, ``channel`` or ``consumer``.
        connection: number of its connection.
        user: of the connection.
        vhost: of the connection.
        peer: of the connection.
        local: our address, to which it came; empty if it came by none.
        channel: the session's or channel's number.
        name: of the link, or tag of the consumer.
        role: of the link.
        queue: the queue's name.
        wait: why it waits.
        to_do: what helps, one sentence or two.
        idle: it has nothing to do, which is no fault of anybody.
    """

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
    """How many there are of what was asked for, and how many of them wait.

    Attributes:
        chosen: whether less than everything was asked for.
        connections: those that were asked for.
        connections_in_all: all that there are.
        links: links that were asked for, and so on.
        waiting: of all of these, those that wait for a reason that is somebody's fault.
        links_waiting: of the links, and so on.
        reasons: how many wait by reason, the most frequent first.
        queues: those that were asked for.
        queues_full: of these, those at a limit of length.
        idle_reasons: of `reasons`, those of links and consumers that have nothing to do.
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
    """The three settings of flow control."""

    max_link_credit: int | str
    max_incoming_window: int | str
    max_queue_credit: int | str


@dataclass(frozen=True, slots=True)
class ResourceView:
    """Memory or disk, as the alarms see it.

    Attributes:
        setting: the limit as it was given.
        limit_bytes: the limit, None: there is none.
        alarm_ends_at_bytes: where an alarm ends.
        alarm: whether it is on.
        causes: why it is on.
        since: since when, ISO 8601.
        on_for_s: how long.
    """

    setting: str | None
    limit_bytes: int | None
    alarm_ends_at_bytes: int | None
    alarm: bool
    causes: tuple[str, ...]
    since: str | None
    on_for_s: float | None


@dataclass(frozen=True, slots=True)
class MemoryView:
    """Memory: what is used, of how much, and the alarm."""

    used_bytes: int | None
    total_bytes: int | None
    resource: ResourceView


@dataclass(frozen=True, slots=True)
class DiskView:
    """Disk: what is free, where, and the alarm."""

    free_bytes: int | None
    path: str
    resource: ResourceView


@dataclass(frozen=True, slots=True)
class ResourcesView:
    """What alarms watch."""

    memory: MemoryView
    disk: DiskView


@dataclass(frozen=True, slots=True)
class JournalView:
    """The journal of durable queues. Until it is read, all but `recovered` are None.

    Attributes:
        recovered: whether it has been read since the start.
        files: of the journal.
        bytes: in them.
        live_bytes: of these, those that something still needs.
        spool_bytes: of messages that are out of memory and not durable.
        commits: since the start.
        last_sync_ms: how long the last sync took.
        sync_running: whether one is under way.
        disk_full: whether what is published waits for room.
        reserve_bytes: what else can be written before any room is made.
    """

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
    """The recording of flow events that is under way.

    Attributes:
        folder: where it is.
        run_id: of the present run.
        every_ms: milliseconds between two looks.
        began_ns: when the run began, by the wall clock.
        looks: how often everything was looked at.
        processor_percent: what observing takes of one processor.
        cost_percent: the share of the broker's processor time.
        events: of the run.
        events_written: of these, those in files.
        events_dropped: of these, those that were lost.
        buffered_bytes: of events that wait.
    """

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
    """A recording that could not go on.

    Attributes:
        folder: where it was.
        run_id: of its last run.
        reason: why.
        events: of that run.
        events_written: of these, those in files.
        events_lost: the others.
    """

    folder: str
    run_id: str
    reason: str
    events: int
    events_written: int
    events_lost: int


@dataclass(frozen=True, slots=True)
class RecordingsView:
    """The recording that is under way, and how the last one failed; None: there is none, it did not."""

    recording: RecordingView | None
    failed: RecordingFailed | None


@dataclass(frozen=True, slots=True)
class TraceView:
    """A trace of frames.

    Attributes:
        what: as it was asked for.
        target: what that is.
        into: a file's name, ``log``, or ``a terminal``.
        lines: written so far.
        ended: why nothing more is written, None: it goes on.
    """

    what: str
    target: str
    into: str
    lines: int
    ended: str | None


@dataclass(frozen=True, slots=True)
class WatchView:
    """A link of AMQP 1.0, or a channel or consumer of AMQP 0-9-1, whose frames are recorded.

    Attributes:
        watch: its number, which asks for the timeline.
        connection: number of the connection.
        user: of the connection.
        channel: of the session, or the channel.
        link: name of the link, or the consumer's tag; None: all of a channel.
        role: of the link's client: ``sender`` or ``receiver``; ``consumer`` or ``channel``.
        handle: of the link, the client's.
        address: of the source or target, None: the anonymous terminus.
        queue: the queue's name, None: it has none, or any.
        began_ns: when it began, by the clock of its steps' ``at_ns``.
        began_at_ns: the same by the wall clock, since 1970.
        client: what the client calls itself, its container-id for one; empty if it has not said.
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
    """A virtual host whose links and channels are watched from their beginning on.

    Attributes:
        vhost: its name.
        watches: of them, in the order of their beginning; those that have ended are among them.
        left_out: how many are not watched, because there were too many.
    """

    vhost: str
    watches: tuple[WatchView, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class SuspendedLinkView:
    """A link of AMQP 1.0 that is kept, and has no end in a session now.

    Attributes:
        link: its number.
        name: of the link.
        container_id: of its client.
        user: who may have it again.
        vhost: where it is.
        role: its client's: receiver or sender.
        unsettled: deliveries that are kept of it.
        age_s: since when it is suspended.
        left_s: when it ends; None: its timer has not started.
    """

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
    """A fault that the broker commits on request (`service.faults`).

    Attributes:
        fault: its number.
        kind: what is done.
        vhost: where.
        queue: a pattern for queues, or addresses of links; None: any.
        client: a pattern for container-ids and connection names; None: any.
        link: a pattern for names of links; None: any.
        count: how many messages or attaches it is for, how much credit it leaves, by how much a
            delivery-count is wrong, how large frames are; None: all, none, one, or the least.
        hits: how often it was committed so far.
        held: messages, confirms and flows that are kept back; of one that is committed once, sessions and
            channels that it has not reached yet.
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
    """The broker itself.

    Attributes:
        container_id: of AMQP 1.0.
        version: of the broker.
        pid: of its process.
        uptime_s: since its start.
        listeners: ``host:port``.
        tls_listeners: likewise, with TLS.
        flow: settings of flow control.
        data_dir: the data folder, None: everything is in memory.
        journal: None without a data folder.
        alarms: that are on.
        rss_bytes: resident memory.
        resources: what alarms watch.
        recording: None: the broker does not record.
        recording_failed: the last one, if it failed.
        traces: that are on.
        suspended_links: the first hundred of those that there are.
        kept_links: how many links are kept, attached or suspended.
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
    """What all clients did and got since the start, those that are gone included; see `service.counters`.

    Attributes:
        protocols: by protocol.
        vhosts: by virtual host.
        users: by user.
        queues: by virtual host, what became of messages in its queues, deleted ones included.
    """

    protocols: Mapping[str, Mapping[str, int | None]]
    vhosts: Mapping[str, Mapping[str, int | None]]
    users: Mapping[str, Mapping[str, int | None]]
    queues: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class BrokerView:
    """Everything.

    Attributes:
        broker: the broker itself.
        totals: what all clients did and got.
        exchanges: those to which something was published.
        summary: how many there are, and how many wait.
        waiting: what waits, longest first; behind it what is idle, if that was asked for.
        connections: with all that is in them.
        queues: all kinds.
    """

    broker: NodeView
    totals: TotalsView
    exchanges: tuple[ExchangeView, ...]
    summary: SummaryView
    waiting: tuple[WaitingView, ...]
    connections: tuple[ConnectionView, ...]
    queues: tuple[QueueView, ...]


_INLINE: Final = (WaitView, QueueFigures, ResourceView)
"""Records whose fields stand among those of the record that they are in."""


def document(view: Any) -> dict[str, Any]:
    """A record as JSON can carry it, field by field."""
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
    """The record of which `document` was made, as another node tells it.

    What JSON cannot carry has become a text on the way: in properties and arguments of clients.

    Args:
        kind: of the record.
        told: its document. Fields that it lacks have their defaults, and it may have more.

    Raises:
        TypeError: a field is missing that has no default.
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
