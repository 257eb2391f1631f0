"""All groups of this node, with a clock and the ways to other nodes; one task for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from amqp10broker.cluster.wire import FrameKind, PeerFrame
from amqp10broker.errors import StorageError
from amqp10broker.raft.groups import Groups
from amqp10broker.raft.ids import node_of
from amqp10broker.raft.messages import Message

NO_MEMBER: Final = b"\0"
MEMBER: Final = b"\1"
"""In place of a message of a group: the node that is written to has no such member, or has it from now on."""

LOOK_EACH_S: Final = 0.25
"""How often those that have no deadline are given a turn."""

SendToGroup = Callable[[int, int, bytes], None]
"""Sends bytes of a group to a node, or loses them: node, group, bytes."""


class RaftNode:
    def __init__(self, send: SendToGroup) -> None:
        clock = trio.lowlevel.current_clock()  # asked some ten times an entry
        self.groups = Groups(lambda: int(clock.current_time() * 1000), send)
        self.groups.on_unknown = self._unknown
        self.groups.on_added = self._begun
        self.groups.on_deadline = self.awaken
        self.on_failed: Callable[[StorageError], None] = _raise
        self._send = send
        self._absent: dict[int, set[int]] = {}
        """By group: the nodes that were told that it has no member here."""
        self._turns: list[tuple[Callable[[], int | None], Callable[[], None]]] = []
        self._wake = trio.Event()

    def give_turns(self, deadline: Callable[[], int | None], turn: Callable[[], None]) -> None:
        """Have something called when it is due, and now and then. `deadline`: when it is due, in ms; None: it
        is not.
        """
        self._turns.append((deadline, turn))
        self.awaken()

    def awaken(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Give groups and all others their turns, until cancelled."""
        while True:
            dues = (self.groups.deadline, *(deadline() for deadline, _ in self._turns))
            at = trio.current_time() + LOOK_EACH_S
            for due in dues:
                if due is not None:
                    at = min(at, (due + 0.5) / 1000)  # so that `now_ms`, which is cut off, has reached it
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
        """Frames of one read: those of groups are worked off. Raises `BadBytes` if one cannot be read; the
        connection that it came by is of no use any more.
        """
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
        """The way to a node is lost: its groups suspect every member here until it is there again."""
        self._absent = {group: others for group, nodes in self._absent.items() if (others := nodes - {node})}

    def _begun(self, group: int) -> None:
        for node in sorted(self._absent.pop(group, ())):
            self._send(node, group, MEMBER)

    def _unknown(self, node: int, group: int, message: Message) -> None:
        # A node writes to a member that is not here: it suspects that until it is (see `raft.core`).
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
            member.campaign_at_tick()  # the one that was the first to begin stands for election
        member.advance()


def now_ms() -> int:
    """The clock of groups, which never runs back."""
    return int(trio.current_time() * 1000)


def _raise(error: StorageError) -> None:
    raise error
