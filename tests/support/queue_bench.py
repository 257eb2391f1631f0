"""A classic or a quorum queue on a bench: short words for what tests do to it, and for what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import pytest

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import Message
from amqp10broker.message.traits import X_OPT_DELIVERY_DELAY, X_OPT_DELIVERY_TIME
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long, UByte, UInt
from amqp10broker.queues import commands
from amqp10broker.queues.classic.consumers import ClassicConsumer
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.quorum.commands import QuorumCommand
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import QueueSettings
from tests.support.reply_addresses import new_reply_to

E = TypeVar("E")
BOTH = pytest.mark.parametrize("kind", ["classic", "quorum"])
"""For rules that hold for both."""


def message(
    body: str,
    *,
    priority: int | None = None,
    ttl_ms: int | None = None,
    delay_ms: int | None = None,
    due_ms: int | None = None,
) -> Message:
    """Return an AMQP 1.0 message with these letters as content; due_ms: its x-opt-delivery-time."""
    header = Header(
        priority=None if priority is None else UByte(priority), ttl=None if ttl_ms is None else UInt(ttl_ms)
    )
    annotations = None if delay_ms is None else {X_OPT_DELIVERY_DELAY: Long(delay_ms)}
    if due_ms is not None:
        annotations = {X_OPT_DELIVERY_TIME: Long(due_ms)}
    return make_head(header, annotations, "", "q"), body.encode()


START_MS = 1_000_000
NOTHING: Mapping[str, Any] = {}


class Bench:
    """A queue, the time, and everything that the queue has told so far. `given`: to a classic queue."""

    def __init__(self, kind: str = "quorum", *, given: Mapping[str, Any] = NOTHING, **settings: Any) -> None:
        self.now = START_MS
        self.settings = QueueSettings(**settings)
        self.queue: Any = (
            QuorumQueue("q", settings=self.settings, now_ms=self.now)
            if kind == "quorum"
            else ClassicQueue("q", durable=True, settings=self.settings, now_ms=self.now, **given)
        )
        self.reply_to = new_reply_to("session")
        self.publisher = self.reply_to.publisher()
        self.request = self.reply_to.request()
        self.told: list[object] = []
        self._handed: dict[commands.ConsumerRef, int] = {}

    def do(self, command: QuorumCommand) -> list[object]:
        if isinstance(self.queue, QuorumQueue):
            (command,) = self.queue.browsers.marked([command])
        self.apply(command)
        return self.take()

    def apply(self, command: QuorumCommand) -> None:
        self.queue.apply(command, self.now)

    def take(self) -> list[object]:
        told: list[object] = list(self.queue.take_effects().get(self.reply_to.id, []))
        self.told += told
        for effect in told:
            if isinstance(effect, commands.Deliver):
                self._handed[effect.consumer] = self._handed.get(effect.consumer, 0) + len(effect.keys)
        return told

    def configure(self, **settings: Any) -> list[object]:
        return self.do(commands.Configure(QueueSettings(**settings)))

    def publish(self, *bodies: str, priority: int | None = None, ttl_ms: int | None = None) -> list[object]:
        return self.publish_all([message(each, priority=priority, ttl_ms=ttl_ms) for each in bodies])

    def publish_all(self, messages: Sequence[Message]) -> list[object]:
        return self.do(commands.Publish(self.publisher, range(len(messages)), messages, False))

    def consumer(self, credit: int = 0, **options: Any) -> commands.ConsumerRef:
        ref = self.reply_to.consumer()
        self.do(commands.Subscribe(ref, options.pop("settled", False), **options))
        if credit:
            self.credit(ref, credit)
        return ref

    def browser(self, credit: int = 0, **options: Any) -> commands.ConsumerRef:
        return self.consumer(credit, browse=True, counted=False, **options)

    def credit(self, ref: commands.ConsumerRef, credit: int, *, drain: bool = False) -> list[object]:
        handed = self._handed.get(ref, 0)
        return self.do(commands.Credit(ref, handed, credit, drain, handed))

    def get(self, ref: commands.ConsumerRef, credit: int = 1) -> list[str]:
        """Grant credit; return the contents that the consumer gets."""
        return self.bodies(self.credit(ref, credit), ref)

    def bodies(self, told: Iterable[object], ref: commands.ConsumerRef | None = None) -> list[str]:
        """Return the contents of the deliveries among effects, for one consumer or all."""
        return [each[1].decode() for each in self.delivered(told, ref)]

    def delivered(self, told: Iterable[object], ref: commands.ConsumerRef | None = None) -> list[Message]:
        deliveries = only(told, commands.Deliver)
        return [each for found in deliveries if ref in (None, found.consumer) for each in found.messages]

    def held(self, ref: commands.ConsumerRef) -> list[int]:
        """Return the keys that a consumer holds, in delivery order."""
        if isinstance(self.queue, ClassicQueue):
            return [key for each in consumers_of(self.queue) if each.ref == ref for key in each.unsettled]
        found = self.queue.parts()[1].by_ref.get(ref)
        return [] if found is None else list(found.unsettled)

    def got(self, ref: commands.ConsumerRef) -> list[str]:
        """Return the contents of all deliveries to a consumer so far."""
        return self.bodies(self.told, ref)

    def settle(
        self,
        ref: commands.ConsumerRef,
        delivery_outcome: commands.DeliveryOutcome,
        keys: Sequence[int] | None = None,
        annotations: bytes = b"",
    ) -> list[object]:
        """Settle deliveries; without keys, all that the consumer holds."""
        return self.do(
            commands.Settle(ref, self.held(ref) if keys is None else keys, delivery_outcome, annotations)
        )

    def give_back(self, ref: commands.ConsumerRef, keys: Sequence[int]) -> list[object]:
        """Return deliveries that the session has not sent."""
        handed = self._handed.get(ref, 0)
        count = handed - len(keys)
        self._handed[ref] = count
        # To the queue all were seen; counting begins anew below what it handed out.
        told = self.do(commands.GiveBack(ref, keys, [], count, handed, 1))
        self._handed[ref] = handed
        return told

    def leave(self, ref: commands.ConsumerRef, delivery_outcome: commands.DeliveryOutcome) -> list[object]:
        return self.do(commands.Unsubscribe(ref, [], [], self._handed.get(ref, 0), delivery_outcome))

    def cancel(self, ref: commands.ConsumerRef) -> list[object]:
        return self.do(commands.Cancel(ref))

    def wait(self, ms: int) -> list[object]:
        """Advance time, and wake the queue when it is due."""
        until = self.now + ms
        told: list[object] = []
        while (due := self.queue.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            told += self.do(commands.Tick())
            after = self.queue.deadline()
            assert after is None or after > self.now, "it would be woken again at once"
        self.now = until
        return told

    @property
    def counts(self) -> tuple[int, int | None]:
        """Return the numbers of ready and of delayed messages."""
        figures = self.queue.figures()
        return figures.messages_ready, figures.messages_delayed

    @property
    def counters(self) -> dict[str, int]:
        return {name: count for name, count in self.queue.counters.document().items() if count}

    def replies(self, ref: commands.ConsumerRef) -> list[commands.CreditReply]:
        return [each for each in only(self.told, commands.CreditReply) if each.consumer == ref]

    def dead(self) -> list[tuple[str, list[str]]]:
        """Return reason and contents of messages dead-lettered since the last call."""
        return [
            (letters.reason.value, [each[1].decode() for each in letters.messages])
            for letters in self.dead_letters()
        ]

    def dead_letters(self) -> list[commands.DeadLetters]:
        letters: list[commands.DeadLetters] = self.queue.take_dead_letters()
        return letters


def holding(*bodies: str, **settings: Any) -> tuple[Bench, commands.ConsumerRef]:
    """Return a quorum queue, and a consumer that holds all its messages."""
    bench = Bench(**settings)
    bench.publish(*bodies)
    return bench, bench.consumer(len(bodies))


def only(told: Iterable[object], kind: type[E]) -> list[E]:
    return [each for each in told if isinstance(each, kind)]


def confirmed(told: Iterable[object]) -> list[int]:
    return [number for each in only(told, commands.Confirmed) for number in each.ids]


def rejected(told: Iterable[object]) -> list[int]:
    return [number for each in only(told, commands.PublishRejected) for number in each.ids]


# --- inside a classic queue, for tests that compare it with a model -------------------------------


def returned_of(queue: ClassicQueue) -> list[tuple[int, Message]]:
    """Return (key, message) of requeued ready messages, in order; the queue has one priority level."""
    return sorted(queue.waiting.levels[0].returned, key=lambda pair: pair[0])


def fresh_of(queue: ClassicQueue) -> list[Message]:
    """Return the ready messages that were never delivered, in order."""
    backlog = queue.waiting.levels[0].backlog
    pages = [queue._store.look(page.handle, page.ranks or range(page.count))[0] for page in backlog._pages]
    return list(chain(backlog._head, *pages, backlog._tail))


def consumers_of(queue: ClassicQueue) -> list[ClassicConsumer]:
    return list(queue._consumers)
