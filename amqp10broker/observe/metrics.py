"""Every metric: name, kind, labels, meaning. Those of RabbitMQ have its names, so that its dashboards work.

A *group* is a family of `/metrics/detailed`: metrics of the same objects, with the same labels. Its rows are
written one by one per object, and as sums without labels in the aggregated form.

Samples are gathered from the running broker in small steps, between which other tasks may run.

Counters of connections are those of one list of connections and the totals of ended ones, both of one moment:
a counter never decreases because a connection ends during the scrape.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.patterns import PatternSearch
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.queue_arguments import QueueType
from amqp10broker.operations.node import MemberState
from amqp10broker.operations.snapshot import ConnectionView
from amqp10broker.queues.commands import DeadLetterReason
from amqp10broker.queues.queue_status import AT_LEAST_ONCE, AT_MOST_ONCE, CONFIRMED, DISABLED
from amqp10broker.sessions.counters import ClientCounters, Histogram, Measures
from amqp10broker.sessions.diagnosis.wait_reasons import Wait


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    UNTYPED = "untyped"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `labels`: of its samples; in a group, those in addition to the group's."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Metrics of the same objects. `bounded`: at most `ROWS_MAX` rows, because clients can create any number
    of these objects.
    """

    name: str
    labels: tuple[str, ...]
    families: tuple[Family, ...]
    summed: bool = True
    per_object: bool = True
    bounded: bool = False

    def detailed(self, family: Family) -> Family:
        """Return a metric with the name of its detailed form: ``rabbitmq_detailed_...``."""
        prefix, _, rest = family.name.partition("_")
        kind = "cluster" if self in CLUSTER_GROUPS else "detailed"
        return replace(family, name=f"{prefix}_{kind}_{rest}")


# The most rows of a bounded group.
ROWS_MAX: Final = 10_000


def _counter(name: str, help_: str, *labels: str) -> Family:
    return Family(name, MetricKind.COUNTER, help_, labels)


def _gauge(name: str, help_: str, *labels: str) -> Family:
    return Family(name, MetricKind.GAUGE, help_, labels)


def _histogram(name: str, help_: str, *labels: str) -> Family:
    return Family(name, MetricKind.HISTOGRAM, help_, labels)


def _group(name: str, labels: tuple[str, ...], *families: Family, **flags: bool) -> Group:
    return Group(name, labels, families, **flags)


# --- of the node, in each form ------------------------------------------------------------------------

IDENTITY: Final = Family(
    "rabbitmq_identity_info",
    MetricKind.UNTYPED,
    "names of node and cluster; always 1",
    ("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id", "rabbitmq_endpoint"),
)
BUILD: Final = Family(
    "rabbitmq_build_info",
    MetricKind.UNTYPED,
    "versions; always 1. The version of RabbitMQ is the one whose behaviour this broker has",
    ("rabbitmq_version", "prometheus_plugin_version", "prometheus_client_version", "erlang_version"),
)

# --- of the node, in the aggregated and the per-object form ---------------------------------------------

TOTALS: Final = (
    _gauge("rabbitmq_connections", "connections that are open"),
    _gauge("rabbitmq_channels", "channels of AMQP 0-9-1 that are open"),
    _gauge("rabbitmq_consumers", "consumers, and links on which clients receive"),
    _gauge("rabbitmq_queues", "queues of this node: those that it leads"),
    _gauge("rabbitmq_alarms_memory_used_watermark", "1: publishers wait for memory"),
    _gauge("rabbitmq_alarms_free_disk_space_watermark", "1: publishers wait for room on the disk"),
    _gauge("rabbitmq_unreachable_cluster_peers_count", "nodes of the cluster that cannot be reached"),
)
PROCESS_START: Final = _gauge("process_start_time_seconds", "start of the broker, seconds since the epoch")

GLOBAL: Final = (
    _gauge("rabbitmq_global_publishers", "sessions and channels that have published", "protocol"),
    _gauge("rabbitmq_global_consumers", "consumers, and links on which clients receive", "protocol"),
    _counter("rabbitmq_global_messages_received_total", "messages that clients published", "protocol"),
    _counter(
        "rabbitmq_global_messages_received_confirm_total",
        "of these, those whose publisher wants an answer (AMQP 1.0: unsettled)",
        "protocol",
    ),
    _counter("rabbitmq_global_messages_confirmed_total", "publishes that were confirmed", "protocol"),
    _counter("rabbitmq_global_messages_routed_total", "messages, as often as there were queues", "protocol"),
    _counter(
        "rabbitmq_global_messages_unroutable_dropped_total",
        "messages for which there was no queue and that were not returned (AMQP 1.0: they are released)",
        "protocol",
    ),
    _counter(
        "rabbitmq_global_messages_unroutable_returned_total",
        "messages for which there was no queue and that were returned as mandatory",
        "protocol",
    ),
)
CONSUMED: Final = tuple(
    _counter(f"rabbitmq_global_messages_{name}_total", help_, "protocol", "queue_type")
    for name, help_ in {
        "delivered": "messages that went to clients",
        "delivered_consume_auto_ack": "to consumers, with nothing to be acknowledged",
        "delivered_consume_manual_ack": "to consumers, to be acknowledged",
        "delivered_get_auto_ack": "to basic.get, with nothing to be acknowledged",
        "delivered_get_manual_ack": "to basic.get, to be acknowledged",
        "get_empty": "how often basic.get found no message",
        "redelivered": "of all these, those that the queue had handed out before",
        "acknowledged": "messages that clients accepted",
    }.items()
)
_GIVEN_UP: Final = "rabbitmq_global_messages_dead_lettered"
DEAD_LETTERED: Final = {
    reason: _counter(f"{_GIVEN_UP}_{reason}_total", help_, "queue_type", "dead_letter_strategy")
    for reason, help_ in {
        "maxlen": "messages that queues gave up because they were full; disabled: they are gone",
        "expired": "because they expired",
        "rejected": "because a client rejected them",
        "delivery_limit": "because they were delivered too often",
        "confirmed": "of those that are dead-lettered at least once, those that have arrived",
    }.items()
}
MESSAGE_SIZE: Final = _histogram("rabbitmq_message_size_bytes", "sizes of messages from clients", "protocol")

