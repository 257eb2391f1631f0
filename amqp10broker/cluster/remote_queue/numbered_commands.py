"""The numbered commands of one node for one replicated queue, stored until the queue has executed them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from amqp10broker.queues.commands import Command, Publish

BATCH_MAX: Final = 64
"""Commands of a backlog that go in one batch."""


class NumberedCommand:
    """One numbered command. `done`: it needs no answer any more. `epoch`: of its consumer, for a `Credit`."""

    __slots__ = ("command", "done", "epoch", "number", "since_ms")

    def __init__(self, number: int, command: Command, since_ms: int) -> None:
        self.number = number
        self.command = command
        self.since_ms = since_ms
        self.epoch = 0
        self.done = False

    @property
    def waits(self) -> bool:
        return not self.done and type(self.command) is not Publish


_NO_COMMANDS: Final[deque[NumberedCommand]] = deque()
"""Shared by links that were never used, since an empty deque takes 600 bytes. It stays empty."""


class NumberedCommands:
    """Commands in order, with consecutive numbers.

    Attributes:
        next: number of the next command.
        sent: number of the last one that was sent to the present leader.
        timed: commands that are given up if no leader is found in time, in order.
    """

    __slots__ = ("_commands", "next", "sent", "timed")

    def __init__(self) -> None:
        self._commands = _NO_COMMANDS
        self.next = 1
        self.sent = 0
        self.timed: list[NumberedCommand] = []

    def __len__(self) -> int:
        return len(self._commands)

    def __iter__(self) -> Iterator[NumberedCommand]:
        return iter(self._commands)

    @property
    def first(self) -> int:
        """The number of the first command, or of the next one if there is none."""
        return self._commands[0].number if self._commands else self.next

    @property
    def unsent(self) -> bool:
        return self.sent < self.next - 1

    def add(self, command: Command, now_ms: int) -> NumberedCommand:
        numbered = NumberedCommand(self.next, command, now_ms)
        self.next += 1
        if self._commands is _NO_COMMANDS:
            self._commands = deque()
        self._commands.append(numbered)
        return numbered

    def batch(self) -> Sequence[NumberedCommand]:
        """Return the next commands to send, at least one, which count as sent from now on."""
        at = self.sent + 1 - self.first
        stop = min(at + BATCH_MAX, len(self._commands))
        batch = [self._commands[index] for index in range(at, stop)] if at else list(self._commands)[:stop]
        self.sent = batch[-1].number
        return batch

    def drop_until(self, number: int) -> None:
        """Remove commands up to a number, which were executed."""
        kept, timed = self._commands, self.timed
        while kept and kept[0].number <= number:
            kept.popleft().done = True
        if timed and timed[0].done:
            del timed[: next((at for at, each in enumerate(timed) if not each.done), len(timed))]

    def take_publishes(self) -> list[Publish]:
        """Remove all publishes; commands behind them get the numbers of those in front."""
        publishes: list[Publish] = []
        number, others = self.first, deque[NumberedCommand]()
        for each in self._commands:
            command = each.command
            if type(command) is Publish:
                publishes.append(command)
                each.done = True
            else:
                each.number = number + len(others)
                others.append(each)
        if publishes:
            self.next = number + len(others)
            self._commands = others
        return publishes

    def clear(self) -> None:
        self._commands.clear()
        self.timed.clear()
