"""The cluster in the view of the running node, for operations. Nodes are identified by numbers.

A node in no cluster is number 0, and its quorum queues have one member, there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported
from amqp10broker.metadata.queue import DeclaredQueue

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
