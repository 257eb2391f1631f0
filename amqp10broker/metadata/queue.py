"""Declared queues, the kinds of queue, and the nodes of a cluster.

The runtime's `StartQueue` starts a queue from a `QueueSpec`, and returns the `QueueHandle` for all access.
Properties of a kind are in its record, so that no other code compares names of kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import MASTER_LOCATOR, TRANSIENT
from amqp10broker.errors import NotFound
from amqp10broker.metadata.policies import NO_POLICY, Effective
from amqp10broker.queues.commands import Command
from amqp10broker.queues.queue_status import (
    UP_TO_DATE,
    QueueConsumption,
    QueueCounters,
    QueueProgress,
    QueueStats,
    QueueStatus,
    QueueWeight,
    tally,
)
from amqp10broker.queues.settings import DEFAULTS, QueueSettings

QUORUM_PREFETCH_MAX: Final = 2_000
"""RabbitMQ's limit, for consumers of AMQP 0-9-1 without a prefetch."""

ASKED_TIMES_BY_LOG: Final = 8
"""For a queue that delivers only messages that are synced in its log: 8 x 256 messages a sync."""

UNSENT_REPLIES_MAX: Final = 1_000_000
"""The replies of direct reply-to that may wait for one consumer; more are lost (docs/adr/0033)."""


@dataclass(frozen=True, slots=True)
class QueueKind:
    """Properties of one kind. The defaults are those of a classic queue.

    Attributes:
        volatile: it belongs to one consumer and is not declared: messages without credit are lost.
        replays: consumers read it from positions of their own and remove nothing; it cannot be purged or read
            by basic.get.
        selects: a consumer may select messages of it; a kind that `replays` has its own filters.
        keeps_encoding: it delivers AMQP 1.0, whatever protocol published the message.
        counts_lost_as_failed: deliveries of a lost connection count as failed attempts.
        own_files: its messages are in files of its own, and not in the node's journal.
        replicated: it has members on several nodes, which agree on all of its changes.
        unsent_max: unwritten deliveries of it that a session or channel may have, in place of its own limits;
            None: those apply.
        request_factor: factor on the limit of a session or channel for the credit of one consumer, because
            each answer waits for a sync.
        held_max: deliveries that a consumer of AMQP 0-9-1 may hold without a prefetch; None: no limit.
    """

    name: str
    noun: str = "queue"
    volatile: bool = False
    replays: bool = False
    selects: bool = True
    browsed: bool = True
    keeps_encoding: bool = False
    answers_settlements: bool = False
    keeps_annotations: bool = False
    counts_lost_as_failed: bool = False
    reports_active: bool = False
    exclusive_consumers: bool = True
    global_prefetch: bool = True
    conditional_delete: bool = True
    own_files: bool = False
    replicated: bool = False
    unsent_max: int | None = None
    request_factor: int = 1
    held_max: int | None = None


CLASSIC: Final = QueueKind("classic")
QUORUM: Final = QueueKind(
    "quorum",
    answers_settlements=True,
    keeps_annotations=True,
    counts_lost_as_failed=True,
    reports_active=True,
    exclusive_consumers=False,
    global_prefetch=False,
    conditional_delete=False,
    replicated=True,
    request_factor=ASKED_TIMES_BY_LOG,
    held_max=QUORUM_PREFETCH_MAX,
)
STREAM: Final = QueueKind(
    "stream",
    noun="stream",
    replays=True,
    selects=False,
    browsed=False,
    own_files=True,
    keeps_encoding=True,
    exclusive_consumers=False,
    global_prefetch=False,
    conditional_delete=False,
)
VOLATILE_KIND: Final = QueueKind(
    "volatile", volatile=True, selects=False, browsed=False, unsent_max=UNSENT_REPLIES_MAX
)

KINDS: Final[Mapping[str, QueueKind]] = {kind.name: kind for kind in (CLASSIC, QUORUM, STREAM, VOLATILE_KIND)}


