"""All members of a node: each gets its messages, its time, and news of the nodes where its peers are.

A group in which nothing happens costs nothing here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from amqp10broker.cluster.ids import SYSTEM_GROUP, node_of
from amqp10broker.cluster.member import Member
from amqp10broker.raft.codec import MESSAGE
from amqp10broker.raft.messages import Message

Send = Callable[[int, int, bytes], object]
"""Sends a message to a node: node, group, bytes; or loses it."""

LATER_MS: Final = 100
"""After which `Groups.tick` does what was left for later."""

MEMBERS_A_TURN: Final = 128
"""So many members are told news of a node, or given their time, at once: some milliseconds. Thousands would
hold up the node's heartbeats for so long that others take it for dead: news for all members there, and so
on."""

ELECTIONS_MAX: Final = 32
"""So many members ask for votes at a time, and the others stand in line: with thousands at once each round
takes longer than its time-out, and is asked again. The metadata's group goes first."""


class Groups:
    """See the module.

    Attributes:
        now_ms: milliseconds of a clock that never runs back.
        on_unknown: called with node, group and message for a member that this node does not have. The sender
            must come to suspect it (see `raft.core`).
        lost: other nodes with numbers up to this one are lost for good: a group with members there is made
            that of this node alone when its member here begins (`cluster force-standalone`).
        elects: members of queues that are not new may ask for votes. Not while those of this node begin: that
            comes first, and until it is over they and those of other nodes have none to ask.
    """

    def __init__(self, now_ms: Callable[[], int], send: Send) -> None:
        self.now_ms = now_ms
        self.suspected: set[int] = set()
        self.lost = 0
        self._elects = True
        self.on_unknown: Callable[[int, int, Message], None] = _ignore
        self.on_deadline: Callable[[], None] = _nothing
        self.on_removed: Callable[[int], None] = _forget
        self.on_added: Callable[[int], None] = _not_told
        self._send = send
        self._backward = False
        self._members: dict[int, Member] = {}
        self._heap: list[tuple[int, int]] = []
        self._asking: set[int] = set()
        """Groups whose members here have asked for votes."""
        self._line: deque[int] = deque()
        """Those whose time has come, and that are to ask when others have an answer."""
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
            return  # a member may stand back by itself
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
        """A member has stopped; twice is fine."""
        if self._members.pop(group, None) is not None:
            self._asked(group)
            self.on_removed(group)

    def get(self, group: int) -> Member | None:
        """The node's member of a group."""
        return self._members.get(group)

    @property
    def elects(self) -> bool:
        return self._elects

    @elects.setter
    def elects(self, elects: bool) -> None:
        self._elects = elects
        self.on_deadline()

    @property
    def elections(self) -> int:
        """How many members ask for votes now."""
        return len(self._asking)

    # --- what comes ---------------------------------------------------------------------------------

    def received(self, node: int, messages: Iterable[tuple[int, bytes]]) -> None:
        """Messages have come from a node, all that came at once: each group works them off in one go.
        `messages`: group and bytes. Raises `BadBytes` if one is none; those before it have been taken.
        """
        touched: dict[int, Member] = {}
        try:
            for group, data in messages:
                message = MESSAGE.decode(data)
                member = self._members.get(group)
                if member is None or message.to != member.me:
                    self.on_unknown(node, group, message)
                elif node_of(message.sender) == node:
                    member.step(message)
                    touched[group] = member
        finally:
            for member in touched.values():
                member.advance()

    def suspect(self, node: int) -> None:
        """A node is unreachable in one direction or both. With many members, `tick` notifies most of them."""
        self.suspected.add(node)
        self._tell(node, lambda member, peer: member.suspect(peer))

    def heard(self, node: int) -> None:
        """A node is reachable again. For a restarted node, call `suspect` first."""
        self.suspected.discard(node)
        self._tell(node, lambda member, peer: member.heard(peer))

    def _tell(self, node: int, notifications: Callable[[Member, int], None]) -> None:
        self._notifications.append(self._telling(node, notifications))
        if len(self._notifications) == 1:
            self._go_on_telling()
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

    def _go_on_telling(self) -> None:
        left = MEMBERS_A_TURN
        while self._notifications and left > 0:
            left -= sum(1 for _ in islice(self._notifications[0], left))
            if left > 0:  # there were no more
                self._notifications.popleft()

    # --- time ---------------------------------------------------------------------------------------

    @property
    def deadline(self) -> int | None:
        """When `tick` is due, in ms; None: nothing is awaited."""
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
        """Time has come to `deadline`; it may be due again at once (`MEMBERS_A_TURN`)."""
        now_ms = self.now_ms()
        self._go_on_telling()
        if self._later and self._later_due <= now_ms:
            later, self._later = self._later, []
            for callback in later:
                callback()
        left = MEMBERS_A_TURN
        while left > 0 and (due := self._members_due()) is not None and due <= now_ms:
            _, group = heappop(self._heap)
            member = self._members[group]
            self._asked(group)  # in vain, if it has: others go before it
            if group != SYSTEM_GROUP and member.lacks_leader:
                # A client waits for a new one.
                (self._line.appendleft if member.new else self._line.append)(group)
            else:
                left -= 1
                self._tick(member)
        while left > 0 and self._may_ask:
            waiting = self._members.get(self._line.popleft())
            # It may have a leader by now, or have been asked for its vote, and awaits what comes of it.
            if waiting is not None and waiting.due is not None and waiting.due <= now_ms:
                left -= 1
                self._tick(waiting)

    @property
    def _may_ask(self) -> bool:
        if not self._line or len(self._asking) >= ELECTIONS_MAX:
            return False
        return self._elects or ((first := self._members.get(self._line[0])) is not None and first.new)

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

    # --- what members ask ---------------------------------------------------------------------------

    def later(self, callback: Callable[[], None]) -> None:
        """Call a function in `LATER_MS`, or at the next look at the groups behind that. `on_deadline` is not
        called, so that nothing wakes for it.
        """
        if not self._later:
            self._later_due = self.now_ms() + LATER_MS
        self._later.append(callback)

    def send(self, group: int, messages: Sequence[Message]) -> None:
        """Send messages of a group, or lose them."""
        for message in messages:
            self._send(node_of(message.to), group, MESSAGE.encode(message))

    def noted(self, member: Member) -> None:
        """The member may have another deadline, or other members."""
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


def _ignore(node: int, group: int, message: Message) -> None: ...


def _nothing() -> None: ...


def _forget(group: int) -> None: ...


def _not_told(group: int) -> None: ...
