"""The effects of a queue since they were last taken, in order for each receiver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amqp10broker.message.message import Message
from amqp10broker.queues.commands import ConsumerRef, PeerId
from amqp10broker.queues.effects import Deliver, Effect


class QueueConsumer(Protocol):
    """A consumer of any kind of queue: the address, epoch and room of its deliveries."""

    ref: ConsumerRef
    epoch: int
    room: int

    @property
    def shown(self) -> Sequence[int]:
        """Return its progress for `Deliver.shown`."""


class Outbox:
    """Effects to be sent. Deliveries to one consumer are gathered until another effect is sent to it."""

    __slots__ = ("_again", "_delivering", "_effects")

    def __init__(self) -> None:
        self._effects: dict[PeerId, list[Effect]] = {}
        self._delivering: dict[QueueConsumer, tuple[list[int], list[Message]]] = {}
        # Of these, consumers that get messages that were handed out before.
        self._again: dict[QueueConsumer, None] = {}

    def tell(self, reply_to: PeerId, effect: Effect) -> None:
        effects = self._effects.get(reply_to)
        if effects is None:
            self._effects[reply_to] = [effect]
        else:
            effects.append(effect)

    def deliver(self, consumer: QueueConsumer, keys: Sequence[int], messages: Sequence[Message]) -> None:
        delivering = self._delivering.get(consumer)
        if delivering is None:
            delivering = self._delivering[consumer] = ([], [])
        delivering[0].extend(keys)
        delivering[1].extend(messages)

    def deliver_again(self, consumer: QueueConsumer) -> None:
        """Mark the gathered deliveries to a consumer as containing messages that were handed out before."""
        self._again[consumer] = None

    def flush(self, consumer: QueueConsumer) -> None:
        """End the gathering for a consumer, so that later effects come behind its deliveries."""
        delivering = self._delivering.pop(consumer, None)
        if delivering is not None:
            again = consumer in self._again
            spent = consumer.room <= 0
            deliver = Deliver(consumer.ref, *delivering, consumer.epoch, spent, again, consumer.shown)
            self.tell(consumer.ref.reply_to, deliver)
            if again:
                del self._again[consumer]

    def withdraw(self, consumer: QueueConsumer) -> None:
        """Discard the gathered deliveries to a consumer, which the queue has taken back."""
        self._delivering.pop(consumer, None)
        self._again.pop(consumer, None)

    def take(self) -> dict[PeerId, list[Effect]]:
        if self._delivering:
            for consumer in list(self._delivering):
                self.flush(consumer)
        effects, self._effects = self._effects, {}
        return effects