# --- metrics of this broker alone -------------------------------------------------------------------

WAITING: Final = (
    _gauge("amqp10broker_links_waiting", "links that wait now", "reason"),
    _gauge("amqp10broker_link_wait_seconds", "how long the one has waited that waits longest", "reason"),
)
SPELLS: Final = (
    _histogram(
        "amqp10broker_link_credit_zero_seconds",
        "spells without link-credit that are over; role is the client's",
        "role",
    ),
    _histogram(
        "amqp10broker_session_remote_window_zero_seconds",
        "spells in which a client's session window was closed, that are over",
    ),
)
ATTEMPTS: Final = (
    _counter("rabbitmq_auth_attempts_total", "logins that were tried; over HTTP each request", "protocol"),
    _counter("rabbitmq_auth_attempts_succeeded_total", "logins that were let in", "protocol"),
    _counter("rabbitmq_auth_attempts_failed_total", "logins that were not", "protocol"),
)
FLOW: Final = (
    _counter("amqp10broker_queue_credit_grants_total", "requests of credit to queues", "protocol"),
    _counter("amqp10broker_writer_blocked_seconds_total", "time in which bytes waited for a socket"),
)
TRANSPORTS: Final = _gauge(
    "amqp10broker_connections", "connections that are open, by how they came", "transport"
)
TRANSACTIONS: Final = (
    _gauge("amqp10broker_transactions_open", "transactions of AMQP 1.0 that are open"),
    _counter(
        "amqp10broker_transactions_total",
        "transactions that are over: committed, rolled-back, or timed-out",
        *("protocol", "end"),
    ),
)
LEFT_OUT: Final = _gauge(
    "amqp10broker_series_left_out", f"objects beyond the first {ROWS_MAX}, which are not shown", "family"
)

# --- of objects -------------------------------------------------------------------------------------

