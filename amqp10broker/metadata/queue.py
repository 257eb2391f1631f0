"""One declared queue, and how the catalog has it run: `StartQueue`, of the runtime, starts one from a
`QueueSpec` and returns the `QueueHandle` for all access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import MASTER_LOCATOR, TRANSIENT
from amqp10broker.errors import InvalidArgument, NotFound
from amqp10broker.metadata.queue_kind import KINDS, QueueKind
from amqp10broker.queues.commands import Command
from amqp10broker.queues.counters import QueueConsumption, QueueCounters, tally
from amqp10broker.queues.queue_status import UP_TO_DATE, QueueProgress, QueueStats, QueueStatus, QueueWeight
from amqp10broker.queues.settings import DEFAULTS, QueueSettings

QUEUE_NUMBER_MAX: Final = 2**32 - 1
"""Numbers are the groups of the journal's records, which have 32 bits."""


class Owner(NamedTuple):
    """A connection, as the owner of exclusive queues is named at every node."""

    node: int
    """Number of the node to which it is connected; 0: of a node that is in no cluster."""
    incarnation: int
    """Which start of that node it belongs to."""
    connection: int


class QueueType(StrEnum):
    """The kinds of queue, as ``x-queue-type`` names them."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"

    @property
    def module(self) -> str:
        """The kind's name in labels of metrics, as in RabbitMQ's: ``rabbit_classic_queue``."""
        return f"rabbit_{self.value}_queue"


class UnknownQueueType(InvalidArgument):
    """There is no such kind of queue: another broker, or a plugin of it, has it."""


def queue_type_of(name: str, resource: str) -> QueueType:
    """The kind of queue of this name. Raises `UnknownQueueType` if there is no such kind."""
    try:
        return QueueType(name)
    except ValueError:
        raise UnknownQueueType(
            resource,
            f"invalid arg 'x-queue-type' for {resource}: must be one of {', '.join(QueueType)}, not '{name}'",
        ) from None


@dataclass(frozen=True, slots=True)
class Effective:
    """The merged policies of a queue; see `metadata.effective`.

    Attributes:
        definition: the two merged, as far as the kind of queue knows the settings. Arguments are not in it.
        ineffective: names of settings of the two that mean nothing to this kind of queue.
        warnings: sentences for the log on settings with another effect than their name suggests.
    """

    policy: str | None = None
    operator_policy: str | None = None
    definition: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ineffective: tuple[str, ...] = ()
    settings: QueueSettings = DEFAULTS
    warnings: tuple[str, ...] = ()


NO_POLICY: Final = Effective()
"""Of a queue without arguments for which there is no policy."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The parameters with which a `QueueHost` runs a queue.

    Attributes:
        settings: what arguments and policies make of it now; a change comes as `Configure`.
        warnings: sentences for the log on settings with another effect than their name suggests.
        number: what its records in the journal are found by; never given twice in the life of a data
            folder, so that a queue that was deleted and declared anew has another one. 0 is not on disk.
        owner: the connection that has it exclusively, compared by value; None if anyone may use it.
        declaration_id: of a stream: random, set at declaration, so that readers that store offsets can
            distinguish it from another stream of its name, also of another broker or data folder. "" for
            other kinds of queue.
        home: number of the node that has it, of a queue that is at one node; 0: of a node in no cluster.
        members: of a quorum queue in a cluster, the ids of its members, ascending by preference: the first
            shall lead. (): one member, at a node in no cluster.
        incarnation: of a queue that does not outlive the process, the start of `home` with which it ends.
        rules: of a quorum queue, fields of `settings` that the version emulated at its declaration sets
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
        """Whether one connection has it for itself, with which it goes."""
        return self.owner is not None

    @property
    def lasting(self) -> bool:
        """Whether it survives a restart of the broker."""
        return self.durable and not self.exclusive


