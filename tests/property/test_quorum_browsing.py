"""Browsers of a quorum queue, against a list and against the same queue without them.

All that others ask is asked of both queues: their states are the same bytes after every step. What a browser
is shown was there, was wanted, had not expired, and was not shown before, unless it was taken and came back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.queues import commands
from amqp10broker.queues.quorum import log_store as quorum_store
from amqp10broker.queues.quorum.commands import QuorumCommand
from amqp10broker.queues.quorum.queue import QuorumQueue, encode_snapshot
from amqp10broker.queues.settings import QueueSettings
from tests.support.examples import tried
from tests.support.quorum_harness import Harness
from tests.support.reply_addresses import new_reply_to
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
    ref: commands.ConsumerRef
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
        self.asker = new_reply_to("consumer")
        self.taker = self.asker.consumer()
        self.publisher = self.asker.publisher()
        self.held: list[int] = []
        self.taken = 0
        self.entries: list[Entry] = []
        self.watchers: list[Watcher] = []
        self.do(commands.Subscribe(self.taker, False))
        self.browse("rgb")
        self._grant(self.watchers[0], 3, drain=False)

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
        self.do(commands.Publish(self.publisher, range(first, first + len(batch)), batch, True))

    @rule(credit=st.integers(1, 5))
    def take(self, credit: int) -> None:
        self.do(commands.Credit(self.taker, self.taken, credit, True, self.taken))

    @precondition(lambda self: getattr(self, "held", None))
    @rule(data=st.data(), delivery_outcome=st.sampled_from(commands.DeliveryOutcome))
    def settle(self, data: st.DataObject, delivery_outcome: commands.DeliveryOutcome) -> None:
        keys = data.draw(st.lists(st.sampled_from(self.held), unique=True, min_size=1))
        for key in keys:
            self.held.remove(key)
            self.entries[key].ready = delivery_outcome in (
                commands.DeliveryOutcome.REQUEUE,
                commands.DeliveryOutcome.REQUEUE_FAILED,
            )
        self.do(commands.Settle(self.taker, keys, delivery_outcome))

    @rule()
    def purge(self) -> None:
        for entry in self.entries:
            entry.ready = False
        self.do(commands.Purge(self.asker.request()))

    @rule(time=st.sampled_from([1, 10]))
    def wait(self, time: int) -> None:
        self.now += time
        self.do(commands.TICK)

    # --- who browses ------------------------------------------------------------------------------

    @rule(wants=st.sampled_from(["r", "rg", "rgb"]))
    def browse(self, wants: str) -> None:
        if len(self.watchers) < 3:
            watcher = Watcher(self.asker.consumer(), wants)
            self.watchers.append(watcher)
            filters = selector(WANTED[wants]) if wants in WANTED else None
            self.ask(commands.Subscribe(watcher.ref, False, counted=False, browse=True, filters=filters))

    @precondition(lambda self: getattr(self, "watchers", None))
    @rule(data=st.data(), credit=st.integers(0, 6), drain=st.booleans())
    def grant(self, data: st.DataObject, credit: int, drain: bool) -> None:
        self._grant(data.draw(st.sampled_from(self.watchers)), credit, drain=drain)

    def _grant(self, watcher: Watcher, credit: int, *, drain: bool) -> None:
        if not watcher.asked:
            watcher.credit, watcher.drain, watcher.asked = credit, drain, True
            watcher.keys.clear()
            self.ask(commands.Credit(watcher.ref, watcher.count, credit, drain, watcher.seen))

    @precondition(lambda self: getattr(self, "watchers", None))
    @rule(data=st.data(), count=st.integers(1, 4), again=st.booleans())
    def give_back(self, data: st.DataObject, count: int, again: bool) -> None:
        """With `again` the next grant covers all messages there are."""
        watcher = data.draw(st.sampled_from(self.watchers))
        back = watcher.keys[-count:]
        if back and not watcher.asked:
            del watcher.keys[-count:]
            watcher.shown -= set(back)
            watcher.epoch += 1
            watcher.credit = 0
            self.ask(commands.GiveBack(watcher.ref, back, [], watcher.count, watcher.seen, watcher.epoch))
            if again:
                self._grant(watcher, len(self.entries) + 1, drain=False)

    @precondition(lambda self: getattr(self, "watchers", None))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        watcher = data.draw(st.sampled_from(self.watchers))
        self.watchers.remove(watcher)
        self.ask(commands.Unsubscribe(watcher.ref, (), (), watcher.seen, commands.DeliveryOutcome.ACCEPT))

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
            if isinstance(effect, commands.Deliver) and effect.consumer == self.taker:
                self.taken += len(effect.keys)
                for key in effect.keys:
                    self.held.append(key)
                    self.entries[key].ready, self.entries[key].had = False, True
            elif isinstance(effect, commands.Deliver):
                self._show(effect)
            elif isinstance(effect, commands.CreditReply) and effect.consumer == self.taker:
                self.taken = effect.delivery_count
            elif isinstance(effect, commands.CreditReply):
                self._reply(effect)

    def _find(self, ref: commands.ConsumerRef) -> Watcher:
        return next(each for each in self.watchers if each.ref == ref)

    def _show(self, effect: commands.Deliver) -> None:
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

    def _reply(self, reply: commands.CreditReply) -> None:
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
TestBrowsing.settings = hypothesis_settings(max_examples=tried(40), stateful_step_count=30, deadline=None)


SETTINGS = [
    QueueSettings(delivery_limit=3),
    QueueSettings(delivery_limit=None),
    QueueSettings(message_ttl_ms=5_000, consumer_timeout_ms=60_000),
]


class Life:
    """A world, and clients that use its queue."""

    def __init__(self, seed: int) -> None:
        self.world = Harness(seed, settings=SETTINGS[seed % 3], file_bytes=1500)
        self.dice = self.world.dice
        self.consumer = self.world.client.consumer()
        self.settled: set[int] = set()
        leader = self.world.opened()
        leader.work(commands.Subscribe(self.consumer, False))
        self.world.settle_down(self.world.even)

    def step(self) -> None:
        world, dice = self.world, self.dice
        deed = dice.random()
        node = dice.choice(list(world.nodes.values()))
        if deed < 0.45:
            world.deliver(loss=0.02)
        elif deed < 0.60:
            node.journal.sync()
        elif deed < 0.75:
            node.work()
        elif deed < 0.90:
            self.ask()
        elif deed < 0.93:
            node.journal.clean(node.store, lambda: dice.random() < 0.5 and node.work())
        elif deed < 0.96:
            world.pass_time(dice.choice([5, 50, 400]))
        elif deed < 0.97 and not world.down and not world.cut:
            world.crash(node.number)
        elif deed < 0.98 and not world.down and not world.cut:
            world.part(node.number)
        elif deed < 0.99:
            for number in list(world.cut):
                world.heal(number)
        elif world.down:
            world.start(next(iter(world.down)))

    def ask(self) -> None:
        world, dice = self.world, self.dice
        leading = [node for node in world.nodes.values() if node.leads]
        if not leading:
            return
        leader = dice.choice(leading)
        held = leader.backend.queue.parts()[1].by_ref.get(self.consumer)
        match dice.choice("pppppsc"):
            case "p":
                delay_ms = dice.choice([0, 0, 0, 20, 300, 5_000])
                world.publish(leader, dice.choice([1, 2, 5]), dice.choice([10, 100]), delay_ms)
            case "c":
                seen = len(world.keys)
                leader.work(commands.Credit(self.consumer, seen, 10, False, seen))
            case "s" if held is not None and held.unsettled:
                keys = dice.sample(list(held.unsettled), 1)
                delivery_outcome = dice.choice(
                    [
                        commands.DeliveryOutcome.ACCEPT,
                        commands.DeliveryOutcome.REQUEUE,
                        commands.DeliveryOutcome.REQUEUE_FAILED,
                    ]
                )
                # A message that fails too often is dropped, too.
                self.settled.update(number_of(body) for _, body in leader.store.bodies.fetch(keys))
                leader.work(commands.Settle(self.consumer, keys, delivery_outcome))

    def finish(self) -> None:
        """All faults end: each open request is decided, and members are the same."""
        world = self.world
        for number in list(world.cut):
            world.heal(number)
        for number in list(world.down):
            world.start(number)
        for _ in range(20):
            leader = world.opened()
            world.publish(leader)
            world.settle_down(world.even)
            if world.published - 1 in world.confirmed:
                break  # what an old leader took may have been lost
        assert world.published - 1 in world.confirmed
        contents = [world.bodies(node) for node in world.nodes.values()]
        assert contents == contents[:1] * 3
        self.check(contents[0])

    def check(self, contents: dict[int, bytes]) -> None:
        if self.world.settings.message_ttl_ms is not None:
            return
        there = set(map(number_of, contents.values()))
        assert self.world.confirmed <= there | self.settled
        assert len(there) == len(contents), "a message is there twice"


def number_of(body: bytes) -> int:
    return int(body.rstrip(b"."))


@pytest.mark.parametrize("seed", range(12))
def test_members_are_the_same_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_store, "STAGED_BYTES", 200)
    monkeypatch.setattr(quorum_store, "SNAPSHOT_AFTER_BYTES", 3000)
    life = Life(seed)
    for _ in range(3):
        for _ in range(400):
            life.step()
        life.finish()
