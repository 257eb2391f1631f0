"""The interface of the running node for operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.operations.inspection import Inspection
from amqp10broker.operations.snapshot import (
    BrokerView,
    ConnectionView,
    FaultView,
    FollowedView,
    RecordingsView,
    RecordingView,
    SummaryView,
    SuspendedLinkView,
    TraceView,
    WaitingView,
    WatchView,
)

if TYPE_CHECKING:
    from amqp10broker.cluster.bootstrap import ClusterIdentity as OfCluster
    from amqp10broker.cluster.membership import MemberRole


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The members of a group, in the log of this node's member. `non_voters`: nodes with members that never
    will.
    """

    voters: tuple[int, ...]
    promotable: tuple[int, ...] = ()
    non_voters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a member of a group; unknown values are None.

    Attributes:
        state: ``leader``, ``follower``, ``candidate``, ``pre_vote``, ``receive_snapshot``; ``noproc``: the
            node has no such member, or it does not run.
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
    """Quorum queues with a member at a node and without a known leader. `elections`: number of this node's
    members that request votes now; the others wait.
    """

    queues: int
    names: tuple[str, ...]
    stuck: int
    missing: tuple[str, ...]
    elections: int | None
    seconds: float

    @property
    def reason(self) -> str:
        """The reason and the progress, for display."""
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
    """The running node as a member of a cluster; here it is in none, and refuses what needs one."""

    number = 0
    target_size = 1
    rebalancing = False

    def group(self, queue: DeclaredQueue | None) -> GroupSeen | None:
        """Return the members of a queue's group, or of the metadata's (None); None: no member is here."""
        return GroupSeen((0,))

    def chief(self) -> int | None:
        """Return the node that leads the metadata; None: none is known."""
        return None

    def leaderless(self) -> Leaderless | None:
        """Return the quorum queues with a member here that have no leader; None: there are none."""
        return None

    @abstractmethod
    def alarms(self) -> Mapping[int, Collection[str]]:
        """Return the names of the present alarms by node; nodes without any may be left out."""

    @abstractmethod
    def listeners(self) -> Sequence[tuple[str, str, int]]:
        """Return protocol (``amqp``, ``amqp/ssl``, ``clustering``), host and port of the listeners."""

    async def add_member(
        self,
        queue: DeclaredQueue,
        node: int,
        membership: MemberRole,
        timeout_s: float,
        *,
        among_voters: bool = False,
    ) -> int:
        """Add a member to a quorum queue, on a node that runs and has none, and return their number.

        Args:
            among_voters: refuse it while the queue has a member that is still to become a voter.

        Raises:
            PreconditionFailed: another change is under way, or it cannot be made now.
            Unavailable: it was not done in time, or there is no leader.
        """
        raise _alone()

    async def delete_member(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        """Remove the member on a node, which need not run, and return the number of those left.

        Raises:
            PreconditionFailed, Unavailable: as `add_member`; or it is the last.
        """
        raise _alone()

    async def transfer(self, queue: DeclaredQueue, node: int) -> None:
        """Hand the leadership of a queue over to the member on a node. Raises `PreconditionFailed` if that
        cannot lead, or leads, and `Unavailable` if there is no leader, or it still leads.
        """
        raise _alone()

    async def shrink_to_here(self, queue: DeclaredQueue) -> None:
        """Make this node's member the only one, by force: data that only other members have are lost. Raises
        `PreconditionFailed` if there is none here.
        """
        raise _alone()

    @abstractmethod
    async def member_states(
        self, queue: DeclaredQueue | None, nodes: Collection[int]
    ) -> Mapping[int, MemberState]:
        """Return the states of the members on nodes, of a queue's group or the metadata's (None).

        The requests are concurrent; ``state`` marks nodes that do not answer within a second.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Take the node out of service: no clients and no leadership."""

    @abstractmethod
    async def revive(self) -> None:
        """Take the node back into service."""

    async def let_in_by(self, node: str) -> OfCluster:
        """Request membership of another node's cluster for this one, which must be alone. Raises
        `RefusedError` if nothing was changed.
        """
        raise _alone()

    async def leave_by(self, node: int) -> None:
        """Let another node remove this one from the cluster. Raises `RefusedError` if it is not decided in
        time; this node is still a member.
        """
        raise _alone()

    @abstractmethod
    async def leave(self) -> None:
        """Hand leaderships over, as far as others can take them within 2 s."""

    def begin_anew(self, as_: OfCluster | None) -> None:
        """Stop in order, delete all data, and then begin as a member, or, with None, end."""
        raise _alone()

    async def run_at(self, node: int, operation: str, given: Mapping[str, Any], vhost: str | None) -> Any:
        """Execute an operation on another node, and return its result. Raises `RefusedError` if it refuses,
        and `Unavailable` if it does not answer within 5 s.
        """
        raise _alone()

    async def run_at_each(
        self, nodes: Collection[int], operation: str, given: Mapping[str, Any], vhost: str | None
    ) -> Mapping[int, Any]:
        """Execute an operation on other nodes concurrently, and return the results by node.

        A node that refuses, or does not answer within 5 s, is left out.
        """
        return {}

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, while other tasks run."""


def _alone() -> NotSupported:
    return NotSupported("node", "this node is in no cluster; start it with --cluster-nodes")


class TraceSink(Protocol):
    """A receiver of the lines of a trace. `ended`: reason for which it accepts no more lines; None:
    it does.
    """

    ended: str | None

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        """Write lines of a connection, without its number and the time; must not raise."""

    def put(self, lines: Sequence[str]) -> None:
        """Write complete lines; must not raise."""

    def close(self, reason: str) -> None:
        """End the output with a reason."""


class FaultsOnRequest(Protocol):
    """Faults that the node commits on request of a test."""

    def inject(
        self,
        kind: str,
        vhost: str,
        queue: str | None,
        client: str | None,
        link: str | None,
        most: int | None,
        condition: str,
        code: int,
        text: str,
    ) -> FaultView:
        """Inject a fault, and return its view.

        Raises `BadRequest` if it is not valid, or there are too many.
        """

    def lift(self, number: int) -> FaultView:
        """Remove a fault, and release what it has held back. Raises `NotFound`."""

    def views(self) -> Sequence[FaultView]:
        """Return the faults that are injected now."""


class Node(Protocol):
    """The node to which the caller is connected.

    After a `RefusedError` or a `ConfigError` nothing was changed; later failures are other `BrokerError`s.
    """

    @property
    def cluster(self) -> ClusterNode:
        """The node as a member of a cluster, or alone."""

    @property
    def faults(self) -> FaultsOnRequest | None:
        """Faults on request; None: the node is not in test mode."""

    def now_ms(self) -> int:
        """Return the broker's time, milliseconds since 1970."""

    async def inspect(self) -> Inspection:
        """Return facts about the node and its machine."""

    def view(self, choose: Mapping[str, Any]) -> BrokerView:
        """Return a snapshot of its activity. Raises `BadRequest` if `choose` is not valid."""

    def set_flow(self, name: str, value: int | str) -> None:
        """Change a flow setting. Raises `ConfigError` if the name does not exist, or the value is out of
        range.
        """

    def set_limit(self, name: str, value: str) -> int | None:
        """Change the threshold of an alarm; return it in bytes, None if it is not known. Raises `ConfigError`
        if the name does not exist, or the value is not valid.
        """

    def set_alarm(self, name: str, on: bool) -> None:
        """Raise an alarm of `table.ALARMS` by hand, or cancel that."""

    def alarms(self) -> list[str]:
        """Return the names of the present alarms, for whatever reason."""

    def clock_notes(self) -> list[str]:
        """Return faults of clocks, a sentence each."""

    async def waiting(
        self, choose: Mapping[str, Any], *, queues: bool
    ) -> tuple[SummaryView, Sequence[WaitingView]]:
        """Return what clients of this node wait for, worst first, collected a few connections at a time.
        Raises `BadRequest` if `choose` is not valid.
        """

    async def connections(self, after: int, most: int | None) -> Sequence[ConnectionView]:
        """Return connections to this node with numbers above `after`, in order, at most `most`; None: all."""

    def close_connection(self, number: int, reason: str) -> None:
        """Close one connection in order, with a reason for the client. Raises `NotFound`."""

    def close_connections(self, reason: str, *, user: str | None = None, vhost: str | None = None) -> None:
        """Close the connections of a user, or of a virtual host."""

    def suspended_links(self) -> Sequence[SuspendedLinkView]:
        """Return durable links that are not attached."""

    def end_suspended_link(self, number: int) -> SuspendedLinkView:
        """End a suspended link before its time, and return its last view. Raises `NotFound`."""

    def definitions_imported(self, left_out: Sequence[str]) -> None:
        """Log the import, with the parts that were left out or that act otherwise than in RabbitMQ."""

    async def start_recording(self, folder: str, every_ms: int | None, run_id: str | None) -> RecordingView:
        """Begin to record flow events. Raises `BrokerError` on failure."""

    async def stop_recording(self) -> RecordingView:
        """End the recording when its files are complete. Raises `BrokerError` if there is none."""

    def recording(self) -> RecordingsView:
        """Return the present recording, and the failure of the last one."""

    def trace_into_file(self, what: str, file: str, *, frames: bool) -> TraceView:
        """Begin a trace into a file of the node's machine.

        Raises:
            NotFound: there is nothing to trace.
            NotAllowed: it is being traced already.
            StorageError: the file cannot be opened.
        """

    def trace_into(self, what: str, sink: TraceSink, *, frames: bool) -> TraceView:
        """Begin a trace with lines for the front end.

        Raises:
            NotFound, NotAllowed: as `trace_into_file`.
        """

    def end_trace(self, what: str, reason: str | None = None) -> TraceView:
        """End a trace. Raises `NotFound`."""

    def watch_link(
        self, connection: int, link: str | None, channel: int | None, role: str | None
    ) -> WatchView:
        """Record the frames of a link, or of a channel of AMQP 0-9-1, from now on.

        Raises:
            BadRequest: a link has no name, or a channel no number.
            NotFound: it does not exist.
            NotAllowed: it is ambiguous, or too many are watched.
        """

    def watches(self) -> Sequence[WatchView]:
        """Return the watches that record now."""

    def unwatch_link(self, watch: int, user: str | None) -> WatchView:
        """End a watch, and return its last view. `user`: restricts it to connections of this user; None: no
        restriction. Raises `NotFound` if it does not exist any more.
        """

    def follow_links(self, vhost: str, *, on: bool) -> FollowedView:
        """Watch every link and channel of a virtual host from its beginning on, or stop that. Raises
        `NotFound` if it cannot be stopped, since it is not on.
        """

    def timeline(
        self, watch: int, since: int | None, limit: int, *, frames: bool, user: str | None
    ) -> tuple[WatchView, dict[str, Any]]:
        """Return a watch, and the actions of its link since its beginning or a cursor. Raises `NotFound` if
        the watch does not exist any more.
        """
