"""Confirms, acknowledgements and transactions of one channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, AmqpHardError, ReplyCode
from amqp10broker.queues.commands import DeliveryOutcome, Publish, RequestRef, Settle
from amqp10broker.queues.effects import Confirmed, PublishRejected, Unconfirmed
from amqp10broker.sessions.amqp091.base import ChannelBase
from amqp10broker.sessions.amqp091.consumer import ChannelConsumer
from amqp10broker.sessions.amqp091.consuming import Held
from amqp10broker.sessions.commits import NotYet

_PARTS: Final = frozenset((Publish, Settle))


class Modes:
    """The decisions of a channel's client on deliveries, and its mode: confirm, transactional, or neither."""

    def __init__(self, channel: ChannelBase) -> None:
        self._channel = channel
        self._in_tx: list[tuple[Held, DeliveryOutcome]] = []
        # A commit waits until queues have taken what it published.
        self._committing = False
        # The commands of a commit that waits until its queues are ready.
        self._parked: tuple[RequestRef, list[QueueCommand]] | None = None
        self._ends = channel.context.moment.measures.transactions

    # --- acknowledgements --------------------------------------------------------------------------

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

    def recover(self, method: methods.BasicRecover | methods.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise AmqpHardError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        self._channel.consuming.recover()
        if isinstance(method, methods.BasicRecover):
            self._channel.write(methods.BasicRecoverOk())

    def _settle(self, tags: Sequence[tuple[int, bool]], delivery_outcome: DeliveryOutcome) -> None:
        channel = self._channel
        taken: list[Held] = []
        try:
            channel.consuming.held.ack_run(tags, taken)
        finally:
            # Acknowledgements before an unknown tag remain valid.
            if channel.publishing.transactional:
                self._in_tx.extend((held, delivery_outcome) for held in taken)
            elif taken:
                channel.consuming.settle(taken, delivery_outcome)

    # --- confirms and transactions ----------------------------------------------------------------

    def select_confirms(self, method: methods.ConfirmSelect) -> None:
        self._channel.publishing.select_confirms()
        if not method.no_wait:
            self._channel.write(methods.ConfirmSelectOk())

    def write_confirms(self) -> None:
        """Send confirms and rejections since the last call."""
        channel = self._channel
        for tag, multiple, nack in channel.publishing.take_confirms():
            method = methods.BasicNack(tag, multiple, False) if nack else methods.BasicAck(tag, multiple)
            channel.write(method)

    def select_transactions(self) -> None:
        self._channel.publishing.select_transactions()
        self._channel.write(methods.TxSelectOk())

    def commit(self) -> None:
        channel = self._channel
        self._require_tx()
        self._ends.committed += 1
        before = len(channel.commands)
        settled, self._in_tx = self._in_tx, []
        for delivery_outcome in DeliveryOutcome:
            held = [part for part, its in settled if its is delivery_outcome]
            if held:
                channel.consuming.settle(held, delivery_outcome)
        taken = channel.publishing.commit()
        posted = channel.commands[before:]
        del channel.commands[before:]
        self._do_at_once(posted)
        if taken and self._parked is None:
            channel.write(methods.TxCommitOk())
        else:
            self._committing = True
            channel.pause()

    def _do_at_once(self, posted: list[QueueCommand]) -> None:
        # RabbitMQ promises one step for one queue only. Where a queue is full, or on another node, each does
        # its part by itself, and the client is notified of failures, as by RabbitMQ.
        channel = self._channel
        commits = channel.context.commits
        parts = [letter for letter in posted if type(letter[1]) in _PARTS]
        if commits is None or len(parts) < 2 or not all(commits.takes(handle) for handle, _ in parts):
            channel.commands += posted
            return
        commands = [*channel.commands]
        channel.commands.clear()
        refused = commits.commit(commands, parts)
        if isinstance(refused, NotYet):
            ref = channel.context.reply_to.request()
            self._parked = ref, posted
            commits.when_ready(parts, ref)
        elif refused:
            channel.commands += posted
        else:
            channel.commands += [each for each in posted if type(each[1]) not in _PARTS]

    def uncommitted(self, consumer: ChannelConsumer) -> int:
        return sum(len(held.keys) for held, _ in self._in_tx if held.consumer is consumer)

    @property
    def waits_for_queues(self) -> bool:
        return self._parked is not None

    def on_ready(self, ref: RequestRef) -> None:
        if self._parked is None or self._parked[0] != ref:
            return
        (_, posted), self._parked = self._parked, None
        self._do_at_once(posted)
        if self._parked is None and self._channel.publishing.committed:
            self._committing = False
            self._channel.paused = False
            self._channel.write(methods.TxCommitOk())

    def rollback(self) -> None:
        channel = self._channel
        self._require_tx()
        self._ends.rolled_back += 1
        channel.publishing.rollback()
        channel.consuming.held.restore([held for held, _ in self._in_tx])
        self._in_tx = []
        channel.write(methods.TxRollbackOk())

    def _require_tx(self) -> None:
        if not self._channel.publishing.transactional:
            raise AmqpChannelError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")

    def on_confirmed(self, effect: Confirmed | Unconfirmed | PublishRejected) -> None:
        """Handle the answer of a queue; raise `AmqpChannelError` if it refused messages of a commit."""
        channel = self._channel
        publishing = channel.publishing
        if isinstance(effect, Confirmed):
            failed = False
        else:
            # A queue that was deleted before it could confirm counts as one that has.
            failed = isinstance(effect, PublishRejected) or effect.failed
        publishing.on_confirmed(effect.publisher, effect.ids, settled=effect.settled, failed=failed)
        if self._committing and self._parked is None and publishing.committed:
            self._committing = False
            channel.paused = False
            if publishing.commit_failed:
                raise AmqpChannelError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
            channel.write(methods.TxCommitOk())

    def close(self) -> None:
        self._in_tx = []
        self._committing = False
        self._parked = None
