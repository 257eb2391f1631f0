"""What operations may ask of the running node as one of a cluster. Nodes are named by their numbers.

A node in no cluster is number 0, and its quorum queues have one member, there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.dataclass import dataclass

if TYPE_CHECKING:
    from amqp10broker.replication.bootstrap import Membership as OfCluster
    from amqp10broker.replication.membership import Membership


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The members of a group, as the log of this node's member has them.

    Attributes:
        voters: nodes whose members vote.
        promotable: nodes whose members will, when they have caught up.
        non_voters: nodes whose members never will.
    """

    voters: tuple[int, ...]
    promotable: tuple[int, ...] = ()
    non_voters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberState:
    """How a member of a group stands; what it does not know is None.

    Attributes:
        state: ``leader``, ``follower``, ``candidate``, ``pre_vote``, ``receive_snapshot``; ``noproc``: the
            node has no such member, or it does not run.
        membership: ``voter``, ``promotable``, ``non_voter`` or ``unknown``.
        last_index, last_written: of its log; the second is durable.
        last_applied, commit_index, snapshot_index, term: as it knows.
        machine_version: of its state machine.
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
    """Quorum queues with a member at a node that know no leader.

    Attributes:
        queues: how many.
        names: of some of them, with their virtual hosts.
        stuck: how many of them have no majority.
        missing: names of the nodes that those lack.
        elections: how many of this node's members ask for votes now; the others of them stand in line.
        seconds: how long there have been any.
    """

    queues: int
    names: tuple[str, ...]
    stuck: int
    missing: tuple[str, ...]
    elections: int
    seconds: float

    @property
    def reason(self) -> str:
        """Why, and what is being done, for people."""
        clauses = []
        if self.stuck:
            clauses.append(
                f"{self.stuck} have no majority without {', '.join(self.missing)}: start these nodes"
            )
        if self.queues > self.stuck:
            clauses.append(f"{self.queues - self.stuck} elect one, {self.elections} at a time from here")
        return "; ".join(clauses)


class ClusterNode(Protocol):
    """See the module.

    Attributes:
        number: of this node.
        target_size: how many nodes make the cluster whole.
        rebalancing: a rebalance that was asked for here is under way.
    """

    number: int
    target_size: int
    rebalancing: bool

    def group(self, queue: DeclaredQueue | None) -> GroupSeen | None:
        """Who is in a queue's group, or in that of the metadata (None); None: no member is here."""

    def chief(self) -> int | None:
        """The node that leads the metadata; None: none is known."""

    def leaderless(self) -> Leaderless | None:
        """The quorum queues with a member here that have no leader; None: there are none."""

    def alarms(self) -> Mapping[int, Collection[str]]:
        """Names of the alarms that are on, by node; nodes without any may be left out."""

    def listeners(self) -> Sequence[tuple[str, str, int]]:
        """Protocol (``amqp``, ``amqp/ssl``, ``clustering``), host and port of where this node listens."""

    async def add_member(
        self,
        queue: DeclaredQueue,
        node: int,
        membership: Membership,
        timeout_s: float,
        *,
        among_voters: bool = False,
    ) -> int:
        """Add a member to a quorum queue, on a node that runs and has none.

        Args:
            queue: which.
            node: where.
            membership: what it shall be.
            timeout_s: afterwards it is taken back.
            among_voters: refuse it while the queue has a member that is still to become a voter.

        Returns:
            How many members the queue has then.

        Raises:
            PreconditionFailed: another change is under way, or it cannot be made now.
            Unavailable: it was not done in time, or there is no leader.
        """

    async def delete_member(self, queue: DeclaredQueue, node: int, timeout_s: float) -> int:
        """Remove the member on a node, which need not run; how many are left.

        Raises:
            PreconditionFailed, Unavailable: as `add_member`; or it is the last.
        """

    async def transfer(self, queue: DeclaredQueue, node: int) -> None:
        """Have the leader of a queue hand over to the member on a node.

        Raises:
            PreconditionFailed: that cannot lead, or leads.
            Unavailable: there is no leader, or it still leads.
        """

    async def shrink_to_here(self, queue: DeclaredQueue) -> None:
        """Make this node's member the only one, by force: what only others have is lost.

        Raises:
            PreconditionFailed: there is none here.
        """

    async def member_states(
        self, queue: DeclaredQueue | None, nodes: Collection[int]
    ) -> Mapping[int, MemberState]:
        """How the members on nodes stand, of a queue's group or that of the metadata (None).

        All are asked at once; the ``state`` of one whose node does not answer within a second says so.
        """

    async def drain(self) -> None:
        """Take the node out of service: no new clients, none of the old, no leadership."""

    async def revive(self) -> None:
        """Take it back into service."""

    async def let_in_by(self, node: str) -> OfCluster:
        """Have another node let this one, which is alone, into its cluster.

        Args:
            node: its name, or ``NAME=HOST:PORT``.

        Returns:
            As what this node can `begin_anew`.

        Raises:
            RefusedError: it does not, of the class that says why; nothing was changed.
        """

    async def leave_by(self, node: int) -> None:
        """Have another node see to it that this one is a member no more.

        Raises:
            RefusedError: it is not decided in time; this node is a member still.
        """

    async def leave(self) -> None:
        """Hand leaderships over, as far as others can take them within 2 s."""

    def begin_anew(self, as_: OfCluster | None) -> None:
        """Stop in order, lose all that is kept, and then begin as a member, or, as None, end."""

    async def run_at(self, node: int, operation: str, given: Mapping[str, Any], vhost: str | None) -> Any:
        """Have another node carry out an operation, and give its result.

        Raises:
            RefusedError: it refuses.
            Unavailable: it does not answer within 5 s.
        """

    async def run_at_each(
        self, nodes: Collection[int], operation: str, given: Mapping[str, Any], vhost: str | None
    ) -> Mapping[int, Any]:
        """Have other nodes carry out an operation, all at once.

        Returns:
            The result by node; a node that refuses, or does not answer within 5 s, is left out.
        """

    async def pause(self, seconds: float) -> None:
        """Wait."""
