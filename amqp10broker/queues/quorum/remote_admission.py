"""Publishes from other nodes to a quorum queue while the disk of its leader is full.

The commands of a node are applied in order, or not at all (`Letters`). So the leader does not hold publishes
back itself, with all commands behind them: it drops batches with publishes, and what follows from that node,
and has the node hold its publishes back and send the rest again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from amqp10broker.queues.admission import Admission
from amqp10broker.queues.classic.backlog import content_bytes
from amqp10broker.queues.commands import Command, Publish
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.quorum.commands import Letters, QuorumCommand


class LinkAdmission(Admission):
    """The admission of a queue with members on several nodes. `on_refused`: called with node, incarnation and
    number from which on commands were dropped.
    """

    __slots__ = ("_dropped", "_refuses", "on_refused", "on_room")

    def __init__(self, room: Commits | None, wake: Callable[[], None]) -> None:
        super().__init__(room, wake)
        self.on_refused: Callable[[int, int, int], None] = lambda node, incarnation, first: None
        self.on_room: Callable[[], None] = lambda: None
        self._refuses = False
        # Node and incarnation -> number of the batch with which it has to go on.
        self._dropped: dict[tuple[int, int], int] = {}

    @property
    def holds(self) -> bool:
        return self._refuses or super().holds

    def admitted(self, commands: list[Command], now_ms: int) -> list[Command]:
        room = self._room
        posted = cast("list[QuorumCommand]", commands)
        if room is None or not room.journal.reserves or not any(type(each) is Letters for each in posted):
            return super().admitted(commands, now_ms)
        size = 0
        refused: dict[tuple[int, int], int] = {}
        taken: list[QuorumCommand] = []
        for command in posted:
            if type(command) is Letters:
                link = command.node, command.incarnation
                if self._dropped.get(link, command.first) != command.first:
                    continue
                more = _published_bytes(command.commands)
                size += more
                if more and not room.journal.admits(size, more):
                    size -= more
                    refused[link] = self._dropped[link] = command.first
                    continue
                self._dropped.pop(link, None)
            taken.append(command)
        if refused:
            self._refuses = True
            self._ask_for_room(room)
            for link, first in refused.items():
                self.on_refused(*link, first)
        return super().admitted(cast("list[Command]", taken), now_ms)

    def _room_again(self) -> None:
        super()._room_again()
        if self._refuses:
            self._refuses = False
            self.on_room()

    def follow(self) -> None:
        """Forget dropped batches, since another member leads now."""
        self._dropped.clear()
        if self._refuses:
            self._refuses = False
            if self._room is not None:
                self._room.journal.withdraw()

    def take(self) -> list[Publish]:
        self.follow()
        return super().take()


def _published_bytes(commands: Sequence[QuorumCommand]) -> int:
    return sum(content_bytes(each.messages) for each in commands if type(each) is Publish)
