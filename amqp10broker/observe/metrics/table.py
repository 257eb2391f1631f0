"""Every metric: name, kind, labels, meaning. Those of RabbitMQ have its names, so that its dashboards work.

A *group* is a family of `/metrics/detailed`: metrics of the same objects, with the same labels. Its rows are
written one by one per object, and as sums without labels in the aggregated form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.patterns import PatternSearch


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


# Maximum of rows in a bounded group.
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
# Their objects are the same at all nodes.
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
