"""The consumers at one node of one replicated queue: the deliveries that their sessions have.

Deliveries that never reached the node count as `missed`: the queue has them in its numbers of the consumer,
and the sessions do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import (
    AttachPublisher,
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    DetachPublisher,
    GiveBack,
    PublisherRef,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.effects import (
    ActiveChanged,
    CreditReply,
    Deliver,
    Effect,
    QueueDeleted,
    Settled,
    SubscribeRefused,
    TimedOut,
)
from amqp10broker.queues.selecting import encoded


class RemoteConsumer:
    """A consumer of this node.

    Attributes:
        seen: deliveries of the present epoch that its session has.
        selects: it gets some messages only; the queue answers a drain when the search has ended.
        held: deliveries that it has not settled.
    """

    __slots__ = (
        "active",
        "cancelled",
        "counted",
        "draining",
        "epoch",
        "held",
        "missed",
        "seen",
        "selects",
        "settled",
    )

    def __init__(self, command: Subscribe) -> None:
        self.settled = command.settled
        self.counted = command.counted
        self.selects = encoded(command.filters) is not None
        self.draining = self.cancelled = False
        self.seen = self.missed = self.epoch = self.held = 0
        self.active: bool | None = None

    @property
    def gone(self) -> bool:
        return self.cancelled and (self.held <= 0 or self.settled)

    def note(self, command: Credit | Settle | GiveBack | Cancel) -> None:
        """Count a command of its session."""
        match command:
            case Credit():
                self.draining = command.drain and self.selects
            case Settle():
                self.held -= len(command.keys)
            case GiveBack():
                self.held -= self.seen - command.seen + len(command.keys)
                self.seen, self.epoch = command.seen, command.epoch
            case Cancel():
                self.cancelled = True

    def counts(self, effect: Deliver | CreditReply | ActiveChanged | TimedOut) -> bool:
        """Count an effect for its session; return whether the session gets it."""
        match effect:
            case Deliver():
                if self.cancelled or effect.epoch != self.epoch:
                    return False
                self.seen += len(effect.keys)
                self.held += len(effect.keys)
            case CreditReply():
                self.draining = self.draining and not effect.drain
            case ActiveChanged():
                self.active = effect.active
            case TimedOut():
                self.held -= len(effect.keys)
        return True

    def delivery_count(self, count: int) -> int:
        """Return the queue's delivery count as the session counts."""
        return (count - self.missed) & MASK


class RemoteConsumers(dict[ConsumerRef, RemoteConsumer]):
    __slots__ = ()

    def as_counted(self, command: Command) -> Command:
        """Return a command with the queue's numbers: missed deliveries count as seen there."""
        if isinstance(command, Credit | GiveBack):
            consumer = self.get(command.consumer)
            missed = 0 if consumer is None else consumer.missed
            if missed:
                count = (command.delivery_count + missed) & MASK
                return replace(command, seen=command.seen + missed, delivery_count=count)
        return command

    def without_missed(self, reply: CreditReply) -> CreditReply:
        """Return a reply with the numbers of its session."""
        consumer = self[reply.consumer]
        if not consumer.missed:
            return reply
        return replace(reply, delivery_count=consumer.delivery_count(reply.delivery_count))


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
        """Whether it is cancelled, holds nothing, and every `Settle` that asked has its answer."""
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


def drop_gone(consumers: dict[ConsumerRef, Any], ref: ConsumerRef) -> None:
    """Forget a consumer of which neither the queue nor the session says anything any more."""
    if consumers[ref].gone:
        del consumers[ref]


class HomeUsers:
    """The consumers and publishers at one node of a queue at another one only, as both ends count them."""

    __slots__ = ("consumers", "publishers")

    def __init__(self) -> None:
        self.consumers: dict[ConsumerRef, HeldByConsumer] = {}
        self.publishers: dict[PublisherRef, None] = {}

    def note(self, command: Command) -> None:
        match command:
            case Subscribe():
                self.consumers[command.consumer] = HeldByConsumer(command)
            case Settle() | GiveBack() | Cancel():
                held = self.consumers.get(command.consumer)
                if held is not None:
                    held.note(command)
                    drop_gone(self.consumers, command.consumer)
            case Unsubscribe():
                self.consumers.pop(command.consumer, None)
            case AttachPublisher():
                self.publishers[command.publisher] = None
            case DetachPublisher():
                self.publishers.pop(command.publisher, None)
            case _:
                return

    def counts(self, effect: Effect) -> bool:
        """Count an effect; return whether it is for one of them."""
        match effect:
            case Deliver() | Settled():
                held = self.consumers.get(effect.consumer)
                if held is None:
                    return False
                if type(effect) is Deliver:
                    held.delivered(effect)
                else:
                    held.answered()
                    drop_gone(self.consumers, effect.consumer)
                return True
            case SubscribeRefused():
                return self.consumers.pop(effect.consumer, None) is not None
            case QueueDeleted():
                ref = effect.ref
                if isinstance(ref, ConsumerRef):
                    return self.consumers.pop(ref, None) is not None
                known = ref in self.publishers
                self.publishers.pop(ref, None)
                return known
            case _:
                return getattr(effect, "consumer", None) in self.consumers
