"""Acknowledgements of one channel: ack, nack, reject, recover, inside a transaction or outside."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.amqp091 import methods
from amqp10broker.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.queues.commands import Verdict
from amqp10broker.service.channels.consumer import Consumer
from amqp10broker.service.channels.consuming import Held
from amqp10broker.service.channels.part import Channel


class Acknowledging:
    """What a channel does with its client's decisions on deliveries."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._in_tx: list[tuple[Held, Verdict]] = []

    def acks(self, tags: Sequence[tuple[int, bool]]) -> None:
        """basic.ack, many at once: (delivery tag, multiple) pairs"""
        self._settle(tags, Verdict.ACCEPT)

    def nack(self, method: methods.BasicNack) -> None:
        """basic.nack"""
        # Not counted as a failed delivery (RabbitMQ 4.3), neither requeued nor given up; basic.reject is.
        verdict = Verdict.REQUEUE if method.requeue else Verdict.DISCARD
        self._settle([(method.delivery_tag, method.multiple)], verdict)

    def reject(self, method: methods.BasicReject) -> None:
        """basic.reject"""
        verdict = Verdict.REQUEUE_FAILED if method.requeue else Verdict.DISCARD_FAILED
        self._settle([(method.delivery_tag, False)], verdict)

    def recover(self, method: methods.BasicRecover) -> None:
        """basic.recover"""
        self._recover_all(method.requeue)
        self._channel.write(methods.BasicRecoverOk())

    def recover_async(self, method: methods.BasicRecoverAsync) -> None:
        """basic.recover-async, which has no answer"""
        self._recover_all(method.requeue)

    def _recover_all(self, requeue: bool) -> None:
        if not requeue:
            raise AmqpHardError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        self._channel.consuming.recover()

    def _settle(self, tags: Sequence[tuple[int, bool]], verdict: Verdict) -> None:
        channel = self._channel
        taken: list[Held] = []
        try:
            channel.consuming.take_tags(tags, taken)
        finally:
            # What was acknowledged before an unknown tag stays acknowledged.
            if channel.publishing.transactional:
                self._in_tx.extend((held, verdict) for held in taken)
            elif taken:
                channel.consuming.settle(taken, verdict)

    # --- transactions -----------------------------------------------------------------------------

    def uncommitted(self, consumer: Consumer) -> int:
        """Deliveries of a consumer that a transaction has decided on and not committed."""
        return sum(len(held.keys) for held, _ in self._in_tx if held.consumer is consumer)

    def commit(self) -> None:
        """Tell the queues what the transaction has decided."""
        settled, self._in_tx = self._in_tx, []
        for verdict in Verdict:
            held = [part for part, its in settled if its is verdict]
            if held:
                self._channel.consuming.settle(held, verdict)

    def rollback(self) -> None:
        """What the transaction has decided is undecided again."""
        self._channel.consuming.put_back([held for held, _ in self._in_tx])
        self._in_tx = []

    def close(self) -> None:
        """The channel is over, and with it the transaction."""
        self._in_tx = []
