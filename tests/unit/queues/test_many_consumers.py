"""Thousands of consumers of one queue: what one more, or one less, costs does not grow with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp10broker.protocols.amqp091.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    QueueDeclare,
)
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    DeliveryOutcome,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.queues.stream.log import MemoryShelf, StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from tests.support.askers import new_asker
from tests.support.channel_world import World
from tests.support.steps import steps_of

FEW, MANY = 50, 2_000
NOW_MS = 1_000
SINGLE = QueueSettings(single_active_consumer=True)


def classic(settings: QueueSettings = DEFAULTS) -> Callable[[Command], None]:
    """What gives a classic queue a command, with the end of a wake."""
    queue = ClassicQueue("q", durable=True, auto_delete=True, settings=settings, now_ms=NOW_MS)

    def apply(command: Command) -> None:
        queue.apply(command, NOW_MS)
        queue.deadline()
        queue.take_effects()

    return apply


def quorum(settings: QueueSettings = DEFAULTS) -> Callable[[Command], None]:
    queue = QuorumQueue("q", settings=settings, now_ms=NOW_MS)

    def apply(command: Command) -> None:
        queue.apply(command, NOW_MS)
        queue.deadline()
        queue.take_effects()

    return apply


def stream() -> Callable[[Command], None]:
    log = StreamLog(MemoryShelf())
    assert sum(log.recover()) == 0
    queue = StreamQueue("q", log)

    def apply(command: Command) -> None:
        queue.apply(command, NOW_MS)
        queue.deadline()
        queue.take_effects()

    return apply


MAKERS: dict[str, Callable[[], Callable[[Command], None]]] = {
    "classic": classic,
    "classic, single active": lambda: classic(SINGLE),
    "quorum": quorum,
    "quorum, single active": lambda: quorum(SINGLE),
    "stream": stream,
}


@pytest.mark.parametrize("leaves_by", ["cancel", "detach"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_queue_takes_one_more_and_lets_one_go_in_steps_of_which_there_is_an_end(
    kind: str, leaves_by: str
) -> None:
    """Subscribing with credit, and leaving, of the first one (the active one) and of one in the middle."""
    apply = MAKERS[kind]()
    refs: list[ConsumerRef] = []

    def join() -> None:
        ref = new_asker("somebody").consumer()
        refs.append(ref)
        apply(Subscribe(ref, False))
        apply(Credit(ref, 0, 10, False, 0))

    def leave(at: int) -> Callable[[], None]:
        ref = refs.pop(at)
        if leaves_by == "cancel":
            return lambda: apply(Cancel(ref))
        return lambda: apply(Unsubscribe(ref, [], [], 0, DeliveryOutcome.REQUEUE))

    steps: dict[int, list[int]] = {}
    for count in (FEW, MANY):
        while len(refs) < count:
            join()
        steps[count] = [steps_of(join), steps_of(leave(0)), steps_of(leave(len(refs) // 2))]
    for few, many in zip(steps[FEW], steps[MANY], strict=True):
        assert many < 2 * few, steps


def test_a_channel_takes_one_more_and_lets_one_go_in_steps_of_which_there_is_an_end() -> None:
    """basic.consume and basic.cancel of AMQP 0-9-1, with the queue's answers, on one channel."""
    channel = World(strict=False).channel()
    channel.call(QueueDeclare("q", durable=True))
    tags = 0

    def consume() -> None:
        nonlocal tags
        tags += 1
        assert type(channel.call(BasicConsume("q", str(tags)))) is BasicConsumeOk

    def cancel(tag: int) -> Any:
        assert type(channel.call(BasicCancel(str(tag)))) is BasicCancelOk

    steps: dict[int, list[int]] = {}
    for count in (FEW, MANY):
        while tags < count:
            consume()
        steps[count] = [steps_of(consume), steps_of(lambda: cancel(tags // 2))]
    for few, many in zip(steps[FEW], steps[MANY], strict=True):
        assert many < 2 * few, steps
