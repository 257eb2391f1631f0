"""A durable classic queue with its store, against a list: what must survive a restart does, in order.

The journal is a fake one with short files, and pages are short, so that paging, cleaning and restarts
meet all the time.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.message.amqp10 import header_of, make_head
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.queues import commands
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.settings import QueueSettings
from tests.support.examples import tried
from tests.support.memory_journal import MemoryJournal, MemoryScratch
from tests.support.reply_addresses import new_reply_to
from tests.support.stored_queue import shorten_pages

SAFE = {
    priority: make_head(Header(durable=True, priority=priority), None, "", "q") for priority in (None, 1, 2)
}
LOST = make_head(None, None, "", "q")
GROUP = 7
HERE = new_reply_to("1.1")


class Restarting(RuleBasedStateMachine):
    """One queue, one consumer at a time.

    The model: numbers of messages by (level, number) that are ready, that are held, and those of them
    that a restart must keep.
    """

    @initialize(levels=st.sampled_from([None, 2]))
    def start(self, levels: int | None) -> None:
        self.settings = QueueSettings(max_priority=levels)
        self.log = MemoryJournal(records_max=8)
        self.scratches: list[MemoryScratch] = []
        self.next = 0
        self.ready: dict[int, tuple[int, bool]] = {}  # number -> level, safe
        self.held: dict[int, int] = {}  # key -> number
        self.where: dict[int, tuple[int, bool]] = {}
        self.delivered: set[int] = set()
        self.publisher = HERE.publisher()
        self.consumer: commands.ConsumerRef | None = None
        self.credit_base = 0
        self.make_queue(fresh=True)

    def make_queue(self, *, fresh: bool) -> None:
        self.store = ClassicStore(GROUP, self.log, Spool(self.scratch))
        if not fresh:
            self.store.restore(self.log.records)
        self.queue = ClassicQueue("q", durable=True, settings=self.settings, store=self.store)
        if not fresh:
            self.queue.recover(self.store.backlogs())

    def scratch(self) -> MemoryScratch:
        self.scratches.append(MemoryScratch())
        return self.scratches[-1]

    # --- what happens -----------------------------------------------------------------------------

    @rule(kinds=st.lists(st.sampled_from([LOST, *SAFE.values()]), min_size=1, max_size=30))
    def publish(self, kinds: list[bytes]) -> None:
        numbers = list(range(self.next, self.next + len(kinds)))
        self.next += len(kinds)
        messages = [(head, b"%d" % number) for head, number in zip(kinds, numbers, strict=True)]
        for head, number in zip(kinds, numbers, strict=True):
            level = (header_of(head).priority or 0) if self.settings.max_priority else 0
            self.ready[number] = self.where[number] = (level, head is not LOST)
        self.queue.apply(commands.Publish(self.publisher, numbers, messages, False), 0)
        self.take()

    @precondition(lambda self: self.consumer is None)
    @rule()
    def subscribe(self) -> None:
        self.consumer = HERE.consumer()
        self.credit_base = 0
        self.queue.apply(commands.Subscribe(self.consumer, False), 0)

    @precondition(lambda self: self.consumer is not None)
    @rule(credit=st.integers(1, 40))
    def grant(self, credit: int) -> None:
        assert self.consumer is not None
        self.queue.apply(commands.Credit(self.consumer, self.credit_base, credit, True, self.credit_base), 0)
        self.credit_base += credit
        got = self.take()
        expected = sorted(self.ready, key=lambda number: (-self.ready[number][0], number))[:credit]
        assert [number for _, number in got] == expected
        for key, number in got:
            self.held[key] = number
            self.delivered.add(number)
            del self.ready[number]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delivery_outcome=st.sampled_from(list(commands.DeliveryOutcome)))
    def settle(self, data: st.DataObject, delivery_outcome: commands.DeliveryOutcome) -> None:
        assert self.consumer is not None
        keys = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
        self.queue.apply(commands.Settle(self.consumer, keys, delivery_outcome), 0)
        self.take()
        for key in keys:
            number = self.held.pop(key)
            if delivery_outcome in (
                commands.DeliveryOutcome.REQUEUE,
                commands.DeliveryOutcome.REQUEUE_FAILED,
            ):
                self.ready[number] = self.where[number]

    @rule()
    def purge(self) -> None:
        self.queue.apply(commands.Purge(HERE.request()), 0)
        self.take()
        self.ready.clear()

    @rule()
    def wake_ends(self) -> None:
        self.store.flush()

    @rule()
    def clean(self) -> None:
        self.store.flush()
        self.log.clean_oldest(self.store.relocate)

    @rule()
    def restart(self) -> None:
        self.store.flush()
        self.log = self.log.again()
        survivors = {**self.ready, **{number: self.where[number] for number in self.held.values()}}
        self.ready = {number: where for number, where in survivors.items() if where[1]}
        self.held.clear()
        self.consumer = None
        self.make_queue(fresh=False)

    # --- what holds -------------------------------------------------------------------------------

    def take(self) -> list[tuple[int, int]]:
        got: list[tuple[int, int]] = []
        for effects in self.queue.take_effects().values():
            for effect in effects:
                if isinstance(effect, commands.Deliver):
                    for key, (head, body) in zip(effect.keys, effect.messages, strict=True):
                        got.append((key, int(body)))
                        if int(body) in self.delivered:
                            assert not header_of(head).first_acquirer, "redelivered, and does not say so"
                elif isinstance(effect, commands.Confirmed):
                    safe = [number for number in effect.ids if self.where[number][1]]
                    assert not safe, "confirmed before it was safe"
        ticket = next((each[0] for each in self.queue.unsafe), None)
        if ticket is not None:
            self.queue.safe_up_to(10**9)
            assert not self.queue.unsafe
            self.queue.take_effects()
        return got

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.ready == len(self.ready)
            kept = [number for number in (*self.ready, *self.held.values()) if self.where[number][1]]
            assert self.store.live == len(kept)
            if not kept:
                assert all(live == 0 for live in self.log.live.values())


class TestRestarting(Restarting.TestCase):  # type: ignore[misc]
    """Runs the machine."""

    settings = settings(max_examples=tried(150), stateful_step_count=40, deadline=None)

    @pytest.fixture(autouse=True)
    def _short_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shorten_pages(monkeypatch)
