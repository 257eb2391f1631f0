"""Browsers of a quorum queue, against a list and against the same queue without them.

All that others ask is asked of both queues: their states are the same bytes after every step. What a browser
is shown was there, was wanted, had not expired, and was not shown before, unless it was taken and came back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.queues.commands import (
    TICK,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    GiveBack,
    Publish,
    Purge,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amqp10broker.queues.quorum.commands import QuorumCommand
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.snapshot import encode_snapshot
from amqp10broker.queues.settings import QueueSettings
from tests.support.askers import new_asker
from tests.support.selecting import coloured, selector

WANTED = {"r": "colour = 'r'", "rg": "colour IN ('r', 'g')"}


@dataclass
class Entry:
    colour: str
    expiry: int | None
    ready: bool = True
    had: bool = False


@dataclass
class Watcher:
    ref: ConsumerRef
    colours: str
    credit: int = 0
    count: int = 0
    seen: int = 0
    epoch: int = 0
    drain: bool = False
    asked: bool = False
    keys: list[int] = field(default_factory=list)
    shown: set[int] = field(default_factory=set)


class Browsing(RuleBasedStateMachine):
    """Random commands; the index of a message is its number, for every publish is taken."""

    @initialize(delivery_limit=st.sampled_from([None, 20]))
    def begin(self, delivery_limit: int | None) -> None:
        self.now = 1_000
        settings = QueueSettings(delivery_limit=delivery_limit)
        self.queue, self.twin = (QuorumQueue("q", settings=settings, now_ms=self.now) for _ in range(2))
        self.queue.browsers.scan_max = 3
        self.asker = new_asker("consumer")
        self.taker = self.asker.consumer()
        self.publisher = self.asker.publisher()
        self.held: list[int] = []
        self.taken = 0
        self.entries: list[Entry] = []
        self.watchers: list[Watcher] = []
        self.do(Subscribe(self.taker, False))

    @rule(
        messages=st.lists(
            st.tuples(st.sampled_from("rgb"), st.sampled_from([0, 9]), st.sampled_from([None, None, 5])),
            min_size=1,
            max_size=8,
        )
    )
    def publish(self, messages: list[tuple[str, int, int | None]]) -> None:
        first = len(self.entries)
        batch = []
        for number, (colour, priority, ttl) in enumerate(messages, first):
            self.entries.append(Entry(colour, None if ttl is None else self.now + ttl))
            batch.append(coloured(number, colour, priority=priority, ttl=ttl))
        self.do(Publish(self.publisher, range(first, first + len(batch)), batch, True))

    @rule(credit=st.integers(1, 5))
    def take(self, credit: int) -> None:
        self.do(Credit(self.taker, self.taken, credit, True, self.taken))

    @precondition(lambda self: getattr(self, "held", None))
    @rule(data=st.data(), delivery_outcome=st.sampled_from(DeliveryOutcome))
    def settle(self, data: st.DataObject, delivery_outcome: DeliveryOutcome) -> None:
        keys = data.draw(st.lists(st.sampled_from(self.held), unique=True, min_size=1))
        for key in keys:
            self.held.remove(key)
            self.entries[key].ready = delivery_outcome in (
                DeliveryOutcome.REQUEUE,
                DeliveryOutcome.REQUEUE_FAILED,
            )
        self.do(Settle(self.taker, keys, delivery_outcome))

    @rule()
    def purge(self) -> None:
        for entry in self.entries:
            entry.ready = False
        self.do(Purge(self.asker.request()))

    @rule(time=st.sampled_from([1, 10]))
    def wait(self, time: int) -> None:
        self.now += time
        self.do(TICK)

    # --- who browses ------------------------------------------------------------------------------

    @rule(wants=st.sampled_from(["r", "rg", "rgb"]))
    def browse(self, wants: str) -> None:
        if len(self.watchers) < 3:
            watcher = Watcher(self.asker.consumer(), wants)
            self.watchers.append(watcher)
            filters = selector(WANTED[wants]) if wants in WANTED else None
            self.ask(Subscribe(watcher.ref, False, counted=False, browse=True, filters=filters))

    @precondition(lambda self: getattr(self, "watchers", None))
    @rule(data=st.data(), credit=st.integers(0, 6), drain=st.booleans())
    def grant(self, data: st.DataObject, credit: int, drain: bool) -> None:
        watcher = data.draw(st.sampled_from(self.watchers))
        if not watcher.asked:
            watcher.credit, watcher.drain, watcher.asked = credit, drain, True
            watcher.keys.clear()
            self.ask(Credit(watcher.ref, watcher.count, credit, drain, watcher.seen))

    @precondition(lambda self: getattr(self, "watchers", None))
    @rule(data=st.data(), count=st.integers(1, 4))
    def give_back(self, data: st.DataObject, count: int) -> None:
        watcher = data.draw(st.sampled_from(self.watchers))
        back = watcher.keys[-count:]
        if back and not watcher.asked:
            del watcher.keys[-count:]
            watcher.shown -= set(back)
            watcher.epoch += 1
            watcher.credit = 0
            self.ask(GiveBack(watcher.ref, back, [], watcher.count, watcher.seen, watcher.epoch))

    @precondition(lambda self: getattr(self, "watchers", None))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        watcher = data.draw(st.sampled_from(self.watchers))
        self.watchers.remove(watcher)
        self.ask(Unsubscribe(watcher.ref, (), (), watcher.seen, DeliveryOutcome.ACCEPT))

    # --- what comes of it -------------------------------------------------------------------------

    def do(self, command: QuorumCommand) -> None:
        self.twin.apply(command, self.now)
        self.twin.take_effects()
        self.ask(command)

    def ask(self, command: QuorumCommand) -> None:
        (marked,) = self.queue.browsers.marked([command])
        self.queue.apply(marked, self.now)
        self._note()
        turns = 0
        while self.queue.browsers.unfinished:
            self.queue.show_on()
            self._note()
            turns += 1
            assert turns < 1_000, "it never comes to an end"
        for watcher in self.watchers:
            assert not watcher.asked, "each request is answered"
            if watcher.credit:
                left = [
                    number
                    for number, entry in enumerate(self.entries)
                    if self._alive(entry) and entry.colour in watcher.colours and not entry.had
                ]
                assert set(left) <= watcher.shown, "it was not shown what is there"

    def _alive(self, entry: Entry) -> bool:
        return entry.ready and (entry.expiry is None or entry.expiry > self.now)

    def _note(self) -> None:
        for effect in self.queue.take_effects().get(self.asker.id, []):
            if isinstance(effect, Deliver) and effect.consumer == self.taker:
                self.taken += len(effect.keys)
                for key in effect.keys:
                    self.held.append(key)
                    self.entries[key].ready, self.entries[key].had = False, True
            elif isinstance(effect, Deliver):
                self._show(effect)
            elif isinstance(effect, CreditReply) and effect.consumer == self.taker:
                self.taken = effect.delivery_count
            elif isinstance(effect, CreditReply):
                self._reply(effect)

    def _find(self, ref: ConsumerRef) -> Watcher:
        return next(each for each in self.watchers if each.ref == ref)

    def _show(self, effect: Deliver) -> None:
        watcher = self._find(effect.consumer)
        assert effect.epoch == watcher.epoch
        for key, (_, content) in zip(effect.keys, effect.messages, strict=True):
            entry = self.entries[key]
            assert content.endswith(b"#%d" % key)
            assert entry.colour in watcher.colours
            assert self._alive(entry)
            assert key not in watcher.shown or entry.had
            watcher.shown.add(key)
            watcher.keys.append(key)
        watcher.seen += len(effect.keys)
        watcher.count += len(effect.keys)
        watcher.credit -= len(effect.keys)
        assert watcher.credit >= 0

    def _reply(self, reply: CreditReply) -> None:
        watcher = self._find(reply.consumer)
        watcher.asked = False
        if watcher.drain:
            watcher.count += watcher.credit
            watcher.credit = 0
        assert (reply.delivery_count, reply.credit) == (watcher.count, watcher.credit)

    @invariant()
    def the_state_is_the_same_without_them(self) -> None:
        if hasattr(self, "queue"):
            assert encode_snapshot(self.queue) == encode_snapshot(self.twin)


TestBrowsing = Browsing.TestCase
TestBrowsing.settings = hypothesis_settings(max_examples=40, stateful_step_count=30, deadline=None)