CHURN: Final = _group(
    "connection_churn_metrics",
    (),
    _counter("rabbitmq_connections_opened_total", "connections that have come"),
    _counter("rabbitmq_connections_closed_total", "connections that have ended"),
    _counter("rabbitmq_channels_opened_total", "channels of AMQP 0-9-1 that have come"),
    _counter("rabbitmq_channels_closed_total", "channels of AMQP 0-9-1 that have ended"),
    _counter("rabbitmq_queues_declared_total", "declarations of queues, also of some that were there"),
    _counter("rabbitmq_queues_created_total", "queues that have come, those at the start included"),
    _counter("rabbitmq_queues_deleted_total", "queues that were deleted"),
)
NODE_COARSE: Final = _group(
    "node_coarse_metrics",
    (),
    _gauge("rabbitmq_process_open_fds", "files and sockets that are open"),
    _gauge("rabbitmq_process_resident_memory_bytes", "memory of the process that is in RAM"),
    _gauge("rabbitmq_disk_space_available_bytes", "free space on the disk of the data folder"),
)
NODE: Final = _group(
    "node_metrics",
    (),
    _gauge("rabbitmq_process_max_fds", "files and sockets that may be open"),
    _gauge("rabbitmq_resident_memory_limit_bytes", "memory above which publishers wait"),
    _gauge("rabbitmq_disk_space_available_limit_bytes", "free space below which publishers wait"),
    _gauge("rabbitmq_erlang_uptime_seconds", "since the start of the broker, which has no Erlang"),
)
PERSISTER: Final = _group(
    "node_persister_metrics",
    (),
    _counter("rabbitmq_io_sync_ops_total", "commits of the journal, each with one sync of the disk"),
)
# Queues that this node leads. In a cluster the metadata group has ``module`` and ``ra_system`` in place of
# the labels, in all forms.
RAFT: Final = _group(
    "ra_metrics",
    ("vhost", "queue"),
    _counter("rabbitmq_raft_term", "the member's term"),
    _counter("rabbitmq_raft_commit_index", "what most members have"),
    _counter("rabbitmq_raft_last_written_index", "what is on this member's disk"),
    _counter("rabbitmq_raft_snapshot_index", "what stands in a snapshot"),
    _counter("rabbitmq_raft_log_commit_index", "the old name of rabbitmq_raft_commit_index"),
    _counter("rabbitmq_raft_log_last_written_index", "that of rabbitmq_raft_last_written_index"),
    _counter("rabbitmq_raft_log_snapshot_index", "that of rabbitmq_raft_snapshot_index"),
    summed=False,
)
QUEUE_COARSE: Final = _group(
    "queue_coarse_metrics",
    ("vhost", "queue"),
    _gauge("rabbitmq_queue_messages_ready", "messages that wait for a consumer"),
    _gauge("rabbitmq_queue_messages_unacked", "messages that were handed out and are not settled"),
    _gauge("rabbitmq_queue_messages", "both together"),
)
QUEUE_CONSUMERS: Final = _group(
    "queue_consumer_count",
    ("vhost", "queue"),
    _gauge("rabbitmq_queue_consumers", "consumers, and links on which clients receive"),
    summed=False,
)
# Bytes exclude those of streams, and those of durable classic queues are not divided by persistence.
QUEUE_MESSAGES: Final = _group(
    "queue_metrics",
    ("vhost", "queue"),
    _gauge(
        "rabbitmq_queue_consumer_capacity",
        "1: what comes is delivered at once; 0: messages wait, or nothing consumes; look at the average",
    ),
    _gauge("rabbitmq_queue_consumer_utilisation", "the old name of rabbitmq_queue_consumer_capacity"),
    _gauge("rabbitmq_queue_messages_bytes", "of all messages, without what each costs beside"),
    _gauge("rabbitmq_queue_messages_ready_bytes", "of messages that wait for a consumer"),
    _gauge("rabbitmq_queue_messages_unacked_bytes", "of messages that were handed out"),
    _gauge("rabbitmq_queue_messages_persistent", "messages that survive a restart"),
    _gauge("rabbitmq_queue_messages_persistent_bytes", "and their bytes"),
    summed=False,
)
QUEUE_DELIVERY: Final = _group(
    "queue_delivery_metrics",
    ("vhost", "queue"),
    _counter("rabbitmq_queue_messages_published_total", "messages that the queue took"),
    _counter("rabbitmq_queue_messages_delivered_ack_total", "to consumers, to be acknowledged"),
    _counter("rabbitmq_queue_messages_delivered_total", "to consumers, with nothing to acknowledge"),
    _counter("rabbitmq_queue_get_ack_total", "to basic.get, to be acknowledged"),
    _counter("rabbitmq_queue_get_total", "to basic.get, with nothing to acknowledge"),
    _counter("rabbitmq_queue_get_empty_total", "how often basic.get found no message"),
    _counter("rabbitmq_queue_messages_redelivered_total", "handed out before"),
    _counter("rabbitmq_queue_messages_acked_total", "accepted by clients"),
    summed=False,
)
QUEUE_INFO: Final = _gauge(
    "rabbitmq_detailed_queue_info", "kinds of queues; always 1", "queue_type", "membership"
)
EXCHANGES: Final = _group(
    "exchange_metrics",
    ("vhost", "exchange"),
    _counter("rabbitmq_exchange_messages_published_total", "messages that came to it"),
    _counter("rabbitmq_exchange_messages_unroutable_dropped_total", "without a queue, not returned"),
    _counter("rabbitmq_exchange_messages_unroutable_returned_total", "without a queue, returned"),
    summed=False,
)
CONNECTION_COARSE: Final = _group(
    "connection_coarse_metrics",
    ("connection",),
    _counter("rabbitmq_connection_incoming_bytes_total", "bytes from the client"),
    _counter("rabbitmq_connection_outgoing_bytes_total", "bytes to the client"),
    bounded=True,
)
CONNECTION: Final = _group(
    "connection_metrics",
    ("connection",),
    _gauge("rabbitmq_connection_channels", "channels, or sessions of AMQP 1.0"),
    bounded=True,
)
CHANNEL: Final = _group(
    "channel_metrics",
    ("channel",),
    _gauge("rabbitmq_channel_consumers", "consumers"),
    _gauge("rabbitmq_channel_messages_unacked", "messages that the client holds"),
    _gauge("rabbitmq_channel_messages_unconfirmed", "publishes that queues have not answered"),
    _gauge("rabbitmq_channel_prefetch", "of its next consumers; 0: no limit"),
    bounded=True,
)
CHANNEL_COUNTERS: Final = _group(
    "channel_exchange_metrics",
    ("channel",),
    _counter("rabbitmq_channel_messages_published_total", "messages that the client published"),
    _counter("rabbitmq_channel_messages_confirmed_total", "publishes that were confirmed"),
    _counter("rabbitmq_channel_messages_unroutable_dropped_total", "without a queue, not returned"),
    _counter("rabbitmq_channel_messages_unroutable_returned_total", "without a queue, returned"),
    summed=False,
    bounded=True,
)
CHANNEL_QUEUES: Final = _group(
    "channel_queue_metrics",
    ("channel",),
    _counter("rabbitmq_channel_messages_delivered_ack_total", "to consumers, to be acknowledged"),
    _counter("rabbitmq_channel_messages_delivered_total", "to consumers, with nothing to acknowledge"),
    _counter("rabbitmq_channel_get_ack_total", "to basic.get, to be acknowledged"),
    _counter("rabbitmq_channel_get_total", "to basic.get, with nothing to acknowledge"),
    _counter("rabbitmq_channel_get_empty_total", "how often basic.get found no message"),
    _counter("rabbitmq_channel_messages_redelivered_total", "handed out before"),
    _counter("rabbitmq_channel_messages_acked_total", "accepted by the client"),
    summed=False,
    bounded=True,
)
VHOSTS: Final = _group(
    "vhost_status",
    ("vhost",),
    _gauge("rabbitmq_vhost_status", "1: the virtual host is there"),
    summed=False,
    per_object=False,
)
EXCHANGE_NAMES: Final = _group(
    "exchange_names",
    ("vhost", "exchange", "type"),
    _gauge("rabbitmq_exchange_name", "1: the exchange is there"),
    summed=False,
    per_object=False,
)
SESSION: Final = _group(
    "session_metrics",
    ("connection", "session"),
    _gauge("amqp10broker_session_incoming_window", "transfers that the client may still send"),
    _gauge("amqp10broker_session_remote_incoming_window", "transfers that the client still takes"),
    _gauge("amqp10broker_session_pending_out", "messages from queues that are not written yet"),
    bounded=True,
)
# The sums of the aggregated form are by ``role``, which is the client's.
LINK: Final = _group(
    "link_metrics",
    ("connection", "session", "link", "role", "queue"),
    _gauge("amqp10broker_link_credit", "link-credit"),
    _gauge("amqp10broker_link_unsettled", "deliveries that are not settled"),
    _gauge("amqp10broker_link_queue_credit", "what the queue may still send, of a client that receives"),
    bounded=True,
)
# Groups with the same objects at all nodes.
CLUSTER_GROUPS: Final = (VHOSTS, EXCHANGE_NAMES)
GROUPS: Final = {
    group.name: group
    for group in (
        *(CHURN, NODE_COARSE, NODE, PERSISTER, RAFT),
        *(QUEUE_COARSE, QUEUE_CONSUMERS, QUEUE_MESSAGES, QUEUE_DELIVERY, EXCHANGES),
        *(CONNECTION_COARSE, CONNECTION, CHANNEL, CHANNEL_COUNTERS, CHANNEL_QUEUES),
        *(VHOSTS, EXCHANGE_NAMES, SESSION, LINK),
    )
}

