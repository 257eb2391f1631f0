"""Clients of simulated nodes (`sim_nodes`, `link_simulation`): sessions with a publisher and consumers.

They use a queue as sessions of both protocols do: through the handle that their node has of it, and with the
real `QueueCredit`. They write the same history as real clients (`cluster_history`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from amqp10broker.message.amqp10 import header_of, make_head
from amqp10broker.message.message import Message
from amqp10broker.message.traits import redelivered
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.queues import commands
from amqp10broker.sessions.credit import QueueCredit
from tests.support.cluster_history import TotalQueue
from tests.support.crash_history import make_body

VERDICTS = (
    (commands.DeliveryOutcome.ACCEPT, 80),
    (commands.DeliveryOutcome.REQUEUE, 8),
    (commands.DeliveryOutcome.REQUEUE_FAILED, 8),
    (commands.DeliveryOutcome.DISCARD, 4),
)
"""What becomes of deliveries, and how often of a hundred times."""
HEAD = make_head(Header(durable=True), None, "", "q")


class UsedQueue:
    """A queue, and what clients know of it.

    Attributes:
        name: its name.
        type: ``quorum`` or ``classic``.
        arguments: with which it was declared.
        history: what clients know.
        deleting: somebody has begun to delete it: what becomes of its messages means nothing any more.
        lossy: consumers that need not settle were at a node that was lost, perhaps with messages.
    """

    def __init__(self, name: str, type: str, arguments: dict[str, object]) -> None:
        self.name = name
        self.type = type
        self.arguments = arguments
        self.history = TotalQueue(name, may_refuse=type == "classic")
        self.deleting = False
        self.lossy = False


class SimConsumer:
    """One consumer; `options` are those of its `Subscribe`.

    Attributes:
        life: its name in histories.
        held: key -> name of the message, of what its client has and has not decided on.
        unsent: what has come and was not passed on.
        active: as the queue has told it.
        over: it left, was refused, or its queue or node is gone.
    """

    def __init__(
        self, client: SimClient, life: str, ref: commands.ConsumerRef, *, settled: bool, **options: Any
    ) -> None:
        self.life = life
        self.ref = ref
        self.settled = settled
        self.held: dict[int, str] = {}
        self.unsent: dict[int, Message] = {}
        self.asked: deque[tuple[Sequence[int], list[str], commands.DeliveryOutcome]] = deque()
        self.subscribed = self.over = False
        self.active: bool | None = None
        self._client = client
        self._most = 0
        self.credit = QueueCredit(client.declared, ref, lambda each: each[0].post(each[1]))
        client.post(commands.Subscribe(ref, settled, answer=True, **options))

    def want(self, count: int, *, drain: bool = False) -> None:
        """Request this many messages, if no request is pending."""
        if self.subscribed and self.credit.top_up(count, count, drain=drain):
            self._most = max(self._most, self.credit.seen + count)

    def on_deliver(self, effect: commands.Deliver) -> None:
        if self.over or not self.credit.on_deliver(effect):
            return
        assert self.credit.seen <= self._most, f"{self.life} was given more than it asked for"
        for key, message in zip(effect.keys, effect.messages, strict=True):
            again = key in self.held or key in self.unsent
            assert not (again and self._client.strict), f"{self.life} was given {key} while it held it"
            self._client.on_message(key, message)
            self.held.pop(key, None)
            self.unsent[key] = message

    def on_reply(self, effect: commands.CreditReply) -> None:
        if self.over:
            return
        latest = self.credit.epoch - self._client.strict
        assert self.credit.in_flight or effect.epoch <= latest, f"{self.life} had asked nothing"
        self.credit.on_reply(effect)
        self.send()
        self.credit.answered(effect)

    def send(self) -> None:
        count = len(self.unsent)
        history = self._client.queue.history
        for key, message in self.unsent.items():
            header = header_of(message[0])
            name = history.deliver(
                self.life, message[1], redelivered=redelivered(message), count=header.delivery_count or 0
            )
            if self.settled:
                history.remove(self.life, name)
            else:
                self.held[key] = name
        self.unsent.clear()
        if count:
            self.credit.sent(count)

    def settle(
        self, keys: Sequence[int], delivery_outcome: commands.DeliveryOutcome, *, answer: bool
    ) -> None:
        history = self._client.queue.history
        names = [self.held.pop(key) for key in keys]
        for name in names:
            if delivery_outcome in (commands.DeliveryOutcome.ACCEPT, commands.DeliveryOutcome.DISCARD):
                history.remove(self.life, name)
            else:
                history.give_back(self.life, name)
        if answer:
            self.asked.append((keys, names, delivery_outcome))
        self._client.post(commands.Settle(self.ref, keys, delivery_outcome, answer=answer))

    def on_settled(self, effect: commands.Settled) -> None:
        assert self.asked, f"{self.life} was answered what it had not asked"
        keys, names, delivery_outcome = self.asked.popleft()
        assert list(keys) == list(effect.keys), f"{self.life} was answered {effect.keys}, not {keys}"
        if delivery_outcome in (commands.DeliveryOutcome.ACCEPT, commands.DeliveryOutcome.DISCARD):
            for name in names:
                self._client.queue.history.was_removed(name)

    def on_timed_out(self, effect: commands.TimedOut) -> None:
        """The queue has requeued deliveries that were held for too long."""
        unsent = [key for key in effect.keys if self.unsent.pop(key, None) is not None]
        for key in effect.keys:
            self.held.pop(key, None)
        if unsent:
            self.credit.drop(len(unsent), oldest=True)

    def give_back(self) -> None:
        """Return the undelivered messages, and those in flight."""
        if self.subscribed and self.unsent and not self.settled:
            self._client.queue.history.lose(self.life)  # what it did not get may come to others out of order
            unsent = dict(self.unsent)
            self.unsent.clear()
            self.credit.give_back(list(unsent), list(unsent.values()))

    def leave(self) -> None:
        self.over = True
        history = self._client.queue.history
        history.lose(self.life)
        for name in self.held.values():
            history.give_back(self.life, name)
        if self.settled:
            self.send()
        self.credit.leave(list(self.unsent), list(self.unsent.values()), commands.DeliveryOutcome.REQUEUE)
        self.held.clear()
        self.unsent.clear()


class SimClient:
    """A session at a node, for one queue.

    Attributes:
        life: its name in histories.
        outstanding: publishes without an answer: id -> name.
        over: its node is lost, or its queue is gone.
        strict: no delivery comes again to a consumer that holds it.
    """

    strict = True

    def __init__(self, life: str, reply_registry: Any, declared: DeclaredQueue, queue: UsedQueue) -> None:
        self.life = life
        self.queue = queue
        self.declared = declared
        self.outstanding: dict[int, str] = {}
        self.questions: dict[commands.RequestRef, int] = {}
        self.consumers: dict[commands.ConsumerRef, SimConsumer] = {}
        self.answers: dict[commands.RequestRef, commands.Answer] = {}
        self.over = False
        self.trace: list[str] = []
        self._letters: list[list[commands.Effect]] = []
        self._published = 0
        self._reply_registry = reply_registry
        self.reply_to = reply_registry.open(life, self)
        self.publisher = self.reply_to.publisher()
        self.post(commands.AttachPublisher(self.publisher))

    def put(self, letter: list[commands.Effect]) -> bool:
        if self.over:
            return False
        self._letters.append(letter)
        return True

    def post(self, command: commands.Command) -> None:
        self.declared.handle.post(command)

    # --- what it does -------------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        ids = range(self._published, self._published + count)
        self._published += count
        names = [f"{self.life}:{number}" for number in ids]
        for name in names:
            self.queue.history.publish(name)
        self.outstanding.update(zip(ids, names, strict=True))
        self.post(
            commands.Publish(
                self.publisher, list(ids), [(HEAD, make_body(name)) for name in names], settled=False
            )
        )

    def consume(
        self, kind: type[SimConsumer] = SimConsumer, *, settled: bool = False, **options: Any
    ) -> SimConsumer:
        ref = self.reply_to.consumer()
        life = f"{self.life}.c{len(self.consumers)}"
        consumer = self.consumers[ref] = kind(self, life, ref, settled=settled, **options)
        return consumer

    def ask(
        self, kind: type[commands.Inspect] | type[commands.Purge] = commands.Inspect
    ) -> commands.RequestRef:
        request = self.reply_to.request()
        self.questions[request] = 1
        self.post(kind(request))
        return request

    def on_message(self, key: int, message: Message) -> None:
        """A message has come to one of the consumers."""

    def act(self, rng: random.Random) -> None:
        consumers = [each for each in self.consumers.values() if not each.over]
        deed = rng.random()
        if deed < 0.35:
            self.publish(rng.choice((1, 1, 2, 5, 20)))
        elif deed < 0.42 and len(consumers) < 2:
            self.consume(settled=self.queue.lossy)
        elif deed < 0.44:
            self.ask()
        elif consumers:
            consumer = rng.choice(consumers)
            if deed < 0.68:
                consumer.want(rng.randrange(1, 12))
            elif deed < 0.72:
                consumer.send()
            elif deed < 0.94 and consumer.held:
                keys = list(consumer.held)[: rng.randrange(1, 8)]
                (delivery_outcome,) = rng.choices(*zip(*VERDICTS, strict=True))
                consumer.settle(keys, delivery_outcome, answer=rng.random() < 0.6)
            elif deed < 0.965:
                consumer.give_back()
            elif deed < 0.98 and consumer.subscribed:
                consumer.leave()

    # --- what it hears ------------------------------------------------------------------------------

    def listen(self) -> None:
        letters, self._letters = self._letters, []
        for letter in letters:
            for effect in letter:
                self.trace.append(shown(effect))
                self._on(effect)

    def _on(self, effect: Any) -> None:
        history = self.queue.history
        match effect:
            case commands.Confirmed() | commands.PublishRejected() | commands.Unconfirmed():
                for number in effect.ids:
                    name = self.outstanding.pop(number, None)
                    assert name is not None, f"{self.life}:{number} was answered twice"
                    if isinstance(effect, commands.Confirmed):
                        history.answer(name, accepted=True)
                    elif not self.queue.deleting:
                        history.answer(name, accepted=False)
            case commands.Answer():
                assert self.questions.pop(effect.request, None), f"{self.life} was answered twice"
                self.answers[effect.request] = effect
            case commands.Deliver():
                self.consumers[effect.consumer].on_deliver(effect)
            case commands.CreditReply():
                self.consumers[effect.consumer].on_reply(effect)
            case commands.Subscribed():
                consumer = self.consumers[effect.consumer]
                assert not consumer.subscribed
                consumer.subscribed = True
            case commands.SubscribeRefused():
                self.consumers[effect.consumer].over = True
            case commands.Settled():
                self.consumers[effect.consumer].on_settled(effect)
            case commands.ActiveChanged():
                consumer = self.consumers[effect.consumer]
                assert consumer.active is not effect.active, f"{consumer.life} was told what it knows"
                consumer.active = effect.active
            case commands.TimedOut():
                self.consumers[effect.consumer].on_timed_out(effect)
            case commands.QueueDown():
                consumer = self.consumers[effect.consumer]
                assert self.queue.type != "quorum", f"{consumer.life} was told that its queue is down"
                consumer.over = True
                history.lose(consumer.life)
            case _:
                assert isinstance(effect, commands.QueueDeleted), effect
                assert self.queue.deleting, f"{self.life} was told that its queue is gone"
                consumer_or_none = self.consumers.get(effect.ref)  # type: ignore[arg-type]
                if consumer_or_none is not None:
                    consumer_or_none.over = True

    def end(self) -> None:
        """Handle the loss of the node; earlier effects still count."""
        self.listen()
        self.over = True
        self.queue.history.lose(self.life)
        for consumer in self.consumers.values():
            if not consumer.over:
                # What has come may have been on its way to the client.
                consumer.over = True
                self.queue.history.lose(consumer.life)

    def close(self) -> None:
        self.listen()
        for consumer in self.consumers.values():
            if not consumer.over:
                consumer.leave()
        self.over = True
        self._reply_registry.close(self.reply_to)


def shown(effect: commands.Effect) -> str:
    what = getattr(effect, "keys", None) or getattr(effect, "ids", None) or ""
    return f"{type(effect).__name__}{list(what)}"
