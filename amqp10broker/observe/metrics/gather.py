"""Gathers samples from the running broker in small steps, between which other tasks may run.

Counters of connections are those of one list of connections and the totals of ended ones, both of one moment:
a counter never decreases because a connection ends during the scrape.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue, QueueType
from amqp10broker.observe.metrics import table
from amqp10broker.observe.metrics.table import Family, Form, Group, ScrapeRequest
from amqp10broker.operations.node import MemberState
from amqp10broker.operations.snapshot import ConnectionView
from amqp10broker.queues.commands import DeadLetterReason
from amqp10broker.queues.queue_status import AT_LEAST_ONCE, AT_MOST_ONCE, CONFIRMED, DISABLED
from amqp10broker.sessions.counters import ClientCounters, Histogram, Measures
from amqp10broker.sessions.diagnosis.waits import Wait

# As in RabbitMQ's labels.
PROTOCOLS: Final = {"AMQP 0-9-1": "amqp091", "AMQP 1.0": "amqp10"}
TRANSPORTS: Final = ("tcp", "tls", "websocket")
# Of transactions.
ENDS: Final = ("committed", "rolled-back", "timed-out")
Row = tuple[tuple[str, ...], tuple[float | None, ...]]
"""Values of labels and of families."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The process; unknown values are None. `commits`: of the journal; None without one."""

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
    """What a scrape reads; `runtime.observe.metrics_source` has the values.

    Attributes:
        coordination: this node's member of the metadata group; None without a cluster.
        attempts: logins that succeeded, and that failed, by protocol as in labels.
        clients: returns the totals of ended connections, the counters of their clients by protocol, and the
            open connections (`runtime.connections.connections`).
        member: returns this node's member of a queue; None: it has none.
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
    """Samples of one metric. `samples`: suffix of the name, values of the labels, and the value; to be used
    once.
    """

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
        if names & {table.EXCHANGES.name, table.EXCHANGE_NAMES.name, table.VHOSTS.name}:
            yield from self._look_at_vhosts(names)
        self._look_at_node()
        self._given_up = self._source.catalog.given_up()

    def samples(self) -> Iterator[MetricSamples]:
        yield from self._always()
        if self._wanted.form is Form.MEMORY:
            if self._node.memory is not None:
                yield _one(table.MEMORY, self._node.memory)
            return
        if self._wanted.form is Form.AGGREGATED:
            yield from self._of_node()
            for group in table.GROUPS.values():
                if group.summed:
                    yield from self._sum_of(group)
            for at, family in enumerate(table.RAFT.families):
                yield from self._coordination(family, at)
            return
        if self._wanted.form is Form.PER_OBJECT:
            yield from self._of_node()
        detailed = self._wanted.form is Form.DETAILED
        for group in self._wanted.groups:
            yield from self._rows_of(group, detailed=detailed)
        if self._info:
            labels = (*table.QUEUE_COARSE.labels, *table.QUEUE_INFO.labels)
            yield MetricSamples(table.QUEUE_INFO, labels, self._info)
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
        if group.bounded and len(rows) >= table.ROWS_MAX:
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
        self._sums[table.CONNECTION_COARSE.name] = [past.bytes_in, past.bytes_out]
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
            self._add(table.CONNECTION_COARSE, (name,), (view.bytes_in, view.bytes_out))
            self._add(table.CONNECTION, (name,), (len(view.sessions) + len(view.channels),))
            self._look_at_sessions(view, name)
            self._look_at_channels(view, name)
            yield

    def _look_at_sessions(self, view: ConnectionView, name: str) -> None:
        clients = self._clients
        for session in view.sessions:
            labels = (name, str(session.channel))
            windows = (session.incoming_window, session.remote_incoming_window, session.pending_out)
            self._add(table.SESSION, labels, windows)
            clients.publishers[view.protocol] += bool(session.counters["published"])
            clients.transactions += len(session.transactions)
            for link in session.links:
                clients.consumers[view.protocol] += link.role == "receiver"
                values = (link.credit, link.unsettled, link.queue_credit)
                sums = clients.link_sums.setdefault(link.role, [0.0] * len(values))
                for at, value in enumerate(values):
                    sums[at] += value or 0
                self._add(table.LINK, (*labels, link.name, link.role, link.queue or ""), values)
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
            self._add(table.CHANNEL, labels, standing)
            count = channel.counters.__getitem__
            unroutable, returned = count("unroutable") or 0, count("returned") or 0
            published = (count("published"), count("confirmed"), unroutable - returned, returned)
            self._add(table.CHANNEL_COUNTERS, labels, published)
            self._add(table.CHANNEL_QUEUES, labels, tuple(map(count, _CONSUMED)))

    def _look_at_queues(self, names: Collection[str]) -> Iterator[None]:
        # The cost of a queue is limited to the requested groups.
        source, wanted = self._source, self._wanted
        counted, shown = table.QUEUE_DELIVERY.name in names, any(name in names for name in _OF_QUEUES)
        consumers, raft = table.QUEUE_CONSUMERS.name in names, table.RAFT.name in names
        weighed = table.QUEUE_MESSAGES.name in names
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
            self._add(table.QUEUE_COARSE, labels, (ready, unsettled, ready + unsettled))
            if not shown:
                continue
            if consumers:
                self._add(table.QUEUE_CONSUMERS, labels, (handle.figures().consumers,))
            if weighed:
                self._add(table.QUEUE_MESSAGES, labels, _messages(queue))
            if counted:
                counts = queue.counted()
                values = (counts["published"], *(counts[name] for name in _CONSUMED))
                self._add(table.QUEUE_DELIVERY, labels, values)
            if raft and queue.type == QueueType.QUORUM:
                member = source.member(queue)
                if member is not None:
                    self._add(table.RAFT, labels, _raft(member))
            if wanted.form is Form.DETAILED:
                kind = f"rabbit_{queue.type}_queue"
                self._info.append(("", (*labels, kind, "leader"), 1.0))

    def _look_at_vhosts(self, names: Collection[str]) -> Iterator[None]:
        for vhost in list(self._source.catalog.vhosts.values()):
            if self._wanted.vhosts is not None and vhost.name not in self._wanted.vhosts:
                continue
            self._add(table.VHOSTS, (vhost.name,), (1.0,))
            for exchange in list(vhost.topology):
                count = exchange.counted()
                unroutable, returned = count["unroutable"], count["returned"]
                values = (count["published"], unroutable - returned, returned)
                self._add(table.EXCHANGES, (vhost.name, exchange.name), values)
                self._add(table.EXCHANGE_NAMES, (vhost.name, exchange.name, exchange.type), (1.0,))
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
            table.CHURN.name: tuple(map(float, churn)),
            table.NODE_COARSE.name: (node.open_fds, node.memory, node.disk_free),
            table.NODE.name: (node.max_fds, node.memory_limit, node.disk_limit, node.uptime_s),
            table.PERSISTER.name: (node.commits,),
        }

    # --- samples --------------------------------------------------------------------------------------

    def _always(self) -> Iterator[MetricSamples]:
        node = self._node
        identity = (node.name, node.cluster, node.cluster_id, self._wanted.form.value)
        yield _one(table.IDENTITY, 1.0, *identity)
        announced = self._source.catalog.rules.version
        yield _one(table.BUILD, 1.0, announced, node.version, node.client_version, "")

    def _of_node(self) -> Iterator[MetricSamples]:
        node, clients = self._node, self._clients
        totals = (
            *(clients.there, clients.working["AMQP 0-9-1"], clients.consumers.total(), self._queues_here),
            *("memory" in node.alarms, "disk" in node.alarms, node.peers_lost),
        )
        for family, value in zip(table.TOTALS, totals, strict=True):
            yield _one(family, float(value))
        yield _one(table.PROCESS_START, node.now_s - node.uptime_s)
        yield from self._of_protocols()
        longest_s = clients.longest_s
        for family, values in zip(
            table.WAITING,
            ([float(clients.waiting[code]) for code in Wait], [longest_s.get(code, 0.0) for code in Wait]),
            strict=True,
        ):
            rows = [("", (code.value,), value) for code, value in zip(Wait, values, strict=True)]
            yield MetricSamples(family, family.labels, rows)
        yield from self._of_spells()
        asked = [("", (label,), clients.counters[name].credit_requests) for name, label in PROTOCOLS.items()]
        yield MetricSamples(table.FLOW[0], table.FLOW[0].labels, asked)
        yield _one(table.FLOW[1], clients.blocked_s)
        came = [("", (name,), float(clients.transports[name])) for name in TRANSPORTS]
        yield MetricSamples(table.TRANSPORTS, table.TRANSPORTS.labels, came)
        yield from self._of_transactions()
        yield self._what_is_left_out()

    def _of_transactions(self) -> Iterator[MetricSamples]:
        clients = self._clients
        is_open, over = table.TRANSACTIONS
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
        for at, family in enumerate(table.GLOBAL):
            values = zip(PROTOCOLS.values(), figures, strict=True)
            yield MetricSamples(family, family.labels, [("", (name,), each[at]) for name, each in values])
        for at, family in enumerate(table.CONSUMED):
            rows = [("", labels, each[at]) for labels, each in consumed.items()]
            yield MetricSamples(family, family.labels, rows)
        for reason, family in table.DEAD_LETTERED.items():
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
        yield MetricSamples(table.MESSAGE_SIZE, table.MESSAGE_SIZE.labels, sizes)
        told = self._source.attempts
        labels = (*PROTOCOLS.values(), "http")
        tried = [told.get(label, (0, 0)) for label in labels]
        figured = [(good + bad, good, bad) for good, bad in tried]
        for at, family in enumerate(table.ATTEMPTS):
            counts = zip(labels, figured, strict=True)
            yield MetricSamples(
                family, family.labels, [("", (label,), float(each[at])) for label, each in counts]
            )

    def _of_spells(self) -> Iterator[MetricSamples]:
        measures = self._clients.measures["AMQP 1.0"]
        credit, window = table.SPELLS
        samples = [
            *_buckets(measures.receiver_credit_zero, 1000, "receiver"),
            *_buckets(measures.sender_credit_zero, 1000, "sender"),
        ]
        yield MetricSamples(credit, credit.labels, samples)
        yield MetricSamples(window, window.labels, _buckets(measures.remote_window_zero, 1000))

    def _sum_of(self, group: Group) -> Iterator[MetricSamples]:
        if group is table.LINK:
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
            if group is table.RAFT:
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
        return MetricSamples(table.LEFT_OUT, table.LEFT_OUT.labels, rows)


_ROLES: Final = ("receiver", "sender")
_CONSUMED: Final = (
    *("delivered", "delivered_settled", "got", "got_settled", "got_nothing"),
    *("redelivered", "acknowledged"),
)
_OF_QUEUES: Final = tuple(
    group.name
    for group in (
        *(table.QUEUE_COARSE, table.QUEUE_CONSUMERS, table.QUEUE_MESSAGES, table.QUEUE_DELIVERY),
        table.RAFT,
    )
)
# Of kinds of queues: possible destinations of dropped messages.
_STRATEGIES: Final = tuple(
    (kind.value, strategy)
    for kind, strategies in (
        (QueueType.CLASSIC, (AT_MOST_ONCE, DISABLED)),
        (QueueType.QUORUM, (AT_LEAST_ONCE, AT_MOST_ONCE, DISABLED)),
    )
    for strategy in strategies
)
_OF_CLIENTS: Final = (
    *(table.CHURN, table.CONNECTION_COARSE, table.CONNECTION, table.CHANNEL),
    *(table.CHANNEL_COUNTERS, table.CHANNEL_QUEUES, table.SESSION, table.LINK),
)


def _one(family: Family, value: float, *labels: str) -> MetricSamples:
    return MetricSamples(family, family.labels, [("", labels, value)])


def _column(rows: Iterable[Row], at: int) -> Iterator[tuple[str, tuple[str, ...], float]]:
    # A generator: there may be as many samples as queues.
    for labels, values in rows:
        value = values[at]
        if value is not None:
            yield "", labels, value


def _messages(queue: DeclaredQueue) -> tuple[float | None, ...]:
    # In the order of `table.QUEUE_MESSAGES`. Streams have no values: each consumer has its own position.
    handle, weight = queue.handle, queue.handle.weight()
    if queue.type == QueueType.STREAM:
        return (None,) * len(table.QUEUE_MESSAGES.families)
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
    # `unit` is the number of the histogram's units in one of the metric's.
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
