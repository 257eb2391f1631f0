"""The running node, the caller of an operation, and the steps in which it waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotFound, NotSupported, PermissionDenied, RefusedError
from amqp10broker.metadata.plan import LATER
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.operation import FOR_ADMINISTRATORS, Operation, checked
from amqp10broker.operations.snapshot import (
    BrokerView,
    ConnectionView,
    FollowedView,
    Inspection,
    RecordingsView,
    RecordingView,
    SummaryView,
    SuspendedLinkView,
    TraceView,
    WaitingView,
    WatchView,
)
from amqp10broker.queues.commands import PeerId, ReplyTo

if TYPE_CHECKING:
    from amqp10broker.auth.authorise import Access, Kind
    from amqp10broker.auth.passwords import Passwords, ReadyRecords
    from amqp10broker.cluster.bootstrap import ClusterIdentity as OfCluster
    from amqp10broker.cluster.membership import MemberRole
    from amqp10broker.metadata.catalog import Catalog, CatalogRequest, Propose
    from amqp10broker.metadata.plan import Decided
    from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle
    from amqp10broker.metadata.vhost import VirtualHost
    from amqp10broker.queues.commands import Answer, Command, RequestRef


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The nodes with members of a group, by this node's log. `promotable`: those that become voters later."""

    voters: tuple[int, ...]
    promotable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a group; unknown values are None.

    Attributes:
        state: ``leader``, ``follower``, ``candidate``, ``pre_vote``, ``receive_snapshot``; ``noproc``: there
            is no such member, or it does not run.
        last_index, last_written: of its log; the second is durable.
    """

    state: str = "noproc"
    membership: str = "unknown"
    last_index: int | None = None
    last_written: int | None = None
    last_applied: int | None = None
    commit_index: int | None = None
    snapshot_index: int | None = None
    term: int | None = None
    machine_version: int | None = None


@dataclass(frozen=True, slots=True)
class Leaderless:
    """Quorum queues with a member here and without a known leader. `elections`: this node's members that
    request votes now.
    """

    queues: int
    names: tuple[str, ...]
    stuck: int
    missing: tuple[str, ...]
    elections: int | None
    seconds: float

    @property
    def reason(self) -> str:
        """Reason and progress, for display."""
        clauses = []
        if self.stuck:
            clauses.append(
                f"{self.stuck} have no majority without {', '.join(self.missing)}: start these nodes"
            )
        if self.queues > self.stuck:
            how = (
                "when this node has begun all its queues"
                if self.elections is None
                else f"{self.elections} at a time from here"
            )
            clauses.append(f"{self.queues - self.stuck} elect one, {how}")
        return "; ".join(clauses)


class ClusterNode(ABC):
    """The running node in a cluster; this class is for a node without one, and refuses what needs it."""

    number = 0
    target_size = 1
    rebalancing = False

    def group(self, queue: DeclaredQueue | None) -> GroupSeen | None:
        """Return the members of a queue's group, or of the metadata's (None); None: none is here."""
        return GroupSeen((0,))

    def chief(self) -> int | None:
        """Return the node that leads the metadata; None if it is unknown."""
        return None

    def leaderless(self) -> Leaderless | None:
        """Return the quorum queues here without a leader, or None."""
        return None

    @abstractmethod
    def alarms(self) -> Mapping[int, Collection[str]]:
        """Return the names of alarms by node; nodes without alarms may be left out."""

    @abstractmethod
    def listeners(self) -> Sequence[tuple[str, str, int]]:
        """Return protocol (``amqp``, ``amqp/ssl``, ``clustering``), host and port of each."""

    async def add_member(
        self,
        queue: DeclaredQueue,
        node: int,
        membership: MemberRole,
        timeout_s: float,
        *,
        among_voters: bool = False,
    ) -> int:
        """Add a member on a running node without one, and return their number.

        `among_voters`: refuse it while a member of the queue has yet to become a voter. Raises
        `PreconditionFailed` during another change, and `Unavailable` if it was not done in time, or there is
        no leader.
        """
        raise _alone()

    async def delete_member(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        """Remove the member on a node, which need not run, and return the number of those left. Raises as
        `add_member`, and for the last.
        """
        raise _alone()

    async def transfer(self, queue: DeclaredQueue, node: int) -> None:
        """Transfer the leadership. Raises `PreconditionFailed` if the node cannot lead, or leads, and
        `Unavailable` if there is no leader, or it still leads.
        """
        raise _alone()

    async def shrink_to_here(self, queue: DeclaredQueue) -> None:
        """Make this node's member the only one: data that only other members have is lost. Raises
        `PreconditionFailed` if there is none here.
        """
        raise _alone()

    @abstractmethod
    async def member_states(
        self, queue: DeclaredQueue | None, nodes: Collection[int]
    ) -> Mapping[int, MemberState]:
        """Return the states of the members on nodes, of a queue's group or the metadata's (None); ``state``
        marks those without an answer within a second.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Take the node out of service: no clients and no leadership."""

    @abstractmethod
    async def revive(self) -> None:
        """Take the node back into service."""

    async def let_in_by(self, node: str) -> OfCluster:
        """Join another node's cluster, if this node is alone. After `RefusedError` nothing has changed."""
        raise _alone()

    async def leave_by(self, node: int) -> None:
        """Let another node remove this one. Raises `RefusedError` if it is not decided in time."""
        raise _alone()

    @abstractmethod
    async def leave(self) -> None:
        """Transfer leaderships, as far as others can take them within 2 s."""

    def begin_anew(self, as_: OfCluster | None) -> None:
        """Stop in order, delete all data, and start again as a member; with None, end."""
        raise _alone()

    async def run_at(self, node: int, operation: str, given: Mapping[str, Any], vhost: str | None) -> Any:
        """Execute an operation on another node. Raises `RefusedError`, or `Unavailable` after 5 s."""
        raise _alone()

    async def run_at_each(
        self, nodes: Collection[int], operation: str, given: Mapping[str, Any], vhost: str | None
    ) -> Mapping[int, Any]:
        """Execute an operation on other nodes concurrently. Nodes that refuse it, or do not answer within 5
        s, are left out.
        """
        return {}

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, while other tasks run."""


def _alone() -> NotSupported:
    return NotSupported("node", "this node is in no cluster; start it with --cluster-nodes")


class TraceSink(Protocol):
    """Receives the lines of a trace; no method raises. `ended`: why it accepts no more lines, or None."""

    ended: str | None

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        """Write lines of a connection, without its number and the time."""

    def put(self, lines: Sequence[str]) -> None:
        """Write complete lines."""

    def close(self, reason: str) -> None:
        """End the output with a reason."""


class Node:
    """The node of the caller; `runtime.admin.node` has the values.

    After a `RefusedError` or a `ConfigError` nothing was changed; later failures are other `BrokerError`s.

    Attributes:
        faults: the injected faults (`observe.faults`); None: not in test mode.
        now_ms: the broker's time, since 1970.
        set_limit: sets the threshold of an alarm; returns it in bytes, None if it is unknown.
        clock_notes: faults of clocks, a sentence each.
        waiting: the waits of clients of this node, worst first, collected a few connections at a time.
        connections: those with numbers above the first argument, in order, at most so many; None: all.
        definitions_imported: logs an import, with the parts that were left out or act otherwise than in
            RabbitMQ.
        unwatch_link: ends a watch, if it is of a connection of the user; None: of any.
        follow_links: starts or stops watching every link and channel of a virtual host from its beginning on.
        timeline: a watch, and the actions of its link since its beginning or a cursor.
    """

    cluster: ClusterNode
    faults: Any
    now_ms: Callable[[], int]
    inspect: Callable[[], Awaitable[Inspection]]
    view: Callable[[Mapping[str, Any]], BrokerView]
    set_flow: Callable[[str, int | str], None]
    set_limit: Callable[[str, str], int | None]
    set_alarm: Callable[..., None]
    alarms: Callable[[], list[str]]
    clock_notes: Callable[[], list[str]]
    waiting: Callable[..., Awaitable[tuple[SummaryView, Sequence[WaitingView]]]]
    connections: Callable[[int, int | None], Awaitable[Sequence[ConnectionView]]]
    close_connection: Callable[[int, str], None]
    close_connections: Callable[..., None]
    suspended_links: Callable[[], Sequence[SuspendedLinkView]]
    end_suspended_link: Callable[[int], SuspendedLinkView]
    definitions_imported: Callable[[Sequence[str]], None]
    start_recording: Callable[[str, int | None, str | None], Awaitable[RecordingView]]
    stop_recording: Callable[[], Awaitable[RecordingView]]
    recording: Callable[[], RecordingsView]
    trace_into_file: Callable[..., TraceView]
    trace_into: Callable[..., TraceView]
    end_trace: Callable[..., TraceView]
    watch_link: Callable[[int, str | None, int | None, str | None], WatchView]
    watches: Callable[[], Sequence[WatchView]]
    unwatch_link: Callable[[int, str | None], WatchView]
    follow_links: Callable[..., FollowedView]
    timeline: Callable[..., tuple[WatchView, dict[str, Any]]]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step that is resumed with the reply to `ref`. Without a queue it is a `Decided`, before which the
    front end handles no input of its client. With a queue it is an `Answer`, for which the front end first
    sends `command` to `queue`.
    """

    ref: RequestRef
    queue: QueueHandle | None = None
    command: Command | None = None


