"""The deliveries that consumers of a classic queue hold: their settlement and return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from amqp10broker.message.message import Message, acquired
from amqp10broker.queues.classic.consumers import ClassicConsumer
from amqp10broker.queues.classic.ready import Keyed, ReadyMessages
from amqp10broker.queues.classic.removal import Disposal
from amqp10broker.queues.commands import DeliveryOutcome
from amqp10broker.queues.effects import DeadLetterReason
from amqp10broker.queues.outbox import Outbox


class Holding:
    """The deliveries of one queue's consumers."""

    __slots__ = ("_disposal", "_outbox", "_waiting")

    def __init__(self, waiting: ReadyMessages, disposal: Disposal, outbox: Outbox) -> None:
        self._waiting = waiting
        self._disposal = disposal
        self._outbox = outbox

    def decide(self, held: Iterable[Keyed], delivery_outcome: DeliveryOutcome) -> None:
        match delivery_outcome:
            case DeliveryOutcome.ACCEPT:
                self._disposal.forget([key for key, _ in held])
            case DeliveryOutcome.DISCARD:
                self._disposal.remove(DeadLetterReason.REJECTED, list(held))
            case DeliveryOutcome.DISCARD_FAILED:
                self._disposal.remove(
                    DeadLetterReason.REJECTED,
                    [(key, acquired(message, failed=True)) for key, message in held],
                )
            case DeliveryOutcome.REQUEUE | DeliveryOutcome.REQUEUE_FAILED:
                failed = delivery_outcome is DeliveryOutcome.REQUEUE_FAILED
                for key, message in held:
                    self._waiting.put_back(key, acquired(message, failed=failed))
            case _:
                assert_never(delivery_outcome)

    def take_back(
        self, consumer: ClassicConsumer, keys: Sequence[int], messages: Sequence[Message], seen: int
    ) -> None:
        """Requeue deliveries that never reached the client, unchanged.

        A consumer that browses will be shown them again.
        """
        self._outbox.withdraw(consumer)
        if consumer.browses:
            self._show_again(consumer, keys, seen)
            return
        put_back = self._waiting.put_back
        unsettled = consumer.unsettled
        on_its_way = consumer.handed_out - seen
        if on_its_way:
            for key in list(unsettled)[-on_its_way:]:
                put_back(key, unsettled.pop(key))
        consumer.handed_out = seen
        for key, message in zip(keys, messages, strict=True):
            # The queue's own copy if it has one: the session's may be in another protocol's encoding.
            held = unsettled.pop(key, None)
            if held is not None:
                put_back(key, held)
            elif consumer.settled:
                put_back(key, message)

    def _show_again(self, consumer: ClassicConsumer, keys: Sequence[int], seen: int) -> None:
        cursor = consumer.cursor
        assert cursor is not None
        on_its_way = consumer.handed_out - seen
        missed = [*keys, *list(consumer.unsettled)[len(consumer.unsettled) - on_its_way :]]
        consumer.unsettled.clear()
        consumer.handed_out = seen
        cursor.passed -= len(missed)
        width = self._waiting.width
        for key in missed:
            cursor.on_return(width - 1 - key % width, key // width)

    def trim(self, consumer: ClassicConsumer, seen: int) -> None:
        """Remove deliveries of a settled consumer that have reached the session."""
        if consumer.browses:
            on_its_way = consumer.handed_out - seen
            for key in list(consumer.unsettled)[: len(consumer.unsettled) - on_its_way]:
                del consumer.unsettled[key]
        elif consumer.settled:
            unsettled = consumer.unsettled
            on_its_way = consumer.handed_out - seen
            final = list(unsettled)[: len(unsettled) - on_its_way]
            for key in final:
                del unsettled[key]
            self._disposal.forget(final)
