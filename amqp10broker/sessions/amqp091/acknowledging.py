"""Acknowledgements of one channel: ack, nack, reject, recover, inside a transaction or outside."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.queues.commands import DeliveryOutcome
from amqp10broker.sessions.amqp091.base import ChannelBase
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer
from amqp10broker.sessions.amqp091.consuming import Held


class Acknowledging:
    """The decisions of a channel's client on deliveries."""

    def __init__(self, channel: ChannelBase) -> None:
        self._channel = channel
        self._in_tx: list[tuple[Held, DeliveryOutcome]] = []

    def acks(self, tags: Sequence[tuple[int, bool]]) -> None:
        self._settle(tags, DeliveryOutcome.ACCEPT)

    def nack(self, method: methods.BasicNack) -> None:
        # Not counted as a failed delivery (RabbitMQ 4.3), neither requeued nor given up; basic.reject is.
        delivery_outcome = DeliveryOutcome.REQUEUE if method.requeue else DeliveryOutcome.DISCARD
        self._settle([(method.delivery_tag, method.multiple)], delivery_outcome)

    def reject(self, method: methods.BasicReject) -> None:
        delivery_outcome = (
            DeliveryOutcome.REQUEUE_FAILED if method.requeue else DeliveryOutcome.DISCARD_FAILED
        )
        self._settle([(method.delivery_tag, False)], delivery_outcome)

    def recover(self, method: methods.BasicRecover) -> None:
        self._recover_all(method.requeue)
        self._channel.write(methods.BasicRecoverOk())

    def recover_async(self, method: methods.BasicRecoverAsync) -> None:
        """Handle basic.recover-async, which has no answer."""
        self._recover_all(method.requeue)

    def _recover_all(self, requeue: bool) -> None:
        if not requeue:
            raise AmqpHardError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        self._channel.consuming.recover()

    def _settle(self, tags: Sequence[tuple[int, bool]], delivery_outcome: DeliveryOutcome) -> None:
        channel = self._channel
        taken: list[Held] = []
        try:
            channel.consuming.take_tags(tags, taken)
        finally:
            # Acknowledgements before an unknown tag remain valid.
            if channel.publishing.transactional:
                self._in_tx.extend((held, delivery_outcome) for held in taken)
            elif taken:
                channel.consuming.settle(taken, delivery_outcome)

    # --- transactions -----------------------------------------------------------------------------

    def uncommitted(self, consumer: ChannelConsumer) -> int:
        return sum(len(held.keys) for held, _ in self._in_tx if held.consumer is consumer)

    def commit(self) -> None:
        settled, self._in_tx = self._in_tx, []
        for delivery_outcome in DeliveryOutcome:
            held = [part for part, its in settled if its is delivery_outcome]
            if held:
                self._channel.consuming.settle(held, delivery_outcome)

    def rollback(self) -> None:
        self._channel.consuming.put_back([held for held, _ in self._in_tx])
        self._in_tx = []

    def close(self) -> None:
        self._in_tx = []