Steps: TypeAlias = Generator[Wait | Awaitable[Any], Any, T]
"""A running operation, resumed with the reply to a `Wait`, or the result of an awaitable. A `RefusedError` of
the awaitable is thrown into it. Awaitables occur only where the caller has a node.
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client and the context of an operation.

    Attributes:
        access: None: the machine's owner at the local socket, without restrictions.
        connection: the owner of exclusive queues; None: there can be none.
        running: makes the running node; None: the front end does not offer it.
        propose: sends requests to the catalog; None: the catalog decides at once.
        new_request: makes a reference at the front end's reply address.
        new_name: names a queue that is declared without a name; None: it must have one.
        passwords: None where they cannot be set.
        offer_token: requests the verification of another token of the client, and replies with a `Decided` if
            it is accepted; None: tokens are not verified.
        report: logs a change: the operation, its object, the text of its refusal.
    """

    catalog: Catalog
    vhost: VirtualHost
    access: Access | None
    connection: object
    node_name: str = "amqp10broker"
    running: Callable[[], Node] | None = None
    propose: Propose | None = None
    new_request: Callable[[], RequestRef] = ReplyTo(PeerId(0, 0, 0), "nobody").request
    new_name: Callable[[], str] | None = None
    passwords: Passwords | ReadyRecords | None = None
    offer_token: Callable[[bytes, RequestRef], None] | None = None
    report: Callable[[str, str, str | None], None] | None = None

    def perform(self, operation: Operation, given: Mapping[str, object]) -> Steps[Any]:
        """Execute an operation. Raises `RefusedError` if nothing was changed."""
        try:
            arguments = checked(operation.noun, operation.arguments, given)
            if operation.permission is FOR_ADMINISTRATORS:
                self.may_administer(operation.name)
            node = arguments.pop("node") if operation.at_node else None
            if node is not None and (number := self.node_named(node)) != self.node.cluster.number:
                result = self.node.cluster.run_at(number, operation.name, arguments, None)
            else:
                result = operation.run(self, **arguments)
            if isinstance(result, Generator):
                result = yield from result
            elif isinstance(result, Awaitable):
                result = yield result
        except PermissionDenied:
            raise  # it ends the client's session, which is logged separately
        except RefusedError as refusal:
            self._report(operation, given, refusal.description)
            raise
        self._report(operation, given, None)
        return result

    def _report(self, operation: Operation, given: Mapping[str, object], refusal: str | None) -> None:
        if self.report is not None and operation.changes:
            self.report(operation.name, operation.subject(given), refusal)

    def change(self, request: CatalogRequest[T]) -> Steps[T]:
        """Change the catalog, and return the answer. Raises `RefusedError` if nothing was changed."""
        if self.propose is None:
            return self.catalog.propose(request)
        ref = self.new_request()
        answer: T | object = self.propose(request, ref)
        if answer is LATER:
            decided: Decided = yield Wait(ref)
            answer = decided.result()
        return answer  # type: ignore[return-value]

    def ask(self, queue: QueueHandle, command: Callable[[RequestRef], Command]) -> Steps[Answer]:
        ref = self.new_request()
        answer: Answer = yield Wait(ref, queue, command(ref))
        return answer

    def may(self, permission: Literal["configure", "write", "read", "any"], kind: Kind, name: str) -> None:
        """Check a permission, or any; raises `PermissionDenied`."""
        if self.access is not None:
            getattr(self.access, permission)(kind, name)

    def may_read_topic(self, exchange: str, routing_key: str) -> None:
        """Check that the user may receive messages of a topic; raises `PermissionDenied`."""
        if self.access is not None:
            self.access.read_topic(exchange, routing_key)

    def may_administer(self, what: str) -> None:
        """Check that the user is an administrator; raises `PermissionDenied`."""
        if self.access is not None and not self.is_administrator:
            raise PermissionDenied(
                f"user '{self.access.user}'",
                f"{what} refused for user '{self.access.user}': it needs the tag '{ADMINISTRATOR}'",
            )

    @property
    def node(self) -> Node:
        """Return the running node. Raises `NotSupported` if this front end does not offer it."""
        if self.running is None:
            raise NotSupported("node", "it cannot be asked for here: use the command line's local socket")
        return self.running()

    def node_names(self) -> dict[int, str]:
        """Return the names of the cluster's nodes by number, or of this one."""
        nodes = self.catalog.nodes.values()
        return {node.number: node.name for node in nodes} or {0: self.node_name}

    def runs(self, number: int) -> bool:
        """Return whether a node can be reached."""
        return number == 0 or self.catalog.runs(number)

    def other_nodes(self) -> list[int]:
        """Return the other running nodes."""
        here = self.node.cluster.number
        return [number for number in self.node_names() if number != here and self.runs(number)]

    def node_named(self, name: str) -> int:
        """Return the number of a node; the part after an @ is ignored. Raises `NotFound`."""
        known = {each: number for number, each in self.node_names().items()}
        for each in (name, name.partition("@")[0]):
            if each in known:
                return known[each]
        raise NotFound(
            f"node '{name}'", f"no node '{name}' in the cluster; its nodes are: {', '.join(known)}"
        )

    @property
    def is_administrator(self) -> bool:
        if self.access is None:
            return True
        return ADMINISTRATOR in self.access.tags

    def sees(self, kind: Kind, name: str) -> bool:
        try:
            self.may("any", kind, name)
        except PermissionDenied:
            return False
        return True

    def for_use(self, queue: DeclaredQueue) -> DeclaredQueue:
        """Return the queue. Raises `ResourceLocked` if another connection has it exclusively, and `NotFound`
        if its node cannot be reached.
        """
        if self.access is not None:
            self.vhost.for_connection(queue, self.connection)
        queue.check_up()
        return queue


ADMINISTRATOR = "administrator"
"""The tag of users that may manage users, permissions and virtual hosts."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A result of lines until one side ends it. `begin`: starts writing into a sink of the front end, and
    returns the answer before the lines.
    """

    begin: Callable[[TraceSink], Any]
    end: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Actor:
    """The user of a front end that can wait for tasks.

    Attributes:
        by: the name in the log.
        access: None: everything is allowed, or the caller has checked it.
        types: arguments are typed by hand, so mistakes in them are refused; clients may declare queues with
            any argument.
    """

    by: str
    access: Access | None = None
    types: bool = False
