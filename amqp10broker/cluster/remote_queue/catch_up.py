"""The effects that sessions of a node missed when their link was lost, made from a `RemoteResumed`.

The queue's state gives deliveries, credit and activity; the number of the last executed command gives
confirms; what follows from neither, the queue has stored (`RemoteResumed.kept`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field
from typing import assert_never, cast

from amqp10broker.cluster.remote_queue.consumers import RemoteConsumer, RemoteConsumers, drop_gone
from amqp10broker.cluster.remote_queue.messages import RemoteResumed
from amqp10broker.cluster.remote_queue.numbered_commands import NumberedCommand
from amqp10broker.cluster.remote_queue.port import EffectsBySession, add_effect
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import (
    ConsumerRef,
    Credit,
    Delete,
    Publish,
    PublisherRef,
    Purge,
    RequestRef,
    Settle,
    Subscribe,
)
from amqp10broker.queues.effects import (
    ActiveChanged,
    Answer,
    Confirmed,
    CreditReply,
    PublishRejected,
    QueueDown,
    Settled,
    Subscribed,
    TimedOut,
)
from amqp10broker.queues.quorum.node_links import ConsumerFacts, StoredEffect


@dataclass(eq=False)
class CatchUp:
    """One answer to `ResumeRemote`.

    Attributes:
        out: the effects.
        available: messages that wait in the queue; None: the answer does not say.
    """

    _queue: str
    _resumed: RemoteResumed
    _consumers: RemoteConsumers
    _refused: Collection[RequestRef | ConsumerRef]
    out: EffectsBySession = field(default_factory=dict, init=False)
    available: int | None = None
    _rejected: dict[PublisherRef, set[int]] = field(default_factory=dict, init=False)
    _answers: dict[RequestRef, Answer] = field(default_factory=dict, init=False)

    def effects(self, commands: Iterable[NumberedCommand]) -> EffectsBySession:
        """Return all effects. `commands`: those that have no answer, executed or not."""
        resumed, consumers = self._resumed, self._consumers
        drained = [reply for reply in map(self._take_kept, cast("list[StoredEffect]", resumed.kept)) if reply]
        for ref, facts in resumed.consumers.items():
            consumer = consumers.get(ref)
            if consumer is not None:
                consumer.missed += facts.missed
                if facts.active is not False:
                    self.available = facts.available
        for deliver in resumed.deliveries:
            consumer = consumers.get(deliver.consumer)
            if consumer is not None and consumer.counts(deliver):
                add_effect(self.out, deliver.consumer.reply_to, deliver)
        for reply in drained:
            consumer = consumers.get(reply.consumer)
            if consumer is None or consumer.active is not False:
                self.available = reply.available
            if consumer is not None and consumer.counts(reply):
                add_effect(self.out, reply.consumer.reply_to, consumers.without_missed(reply))
        asking: set[ConsumerRef] = set()
        subscribing: set[ConsumerRef] = set()
        for numbered in commands:
            command = numbered.command
            if type(command) is Credit:
                asking.add(command.consumer)
            if numbered.number <= resumed.last:
                self._answer(numbered)
            elif type(command) is Subscribe:
                subscribing.add(command.consumer)
        for ref, consumer in list(consumers.items()):
            facts_of = resumed.consumers.get(ref)
            if facts_of is not None:
                self._bring_up_to_date(ref, consumer, facts_of, asks=ref in asking)
            elif ref not in subscribing and not resumed.deleted:
                # One that was cancelled and holds nothing any more is unknown there; any other was lost.
                del consumers[ref]
                if not consumer.cancelled:
                    add_effect(self.out, ref.reply_to, QueueDown(ref, self._queue))
        return self.out

    def _take_kept(self, effect: StoredEffect) -> CreditReply | None:
        match effect:
            case TimedOut():
                ref = effect.consumer
                add_effect(self.out, ref.reply_to, effect)
                consumer = self._consumers.get(ref)
                if consumer is not None:
                    consumer.counts(effect)
                    drop_gone(self._consumers, ref)
            case PublishRejected():
                self._rejected.setdefault(effect.publisher, set()).update(effect.ids)
            case Answer():
                self._answers[effect.request] = effect
            case CreditReply():
                return effect
            case _:
                assert_never(effect)
        return None

    def _answer(self, numbered: NumberedCommand) -> None:
        command, out = numbered.command, self.out
        match command:
            case Publish():
                self._confirm(command)
            case Settle():
                if command.answer:
                    add_effect(out, command.consumer.reply_to, Settled(command.consumer, command.keys))
            case Subscribe():
                if command.answer and command.consumer in self._consumers:
                    add_effect(out, command.consumer.reply_to, Subscribed(command.consumer))
            case Credit():
                facts = self._resumed.consumers.get(command.consumer)
                consumer = self._consumers.get(command.consumer)
                # Drains of those that select are answered by the queue, now or later.
                if facts and consumer and not (command.drain and consumer.selects):
                    self._reply(command.consumer, consumer, facts, command.drain, numbered.epoch)
            case Purge() | Delete():
                request = command.request
                if request is not None and request not in self._refused:
                    add_effect(out, request.reply_to, self._answers.get(request, Answer(request, 0, 0)))
            case _:
                return

    def _confirm(self, command: Publish) -> None:
        publisher, ids = command.publisher, command.ids
        refused = self._rejected.get(publisher, set())
        if rejected := [each for each in ids if each in refused]:
            ids = [each for each in ids if each not in refused]
            effect = PublishRejected(publisher, rejected, command.settled, self._queue)
            add_effect(self.out, publisher.reply_to, effect)
        if ids:
            add_effect(self.out, publisher.reply_to, Confirmed(publisher, ids, command.settled))

    def _reply(
        self, ref: ConsumerRef, consumer: RemoteConsumer, facts: ConsumerFacts, drain: bool, epoch: int
    ) -> None:
        count = consumer.delivery_count(facts.delivery_count)
        add_effect(
            self.out, ref.reply_to, CreditReply(ref, count, facts.credit, facts.available, drain, epoch)
        )

    def _bring_up_to_date(
        self, ref: ConsumerRef, consumer: RemoteConsumer, facts: ConsumerFacts, *, asks: bool
    ) -> None:
        if facts.active is not None and facts.active is not consumer.active:
            consumer.active = facts.active
            add_effect(self.out, ref.reply_to, ActiveChanged(ref, facts.active))
        if facts.missed and not asks and not consumer.draining:
            # Credit went with deliveries that were lost: its session would wait for them.
            self._reply(ref, consumer, facts, False, facts.epoch)
