"""Acknowledgements of one channel: ack, nack, reject, recover, inside a transaction or outside."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.queues.commands import Verdict
from amqp10broker.sessions.amqp091.consumer import Consumer
from amqp10broker.sessions.amqp091.consuming import Held
from amqp10broker.sessions.amqp091.part import Channel


class Acknowledging:
    """The decisions of a channel's client on deliveries."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._in_tx: list[tuple[Held, Verdict]] = []

    def acks(self, tags: Sequence[tuple[int, bool]]) -> None:
        self._settle(tags, Verdict.ACCEPT)

    def nack(self, method: methods.BasicNack) -> None:
        # Not counted as a failed delivery (RabbitMQ 4.3), neither requeued nor given up; basic.reject is.
        verdict = Verdict.REQUEUE if method.requeue else Verdict.DISCARD
        self._settle([(method.delivery_tag, method.multiple)], verdict)

    def reject(self, method: methods.BasicReject) -> None:
        verdict = Verdict.REQUEUE_FAILED if method.requeue else Verdict.DISCARD_FAILED
        self._settle([(method.delivery_tag, False)], verdict)

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

    def _settle(self, tags: Sequence[tuple[int, bool]], verdict: Verdict) -> None:
        channel = self._channel
        taken: list[Held] = []
        try:
            channel.consuming.take_tags(tags, taken)
        finally:
            # Acknowledgements before an unknown tag remain valid.
            if channel.publishing.transactional:
                self._in_tx.extend((held, verdict) for held in taken)
            elif taken:
                channel.consuming.settle(taken, verdict)

    # --- transactions -----------------------------------------------------------------------------

    def uncommitted(self, consumer: Consumer) -> int:
        return sum(len(held.keys) for held, _ in self._in_tx if held.consumer is consumer)

    def commit(self) -> None:
        settled, self._in_tx = self._in_tx, []
        for verdict in Verdict:
            held = [part for part, its in settled if its is verdict]
            if held:
                self._channel.consuming.settle(held, verdict)

    def rollback(self) -> None:
        self._channel.consuming.put_back([held for held, _ in self._in_tx])
        self._in_tx = []

    def close(self) -> None:
        self._in_tx = []
