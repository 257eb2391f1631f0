"""Publishes that a queue does not take in while the disk is full: they wait, and all else goes on.

What is published needs room for good; settlements, credit and what else a queue appends help to make room,
and have a reserve (`storage.journal`). So a queue that keeps what it decides asks here, once a wake, what
of its letters it may work off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from amqp10broker.queues.classic.backlog import content_bytes
from amqp10broker.queues.commands import Publish
from amqp10broker.queues.outlook import Outlook

if TYPE_CHECKING:
    from amqp10broker.tasks.keeping import Keeping

_Command = TypeVar("_Command")


class Admission:
    """Of one queue.

    Attributes:
        waiting: publishes, in order.
    """

    __slots__ = ("_asked", "_keeping", "_since_ms", "_wake", "waiting")

    def __init__(self, keeping: Keeping | None, wake: Callable[[], None]) -> None:
        """Nothing waits.

        Args:
            keeping: keeps what the queue decides; None: nobody does, then nothing ever waits.
            wake: has the queue ask again, though it has no letters.
        """
        self.waiting: list[Publish] = []
        self._keeping = keeping
        self._wake = wake
        self._asked = False  # to be woken
        self._since_ms = 0

    def admitted(self, letters: list[list[_Command]], now_ms: int) -> list[list[_Command]]:
        """What of some letters is to be worked off now, with what had to wait before.

        Raises:
            StorageError: the journal cannot be written.
        """
        keeping = self._keeping
        if keeping is None or not keeping.journal.reserves:
            return letters
        asking: list[Publish] = [
            command for commands in letters for command in commands if isinstance(command, Publish)
        ]
        before = len(self.waiting)
        if before:
            asking = [*self.waiting, *asking]
        count = self._count(asking, keeping)
        admitted, self.waiting = asking[:count], asking[count:]
        if not self.waiting:
            return [admitted[:before], *letters] if before else letters  # type: ignore[list-item]
        if not before:
            self._since_ms = now_ms
        if not self._asked:
            self._asked = True
            keeping.committer.when_room(self._room_again)
        others: list[list[_Command]] = [admitted[:before]]  # type: ignore[list-item]
        left = max(0, count - before)
        for commands in letters:
            part: list[_Command] = []
            for command in commands:
                if isinstance(command, Publish):
                    left -= 1
                    if left < 0:
                        continue
                part.append(command)
            others.append(part)
        return others

    @staticmethod
    def _count(publishes: list[Publish], keeping: Keeping) -> int:
        """How many of them there is room for."""
        size = 0
        for at, publish in enumerate(publishes):
            last = content_bytes(publish.messages)
            size += last
            if not keeping.journal.admits(size, last):
                return at
        return len(publishes)

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
        if waiting and self._keeping is not None:
            # It may be what there is no room for. Others who wait ask again.
            self._keeping.journal.withdraw()
        return waiting