MEMORY: Final = _gauge(
    "rabbitmq_memory_other_system_bytes", "of the process in RAM: what parts of the broker take is not known"
)
ALWAYS: Final = (IDENTITY, BUILD)
NODE_ONLY: Final = (
    *(*TOTALS, PROCESS_START, *GLOBAL, *CONSUMED, *DEAD_LETTERED.values(), MESSAGE_SIZE, *ATTEMPTS),
    *(*WAITING, *SPELLS, *FLOW, TRANSPORTS, *TRANSACTIONS, LEFT_OUT),
)


PLAIN_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# A client must accept one of these.
TYPES: Final = ("text/plain", "text/*", "*/*", "application/openmetrics-text", "application/*")


class Form(StrEnum):
    """The form of a scrape; the value is the label ``rabbitmq_endpoint``."""

    AGGREGATED = "aggregated"
    PER_OBJECT = "per-object"
    DETAILED = "detailed"
    MEMORY = "memory-breakdown"


@dataclass(frozen=True, slots=True)
class ScrapeRequest:
    """A parsed request. `vhosts`: queues of these count; None: all. `queue`: searched in names of queues."""

    form: Form
    groups: tuple[Group, ...]
    vhosts: frozenset[str] | None = None
    queue: PatternSearch | None = None
    openmetrics: bool = False

    @property
    def content_type(self) -> str:
        return OPENMETRICS_TYPE if self.openmetrics else PLAIN_TYPE

    def takes_queue(self, vhost: str, name: str) -> bool:
        """Return whether a queue counts. Raises `InvalidArgument` if the search in the names of all queues
        takes too long.
        """
        if self.vhosts is not None and vhost not in self.vhosts:
            return False
        return self.queue is None or self.queue(name)


def wanted(
    form: Form,
    *,
    families: Iterable[str] = (),
    vhosts: Iterable[str] = (),
    queue: str | None = None,
    accept: str | None = None,
) -> ScrapeRequest:
    """Parse a request. `families`: names of groups; unknown ones are ignored, as in RabbitMQ. Raises
    `InvalidArgument` if the expression is invalid, or cannot be searched for in bounded time.
    """
    openmetrics = "application/openmetrics-text" in (accept or "")
    if form in (Form.AGGREGATED, Form.MEMORY):
        return ScrapeRequest(form, (), openmetrics=openmetrics)
    if form is Form.PER_OBJECT:
        groups = tuple(group for group in GROUPS.values() if group.per_object)
        return ScrapeRequest(form, groups, openmetrics=openmetrics)
    asked = tuple(GROUPS[name] for name in dict.fromkeys(families) if name in GROUPS)
    found_in = None if queue is None else PatternSearch(queue, "queue")
    return ScrapeRequest(form, asked, frozenset(vhosts) or None, found_in, openmetrics)


# --- gathering --------------------------------------------------------------------------------------

# As in RabbitMQ's labels.
PROTOCOLS: Final = {"AMQP 0-9-1": "amqp091", "AMQP 1.0": "amqp10"}
TRANSPORT_NAMES: Final = ("tcp", "tls", "websocket")
# The ends of transactions.
ENDS: Final = ("committed", "rolled-back", "timed-out")
Row = tuple[tuple[str, ...], tuple[float | None, ...]]
"""Values of labels and of families."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The process; unknown values are None. `commits`: those of the journal; None without one."""

    name: str
    cluster: str
    cluster_id: str
    version: str
    client_version: str
    now_s: float
    uptime_s: float
    open_fds: int | None
    max_fds: int | None
    memory: int | None
    memory_limit: int | None
    disk_free: int | None
    disk_limit: int | None
    alarms: Collection[str]
    peers_lost: int
    commits: int | None


