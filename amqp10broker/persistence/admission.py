"""Publishes that a queue does not take in while the disk is full: they wait, and all else goes on.

What is published needs room for good; settlements, credit and what else a queue appends help to make room,
and have a reserve (`storage.journal`). So a queue that keeps what it decides asks here, once a wake, what
of its letters it may work off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from amqp10broker.queues.classic.backlog import content_bytes
from amqp10broker.queues.commands import Command, Publish
from amqp10broker.queues.outlook import Outlook


class Reserve(Protocol):
    """The journal, as far as its room on the disk goes, and what of it is there (`storage.journal`)."""

    @property
    def ticket(self) -> int:
        """Of what was appended last."""

    @property
    def durable(self) -> int:
        """The highest ticket of which all is durable."""

    @property
    def reserves(self) -> bool:
        """Whether room is reserved; if not, everything is admitted, and may fail."""

    def admits(self, size: int, last: int) -> bool:
        """Whether so many bytes may be appended, with a last record of these, now."""

    def withdraw(self) -> None:
        """What was not admitted last is not asked for any more."""


class Room(Protocol):
    """The journal, and when it has room."""

    @property
    def journal(self) -> Reserve:
        """See there."""

    def when_room(self, callback: Callable[[], None]) -> None:
        """Have a function called once, when there is no shortage."""


class Admission:
    """Of one queue.

    Attributes:
        waiting: publishes, in order.
    """

    __slots__ = ("_asked", "_room", "_since_ms", "_wake", "waiting")

    def __init__(self, room: Room | None, wake: Callable[[], None]) -> None:
        """Nothing waits.

        Args:
            room: what there is; None: the queue keeps nothing, then nothing ever waits.
            wake: has the queue ask again, though it has no letters.
        """
        self.waiting: list[Publish] = []
        self._room = room
        self._wake = wake
        self._asked = False  # to be woken
        self._since_ms = 0

    def admitted(self, commands: list[Command], now_ms: int) -> list[Command]:
        """What of some commands is to be carried out now, with what had to wait before.

        Raises:
            StorageError: the journal cannot be written.
        """
        room = self._room
        if room is None or not room.journal.reserves:
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
    def _count(publishes: list[Publish], room: Room) -> int:
        """How many of them there is room for."""
        size = 0
        for at, publish in enumerate(publishes):
            last = content_bytes(publish.messages)
            size += last
            if not room.journal.admits(size, last):
                return at
        return len(publishes)

    @property
    def holds(self) -> bool:
        """Whether anything waits for room."""
        return bool(self.waiting)

    def _ask_for_room(self, room: Room) -> None:
        if not self._asked:
            self._asked = True
            room.when_room(self._room_again)

    def _room_again(self) -> None:
        self._asked = False
        if self.waiting:
            self._wake()

    def told(self, outlook: Outlook) -> Outlook:
        """What a queue tells of itself, with what waits here."""
        if not self.waiting:
            return outlook
        since_ms = outlook.unconfirmed_ms
        return replace(
            outlook,
            unconfirmed=outlook.unconfirmed + sum(len(publish.ids) for publish in self.waiting),
            unconfirmed_ms=self._since_ms if since_ms is None else min(self._since_ms, since_ms),
        )

    def take(self) -> list[Publish]:
        """All that waits: for a queue that is gone, or fails, and answers so."""
        waiting, self.waiting = self.waiting, []
        if waiting and self._room is not None:
            # It may be what there is no room for. Others who wait ask again.
            self._room.journal.withdraw()
        return waiting
