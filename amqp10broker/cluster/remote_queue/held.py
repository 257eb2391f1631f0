"""The deliveries that a consumer at another node holds, counted from commands and effects at either end."""

from __future__ import annotations

from amqp10broker.queues.commands import Cancel, Command, GiveBack, Settle, Subscribe
from amqp10broker.queues.effects import Deliver


class HeldByConsumer:
    __slots__ = ("_asked", "_cancelled", "_count", "_epoch", "_settled", "seen")

    def __init__(self, command: Subscribe) -> None:
        self.seen = 0
        self._settled = command.settled
        self._cancelled = False
        self._count = 0
        self._asked = 0
        self._epoch = 0

    @property
    def gone(self) -> bool:
        """Whether it is cancelled, holds nothing, and every `Settle` that asked has its answer: neither the
        queue nor the session says anything of it any more."""
        return self._cancelled and not self._asked and (self._settled or self._count <= 0)

    def note(self, command: Command) -> None:
        """A letter of its session."""
        match command:
            case Settle():
                self._count -= len(command.keys)
                self._asked += command.answer
            case GiveBack():
                # What is still on its way went back, too.
                self._count -= self.seen - command.seen + len(command.keys)
                self.seen, self._epoch = command.seen, command.epoch
            case Cancel():
                self._cancelled = True
            case _:
                return

    def delivered(self, effect: Deliver) -> None:
        """Deliveries are on their way; the queue has those that a `GiveBack` met again."""
        if effect.epoch == self._epoch:
            self.seen += len(effect.keys)
            self._count += len(effect.keys)

    def answered(self) -> None:
        self._asked -= 1