class MetricSource:
    """The source of a scrape; `runtime.observe.metrics_source` has the values.

    Attributes:
        coordination: this node's member of the metadata group; None without a cluster.
        attempts: logins that succeeded, and that failed, by protocol as in labels.
        clients: returns the totals of ended connections, the counters of their clients by protocol, and the
            open connections (`runtime.connections.connections`).
        member: returns this node's member of a queue, or None.
        is_here: returns whether this node has the queue, or leads it.
    """

    catalog: Catalog
    coordination: MemberState | None
    attempts: Mapping[str, tuple[int, int]]
    node: Callable[[], NodeState]
    clients: Callable[[], tuple[Any, Mapping[str, ClientCounters], Sequence[Any]]]
    member: Callable[[DeclaredQueue], MemberState | None]
    is_here: Callable[[DeclaredQueue], bool]


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """Samples of one metric. `samples`: suffix of the name, values of labels, value; to be used once."""

    family: Family
    labels: tuple[str, ...]
    samples: Iterable[tuple[str, tuple[str, ...], float]]
    run_inline: bool = False


@dataclass(slots=True)
class _Clients:
    counters: defaultdict[str, ClientCounters] = field(default_factory=lambda: defaultdict(ClientCounters))
    measures: defaultdict[str, Measures] = field(default_factory=lambda: defaultdict(Measures))
    publishers: Counter[str] = field(default_factory=Counter)
    consumers: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    working: Counter[str] = field(default_factory=Counter)
    transports: Counter[str] = field(default_factory=Counter)
    link_sums: dict[str, list[float]] = field(default_factory=dict)
    blocked_s: float = 0.0
    transactions: int = 0
    ended: int = 0
    there: int = 0


