"""The volatile queue of direct reply-to: one consumer, no memory.

A message is handed on if the consumer has credit, and dropped if it has not: at most once, as for a
reply that nobody waits for any more. Publishers are told at once that it is taken.
"""

from __future__ import annotations

from amqp10broker.amqp10.serial import MASK, limit_left
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    AttachPublisher,
    Cancel,
    Command,
    Configure,
    ConsumerRef,
    Credit,
    Delete,
    DetachPublisher,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    Purge,
    Settle,
    Subscribe,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.effects import (
    Answer,
    Confirmed,
    CreditReply,
    Deliver,
    Effect,
    QueueDeleted,
    Refusal,
    Subscribed,
    SubscribeRefused,
    Unconfirmed,
)


class VolatileQueue:
    """One requester's replies. `apply` is the only way to change it.

    Attributes:
        name: the queue's name, which encodes nothing: whoever has it may reply.
        deleted: the requester is gone.
        dropped: messages for which the consumer had no credit.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.deleted = False
        self.dropped = 0
        self._consumer: ConsumerRef | None = None
        self._credit = 0
        self._delivery_count = 0
        self._epoch = 0
        self._next_key = 0
        self._publishers: dict[PublisherRef, None] = {}
        self._effects: dict[PeerId, list[Effect]] = {}

    @property
    def consumers(self) -> int:
        """1 while the requester is there."""
        return 0 if self._consumer is None else 1

    def take_effects(self) -> dict[PeerId, list[Effect]]:
        """Effects since the last call, in order for each who asked."""
        effects, self._effects = self._effects, {}
        return effects

    def apply(self, command: Command) -> None:
        """Change the state; effects wait in `take_effects`."""
        match command:
            case Publish():
                self._publish(command)
            case Credit():
                self._set_credit(command)
            case GiveBack():
                self._delivery_count = command.delivery_count
                self._epoch = command.epoch
                self._credit = 0
            case Subscribe():
                self._subscribe(command)
            case Unsubscribe() | Cancel():
                if command.consumer == self._consumer:
                    self._consumer = None
                    self._credit = 0
            case AttachPublisher():
                if self.deleted:
                    self._tell(command.publisher.reply_to, QueueDeleted(command.publisher, self.name))
                else:
                    self._publishers[command.publisher] = None
            case DetachPublisher():
                self._publishers.pop(command.publisher, None)
            case Inspect() | Purge():
                refused = Refusal.GONE if self.deleted else None
                self._tell(command.request.reply_to, Answer(command.request, 0, self.consumers, refused))
            case Delete():
                self._delete(command)
            case Settle() | Configure() | Touch():
                return

    def _publish(self, command: Publish) -> None:
        publisher = command.publisher
        if self.deleted:
            self._tell(publisher.reply_to, Unconfirmed(publisher, command.ids, command.settled))
            return
        self._tell(publisher.reply_to, Confirmed(publisher, command.ids, command.settled))
        consumer = self._consumer
        count = min(self._credit, len(command.messages)) if consumer is not None else 0
        self.dropped += len(command.messages) - count
        if count and consumer is not None:
            self._credit -= count
            self._delivery_count = (self._delivery_count + count) & MASK
            keys = range(self._next_key, self._next_key + count)
            self._next_key += count
            messages: list[Message] = list(command.messages[:count])
            self._tell(consumer.reply_to, Deliver(consumer, keys, messages, self._epoch))

    def _subscribe(self, command: Subscribe) -> None:
        ref = command.consumer
        if self.deleted:
            self._tell(ref.reply_to, QueueDeleted(ref, self.name))
        elif self._consumer is not None:
            self._tell(ref.reply_to, SubscribeRefused(ref, self.name))
        else:
            self._consumer = ref
            if command.answer:
                self._tell(ref.reply_to, Subscribed(ref))

    def _set_credit(self, command: Credit) -> None:
        consumer = command.consumer
        if consumer != self._consumer:
            return
        self._credit = limit_left(command.delivery_count, command.credit, self._delivery_count)
        if command.drain:
            self._delivery_count = (self._delivery_count + self._credit) & MASK
            self._credit = 0
        reply = CreditReply(consumer, self._delivery_count, self._credit, 0, command.drain, self._epoch)
        self._tell(consumer.reply_to, reply)

    def _delete(self, command: Delete) -> None:
        if command.request is not None:
            refused = Refusal.GONE if self.deleted else None
            self._tell(command.request.reply_to, Answer(command.request, 0, self.consumers, refused))
        if self.deleted:
            return
        self.deleted = True
        if self._consumer is not None:
            self._tell(self._consumer.reply_to, QueueDeleted(self._consumer, self.name))
        for publisher in self._publishers:
            self._tell(publisher.reply_to, QueueDeleted(publisher, self.name))
        self._consumer = None
        self._publishers.clear()

    def _tell(self, reply_to: PeerId, effect: Effect) -> None:
        self._effects.setdefault(reply_to, []).append(effect)
