"""A classic queue on the bench: short words for commands, and what they came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import Message
from amqp10broker.message.traits import X_OPT_DELIVERY_TIME
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    TICK,
    Cancel,
    Configure,
    Confirmed,
    Credit,
    CreditReply,
    DeadLetters,
    Deliver,
    DeliveryOutcome,
    Effect,
    PeerId,
    Publish,
    PublishRejected,
    QueueDeleted,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.settings import QueueSettings
from tests.support.askers import new_asker

START_MS = 1_000_000


def message(
    body: object,
    *,
    priority: int | None = None,
    ttl: int | None = None,
    durable: bool = False,
    due: int | None = None,
) -> Message:
    """A message of AMQP 1.0 with this text as its content; due: its x-opt-delivery-time."""
    header = Header(durable=durable, priority=priority, ttl=ttl)
    annotations = None if due is None else {X_OPT_DELIVERY_TIME: Long(due)}
    return make_head(header, annotations, "", "q"), str(body).encode()


def text(given: Message) -> str:
    return given[1].decode("latin-1")


class Client:
    def __init__(self, bench: Bench, name: str) -> None:
        self.reply_to = new_asker(name)
        self.ref = self.reply_to.consumer()
        self.bench = bench
        self.keys: dict[str, int] = {}
        self.got: list[str] = []
        self.messages: list[Message] = []
        self.replies: list[CreditReply] = []
        self.told: list[Effect] = []
        self.seen = 0
        self.count = 0

    def grant(self, credit: int, *, drain: bool = False) -> list[str]:
        before = len(self.got)
        self.bench.do(Credit(self.ref, self.count, credit, drain, self.seen))
        return self.got[before:]

    def settle(self, *texts: object, delivery_outcome: DeliveryOutcome = DeliveryOutcome.ACCEPT) -> None:
        self.bench.do(Settle(self.ref, [self.keys[str(each)] for each in texts], delivery_outcome))

    def cancel(self) -> None:
        self.bench.do(Cancel(self.ref))

    def leave(self, delivery_outcome: DeliveryOutcome = DeliveryOutcome.REQUEUE) -> None:
        self.bench.do(Unsubscribe(self.ref, (), (), self.seen, delivery_outcome))


class Bench:
    """A queue, its clients, and a clock in ms; what was given up is in `letters`, and as text in `dead`."""

    def __init__(self, settings: QueueSettings | None = None, **given: Any) -> None:
        self.now = START_MS
        self.settings = settings or QueueSettings()
        self.queue = ClassicQueue("q", durable=True, settings=self.settings, now_ms=self.now, **given)
        self.publisher = new_asker("publisher").publisher()
        self.clients: dict[PeerId, Client] = {}
        self.letters: list[DeadLetters] = []
        self.dead: list[tuple[str, str]] = []
        self.confirmed: list[int] = []
        self.rejected: list[int] = []
        self.gone = False
        self._next = 0

    def do(self, *commands: Any) -> None:
        for command in commands:
            self.queue.apply(command, self.now)
        self._hand_out()

    def publish(self, *messages: object) -> None:
        batch = [each if isinstance(each, tuple) else message(each) for each in messages]
        ids = range(self._next, self._next + len(batch))
        self._next += len(batch)
        self.do(Publish(self.publisher, ids, batch, False))

    def consumer(self, credit: int = 0, **given: Any) -> Client:
        client = Client(self, f"consumer {len(self.clients)}")
        self.clients[client.reply_to.id] = client
        self.do(Subscribe(client.ref, given.pop("settled", False), **given))
        if credit:
            client.grant(credit)
        return client

    def configure(self, settings: QueueSettings) -> None:
        self.do(Configure(settings))

    def wait(self, milliseconds: int) -> None:
        """Time passes; the queue wakes when it wants to."""
        until = self.now + milliseconds
        while (due := self.queue.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.queue.apply(TICK, self.now)
            self._hand_out()
            after = self.queue.deadline()
            assert after is None or after > self.now, "it would be woken again at once"
        self.now = until

    def ready(self) -> int:
        return self.queue.ready

    def _hand_out(self) -> None:
        for reply_to, effects in self.queue.take_effects().items():
            for effect in effects:
                self._note(reply_to, effect)
        for letters in self.queue.take_dead_letters():
            self.letters.append(letters)
            self.dead += [(str(letters.reason), text(each)) for each in letters.messages]

    def _note(self, reply_to: PeerId, effect: Effect) -> None:
        client = self.clients.get(reply_to)
        if isinstance(effect, Confirmed):
            self.confirmed += effect.ids
        elif isinstance(effect, PublishRejected):
            self.rejected += effect.ids
        elif isinstance(effect, QueueDeleted):
            self.gone = True
        elif client is not None and isinstance(effect, Deliver):
            self._deliver(client, effect.keys, effect.messages)
        elif client is not None and isinstance(effect, CreditReply):
            client.count = effect.delivery_count
            client.replies.append(effect)
        elif client is not None:
            client.told.append(effect)

    @staticmethod
    def _deliver(client: Client, keys: Iterable[int], messages: Sequence[Message]) -> None:
        for key, each in zip(keys, messages, strict=True):
            client.keys[text(each)] = key
            client.got.append(text(each))
            client.messages.append(each)
        client.seen += len(messages)
        client.count += len(messages)
