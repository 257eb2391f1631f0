"""A consumer asks for messages and for bytes: what it is handed out ends with what is used up first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp10broker.message.message import Message
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    NO_BOUND,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    Publish,
    Settle,
    Subscribe,
)
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import QueueSettings
from tests.support.askers import new_asker
from tests.support.streams import Bench as StreamBench
from tests.support.streams import text

NOW_MS = 1_700_000_000_000
HEAD = b"\x91" + bytes(9)


class Wire:
    """A queue of any kind, and one consumer's end of the credit."""

    def __init__(self, kind: str, settings: QueueSettings | None = None) -> None:
        self.me = new_asker("me")
        self.publisher = new_asker("publisher").publisher()
        self.apply: Callable[[Any], list[Any]]
        given = {} if settings is None else {"settings": settings}
        if kind == "stream":
            bench = StreamBench(**given)
            self.apply = lambda command: list(bench.do(command))
            self.content = _ten
        else:
            queue: Any
            if kind == "classic":
                queue = ClassicQueue("q", durable=True, **given)
            else:
                queue = QuorumQueue("q", now_ms=NOW_MS, **given)
            self.queue = queue
            self.apply = self._apply
            self.content = _old
        self.had = 0
        self.published = 0
        self.consumers = 0

    def _apply(self, command: Any) -> list[Any]:
        self.queue.apply(command, NOW_MS)
        return [effect for effects in self.queue.take_effects().values() for effect in effects]

    def consumer(self) -> ConsumerRef:
        ref = self.me.consumer()
        self.apply(Subscribe(ref, False))
        self.consumers += 1
        return ref

    def publish(self, *sizes: int) -> list[Any]:
        ids = range(self.published, self.published + len(sizes))
        self.published += len(sizes)
        return self.apply(Publish(self.publisher, ids, [self.content(size) for size in sizes], True))

    def ask(self, ref: ConsumerRef, credit: int, room: int, *, drain: bool = False) -> list[Any]:
        return self.apply(Credit(ref, self.had, credit, drain, self.had, room))

    def got(self, effects: list[Any]) -> tuple[int, bool]:
        """Deliveries, and whether the last one said that the room is used up."""
        delivers = [each for each in effects if isinstance(each, Deliver)]
        count = sum(len(each.keys) for each in delivers)
        self.had += count
        assert not any(each.spent for each in delivers[:-1])
        return count, bool(delivers) and delivers[-1].spent


def _old(size: int) -> Message:
    return HEAD, b"x" * size


def _ten(size: int) -> Message:
    return text(0)[0], b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + b"x" * size


def reply_of(effects: list[Any]) -> CreditReply:
    (reply,) = [each for each in effects if isinstance(each, CreditReply)]
    return reply


@pytest.fixture(params=["classic", "quorum", "stream"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return Wire(request.param)


def test_a_batch_ends_with_the_message_that_uses_up_the_room(wire: Wire) -> None:
    """Ten of 300 kB, and room for a million bytes: four, and no more until it asks again."""
    ref = wire.consumer()
    for _ in range(10):
        wire.publish(300_000)
    effects = wire.ask(ref, 256, 1_000_000)
    assert wire.got(effects) == (4, True)
    assert reply_of(effects).credit == 0
    assert wire.got(wire.publish(10)) == (0, False)
    assert wire.got(wire.ask(ref, 256, 1_000_000)) == (4, True)
    assert wire.got(wire.ask(ref, 256, 1_000_000)) == (3, False)
    assert reply_of(wire.ask(ref, 256, 1_000_000)).credit == 256


def test_a_message_larger_than_the_room_is_handed_out(wire: Wire) -> None:
    """One a time, whatever the room is; also after smaller ones."""
    ref = wire.consumer()
    for size in (5_000_000, 5_000_000, 10, 5_000_000):
        wire.publish(size)
    assert wire.got(wire.ask(ref, 256, 1)) == (1, True)
    assert wire.got(wire.ask(ref, 256, 1000)) == (1, True)
    assert wire.got(wire.ask(ref, 256, 1000)) == (2, True)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_another_consumer_gets_what_one_has_no_room_for(kind: str) -> None:
    """Credit without room does not hold messages back from others."""
    wire = Wire(kind)
    first, second = wire.consumer(), wire.consumer()
    wire.ask(first, 256, 1_000)
    wire.publish(2_000)
    wire.apply(Credit(second, 0, 256, False, 0, 1_000_000))
    effects = wire.publish(2_000, 2_000)
    delivers = [each for each in effects if isinstance(each, Deliver)]
    assert {each.consumer for each in delivers} == {second}
    assert sum(len(each.keys) for each in delivers) == 2


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_that_came_back_use_up_room_like_others(kind: str) -> None:
    """In their order, and a batch goes on from them to those that nobody had."""
    wire = Wire(kind)
    ref = wire.consumer()
    wire.publish(*[600] * 6)
    effects = wire.ask(ref, 4, NO_BOUND)
    keys = [key for each in effects if isinstance(each, Deliver) for key in each.keys]
    assert wire.got(effects) == (4, False)
    wire.apply(Settle(ref, keys[:3], DeliveryOutcome.REQUEUE))
    assert wire.got(wire.ask(ref, 256, 1_000)) == (2, True)
    assert wire.got(wire.ask(ref, 256, 1_500)) == (3, True)


def test_priorities_and_expiring_messages_keep_to_the_room() -> None:
    """The ways through a classic queue that look at each message."""
    settings = QueueSettings(max_priority=2, message_ttl_ms=60_000)
    wire = Wire("classic", settings)
    ref = wire.consumer()
    wire.publish(*[600] * 6)
    assert wire.got(wire.ask(ref, 256, 1_000)) == (2, True)
    assert wire.got(wire.ask(ref, 256, 1_201)) == (3, True)
    assert wire.queue.ready == 1
