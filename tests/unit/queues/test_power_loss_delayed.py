"""Delayed messages after a loss of power: each confirmed one is there once, delayed still or in its level."""

from __future__ import annotations

import random

import pytest

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import Message
from amqp10broker.message.traits import X_OPT_DELIVERY_TIME
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.queues.classic import ready
from amqp10broker.queues.commands import TICK, Publish
from tests.support.disks import PowerLoss
from tests.support.journal_harness import LONG, new_disk
from tests.support.stored_queue import StoredQueue, is_persistent, make_message, shorten_pages, walk

SEEDS = range(60 if LONG else 6)
STEPS = 60
END_MS = 1_000_000


def delayed_message(number: int) -> Message:
    """Make a message; two of three are delayed, some until long after the next ones."""
    head, body = make_message(number)
    if number % 3:
        due = {X_OPT_DELIVERY_TIME: Long(5 * number + number * 13 % 70)}
        head = make_head(Header(durable=is_persistent(number)), due, "", "q")
    return head, body


class KeptDelayed(StoredQueue):
    """As `StoredQueue`, with such messages: time goes on by 5 ms for each."""

    def publish(self, count: int) -> None:
        numbers = range(self.published, self.published + count)
        self.published += count
        messages = [delayed_message(number) for number in numbers]
        self.queue.apply(Publish(self.publisher, list(numbers), messages, False), 0)
        self.pass_time(5 * self.published)
        self._keep()

    def pass_time(self, now_ms: int) -> None:
        while (due_ms := self.queue.deadline()) is not None and due_ms <= now_ms:
            self.queue.apply(TICK, now_ms)

    def _look(self) -> list[tuple[int, int]]:
        self.pass_time(END_MS)
        return super()._look()

    def _compare(self, found: list[int]) -> None:
        # In which order they became ready depends on when the power went.
        super()._compare(sorted(found))


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pages(monkeypatch)
    monkeypatch.setattr(ready, "SOON_MESSAGES_MAX", 6)
    monkeypatch.setattr(ready, "PAGE_MESSAGES", 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_with_delayed_messages_lives_through_many_losses_of_power(seed: int) -> None:
    rng = random.Random(seed)
    kept = KeptDelayed(new_disk(seed))
    for _ in range(40):
        kept.disk.lose_power_at = rng.randrange(1, 90)
        try:
            kept.recover(look=rng.random() < 0.2)
            walk(kept, rng, STEPS)
        except PowerLoss:
            pass
        disk = kept.disk
        kept.disk = disk.after_kill() if rng.random() < 0.3 else disk.after_power_loss(rng.randrange(1 << 30))
    kept.recover()
