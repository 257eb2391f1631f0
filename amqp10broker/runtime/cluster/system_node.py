"""All groups of this node, with a clock and connections to other nodes, in one task; and the system group,
which decides on the cluster's metadata (`cluster.system`). Its members follow the nodes of the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from amqp10broker.auth.passwords import Passwords
from amqp10broker.cluster.system import System, next_member_change
from amqp10broker.cluster.transactions import SystemStore
from amqp10broker.cluster.wire import ConnectionPurpose, FrameKind, PeerFrame
from amqp10broker.errors import BrokerError, StorageError
from amqp10broker.metadata.catalog import CatalogRequest
from amqp10broker.metadata.plan import LATER, Decided
from amqp10broker.metadata.vhost_requests import NodeStarted, RaiseMachines, newest_of_all
from amqp10broker.queues.commands import RequestRef
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import SYSTEM_GROUP, member_id, node_of
from amqp10broker.raft.messages import MESSAGE, ChangeRefused, InstallSnapshot, Message, NotLeader, NotReady
from amqp10broker.runtime.context import BrokerContext
from amqp10broker.runtime.journal.data import Data
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import Mailbox

NO_MEMBER: Final = b"\0"
MEMBER: Final = b"\1"
"""Sent in place of a message of a group: the sender has no such member, or has it from now on."""

LOOK_AT_GROUPS_EACH_S: Final = 0.25
"""The interval of steps of callers without a deadline."""

SendToGroup = Callable[[int, int, bytes], None]
"""Sends bytes of a group to a node, or loses them: node, group, bytes."""


class RaftNode:
    def __init__(self, send: SendToGroup) -> None:
        clock = trio.lowlevel.current_clock()  # called some ten times an entry
        self.groups = Groups(lambda: int(clock.current_time() * 1000), send)
        self.groups.on_unknown = self._unknown
        self.groups.on_added = self._begun
        self.groups.on_deadline = self.awaken
        self.on_failed: Callable[[StorageError], None] = _raise
        self._send = send
        self._absent: dict[int, set[int]] = {}
        """For each group, the nodes that were notified that it has no member here."""
        self._turns: list[tuple[Callable[[], int | None], Callable[[], None]]] = []
        self._wake = trio.Event()

    def give_turns(self, deadline: Callable[[], int | None], turn: Callable[[], None]) -> None:
        """Call `turn` when it is due, by `deadline` in ms, and at intervals."""
        self._turns.append((deadline, turn))
        self.awaken()

    def awaken(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            dues = (self.groups.deadline, *(deadline() for deadline, _ in self._turns))
            at = trio.current_time() + LOOK_AT_GROUPS_EACH_S
            for due in dues:
                if due is not None:
                    at = min(
                        at, (due + 0.5) / 1000
                    )  # so that `now_ms`, which is rounded down, has reached it
            self._wake = trio.Event()
            with trio.move_on_at(at):
                await self._wake.wait()
            try:
                self.groups.tick()
                for _, turn in self._turns:
                    turn()
            except StorageError as error:
                self.on_failed(error)

    # --- what comes from other nodes ----------------------------------------------------------------

    def received(self, node: int, frames: Sequence[PeerFrame]) -> None:
        """Handle the frames of one read. Raises `BadBytes`; the connection must end."""
        messages: list[tuple[int, bytes]] = []
        for frame in frames:
            if frame.kind is not FrameKind.RAFT:
                continue
            if frame.body in (NO_MEMBER, MEMBER):
                self._news_of_member(node, frame.group, there=frame.body == MEMBER)
            else:
                messages.append((frame.group, frame.body))
        if messages:
            self.groups.received(node, messages)

    def disconnected(self, node: int) -> None:
        self._absent = {group: others for group, nodes in self._absent.items() if (others := nodes - {node})}

    def _begun(self, group: int) -> None:
        for node in sorted(self._absent.pop(group, ())):
            self._send(node, group, MEMBER)

    def _unknown(self, node: int, group: int, message: Message) -> None:
        # A node sends to a member that is not here, and suspects it until it is (see `raft.core`).
        self._absent.setdefault(group, set()).add(node)
        self._send(node, group, NO_MEMBER)

    def _news_of_member(self, node: int, group: int, *, there: bool) -> None:
        member = self.groups.get(group)
        if member is None:
            return
        for peer in member.raft.config.members:
            if node_of(peer) == node:
                notify = member.heard if there else member.suspect
                notify(peer)
        if there and member.raft.status.leader is None:
            member.campaign_at_tick()  # the member that began first stands for election
        member.advance()


def now_ms() -> int:
    """Return the clock of groups, which never runs back."""
    return int(trio.current_time() * 1000)


def _raise(error: StorageError) -> None:
    raise error


_log = Log("amqp10broker.cluster")

SendFrame = Callable[[int, ConnectionPurpose, FrameKind, bytes], bool]
"""Sends a frame of the group to a node; False: there is no connection."""

CATCH_UP_S: Final = 300.0
"""How long a node waits at its start for a majority of the cluster (T2)."""
LOOK_EACH_S: Final = 2.0
"""The interval of its checks whether it is still a member."""
TOLD_EACH_S: Final = 10.0


class SystemNode:
    def __init__(
        self,
        number: int,
        node_context: BrokerContext,
        passwords: Passwords,
        data: Data,
        raft: RaftNode,
        send: SendFrame,
    ) -> None:
        """Take part in the group. `send`: sends a frame to a node; returns whether there is a connection."""
        self._raft = raft
        self._send = send
        self._sent_states: dict[int, tuple[int, int]] = {}
        self._lost_states: set[int] = set()
        self._raising_to = 0
        self._catalog = node_context.catalog
        self._reply_registry = node_context.reply_registry
        self._incarnation = data.incarnation
        store = SystemStore(data.catalog_log)
        self.system = System(
            number,
            data.incarnation,
            store,
            self._catalog,
            passwords.exportable,
            send=lambda node, data: send(node, ConnectionPurpose.COMMANDS, FrameKind.PROPOSE, data),
            tell=self._reply_registry.tell,
            now_ms=now_ms,
        )
        self.member = Member(SYSTEM_GROUP, member_id(number), store, self.system, raft.groups, random.random)
        self.system.member = self.member
        self.system.on_snapshot_wanted = self._send_state
        self.system.on_deadline = raft.awaken
        self.system.is_asking = self._reply_registry.is_open
        self._catalog.decide = self.system.see_to
        raft.groups.add(self.member)
        raft.give_turns(lambda: self.system.deadline, self._turn)

    # --- who waits ----------------------------------------------------------------------------------

    async def caught_up(
        self, started: NodeStarted, missing: Callable[[], str], look: Callable[[], Awaitable[None]]
    ) -> None:
        """Wait until this node has all metadata declared before its start. `look`: called periodically;
        raises if waiting is useless. Raises `BrokerError` if there was no majority until the time limit.
        """
        done = trio.Event()
        self.system.start(started, done.set)
        began = told = trio.current_time()
        while True:
            with trio.move_on_after(LOOK_EACH_S):
                await done.wait()
                return
            await look()
            now = trio.current_time()
            if now - began > CATCH_UP_S:
                raise BrokerError(
                    f"no majority of the cluster's nodes was there for {CATCH_UP_S:.0f} s; waited for "
                    f"{missing()}: start them, then this one again"
                )
            if now - told > TOLD_EACH_S:
                told = now
                _log.warning(
                    "waiting for a majority of the cluster before clients are served", names=missing()
                )

    async def propose(self, request: CatalogRequest[Any]) -> Any:
        """Have a request decided, and wait for the decision. Raises `RefusedError` if it is refused, or not
        decided in 30 s.
        """
        mailbox: Mailbox[Any] = Mailbox()
        reply_to = self._reply_registry.open("cluster", mailbox)
        try:
            ref: RequestRef = reply_to.request()
            answer = self.system.propose(request, ref)
            while answer is LATER:
                for message in await mailbox.take_all():
                    if isinstance(message, Decided) and message.ref == ref:
                        return message.result()
            return answer
        finally:
            self._reply_registry.close(reply_to)
            mailbox.close()

    # --- states -------------------------------------------------------------------------------------

    def _send_state(self, to: int) -> None:
        message = InstallSnapshot(self.member.me, to, self.member.raft.status.term, self.system.snapshot())
        node = node_of(to)
        self._sent_states[node] = to, message.snapshot.point.index
        if not self._send(node, ConnectionPurpose.BULK, FrameKind.SNAPSHOT, MESSAGE.encode(message)):
            # The member must not be called while its output is handled.
            self._lost_states.add(node)
            self._raft.awaken()

    def received(self, node: int, frame: PeerFrame) -> None:
        """Handle a part of the state of the group's leader, or a member's answer to ours."""
        if frame.kind is FrameKind.SNAPSHOT:
            self._raft.groups.received(node, [(SYSTEM_GROUP, frame.body)])
            self._send(node, ConnectionPurpose.BULK, FrameKind.SNAPSHOT_ANSWER, b"")
        else:
            self._state_sent(node, arrived=True)

    def disconnected(self, node: int) -> None:
        self._state_sent(node, arrived=False)

    def _state_sent(self, node: int, *, arrived: bool) -> None:
        sent = self._sent_states.pop(node, None)
        if sent is not None:
            to, index = sent
            self.member.raft.snapshot_done(to, index if arrived else None)
            self.member.advance()

    # --- time ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        while self._lost_states:
            self._state_sent(self._lost_states.pop(), arrived=False)
        deadline = self.system.deadline
        if deadline is not None and deadline <= now_ms():
            self.system.tick()
        self._see_to_members()
        self._see_to_version()

    def _see_to_members(self) -> None:
        member = self.member
        if not member.leads or not self._catalog.nodes:
            return
        raft = member.raft
        change = next_member_change(raft.config, self._catalog.nodes.values(), raft.matches(), raft.last)
        if change is None:
            return
        try:
            member.change(change)
        except (ChangeRefused, NotLeader, NotReady):
            return  # one transfer is running: this is checked again
        kind, node = type(change).__name__.lower(), self._catalog.node_name(node_of(change.member))
        _log.info("the system group changes its members", change=kind, node=node)
        member.advance()

    def _see_to_version(self) -> None:
        newest = newest_of_all(self._catalog)
        if not self.member.leads or newest <= self.system.version:
            self._raising_to = 0
        elif newest != self._raising_to:
            self._raising_to = newest
            _log.info("all nodes carry out a newer machine version", version=newest)
            self.system.see_to(RaiseMachines())
