"""All members of a node, each with the core, the log and the machine of one group.

Each input (a proposal, messages, a durable write, time, the state of a node) is passed to the core of a
member and ends with `Member.advance`, which writes, sends and applies the output of the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Protocol

from amqp10broker.raft.core import Raft
from amqp10broker.raft.ids import SYSTEM_GROUP, node_of
from amqp10broker.raft.messages import (
    MESSAGE,
    Change,
    Configuration,
    LogStore,
    Message,
    Ready,
    Role,
    Status,
    Stored,
)

Send = Callable[[int, int, bytes], object]
"""Sends a message to a node: node, group, bytes; or loses it."""

LATER_MS: Final = 100

MEMBERS_A_TURN: Final = 128
"""The number of members that are notified of a node's state, or of time, at once: some milliseconds.
Thousands would delay the node's heartbeats until other nodes suspect it, which must notify all their members
in turn, and so on.
"""

ELECTIONS_MAX: Final = 32
"""The number of members that request votes at a time. With thousands at once each round takes longer than its
time-out, and is repeated. The metadata's group goes first.
"""


class GroupStore(LogStore, Protocol):
    """The log of one member. `on_compact`: called with the index up to which entries cannot be read any more;
    not above the commit index.
    """

    stored: Stored | None
    on_compact: Callable[[int], None]

    def write(self, ready: Ready, on_durable: Callable[[], None]) -> None:
        """Write term and vote, snapshot, and entries; the first may replace one and all later ones.
        `on_durable`: call it once, when they are durable, in order; never, if storage fails.
        """


class GroupMachine(Protocol):
    """The state machine of a group. It must not call the member from these methods."""

    @property
    def applied(self) -> int:
        """The index of the last applied entry."""

    @property
    def version(self) -> int:
        """The version by which entries are applied (`queues.machine_version`)."""

    @property
    def newer(self) -> int:
        """The version of the next entry, or state, if this broker does not support it; else 0."""

    def committed(self, index: int) -> None: ...

    def status(self, status: Status) -> None:
        """Note that the member's role, term or leader has changed, or that it leads and is open now."""

    def snapshot_for(self, to: int) -> None:
        """Send a state to a member that needs it, then call `Member.snapshot_done`."""


class Member:
    """One member. `leads`: it has committed an entry of its own term, and accepts proposals."""

    __slots__ = (
        "_again", "_first", "_runs", "_store", "config", "due", "group", "groups", "leads", "machine",
        "me", "raft", "stopped",
    )  # fmt: skip

    def __init__(
        self,
        group: int,
        me: int,
        store: GroupStore,
        machine: GroupMachine,
        groups: Groups,
        random_source: Callable[[], float],
        *,
        first: bool = False,
        commit_wait_ms: int = 0,
    ) -> None:
        """Start from the stored state; call `advance` when the node has registered the member."""
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
        self.groups = groups
        self._runs = self._again = False
        store.on_compact = self.raft.compact
        if self.new:
            self.campaign_at_tick()

    @property
    def new(self) -> bool:
        """Whether it must lead a group that has had no leader."""
        return self._first and not self.raft.hard.term

    @property
    def alone(self) -> bool:
        return self.raft.config.members == (self.me,)

    @property
    def lacks_leader(self) -> bool:
        return self.raft.leader is None

    @property
    def leader_node(self) -> int | None:
        leader = self.raft.leader
        return None if leader is None else node_of(leader)

    def change(self, change: Change) -> int:
        return self.raft.change(change, self.groups.now_ms())

    def transfer(self, to: int) -> None:
        self.raft.transfer(to, self.groups.now_ms())

    def campaign(self) -> None:
        self.raft.campaign(self.groups.now_ms())

    def campaign_at_tick(self) -> None:
        self.raft.campaign_at_tick(self.groups.now_ms())

    def force_alone(self) -> None:
        self.raft.force_alone(self.groups.now_ms())
        self.advance()

    def suspect(self, peer: int) -> None:
        self.raft.suspect(peer, self.groups.now_ms())

    def heard(self, peer: int) -> None:
        """Note as `Raft.heard`; the preferred first leader of a new group stands for election at once."""
        self.raft.heard(peer, self.groups.now_ms())
        if self.new:
            self.campaign_at_tick()

    def tick(self) -> None:
        self.raft.tick(self.groups.now_ms())

    def stop(self) -> None:
        self.stopped = True
        self.groups.remove(self.group)

    def advance(self, now_ms: int | None = None) -> None:
        self._again = True
        if self._runs:
            return
        self._runs = True
        raft, groups = self.raft, self.groups
        try:
            while self._again and not self.stopped:
                self._again = False
                ready = raft.ready(groups.now_ms() if now_ms is None else now_ms)
                if ready is not None:
                    self._do(ready)
        finally:
            self._runs = False
        if raft.deadline != self.due or raft.configs.latest is not self.config:
            groups.noted(self)

    def _do(self, ready: Ready) -> None:
        ticket = ready.ticket
        if ticket is not None:
            self._store.write(ready, lambda: self._durable(ticket))
        if ready.messages:
            self.groups.send(self.group, ready.messages)
        machine = self.machine
        if ready.commit is not None:
            machine.committed(ready.commit)
        for to in ready.snapshots_to:
            machine.snapshot_for(to)
        if ready.status is not None:
            self.leads = ready.status.role is Role.LEADER and ready.status.open
            machine.status(ready.status)

    def _durable(self, ticket: int) -> None:
        if not self.stopped:
            now_ms = self.groups.now_ms()
            self.raft.persisted(ticket, now_ms)
            self.advance(now_ms)