QUEUE_NUMBER_MAX: Final = 2**32 - 1
"""Numbers are the groups of the journal's records, which have 32 bits."""


class Owner(NamedTuple):
    """A connection as the owner of exclusive queues. `node`: the number of its node; 0: it is not in a
    cluster. `incarnation`: the start of that node.
    """

    node: int
    incarnation: int
    connection: int


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The parameters of a running queue.

    Attributes:
        settings, warnings: those of `Effective`; a change comes as `Configure`.
        number: the key of its records in the journal; never assigned twice in one data folder. 0 is not on
            disk.
        owner: the connection that has it exclusively, compared by value; None: it is not exclusive.
        declaration_id: for a stream: random, set at declaration, so that readers that store offsets can
            distinguish it from another stream of its name, also of another broker. "" for other kinds.
        home: the number of the node of a queue that is on one node; 0: not in a cluster.
        members: for a quorum queue in a cluster: member ids, ascending by preference as leader. (): not in a
            cluster.
        incarnation: for a queue that does not survive the process, the start of `home` with which it ends.
        rules: for a quorum queue, fields of `settings` that the version emulated at its declaration sets
            (`emulation.Rules.quorum`): all members apply the same, whatever their nodes emulate.
    """

    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: Mapping[str, Any]
    settings: QueueSettings = DEFAULTS
    warnings: tuple[str, ...] = ()
    number: int = 0
    declaration_id: str = ""
    owner: object | None = None
    home: int = 0
    members: tuple[int, ...] = ()
    incarnation: int = 0
    rules: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def exclusive(self) -> bool:
        return self.owner is not None

    @property
    def lasting(self) -> bool:
        """Whether it survives a restart of the broker."""
        return self.durable and not self.exclusive


AS_DECLARED: Final = (
    *("vhost", "name", "type", "durable", "auto_delete", "arguments", "number", "declaration_id"),
    *("owner", "home", "members", "incarnation", "rules"),
)
"""Fields of both `QueueSpec` and `DeclaredQueue` that no policy sets."""


class QueueHandle(Protocol):
    """Access to a queue. `post` never waits: credit bounds the outstanding commands."""

    def post(self, command: Command) -> None: ...

    @property
    def ready(self) -> int:
        """The number of messages that wait for a consumer; read often, so it must be cheap."""

    @property
    def unsettled(self) -> int: ...

    def queue_status(self) -> QueueStatus:
        """Return the reasons why a consumer or publisher waits."""

    def progress(self) -> QueueProgress: ...

    @property
    def counters(self) -> QueueCounters:
        """The counters of messages; those of consumers are with the declared queue."""

    def figures(self) -> QueueStats:
        """Return statistics of the queue; too expensive for frequent calls."""

    def weight(self) -> QueueWeight | None:
        """Return the bytes of its messages, None if unknown; more expensive than `figures`."""

    @property
    def down(self) -> str | None:
        """The name of the queue's node if it cannot be reached; None: the queue can be used."""


def deprecated_features(queue: QueueSpec | DeclaredQueue) -> list[str]:
    """Return the deprecated features that a declared queue uses."""
    used = [TRANSIENT] if not (queue.durable or queue.exclusive) else []
    return [*used, MASTER_LOCATOR] if "x-queue-master-locator" in queue.arguments else used


QueueCommand = tuple[QueueHandle, Command]

StartQueue = Callable[[QueueSpec], QueueHandle]
"""Begins to run a queue: a new one, or at start an existing one, by its number."""


class IdleQueue:
    """The handle of a queue that does not run: it ignores all commands."""

    ready = unsettled = 0
    counters = QueueCounters()
    down: str | None = None

    def __init__(self, spec: QueueSpec) -> None: ...

    def post(self, command: Command) -> None: ...

    def queue_status(self) -> QueueStatus:
        return QueueStatus(0, 0, {})

    def progress(self) -> QueueProgress:
        return UP_TO_DATE

    def figures(self) -> QueueStats:
        return QueueStats()

    def weight(self) -> None: ...


