"""A classic queue with delayed messages against a naive model: none is early, late, lost or there twice.

The journal is a fake one with short files, and few messages are in memory, so that pages, cleaning and
restarts meet all the time. Time goes on by itself, at restarts too.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.message.message import Message, header_of, make_head
from amqp10broker.message.traits import X_OPT_DELIVERY_DELAY, X_OPT_DELIVERY_TIME
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.queues.classic import backlog, ready
from amqp10broker.queues.classic import durability as classic_store
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    TICK,
    Confirmed,
    ConsumerRef,
    Credit,
    Deliver,
    DeliveryOutcome,
    Publish,
    Purge,
    Settle,
    Subscribe,
)
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.settings import QueueSettings
from tests.support.askers import new_asker
from tests.support.fake_log import FakeLog, MemoryScratch

GROUP = 7
HERE = new_asker("1.1")
SHAPES = st.tuples(
    st.sampled_from([None, 0, 3, 10, 10, 25, 200]),  # delay
    st.sampled_from([None, None, None, 2, 9, 24]),  # time to live, which acts only if it is shorter
    st.sampled_from([None, 1]),  # priority
    st.booleans(),  # persistent
    st.booleans(),  # as a time, or from the arrival on
)


class Delaying(RuleBasedStateMachine):
    """One queue, one consumer at a time. The model: messages by number, each in one of three places."""

    @initialize(durable=st.booleans(), levels=st.sampled_from([None, 1]))
    def start(self, durable: bool, levels: int | None) -> None:
        self.durable = durable
        self.settings = QueueSettings(max_priority=levels, dead_letter_exchange="dlx")
        self.log = FakeLog()
        self.now = 1_000
        self.next = 0
        self.arrived = 0
        self.level: dict[int, int] = {}
        self.safe: set[int] = set()
        self.later: dict[int, tuple[int, bool]] = {}  # when, and whether it is given up then
        self.ready: dict[int, int] = {}  # which of those that became ready it was
        self.held: dict[int, tuple[int, int]] = {}  # number and that, by key
        self.given_up: list[int] = []
        self.publisher = HERE.publisher()
        self.consumer: ConsumerRef | None = None
        self.granted = 0
        self.make_queue()

    def make_queue(self) -> None:
        kept = None
        if self.durable:
            kept = self.store = ClassicStore(GROUP, self.log, Spool(MemoryScratch))
            kept.restore(self.log.records())
        self.queue = ClassicQueue(
            "q", durable=self.durable, settings=self.settings, store=kept, now_ms=self.now
        )
        if kept is not None:
            self.queue.recover(kept.backlogs())

    # --- what happens -----------------------------------------------------------------------------

    @rule(shapes=st.lists(SHAPES, min_size=1, max_size=30))
    def publish(self, shapes: list[tuple[int | None, int | None, int | None, bool, bool]]) -> None:
        messages: list[Message] = []
        for delay, ttl, priority, persistent, as_time in shapes:
            number = self.next
            self.next += 1
            annotations = None
            if delay is not None:
                name, value = (
                    (X_OPT_DELIVERY_TIME, self.now + delay) if as_time else (X_OPT_DELIVERY_DELAY, delay)
                )
                annotations = {name: Long(value)}
            short = ttl if delay and ttl is not None and ttl < delay else None
            head = make_head(Header(durable=persistent, priority=priority, ttl=short), annotations, "", "q")
            messages.append((head, b"%d" % number))
            self.level[number] = (priority or 0) if self.settings.max_priority else 0
            if persistent and self.durable:
                self.safe.add(number)
            if delay:
                self.later[number] = self.now + (delay if short is None else short), short is not None
            else:
                self.become_ready(number)
        numbers = range(self.next - len(messages), self.next)
        self.queue.apply(Publish(self.publisher, numbers, messages, False), self.now)
        self.take()

    def become_ready(self, number: int) -> None:
        self.ready[number] = self.arrived
        self.arrived += 1

    @rule(passed=st.integers(1, 60))
    def wait(self, passed: int) -> None:
        """The queue is woken when it wants to be, now and then somewhat late."""
        self.now += passed
        self.wake()

    def wake(self) -> None:
        due = sorted((when, number) for number, (when, _) in self.later.items() if when <= self.now)
        for when, number in due:
            if self.later.pop(number)[1]:
                self.given_up.append(number)
            else:
                assert when <= self.now
                self.become_ready(number)
        turns = 0
        while (deadline := self.queue.deadline()) is not None and deadline <= self.now:
            self.queue.apply(TICK, self.now)
            turns += 1
            assert turns < 1000, "it is due for ever"
        dead = [int(body) for letters in self.queue.take_dead_letters() for _, body in letters.messages]
        assert dead == self.given_up
        self.given_up = []
        self.take()

    @precondition(lambda self: self.consumer is None)
    @rule()
    def subscribe(self) -> None:
        self.consumer = HERE.consumer()
        self.granted = 0
        self.queue.apply(Subscribe(self.consumer, False), self.now)

    @precondition(lambda self: self.consumer is not None)
    @rule(credit=st.integers(1, 40))
    def grant(self, credit: int) -> None:
        assert self.consumer is not None
        self.queue.apply(Credit(self.consumer, self.granted, credit, True, self.granted), self.now)
        self.granted += credit
        got = self.take()
        expected = sorted(self.ready, key=lambda number: (-self.level[number], self.ready[number]))[:credit]
        assert [number for _, number in got] == expected
        for key, number in got:
            self.held[key] = number, self.ready.pop(number)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delivery_outcome=st.sampled_from([DeliveryOutcome.ACCEPT, DeliveryOutcome.REQUEUE]))
    def settle(self, data: st.DataObject, delivery_outcome: DeliveryOutcome) -> None:
        assert self.consumer is not None
        keys = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
        self.queue.apply(Settle(self.consumer, keys, delivery_outcome), self.now)
        self.take()
        for key in keys:
            number, place = self.held.pop(key)
            if delivery_outcome is DeliveryOutcome.REQUEUE:
                self.ready[number] = place

    @rule(really=st.integers(0, 3))
    def purge(self, really: int) -> None:
        if not really:
            self.queue.apply(Purge(HERE.request()), self.now)
            self.take()
            self.ready.clear()
            self.later.clear()

    @precondition(lambda self: self.durable)
    @rule()
    def clean(self) -> None:
        self.store.flush()
        oldest = min(self.log.files)
        if oldest < max(self.log.files):
            for _ in self.store.relocate(oldest):
                pass
            self.log.drop_oldest()

    @precondition(lambda self: self.durable)
    @rule(passed=st.integers(0, 60))
    def restart(self, passed: int) -> None:
        self.store.flush()
        self.log = self.log.reopened()
        self.now += passed
        self.ready |= dict(self.held.values())
        self.held.clear()
        self.ready = {number: place for number, place in self.ready.items() if number in self.safe}
        self.later = {number: due for number, due in self.later.items() if number in self.safe}
        self.consumer = None
        self.make_queue()
        self.wake()

    # --- what holds -------------------------------------------------------------------------------

    def take(self) -> list[tuple[int, int]]:
        got: list[tuple[int, int]] = []
        confirmed: set[int] = set()
        for effects in self.queue.take_effects().values():
            for effect in effects:
                if isinstance(effect, Deliver):
                    for key, (head, body) in zip(effect.keys, effect.messages, strict=True):
                        assert header_of(head).delivery_count == 0
                        got.append((key, int(body)))
                elif isinstance(effect, Confirmed):
                    confirmed.update(effect.ids)
        assert not confirmed & self.safe, "confirmed before it was safe"
        if self.queue.intake.waits:
            self.queue.safe_up_to(10**9)
            assert self.queue.intake.waits is False
            self.queue.take_effects()
        return got

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        figures = self.queue.figures()
        assert (figures.messages_ready, figures.messages_delayed) == (len(self.ready), len(self.later))
        first = min((when for when, _ in self.later.values()), default=None)
        deadline = self.queue.deadline()
        assert (first is None) == (deadline is None)
        # Of a page that was found after a restart the first message may be gone.
        assert deadline is None or first is None or deadline <= first
        if self.durable:
            there = {*self.ready, *self.later, *(number for number, _ in self.held.values())}
            assert self.store.live == len(there & self.safe)
            if not there & self.safe:
                assert all(live == 0 for live in self.log.live.values())

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.wait(1000)
            self.consumer = None
            self.subscribe()
            self.grant(self.next + 1)


class TestDelaying(Delaying.TestCase):  # type: ignore[misc]
    """Runs the machine."""

    settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

    @pytest.fixture(autouse=True)
    def _short_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (backlog, backlog, classic_store):
            if hasattr(module, "PAGE_MESSAGES_MAX"):
                monkeypatch.setattr(module, "PAGE_MESSAGES_MAX", 5)
        monkeypatch.setattr(backlog, "HEAD_MESSAGES_MAX", 7)
        monkeypatch.setattr(classic_store, "RECORD_MESSAGES_MAX", 11)
        monkeypatch.setattr(classic_store, "_BUCKET", 4)
        monkeypatch.setattr(ready, "SOON_MESSAGES_MAX", 8)
        monkeypatch.setattr(ready, "PAGE_MESSAGES", 3)