class Groups:
    """All members of a node.

    Attributes:
        on_unknown: called with node, group and message for a member that is not here; the sender must then
            suspect it (`raft.core`).
        lost: other nodes with numbers up to this one are lost for good. A group with members there becomes a
            group of this node alone when its member here begins (`cluster force-standalone`).
        elects: members of queues that are not new may request votes: not while those of this node begin; call
            `on_deadline` afterwards.
    """

    def __init__(self, now_ms: Callable[[], int], send: Send) -> None:
        self.now_ms = now_ms
        self.suspected: set[int] = set()
        self.lost = 0
        self.elects = True
        self.on_unknown: Callable[[int, int, Message], None] = lambda *_: None
        self.on_deadline: Callable[[], None] = lambda: None
        self.on_removed: Callable[[int], None] = lambda group: None
        self.on_added: Callable[[int], None] = lambda group: None
        self._send = send
        self._backward = False
        self._members: dict[int, Member] = {}
        self._heap: list[tuple[int, int]] = []
        self._asking: set[int] = set()
        """Groups with members here that have requested votes."""
        self._line: deque[int] = deque()
        """Groups that are due, and that request votes when others have an answer."""
        self._later: list[Callable[[], None]] = []
        self._later_due = 0
        self._notifications: deque[Iterator[None]] = deque()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    @property
    def backward(self) -> bool:
        return self._backward

    @backward.setter
    def backward(self, backward: bool) -> None:
        if backward == self._backward:
            return  # a member may step down by itself
        self._backward = backward
        for member in self:
            member.raft.backward = backward

    def add(self, member: Member) -> None:
        """Start a member, with the present suspicions. A member whose peers are all lost is alone."""
        assert member.group not in self._members, f"group {member.group} has a member here"
        self._members[member.group] = member
        member.raft.backward = self._backward
        others = [each for each in member.raft.config.members if each != member.me]
        if any(node_of(each) <= self.lost for each in others):
            member.force_alone()
        member.advance()
        self.on_added(member.group)

    def remove(self, group: int) -> None:
        if self._members.pop(group, None) is not None:
            self._asked(group)
            self.on_removed(group)

    def get(self, group: int) -> Member | None:
        return self._members.get(group)

    @property
    def elections(self) -> int:
        return len(self._asking)

    def received(self, node: int, messages: Iterable[tuple[int, bytes]]) -> None:
        """Handle all messages that came at once from a node, those of each group together. `messages`: group
        and bytes. Raises `BadBytes` if one is malformed; those before it have been handled.
        """
        touched: dict[int, Member] = {}
        now_ms = self.now_ms()
        try:
            for group, data in messages:
                message = MESSAGE.decode(data)
                member = self._members.get(group)
                if member is None or message.to != member.me:
                    self.on_unknown(node, group, message)
                elif node_of(message.sender) == node:
                    member.raft.step(message, now_ms)
                    touched[group] = member
        finally:
            for member in touched.values():
                member.advance()

    def suspect(self, node: int) -> None:
        """Note that a node is unreachable in a direction. With many members, `tick` notifies most of them."""
        self.suspected.add(node)
        self._tell(node, lambda member, peer: member.suspect(peer))

    def heard(self, node: int) -> None:
        self.suspected.discard(node)
        self._tell(node, lambda member, peer: member.heard(peer))

    def _tell(self, node: int, notifications: Callable[[Member, int], None]) -> None:
        self._notifications.append(self._telling(node, notifications))
        if len(self._notifications) == 1:
            self._continue_notifying()
            if self._notifications:
                self.on_deadline()

    def _telling(self, node: int, notifications: Callable[[Member, int], None]) -> Iterator[None]:
        for member in self:
            peers = [peer for peer in member.raft.config.members if node_of(peer) == node]
            if not peers or member.stopped:
                continue
            for peer in peers:
                notifications(member, peer)
            member.advance()
            yield

    def _continue_notifying(self) -> None:
        left = MEMBERS_A_TURN
        while self._notifications and left > 0:
            left -= sum(1 for _ in islice(self._notifications[0], left))
            if left > 0:  # there were no more
                self._notifications.popleft()

    @property
    def deadline(self) -> int | None:
        if self._notifications or self._may_ask:
            return self.now_ms()
        due = self._members_due()
        if self._later and (due is None or self._later_due < due):
            return self._later_due
        return due

    def _members_due(self) -> int | None:
        heap, members = self._heap, self._members
        while heap and ((member := members.get(heap[0][1])) is None or member.due != heap[0][0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def tick(self) -> None:
        """Handle what is due at `deadline`; it may be due again at once (`MEMBERS_A_TURN`)."""
        now_ms = self.now_ms()
        self._continue_notifying()
        if self._later and self._later_due <= now_ms:
            later, self._later = self._later, []
            for callback in later:
                callback()
        left = MEMBERS_A_TURN
        while left > 0 and (due := self._members_due()) is not None and due <= now_ms:
            _, group = heappop(self._heap)
            member = self._members[group]
            self._asked(group)  # without success, if it has: others go before it
            if group != SYSTEM_GROUP and member.lacks_leader:
                # A client waits for a new group.
                (self._line.appendleft if member.new else self._line.append)(group)
            else:
                left -= 1
                self._tick(member)
        while left > 0 and self._may_ask:
            waiting = self._members.get(self._line.popleft())
            # The group may have a leader by now, or have voted and wait for the result.
            if waiting is not None and waiting.due is not None and waiting.due <= now_ms:
                left -= 1
                self._tick(waiting)

    @property
    def _may_ask(self) -> bool:
        if not self._line or len(self._asking) >= ELECTIONS_MAX:
            return False
        return self.elects or ((first := self._members.get(self._line[0])) is not None and first.new)

    def _tick(self, member: Member) -> None:
        member.due = None
        member.tick()
        member.advance()
        if member.raft.stands and self._members.get(member.group) is member:
            self._asking.add(member.group)

    def _asked(self, group: int) -> None:
        if group in self._asking:
            self._asking.remove(group)
            if self._line:
                self.on_deadline()

    def later(self, callback: Callable[[], None]) -> None:
        """Call a function in `LATER_MS`, or at the next iteration after that; it does not wake the loop."""
        if not self._later:
            self._later_due = self.now_ms() + LATER_MS
        self._later.append(callback)

    def send(self, group: int, messages: Sequence[Message]) -> None:
        for message in messages:
            self._send(node_of(message.to), group, MESSAGE.encode(message))

    def noted(self, member: Member) -> None:
        """Note that the member may have another deadline, or other members."""
        group = member.group
        if self._members.get(group) is not member:
            return
        if group in self._asking and not member.raft.stands:
            self._asked(group)
        config = member.raft.config
        if member.config is not config:
            member.config = config
            suspected = [peer for peer in config.members if node_of(peer) in self.suspected]
            if suspected:
                for peer in suspected:
                    member.suspect(peer)
                member.advance()
                return
        due = member.raft.deadline
        if due == member.due:
            return
        earlier = self._members_due()
        member.due = due
        if due is None:
            return
        heappush(self._heap, (due, group))
        if earlier is None or due < earlier:
            self.on_deadline()