class Gathering:
    """One scrape."""

    def __init__(self, source: MetricSource, wanted: ScrapeRequest) -> None:
        self._source = source
        self._wanted = wanted
        self._names = frozenset(group.name for group in wanted.groups)
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)
        self._sums: dict[str, list[float]] = {}
        self._left_out: Counter[str] = Counter()
        self._clients = _Clients()
        self._queues_here = 0
        self._given_up: Counter[tuple[str, str, str]] = Counter()
        self._info: list[tuple[str, tuple[str, ...], float]] = []
        self._of_process: dict[str, Sequence[float | None]] = {}

    def steps(self) -> Iterator[None]:
        """Gather all requested groups; a step is an object."""
        names = self._names
        if self._wanted.form is Form.MEMORY:
            self._node = self._source.node()
            return
        node_wanted = self._wanted.form is not Form.DETAILED
        of_clients = {group.name for group in _OF_CLIENTS}
        if node_wanted or names & of_clients:
            yield from self._look_at_clients()
        if node_wanted or any(name in names for name in _OF_QUEUES):
            yield from self._look_at_queues(names)
        if names & {EXCHANGES.name, EXCHANGE_NAMES.name, VHOSTS.name}:
            yield from self._look_at_vhosts(names)
        self._look_at_node()
        self._given_up = self._source.catalog.given_up()

    def samples(self) -> Iterator[MetricSamples]:
        yield from self._always()
        if self._wanted.form is Form.MEMORY:
            if self._node.memory is not None:
                yield _one(MEMORY, self._node.memory)
            return
        if self._wanted.form is Form.AGGREGATED:
            yield from self._of_node()
            for group in GROUPS.values():
                if group.summed:
                    yield from self._sum_of(group)
            for at, family in enumerate(RAFT.families):
                yield from self._coordination(family, at)
            return
        if self._wanted.form is Form.PER_OBJECT:
            yield from self._of_node()
        detailed = self._wanted.form is Form.DETAILED
        for group in self._wanted.groups:
            yield from self._rows_of(group, detailed=detailed)
        if self._info:
            labels = (*QUEUE_COARSE.labels, *QUEUE_INFO.labels)
            yield MetricSamples(QUEUE_INFO, labels, self._info)
        if detailed and self._left_out:
            yield self._what_is_left_out()

    # --- gathering ------------------------------------------------------------------------------------

    def _add(self, group: Group, labels: tuple[str, ...], values: tuple[float | None, ...]) -> None:
        sums = self._sums.setdefault(group.name, [0.0] * len(values))
        for at, value in enumerate(values):
            sums[at] += value or 0
        if group.name not in self._names:
            return
        rows = self._rows[group.name]
        if group.bounded and len(rows) >= ROWS_MAX:
            self._left_out[group.name] += 1
        else:
            rows.append((labels, values))

    def _look_at_clients(self) -> Iterator[None]:
        past, past_counters, connections = self._source.clients()
        clients = self._clients
        clients.ended, clients.there = past.connections, len(connections)
        clients.blocked_s = past.blocked_s
        clients.begun.update(past.parts)
        for protocol, measures in past.measures.items():
            clients.measures[protocol].add(measures)
        for protocol, counters in past_counters.items():
            clients.counters[protocol].add(counters)
        self._sums[CONNECTION_COARSE.name] = [past.bytes_in, past.bytes_out]
        for connection in connections:
            protocol = connection.protocol
            clients.counters[protocol].add(connection.counted())
            clients.measures[protocol].add(connection.measures)
            clients.blocked_s += connection.blocked_s
            clients.begun[protocol] += connection.begun
            clients.working[protocol] += len(connection.working)
            view = connection.view()
            name = str(view.id)
            clients.transports[view.origin.transport] += 1
            self._add(CONNECTION_COARSE, (name,), (view.bytes_in, view.bytes_out))
            self._add(CONNECTION, (name,), (len(view.sessions) + len(view.channels),))
            self._look_at_sessions(view, name)
            self._look_at_channels(view, name)
            yield

    def _look_at_sessions(self, view: ConnectionView, name: str) -> None:
        clients = self._clients
        for session in view.sessions:
            labels = (name, str(session.channel))
            windows = (session.incoming_window, session.remote_incoming_window, session.pending_out)
            self._add(SESSION, labels, windows)
            clients.publishers[view.protocol] += bool(session.counters["published"])
            clients.transactions += len(session.transactions)
            for link in session.links:
                clients.consumers[view.protocol] += link.role == "receiver"
                values = (link.credit, link.unsettled, link.queue_credit)
                sums = clients.link_sums.setdefault(link.role, [0.0] * len(values))
                for at, value in enumerate(values):
                    sums[at] += value or 0
                self._add(LINK, (*labels, link.name, link.role, link.queue or ""), values)
                reason = link.wait.waits
                if reason is not None:
                    clients.waiting[reason] += 1
                    longest_s = max(clients.longest_s.get(reason, 0.0), link.wait.waits_for_s or 0.0)
                    clients.longest_s[reason] = longest_s

    def _look_at_channels(self, view: ConnectionView, name: str) -> None:
        clients = self._clients
        for channel in view.channels:
            clients.publishers[view.protocol] += bool(channel.counters["published"])
            clients.consumers[view.protocol] += len(channel.consumers)
            labels = (f"{name}:{channel.number}",)
            standing = (
                *(len(channel.consumers), channel.unacknowledged),
                *(channel.unconfirmed, channel.prefetch),
            )
            self._add(CHANNEL, labels, standing)
            count = channel.counters.__getitem__
            unroutable, returned = count("unroutable") or 0, count("returned") or 0
            published = (count("published"), count("confirmed"), unroutable - returned, returned)
            self._add(CHANNEL_COUNTERS, labels, published)
            self._add(CHANNEL_QUEUES, labels, tuple(map(count, _CONSUMED)))

    def _look_at_queues(self, names: Collection[str]) -> Iterator[None]:
        # The cost of a queue is limited to the requested groups.
        source, wanted = self._source, self._wanted
        counted, shown = QUEUE_DELIVERY.name in names, any(name in names for name in _OF_QUEUES)
        consumers, raft = QUEUE_CONSUMERS.name in names, RAFT.name in names
        weighed = QUEUE_MESSAGES.name in names
        for queue in list(source.catalog):
            yield
            if not source.is_here(queue):
                continue
            self._queues_here += 1
            handle = queue.handle
            ready, unsettled = handle.ready, handle.unsettled
            labels = (queue.vhost, queue.name)
            if not wanted.takes_queue(*labels):
                continue
            self._add(QUEUE_COARSE, labels, (ready, unsettled, ready + unsettled))
            if not shown:
                continue
            if consumers:
                self._add(QUEUE_CONSUMERS, labels, (handle.figures().consumers,))
            if weighed:
                self._add(QUEUE_MESSAGES, labels, _messages(queue))
            if counted:
                counts = queue.counted()
                values = (counts["published"], *(counts[name] for name in _CONSUMED))
                self._add(QUEUE_DELIVERY, labels, values)
            if raft and queue.type == QueueType.QUORUM:
                member = source.member(queue)
                if member is not None:
                    self._add(RAFT, labels, _raft(member))
            if wanted.form is Form.DETAILED:
                kind = f"rabbit_{queue.type}_queue"
                self._info.append(("", (*labels, kind, "leader"), 1.0))

    def _look_at_vhosts(self, names: Collection[str]) -> Iterator[None]:
        for vhost in list(self._source.catalog.vhosts.values()):
            if self._wanted.vhosts is not None and vhost.name not in self._wanted.vhosts:
                continue
            self._add(VHOSTS, (vhost.name,), (1.0,))
            for exchange in list(vhost.topology):
                count = exchange.counted()
                unroutable, returned = count["unroutable"], count["returned"]
                values = (count["published"], unroutable - returned, returned)
                self._add(EXCHANGES, (vhost.name, exchange.name), values)
                self._add(EXCHANGE_NAMES, (vhost.name, exchange.name, exchange.type), (1.0,))
                yield

    def _look_at_node(self) -> None:
        node, clients, catalog = self._source.node(), self._clients, self._source.catalog
        self._node = node
        channels = clients.begun["AMQP 0-9-1"]
        churn = (
            *(clients.ended + clients.there, clients.ended),
            *(channels, channels - clients.working["AMQP 0-9-1"]),
            *(catalog.usage.queues_declared, catalog.queues_created, catalog.queues_deleted),
        )
        self._of_process = {
            CHURN.name: tuple(map(float, churn)),
            NODE_COARSE.name: (node.open_fds, node.memory, node.disk_free),
            NODE.name: (node.max_fds, node.memory_limit, node.disk_limit, node.uptime_s),
            PERSISTER.name: (node.commits,),
        }

    # --- samples --------------------------------------------------------------------------------------

    def _always(self) -> Iterator[MetricSamples]:
        node = self._node
        identity = (node.name, node.cluster, node.cluster_id, self._wanted.form.value)
        yield _one(IDENTITY, 1.0, *identity)
        announced = self._source.catalog.rules.version
        yield _one(BUILD, 1.0, announced, node.version, node.client_version, "")

    def _of_node(self) -> Iterator[MetricSamples]:
        node, clients = self._node, self._clients
        totals = (
            *(clients.there, clients.working["AMQP 0-9-1"], clients.consumers.total(), self._queues_here),
            *("memory" in node.alarms, "disk" in node.alarms, node.peers_lost),
        )
        for family, value in zip(TOTALS, totals, strict=True):
            yield _one(family, float(value))
        yield _one(PROCESS_START, node.now_s - node.uptime_s)
        yield from self._of_protocols()
        longest_s = clients.longest_s
        for family, values in zip(
            WAITING,
            ([float(clients.waiting[code]) for code in Wait], [longest_s.get(code, 0.0) for code in Wait]),
            strict=True,
        ):
            rows = [("", (code.value,), value) for code, value in zip(Wait, values, strict=True)]
            yield MetricSamples(family, family.labels, rows)
        yield from self._of_spells()
        asked = [("", (label,), clients.counters[name].credit_requests) for name, label in PROTOCOLS.items()]
        yield MetricSamples(FLOW[0], FLOW[0].labels, asked)
        yield _one(FLOW[1], clients.blocked_s)
        came = [("", (name,), float(clients.transports[name])) for name in TRANSPORT_NAMES]
        yield MetricSamples(TRANSPORTS, TRANSPORTS.labels, came)
        yield from self._of_transactions()
        yield self._what_is_left_out()

    def _of_transactions(self) -> Iterator[MetricSamples]:
        clients = self._clients
        is_open, over = TRANSACTIONS
        yield _one(is_open, float(clients.transactions))
        rows: list[tuple[str, tuple[str, ...], float]] = []
        for name, label in PROTOCOLS.items():
            ends = clients.measures[name].transactions
            rows += [("", (label, end), float(ends[end])) for end in ENDS]
        yield MetricSamples(over, over.labels, rows)

    def _of_protocols(self) -> Iterator[MetricSamples]:
        clients = self._clients
        figures: list[list[float]] = []
        consumed: dict[tuple[str, str], list[float]] = {}
        for name in PROTOCOLS:
            counters = clients.counters[name]
            routed = counters.published - counters.unroutable + counters.copies
            figures.append(
                [
                    *(clients.publishers[name], clients.consumers[name], counters.published),
                    *(counters.published - counters.published_settled, counters.confirmed, routed),
                    *(counters.unroutable - counters.returned, counters.returned),
                ]
            )
            for kind in QueueType:
                got = counters.of_type(kind.value)
                delivered = got.delivered + got.delivered_settled + got.got + got.got_settled
                consumed[PROTOCOLS[name], kind.module] = [
                    *(delivered, got.delivered_settled, got.delivered, got.got_settled, got.got),
                    *(got.got_nothing, got.redelivered, got.acknowledged),
                ]
        for at, family in enumerate(GLOBAL):
            values = zip(PROTOCOLS.values(), figures, strict=True)
            yield MetricSamples(family, family.labels, [("", (name,), each[at]) for name, each in values])
        for at, family in enumerate(CONSUMED):
            rows = [("", labels, each[at]) for labels, each in consumed.items()]
            yield MetricSamples(family, family.labels, rows)
        for reason, family in DEAD_LETTERED.items():
            rows = [
                ("", (QueueType(kind).module, strategy), float(self._given_up[kind, reason, strategy]))
                for kind, strategy in _STRATEGIES
                if kind == QueueType.QUORUM or reason != DeadLetterReason.DELIVERY_LIMIT
                if strategy == AT_LEAST_ONCE or reason != CONFIRMED
            ]
            yield MetricSamples(family, family.labels, rows)
        sizes = [
            sample
            for name, label in PROTOCOLS.items()
            for sample in _buckets(clients.measures[name].message_sizes.histogram, 1, label)
        ]
        yield MetricSamples(MESSAGE_SIZE, MESSAGE_SIZE.labels, sizes)
        told = self._source.attempts
        labels = (*PROTOCOLS.values(), "http")
        tried = [told.get(label, (0, 0)) for label in labels]
        figured = [(good + bad, good, bad) for good, bad in tried]
        for at, family in enumerate(ATTEMPTS):
            counts = zip(labels, figured, strict=True)
            yield MetricSamples(
                family, family.labels, [("", (label,), float(each[at])) for label, each in counts]
            )

    def _of_spells(self) -> Iterator[MetricSamples]:
        measures = self._clients.measures["AMQP 1.0"]
        credit, window = SPELLS
        samples = [
            *_buckets(measures.receiver_credit_zero, 1000, "receiver"),
            *_buckets(measures.sender_credit_zero, 1000, "sender"),
        ]
        yield MetricSamples(credit, credit.labels, samples)
        yield MetricSamples(window, window.labels, _buckets(measures.remote_window_zero, 1000))

    def _sum_of(self, group: Group) -> Iterator[MetricSamples]:
        if group is LINK:
            for at, family in enumerate(group.families):
                roles = self._clients.link_sums
                rows = [("", (role,), roles[role][at] if role in roles else 0.0) for role in _ROLES]
                yield MetricSamples(family, ("role",), rows)
            return
        if not group.labels:
            yield from self._values_of_node(group, group.families)
            return
        sums = self._sums.get(group.name, [0.0] * len(group.families))
        for family, value in zip(group.families, sums, strict=True):
            yield _one(family, value)

    def _rows_of(self, group: Group, *, detailed: bool) -> Iterator[MetricSamples]:
        families = [group.detailed(family) if detailed else family for family in group.families]
        if not group.labels:
            yield from self._values_of_node(group, families)
            return
        rows = self._rows[group.name]
        for at, family in enumerate(families):
            yield MetricSamples(family, group.labels, _column(rows, at))
            if group is RAFT:
                yield from self._coordination(family, at, run_inline=bool(rows))

    def _values_of_node(self, group: Group, families: Sequence[Family]) -> Iterator[MetricSamples]:
        # Unknown values are omitted: 0 would be a value.
        for family, value in zip(families, self._of_process[group.name], strict=True):
            if value is not None:
                yield _one(family, value)

    def _coordination(self, family: Family, at: int, *, run_inline: bool = False) -> Iterator[MetricSamples]:
        # One metric of the metadata group, which is not a queue.
        member = self._source.coordination
        value = None if member is None else _raft(member)[at]
        if value is not None:
            rows = [("", ("metadata_store", "coordination"), value)]
            yield MetricSamples(family, ("module", "ra_system"), rows, run_inline)

    def _what_is_left_out(self) -> MetricSamples:
        rows = [("", (name,), float(count)) for name, count in sorted(self._left_out.items())]
        return MetricSamples(LEFT_OUT, LEFT_OUT.labels, rows)


