"""A queue that does only what the test says: its letters are looked at, its effects are made up.

For what sessions and channels do with effects that no simple queue has: it stands in a `World` of either
protocol, where letters to it wait, and answers come from the test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from amqp10broker.queues import commands

C = TypeVar("C")


class Box(Protocol):
    """What worlds run queues in."""

    stalled: bool


class ScriptedQueue:
    """A queue whose effects the test makes."""

    def __init__(self, queue: str, box: Box, letters: deque[commands.Command]) -> None:
        self.queue = queue
        box.stalled = True
        self._letters = letters
        self._ref: commands.ConsumerRef | None = None
        self._delivered = 0

    def told(self) -> list[commands.Command]:
        letters = list(self._letters)
        self._letters.clear()
        for letter in letters:
            if isinstance(letter, commands.Subscribe):
                self._ref = letter.consumer
        return letters

    def told_only(self, kind: type[C]) -> list[C]:
        return [letter for letter in self.told() if isinstance(letter, kind)]

    @property
    def ref(self) -> commands.ConsumerRef:
        self.told()
        assert self._ref is not None, "nobody has subscribed"
        return self._ref

    def publish(self) -> commands.Publish:
        (publish,) = self.told_only(commands.Publish)
        return publish

    def deliver(self, keys: Sequence[int], messages: Sequence[Any]) -> commands.Deliver:
        self._delivered += len(keys)
        return commands.Deliver(self.ref, list(keys), list(messages), 0)

    def reply(self, credit: commands.Credit, available: int = 0) -> commands.CreditReply:
        """Return an effect that answers a request for messages."""
        delivered = self._delivered
        left = credit.delivery_count + credit.credit - delivered
        if credit.drain:
            delivered, left = delivered + left, 0
        return commands.CreditReply(credit.consumer, delivered, left, available, credit.drain, 0)
