"""The volatile queue of direct reply-to, with one consumer and no storage.

A message is delivered if the consumer has credit, and dropped otherwise, because no client waits for it any
more. Publishes are confirmed at once.
"""

from __future__ import annotations

from collections.abc import Callable

from amqp10broker.message.message import Message
from amqp10broker.protocols.serial import MASK, limit_left
from amqp10broker.queues.commands import (
    Cancel,
    Command,
    Configure,
    Confirmed,
    ConsumerRef,
    Credit,
    CreditReply,
    DeadLetterReason,
    Deliver,
    GiveBack,
    Publish,
    Purge,
    QueueDeleted,
    Settle,
    Subscribe,
    Subscribed,
    SubscribeRefused,
    Tick,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import QueueStats, QueueStatus


class VolatileQueue(QueueMachine):
    """The replies to one requester."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._consumer: ConsumerRef | None = None
        self._credit = 0
        self._delivery_count = 0
        self._epoch = 0
        self._next_key = 0

    @property
    def ready(self) -> int:
        return 0

    @property
    def unsettled(self) -> int:
        return 0

    @property
    def consumers(self) -> int:
        return 0 if self._consumer is None else 1

    def queue_status(self) -> QueueStatus:
        return QueueStatus(0, 0, {})

    def figures(self) -> QueueStats:
        return QueueStats(consumers=self.consumers)

    def deadline(self) -> int | None:
        return None

    def apply(self, command: Command, now_ms: int) -> None:
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
            case Purge():
                self._answer(command.request, 0)
            case Settle() | Configure() | Touch() | Tick():
                return
            case _:
                self._apply_common(command)

    def _publish(self, command: Publish) -> None:
        publisher = command.publisher
        if self.deleted:
            self._refuse(command)
            return
        self._tell(publisher.reply_to, Confirmed(publisher, command.ids, command.settled))
        consumer = self._consumer
        count = min(self._credit, len(command.messages)) if consumer is not None else 0
        self.counters.published += len(command.messages)
        self.counters.lost[DeadLetterReason.MAXLEN] += len(command.messages) - count
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
    """A volatile queue of another node: published messages are forwarded to that node, and may be lost."""

    def __init__(self, name: str, hand_on: Callable[[Publish], None]) -> None:
        super().__init__(name)
        self._hand_on = hand_on

    @property
    def consumers(self) -> int:
        return 1

    def _publish(self, command: Publish) -> None:
        if self.deleted:
            self._refuse(command)
            return
        publisher = command.publisher
        self._tell(publisher.reply_to, Confirmed(publisher, command.ids, command.settled))
        self._hand_on(command)
