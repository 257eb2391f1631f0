"""A queue that does only what the test says: its letters are looked at, its effects are made up.

For what sessions and channels do with effects that no simple queue has: it stands in a `World` of either
protocol, where letters to it wait, and answers come from the test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from amqp10broker.queues.commands import (
    Command,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    Publish,
    Subscribe,
)

C = TypeVar("C")


class Box(Protocol):
    """What worlds run queues in."""

    stalled: bool


class Puppet:
    """The puppet's strings."""

    def __init__(self, queue: str, box: Box, letters: deque[Command]) -> None:
        self.queue = queue
        box.stalled = True
        self._letters = letters
        self._ref: ConsumerRef | None = None
        self._delivered = 0

    def told(self) -> list[Command]:
        letters = list(self._letters)
        self._letters.clear()
        for letter in letters:
            if isinstance(letter, Subscribe):
                self._ref = letter.consumer
        return letters

    def told_only(self, kind: type[C]) -> list[C]:
        return [letter for letter in self.told() if isinstance(letter, kind)]

    @property
    def ref(self) -> ConsumerRef:
        self.told()
        assert self._ref is not None, "nobody has subscribed"
        return self._ref

    def publish(self) -> Publish:
        (publish,) = self.told_only(Publish)
        return publish

    def deliver(self, keys: Sequence[int], messages: Sequence[Any]) -> Deliver:
        self._delivered += len(keys)
        return Deliver(self.ref, list(keys), list(messages), 0)

    def reply(self, credit: Credit, available: int = 0) -> CreditReply:
        """An effect: the answer to a request for messages."""
        delivered = self._delivered
        left = credit.delivery_count + credit.credit - delivered
        if credit.drain:
            delivered, left = delivered + left, 0
        return CreditReply(credit.consumer, delivered, left, available, credit.drain, 0)
