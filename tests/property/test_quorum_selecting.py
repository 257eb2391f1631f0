"""Consumers that select from a quorum queue, against a list; and members of the queue against each other.

What one member leads another follows: it gets the same entries as bytes, and both have the same state after
every step, also when they change places, or when one begins with the other's snapshot. What the leader has
found by looking is carried out now or later, and other entries stand before it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import pytest

from amqp10broker.message.message import Message
from amqp10broker.queues import commands
from amqp10broker.queues.quorum import selecting
from amqp10broker.queues.quorum.commands import QuorumCommand, Selected, decode_commands, encode_commands
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import QueueSettings
from tests.support.reply_addresses import new_reply_to
from tests.support.selecting import coloured, selector

WANTED = {"r": "colour = 'r'", "rg": "colour IN ('r', 'g')", "b": "colour = 'b'"}
SCAN = 3


T = TypeVar("T")


@dataclass
class Entry:
    """A message. Its `moved` grows with each place that it has had, and with each that it has left."""

    colour: str
    high: bool
    expiry: int | None
    ready: bool = True
    returned: bool = False
    moved: int = 0


@dataclass
class Taker:
    """A consumer, which sees at once what it is given."""

    ref: commands.ConsumerRef
    colours: str
    selects: bool
    priority: int
    credit: int = 0
    count: int = 0
    seen: int = 0
    epoch: int = 0
    drain: bool = False
    asked: bool = False
    held: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """Of a drain: what it wanted of what was there, by number, and how often that had moved then."""


class Life:
    """Commands as the dice fall; the index of a message is its number, for every publish is taken."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now = 1_000
        self.happened: Counter[str] = Counter()
        self.had: list[tuple[commands.ConsumerRef, int]] = []
        self.given: dict[int, commands.ConsumerRef] = {}
        settings = QueueSettings(delivery_limit=dice.choice([None, 20]))
        self.leader, self.other = (QuorumQueue("q", settings=settings, now_ms=self.now) for _ in range(2))
        self.other.follow()
        self.asker = new_reply_to("consumer")
        self.publisher = self.asker.publisher()
        self.entries: list[Entry] = []
        self.takers: dict[commands.ConsumerRef, Taker] = {}
        self.found: Selected | None = None
        self.credit_then: dict[commands.ConsumerRef, int] = {}

    def publish(self) -> None:
        pick = self.dice.choice
        count = self.dice.randint(1, 8)
        messages = [(pick("rgb"), pick([0, 9]), pick([None, None, 5])) for _ in range(count)]
        first = len(self.entries)
        batch = []
        for number, (colour, priority, ttl) in enumerate(messages, first):
            self.entries.append(Entry(colour, priority > 4, None if ttl is None else self.now + ttl))
            batch.append(coloured(number, colour, priority=priority, ttl=ttl))
        self.do(commands.Publish(self.publisher, range(first, first + len(batch)), batch, True))

    def subscribe(self) -> None:
        if len(self.takers) < 4:
            wants, priority, settled = (
                self._pick(["r", "rg", "b", "rgb"]),
                self._pick([0, 1]),
                self._pick([False, True]),
            )
            ref = self.asker.consumer()
            filters = selector(WANTED[wants]) if wants in WANTED else None
            self.takers[ref] = Taker(ref, wants, filters is not None, priority)
            self.do(commands.Subscribe(ref, settled, priority=priority, filters=filters))

    def grant(self) -> None:
        taker = self._one()
        if taker is not None and not taker.asked:
            credit, drain = self.dice.randint(0, 6), self._pick([False, False, True])
            taker.credit, taker.drain, taker.asked = credit, drain, True
            taker.ends = {
                number: entry.moved
                for number, entry in enumerate(self.entries)
                if entry.ready and entry.colour in taker.colours
            }
            self.do(commands.Credit(taker.ref, taker.count, credit, drain, taker.seen))

    def settle(self) -> None:
        taker = self._one()
        if taker is not None and taker.held:
            delivery_outcome = self._pick(list(commands.DeliveryOutcome))
            keys = self.dice.sample(taker.held, self.dice.randint(1, len(taker.held)))
            for key in keys:
                taker.held.remove(key)
            taker.unsent = [each for each in taker.unsent if each not in keys]
            self._decide(taker, keys, delivery_outcome)
            self.do(commands.Settle(taker.ref, keys, delivery_outcome))

    def give_back(self) -> None:
        taker = self._one()
        count = self.dice.randint(1, 4)
        if taker is not None and taker.unsent and not taker.asked:
            back = taker.unsent[-count:]
            del taker.unsent[-count:]
            self._let_live(taker, back)
            taker.held = [each for each in taker.held if each not in back]
            for key in back:
                self.entries[key].ready = True
                self.entries[key].moved += 1
            self.happened["given back"] += len(back)
            taker.epoch += 1
            taker.credit = 0
            batch = [self._message(key) for key in back]
            self.do(commands.GiveBack(taker.ref, back, batch, taker.count, taker.seen, taker.epoch))

    def leave(self) -> None:
        taker = self._one()
        if taker is None:
            return
        delivery_outcome = self._pick(list(commands.DeliveryOutcome))
        del self.takers[taker.ref]
        self._let_live(taker, taker.unsent)
        for key in taker.unsent:
            self.entries[key].ready = True
            self.entries[key].moved += 1
        self._decide(taker, [each for each in taker.held if each not in taker.unsent], delivery_outcome)
        batch = [self._message(key) for key in taker.unsent]
        self.do(commands.Unsubscribe(taker.ref, taker.unsent, batch, taker.seen, delivery_outcome))

    def purge(self) -> None:
        for entry in self.entries:
            entry.ready = False
        self.do(commands.Purge(self.asker.request()))

    def wait(self) -> None:
        self.now += self._pick([1, 10])
        self.do(commands.TICK)

    # --- the leader -------------------------------------------------------------------------------

    def look(self) -> None:
        """Found deliveries are on their way through the log."""
        if self.found is None:
            self.found = self.leader.look(SCAN)
            self.credit_then = {ref: taker.credit for ref, taker in self.takers.items()}

    def land(self) -> None:
        if self.found is not None:
            found, self.found = self.found, None
            self.do(found)

    def come_to_rest(self) -> None:
        self.land()
        for _ in range(1_000):
            self.look()
            if self.found is None:
                break
            self.land()
        else:
            raise AssertionError("it never comes to an end")
        for taker in self.takers.values():
            assert not taker.asked, "each request is answered"
            if taker.credit:
                assert not self._for(taker), "it was not given what is there"

    def lead_elsewhere(self) -> None:
        """Deliveries that the leader has found are lost with it."""
        self.found = None
        self.leader.follow()
        self.leader, self.other = self.other, self.leader
        self.leader.lead()

    def begin_with_a_snapshot(self) -> None:
        self.other = decode_snapshot("q", encode_snapshot(self.leader), self.other.parts()[0].bodies)
        self.other.follow()

    # --- what comes of it -------------------------------------------------------------------------

    def do(self, command: QuorumCommand) -> None:
        first = self.leader.messages.next_index
        payload = b"".join(encode_commands([command], self.now, first).pieces)
        before = {ref: taker.credit for ref, taker in self.takers.items()}
        if type(command) is Selected:
            before = self.credit_then
        self.leader.apply(command, self.now)
        for each in decode_commands(payload).commands:
            self.other.apply(each, self.now)
        assert not self.other.take_effects()
        effects = self.leader.take_effects().get(self.asker.id, [])
        delivered = [each for each in effects if isinstance(each, commands.Deliver)]
        # What comes of one entry is told consumer by consumer, and is decided on together.
        self.given = {key: each.consumer for each in delivered for key in each.keys}
        for each in delivered:
            self._deliver(each)
        for effect in effects:
            if isinstance(effect, commands.CreditReply):
                self._reply(effect)
        for ref, key in self.had:
            # Who drains takes what is there.
            if self.takers[ref].selects or type(command) is not commands.Credit or not command.drain:
                self._check_turn(ref, key, before)
        self.had.clear()

    def _message(self, key: int) -> Message:
        entry = self.entries[key]
        return coloured(key, entry.colour, priority=9 * entry.high)

    def _let_live(self, taker: Taker, keys: list[int]) -> None:
        """A message the queue released as settled comes back without a time to live."""
        consumer = self.leader.parts()[1].by_ref[taker.ref]
        for key in keys:
            if consumer.settled and key not in consumer.unsettled:
                self.entries[key].expiry = None

    def _one(self) -> Taker | None:
        return self._pick(list(self.takers.values())) if self.takers else None

    def _pick(self, choices: Sequence[T]) -> T:
        return self.dice.choice(choices)

    def _alive(self, entry: Entry) -> bool:
        return entry.ready and (entry.expiry is None or entry.expiry > self.now)

    def _for(self, taker: Taker) -> list[int]:
        return [
            number
            for number, entry in enumerate(self.entries)
            if self._alive(entry) and entry.colour in taker.colours
        ]

    def _decide(self, taker: Taker, keys: list[int], delivery_outcome: commands.DeliveryOutcome) -> None:
        for key in keys:
            entry = self.entries[key]
            if (
                delivery_outcome
                in (commands.DeliveryOutcome.REQUEUE, commands.DeliveryOutcome.REQUEUE_FAILED)
                and key in taker.held + keys
            ):
                entry.ready = entry.returned = True
                entry.moved += 1

    def _deliver(self, effect: commands.Deliver) -> None:
        taker = self.takers[effect.consumer]
        assert effect.epoch == taker.epoch
        settled = self.leader.parts()[1].by_ref[effect.consumer].settled
        self.happened["selected" if taker.selects else "taken"] += len(effect.keys)
        for key, (_, content) in zip(effect.keys, effect.messages, strict=True):
            entry = self.entries[key]
            assert content.endswith(b"#%d" % key)
            assert entry.colour in taker.colours
            assert self._alive(entry)
            if taker.selects:
                earlier = [
                    each
                    for each in self._for(taker)
                    if each < key
                    and self._level(each) == self._level(key)
                    and not self.entries[each].moved
                    and self.given.get(each, taker.ref) == taker.ref
                ]
                assert entry.moved or not earlier, "out of order"
            entry.ready = False
            entry.moved += 1
            self.had.append((effect.consumer, key))
            taker.unsent.append(key)
            if not settled:
                taker.held.append(key)
        taker.seen += len(effect.keys)
        taker.count += len(effect.keys)
        taker.credit -= len(effect.keys)
        assert taker.credit >= 0

    def _level(self, number: int) -> bool:
        return self.entries[number].high

    def _check_turn(
        self, ref: commands.ConsumerRef, key: int, before: dict[commands.ConsumerRef, int]
    ) -> None:
        """No selecting consumer of higher rank that wants it has had credit since the leader looked."""
        taker = self.takers[ref]
        for other in self.takers.values():
            first = other.priority >= taker.priority + taker.selects
            if other is not taker and other.selects and first and self.entries[key].colour in other.colours:
                assert not (before.get(other.ref) and other.credit), "another has more right to it"

    def _reply(self, reply: commands.CreditReply) -> None:
        taker = self.takers[reply.consumer]
        taker.asked = False
        if taker.drain:
            self.happened["drained"] += taker.selects
            if taker.credit:
                assert not [
                    number
                    for number, moved in taker.ends.items()
                    if self._alive(self.entries[number]) and self.entries[number].moved == moved
                ], "it was not given what was there when the drain came"
            taker.count += taker.credit
            taker.credit = 0
        assert (reply.delivery_count, reply.credit) == (taker.count, taker.credit)

    def both_are_the_same(self) -> None:
        assert encode_snapshot(self.leader) == encode_snapshot(self.other)

    def live(self, steps: int) -> None:
        what = {
            self.publish: 6,
            self.subscribe: 3,
            self.grant: 12,
            self.settle: 8,
            self.give_back: 6,
            self.leave: 1,
            self.wait: 1,
            self.purge: 0.2,
            self.look: 8,
            self.land: 8,
            self.come_to_rest: 4,
            self.lead_elsewhere: 1,
            self.begin_with_a_snapshot: 1,
        }
        for number in range(steps):
            (step,) = self.dice.choices(list(what), list(what.values()))
            step()
            if not number % 8:
                self.both_are_the_same()
        self.both_are_the_same()
        self.come_to_rest()


@pytest.mark.parametrize("again_max", [2, selecting.AGAIN_MAX])
def test_whatever_happens(again_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More deliveries may come back than are remembered by place."""
    monkeypatch.setattr(selecting, "AGAIN_MAX", again_max)
    lives = 1_000 if os.environ.get("AMQP10BROKER_LONG") else 20
    happened: Counter[str] = Counter()
    for seed in range(lives):
        life = Life(Random(seed))
        life.live(200)
        happened += life.happened
    assert min(happened[each] for each in ("selected", "taken", "drained", "given back")) > lives