@dataclass(slots=True, eq=False)
class DeclaredQueue:
    """One queue. A queue that was deleted and declared again is another one.

    Only `effective` and `members`, which `Catalog.apply` changes, `last_error` and `ended` change.

    Attributes:
        last_error: its last fault, or the last one of a client because of it.
        ended: this node has requested its deletion, which other nodes have yet to agree to.
    """

    name: str
    vhost: str
    type: str
    durable: bool
    owner: object | None
    auto_delete: bool
    arguments: Mapping[str, Any]
    handle: QueueHandle
    effective: Effective = NO_POLICY
    number: int = 0
    declaration_id: str = ""
    home: int = 0
    members: tuple[int, ...] = ()
    incarnation: int = 0
    rules: Mapping[str, Any] = field(default_factory=dict)
    last_error: LastError | None = None
    consumption: QueueConsumption = field(default_factory=QueueConsumption, repr=False)
    ended: bool = False

    def counted(self) -> dict[str, int]:
        return tally(self.handle.counters, self.consumption)

    def check_up(self) -> None:
        """Raise `NotFound` if its node cannot be reached."""
        if self.handle.down is not None:
            raise self.inaccessible()

    def inaccessible(self) -> NotFound:
        node = "home node" if self.handle.down is None else f"home node '{self.handle.down}'"
        noun = "durable queue" if self.durable else "queue"
        text = f"{node} of {noun} '{self.name}' in vhost '{self.vhost}' is down or inaccessible"
        return NotFound(f"queue '{self.name}'", text)

    @property
    def kind(self) -> QueueKind:
        return KINDS[self.type]

    @property
    def spec(self) -> QueueSpec:
        """The queue as it was declared, without policies."""
        return QueueSpec(**{name: getattr(self, name) for name in AS_DECLARED})

    @property
    def exclusive(self) -> bool:
        return self.owner is not None

    @property
    def lasting(self) -> bool:
        return self.durable and not self.exclusive


@dataclass(frozen=True, slots=True)
class LastError:
    """An error. `details`: `text`, as the client got it, and the place: connection, channel, link, queue."""

    time: str
    event: str
    details: Mapping[str, Any]

    def shown(self) -> dict[str, Any]:
        return {"time": self.time, "event": self.event, **self.details}


def shown(error: LastError | None) -> dict[str, Any] | None:
    return None if error is None else error.shown()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One member of the cluster.

    Attributes:
        number: 1 to 2**32 - 1, never assigned again.
        draining: it is in maintenance: it must not lead, and serves no client.
        machines: the oldest and the newest version of the replicated machines that it supports
            (`queues.machine_version`).
    """

    name: str
    number: int
    host: str
    port: int
    incarnation: int = 0
    draining: bool = False
    version: str = ""
    machines: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster. `queues_due`: the queues and bindings of the founder's configuration are still to be
    declared (`definitions.DeclareDue`).
    """

    id: str
    name: str
    version: int = 1
    queues_due: bool = False


_OF_NODE: Final = ("number", "host", "port", "incarnation", "draining", "version", "machines")


def node_entry(node: NodeFacts) -> dict[str, Any]:
    return {name: getattr(node, name) for name in _OF_NODE} | {"machines": list(node.machines)}


def read_node(name: str, value: Mapping[str, Any]) -> NodeFacts:
    found = {each: value[each] for each in _OF_NODE}
    return NodeFacts(name, **found | {"machines": tuple(map(int, value["machines"]))})


class Placed(NamedTuple):
    home: int = 0
    members: tuple[int, ...] = ()
    incarnation: int = 0


Placement = Callable[
    [QueueSpec, Mapping[str, Any], Iterable[NodeFacts], Iterable[DeclaredQueue], int], Placed
]
"""Chooses the nodes of a queue that a client of this node declares, by `Effective.definition` and the number
of existing queues.
"""