_ROLES: Final = ("receiver", "sender")
_CONSUMED: Final = (
    *("delivered", "delivered_settled", "got", "got_settled", "got_nothing"),
    *("redelivered", "acknowledged"),
)
_OF_QUEUES: Final = tuple(
    group.name
    for group in (
        *(QUEUE_COARSE, QUEUE_CONSUMERS, QUEUE_MESSAGES, QUEUE_DELIVERY),
        RAFT,
    )
)
# For each kind of queue: possible destinations of dropped messages.
_STRATEGIES: Final = tuple(
    (kind.value, strategy)
    for kind, strategies in (
        (QueueType.CLASSIC, (AT_MOST_ONCE, DISABLED)),
        (QueueType.QUORUM, (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED)),
    )
    for strategy in strategies
)
_OF_CLIENTS: Final = (
    *(CHURN, CONNECTION_COARSE, CONNECTION, CHANNEL),
    *(CHANNEL_COUNTERS, CHANNEL_QUEUES, SESSION, LINK),
)


def _one(family: Family, value: float, *labels: str) -> MetricSamples:
    return MetricSamples(family, family.labels, [("", labels, value)])


def _column(rows: Iterable[Row], at: int) -> Iterator[tuple[str, tuple[str, ...], float]]:
    # This is a generator, because there may be as many samples as queues.
    for labels, values in rows:
        value = values[at]
        if value is not None:
            yield "", labels, value


