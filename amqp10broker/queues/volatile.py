"""The volatile queue of direct reply-to: one consumer, no memory.

A message is handed on if the consumer has credit, and dropped if it has not: at most once, as for a
reply that nobody waits for any more. Publishers are told at once that it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

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
    Publish,
    Purge,
    Settle,
    Subscribe,
    Tick,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.effects import (
    Confirmed,
    CreditReply,
    Deliver,
    QueueDeleted,
    Reason,
    Subscribed,
    SubscribeRefused,
)
from amqp10broker.queues.figures import QueueFigures
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.outlook import Outlook


class VolatileQueue(QueueMachine):
    """One requester's replies; its name encodes nothing: whoever has it may reply.

    Attributes:
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._consumer: ConsumerRef | None = None
        self._credit = 0
        self._delivery_count = 0
        self._epoch = 0
        self._next_key = 0

    @property
    def ready(self) -> int:
        """It keeps nothing."""
        return 0

    @property
    def unsettled(self) -> int:
        """It keeps no message."""
        return 0

    @property
    def consumers(self) -> int:
        """1 while the requester is there."""
        return 0 if self._consumer is None else 1

    def outlook(self) -> Outlook:
        """It has nothing to tell."""
        return Outlook(0, 0, {})

    def figures(self) -> QueueFigures:
        """It keeps no message."""
        return QueueFigures(consumers=self.consumers)

    def deadline(self) -> int | None:
        """Nothing is ever due."""
        return None

    def apply(self, command: Command, now_ms: int) -> None:
        """See `QueueMachine`."""
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
                self._attach(command)
            case DetachPublisher():
                self._publishers.pop(command.publisher, None)
            case Inspect() | Purge():
                self._answer(command.request, 0)
            case Delete():
                self._delete(command)
            case Settle() | Configure() | Touch() | Tick():
                return
            case _:
                assert_never(command)

    def _publish(self, command: Publish) -> None:
        publisher = command.publisher
        if self.deleted:
            self._refuse(command)
            return
        self._tell(publisher.reply_to, Confirmed(publisher, command.ids, command.settled))
        consumer = self._consumer
        count = min(self._credit, len(command.messages)) if consumer is not None else 0
        self.counters.published += len(command.messages)
        self.counters.lost[Reason.MAXLEN] += len(command.messages) - count
        if count and consumer is not None:
            self._credit -= count
            self._delivery_count = (self._delivery_count + count) & MASK
            keys = range(self._next_key, self._next_key + count)
            self._next_key += count
            messages: list[Message] = list(command.messages[:count])
            self._tell(consumer.reply_to, Deliver(consumer, keys, messages, self._epoch))

    def _subscribe(self, command: Subscribe) -> None:
        ref = command.consumer
        if self._is_gone_for(ref):
            return
        if self._consumer is not None:
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

    def _let_go(self) -> None:
        if self._consumer is not None:
            self._tell(self._consumer.reply_to, QueueDeleted(self._consumer, self.name))
        self._consumer = None


class RelayedQueue(VolatileQueue):
    """The same as another node of the cluster has it: what is published is handed on to the requester's node.

    It is told that it was taken at once, too; what is lost on the way was for nobody.
    """

    def __init__(self, name: str, hand_on: Callable[[Publish], None]) -> None:
        """Begin; the requester is there until `Delete` comes.

        Args:
            name: as the requester's node made it.
            hand_on: sends messages to that node.
        """
        super().__init__(name)
        self._hand_on = hand_on

    @property
    def consumers(self) -> int:
        """The requester."""
        return 1

    def _publish(self, command: Publish) -> None:
        if self.deleted:
            self._refuse(command)
            return
        publisher = command.publisher
        self._tell(publisher.reply_to, Confirmed(publisher, command.ids, command.settled))
        self._hand_on(command)
