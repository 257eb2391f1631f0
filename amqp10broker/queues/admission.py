"""Publishes that wait while the disk is full, so that all other commands go on.

Published messages need room for good; settlements, credit and other records help to make room, and have a
reserve (`storage.journal`). So a durable queue checks here, once a step, which of its commands it may apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from amqp10broker.queues.classic.backlog import content_bytes
from amqp10broker.queues.commands import Command, Publish
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.queue_status import QueueStatus
from amqp10broker.queues.quorum.commands import Letters, QuorumCommand


class Admission:
    __slots__ = ("_asked", "_room", "_since_ms", "_wake", "waiting")

    def __init__(self, room: Commits | None, wake: Callable[[], None]) -> None:
        self.waiting: list[Publish] = []
        self._room = room
        self._wake = wake
        self._asked = False  # a wake-up is registered
        self._since_ms = 0

    def admitted(self, commands: list[Command], now_ms: int) -> list[Command]:
        """Return the commands that may be applied now, those that waited included. Raises `StorageError`."""
        room = self._room
        if room is None or not room.journal.reserve:
            return commands
        asking = [command for command in commands if isinstance(command, Publish)]
        before = len(self.waiting)
        if before:
            asking = [*self.waiting, *asking]
        count = self._count(asking, room)
        admitted: list[Command] = [*asking[: min(before, count)]]
        self.waiting = asking[count:]
        if not self.waiting:
            return [*admitted, *commands] if before else commands
        if not before:
            self._since_ms = now_ms
        self._ask_for_room(room)
        left = max(0, count - before)
        for command in commands:
            if isinstance(command, Publish):
                left -= 1
                if left < 0:
                    continue
            admitted.append(command)
        return admitted

    @staticmethod
    def _count(publishes: list[Publish], room: Commits) -> int:
        size = 0
        for at, publish in enumerate(publishes):
            last = content_bytes(publish.messages)
            size += last
            if not room.journal.admits(size, last):
                return at
        return len(publishes)

    @property
    def holds(self) -> bool:
        return bool(self.waiting)

    def _ask_for_room(self, room: Commits) -> None:
        if not self._asked:
            self._asked = True
            room.when_room(self._room_again)

    def _room_again(self) -> None:
        self._asked = False
        if self.waiting:
            self._wake()

    def with_waiting(self, queue_status: QueueStatus) -> QueueStatus:
        if not self.waiting:
            return queue_status
        since_ms = queue_status.unconfirmed_ms
        return replace(
            queue_status,
            unconfirmed=queue_status.unconfirmed + sum(len(publish.ids) for publish in self.waiting),
            unconfirmed_ms=self._since_ms if since_ms is None else min(self._since_ms, since_ms),
        )

    def take(self) -> list[Publish]:
        """Remove and return all waiting publishes, for a queue that is gone or fails."""
        waiting, self.waiting = self.waiting, []
        if waiting and self._room is not None:
            # The refused request may have been this one. Other queues that wait repeat theirs.
            self._room.journal.withdraw()
        return waiting


# The commands of a node are applied in order, or not at all (`Letters`). So the leader does not hold
# publishes back itself, with all commands behind them: it drops batches with publishes, and what follows from
# that node, and has the node hold its publishes back and send the rest again.


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
        if room is None or not room.journal.reserve or not any(type(each) is Letters for each in posted):
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