def _messages(queue: DeclaredQueue) -> tuple[float | None, ...]:
    # In the order of `QUEUE_MESSAGES`. Streams have no values: each consumer has its own position.
    handle, weight = queue.handle, queue.handle.weight()
    if queue.type == QueueType.STREAM:
        return (None,) * len(QUEUE_MESSAGES.families)
    ready, held = (None, None) if weight is None else (weight.ready, weight.unsettled)
    every = None if ready is None or held is None else ready + held
    capacity = float(bool(handle.figures().consumers) and not handle.ready)
    kept: tuple[float | None, float | None] = (None, None)
    if queue.type == QueueType.QUORUM:
        kept = (handle.ready + handle.unsettled, every)
    elif not queue.durable:
        kept = (0, 0)
    return (capacity, capacity, every, ready, held, *kept)


def _raft(member: MemberState) -> tuple[Any, ...]:
    indexes = (member.commit_index, member.last_written, member.snapshot_index)
    return (member.term, *indexes, *indexes)


def _buckets(histogram: Histogram, unit: int, *labels: str) -> list[tuple[str, tuple[str, ...], float]]:
    # `unit` is the number of the histogram's units in one unit of the metric.
    ends = [*(float(bound) / unit for bound in histogram.bounds), float("inf")]
    below = list(accumulate(histogram.counts))
    rows = [("_bucket", (*labels, _end(end)), float(count)) for end, count in zip(ends, below, strict=True)]
    rows.append(("_count", labels, float(below[-1])))
    rows.append(("_sum", labels, histogram.sum / unit))
    return rows


def _end(bound: float) -> str:
    # In the notation of Prometheus' clients: ``100.0``, ``1e+06``, ``+Inf``.
    if bound == float("inf"):
        return "+Inf"
    return f"{bound:.0e}" if bound >= 1e6 else repr(bound)