AS_DECLARED: Final = (
    *("vhost", "name", "type", "durable", "auto_delete", "arguments", "number", "declaration_id"),
    *("owner", "home", "members", "incarnation", "rules"),
)
"""Fields of `QueueSpec` that policies have no part in, and that `DeclaredQueue` has too."""


class QueueHandle(Protocol):
    """Where commands to a queue are put. Never waits: what may be outstanding is bounded by credit."""

    def post(self, command: Command) -> None: ...

    @property
    def ready(self) -> int:
        """Messages waiting for a consumer; read often, so it must be cheap."""

    @property
    def unsettled(self) -> int:
        """Messages handed out and not settled."""

    def queue_status(self) -> QueueStatus:
        """The reasons why a consumer or publisher waits."""

    def progress(self) -> QueueProgress:
        """The obstacles of the queue's progress."""

    @property
    def counters(self) -> QueueCounters:
        """Counters of messages; those of consumers are with the declared queue."""

    def figures(self) -> QueueStats:
        """Statistics of the queue; too dear for frequent calls."""

    def weight(self) -> QueueWeight | None:
        """Bytes of its messages, None if not known; dearer than `figures`."""

    @property
    def down(self) -> str | None:
        """Name of the node that has the queue and cannot be reached; None: the queue can be used."""


def deprecated_features(queue: QueueSpec | DeclaredQueue) -> list[str]:
    """Return the names of the deprecated features that a declared queue uses."""
    used = [TRANSIENT] if not (queue.durable or queue.exclusive) else []
    return [*used, MASTER_LOCATOR] if "x-queue-master-locator" in queue.arguments else used


QueueCommand = tuple[QueueHandle, Command]
"""A command, and the queue that it is for."""


StartQueue = Callable[[QueueSpec], QueueHandle]
"""Begins to run a queue: a new and empty one, or at start one that was there before, by its number."""


class IdleQueue:
    """The handle of a queue that is not run: it ignores all commands."""

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
    """One queue. Compared by identity: one that was deleted and declared anew is another queue.

    Only `effective` and `members` change, by `Catalog.apply`, `last_error` and `ended`.

    Attributes:
        owner: the connection that has it exclusively, compared by value; None if anyone may use it.
        last_error: what went wrong last with it, or at a client because of it.
        ended: this node has had it deleted, which other nodes have yet to agree to.
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
        """All that is counted of it; see `queues.counters`."""
        return tally(self.handle.counters, self.consumption)

    def check_up(self) -> None:
        """Check that the node that has it can be reached. Raises `NotFound` if it cannot."""
        if self.handle.down is not None:
            raise self.inaccessible()

    def inaccessible(self) -> NotFound:
        """The refusal for a queue whose node is not reachable."""
        node = "home node" if self.handle.down is None else f"home node '{self.handle.down}'"
        noun = "durable queue" if self.durable else "queue"
        text = f"{node} of {noun} '{self.name}' in vhost '{self.vhost}' is down or inaccessible"
        return NotFound(f"queue '{self.name}'", text)

    @property
    def kind(self) -> QueueKind:
        """The properties of the queue's kind."""
        return KINDS[self.type]

    @property
    def spec(self) -> QueueSpec:
        """As it was declared, without what policies make of it."""
        return QueueSpec(**{name: getattr(self, name) for name in AS_DECLARED})

    @property
    def exclusive(self) -> bool:
        """Whether one connection has it for itself."""
        return self.owner is not None

    @property
    def lasting(self) -> bool:
        """Whether it survives a restart of the broker: an exclusive queue ends with its connection."""
        return self.durable and not self.exclusive


@dataclass(frozen=True, slots=True)
class LastError:
    """One thing that went wrong. `details`: `text`, which the client got, and where it happened: connection,
    channel, link, queue, .
    """

    time: str
    event: str
    details: Mapping[str, Any]

    def shown(self) -> dict[str, Any]:
        """As the status document has it: time, event, and the details."""
        return {"time": self.time, "event": self.event, **self.details}


def shown(error: LastError | None) -> dict[str, Any] | None:
    return None if error is None else error.shown()
