"""A node's member of one group: the core, its log and its machine.

Nothing here waits. Each input (a proposal, messages, a durable write, time) goes to the core and ends with
`Member.advance`, which writes, sends and applies the output of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from amqp10broker.cluster.ids import node_of
from amqp10broker.raft.config import Change, Configuration
from amqp10broker.raft.core import Raft
from amqp10broker.raft.entries import LogStore, Stored
from amqp10broker.raft.messages import Message
from amqp10broker.raft.ready import Ready, Role, Status


class GroupStore(LogStore, Protocol):
    """The log of one member. `on_compact`: called with the index up to which entries cannot be read any more;
    not above the commit index.
    """

    stored: Stored | None
    on_compact: Callable[[int], None]

    def write(self, ready: Ready, on_durable: Callable[[], None]) -> None:
        """Write term and vote, snapshot, and entries; the first may replace one, and all behind it.
        `on_durable`: to be called once, when they are durable, in order; never, if storage fails.
        """


class GroupMachine(Protocol):
    """The state machine of a group. It must not call the member from these methods."""

    @property
    def applied(self) -> int:
        """Index of the last entry that was carried out."""

    @property
    def version(self) -> int:
        """By which version entries are carried out (`queues.machine_version`)."""

    @property
    def newer(self) -> int:
        """The version of the next entry, or state, if this broker does not carry it out; else 0."""

    def committed(self, index: int) -> None:
        """Entries up to this one may be applied."""

    def status(self, status: Status) -> None:
        """The member's role, term or leader is another, or it leads and is open now."""

    def snapshot_for(self, to: int) -> None:
        """A member needs a state: send it, then call `Member.snapshot_done`."""

    def read_done(self, token: int, index: int) -> None:
        """A linearizable read with this token is allowed once entries up to the index are applied."""


class MemberContext(Protocol):
    """The context of a member in its node (`groups.Groups`)."""

    def now_ms(self) -> int:
        """A clock that never runs back."""

    def send(self, group: int, messages: Sequence[Message]) -> None:
        """Send messages of a group, or lose them."""

    def noted(self, member: Member) -> None:
        """The member may have another deadline, or other members."""

    def later(self, callback: Callable[[], None]) -> None:
        """Have something called that can wait."""

    def remove(self, group: int) -> None: ...


class Member:
    """One member. `leads`: it leads, and has committed an entry of its own term: it takes proposals."""

    __slots__ = (
        "_again",
        "_first",
        "_groups",
        "_runs",
        "_store",
        "config",
        "due",
        "group",
        "leads",
        "machine",
        "me",
        "raft",
        "stopped",
    )

    def __init__(
        self,
        group: int,
        me: int,
        store: GroupStore,
        machine: GroupMachine,
        groups: MemberContext,
        random_source: Callable[[], float],
        *,
        first: bool = False,
        commit_wait_ms: int = 0,
    ) -> None:
        """Start from the stored state; call `advance` when the node has registered the member.
        `random_source`: gives numbers from 0 to below 1.
        """
        assert store.stored is not None, "its log must have been read"
        self.group = group
        self.me = me
        self.machine = machine
        self.raft = Raft(
            me,
            store.stored,
            store,
            now_ms=groups.now_ms(),
            random_source=random_source,
            commit_wait_ms=commit_wait_ms,
        )
        self.leads = self.stopped = False
        self.due: int | None = None
        self.config: Configuration | None = None
        self._first = first
        self._store = store
        self._groups = groups
        self._runs = self._again = False
        store.on_compact = self.raft.compact
        if self.new:
            self.release_reader()

    @property
    def new(self) -> bool:
        """It is to lead a group that has had no leader."""
        return self._first and not self.raft.hard.term

    @property
    def alone(self) -> bool:
        return self.raft.config.members == (self.me,)

    @property
    def lacks_leader(self) -> bool:
        """No leader is known: what it does when it is due is to ask for votes."""
        return self.raft.leader is None

    @property
    def leader_node(self) -> int | None:
        """The node where the group's leader is; None: it is not known."""
        leader = self.raft.leader
        return None if leader is None else node_of(leader)

    def propose(self, payloads: Sequence[bytes]) -> int:
        return self.raft.propose(payloads)

    def has_room(self, size: int) -> bool:
        return self.raft.has_room(size)

    def change(self, change: Change) -> int:
        return self.raft.change(change, self._groups.now_ms())

    def transfer(self, to: int) -> None:
        self.raft.transfer(to, self._groups.now_ms())

    def read(self, token: int) -> None:
        """See `Raft.read`; the machine's `read_done` is called."""
        self.raft.read(token)

    def campaign(self) -> None:
        self.raft.campaign(self._groups.now_ms())

    def release_reader(self) -> None:
        self.raft.release_reader(self._groups.now_ms())

    def force_alone(self) -> None:
        """See `Raft.force_alone`; done at once."""
        self.raft.force_alone(self._groups.now_ms())
        self.advance()

    def suspect(self, peer: int) -> None:
        self.raft.suspect(peer, self._groups.now_ms())

    def heard(self, peer: int) -> None:
        """As `Raft.heard`. The preferred first leader of a new group stands for election at once, ahead of
        the random delays of others.
        """
        self.raft.heard(peer, self._groups.now_ms())
        if self.new:
            self.release_reader()

    def snapshot_done(self, to: int, index: int | None) -> None:
        self.raft.snapshot_done(to, index)

    def step(self, message: Message) -> None:
        self.raft.step(message, self._groups.now_ms())

    def tick(self) -> None:
        self.raft.tick(self._groups.now_ms())

    def later(self, callback: Callable[[], None]) -> None:
        self._groups.later(callback)

    def stop(self) -> None:
        self.stopped = True
        self._groups.remove(self.group)

    def advance(self) -> None:
        self._again = True
        if self._runs:
            return
        self._runs = True
        raft, groups = self.raft, self._groups
        try:
            while self._again and not self.stopped:
                self._again = False
                ready = raft.ready(groups.now_ms())
                if ready is not None:
                    self._do(ready)
        finally:
            self._runs = False
        if raft.deadline != self.due or raft.config is not self.config:
            groups.noted(self)

    def _do(self, ready: Ready) -> None:
        ticket = ready.ticket
        if ticket is not None:
            self._store.write(ready, lambda: self._durable(ticket))
        if ready.messages:
            self._groups.send(self.group, ready.messages)
        machine = self.machine
        if ready.commit is not None:
            machine.committed(ready.commit)
        for token, index in ready.reads:
            machine.read_done(token, index)
        for to in ready.snapshots_to:
            machine.snapshot_for(to)
        if ready.status is not None:
            self.leads = ready.status.role is Role.LEADER and ready.status.open
            machine.status(ready.status)

    def _durable(self, ticket: int) -> None:
        if not self.stopped:
            self.raft.persisted(ticket, self._groups.now_ms())
            self.advance()
