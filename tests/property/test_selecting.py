"""Consumers that select or browse a classic queue, against a list: who gets what, and what stays.

The model is a list of messages, each with its colour and where it is. Which of several consumers gets a
message is the queue's choice; that the one who gets it wanted it, that nothing is left that somebody with
credit wants, and that order, time, limits and counts are those of the list is checked after every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.message.message import Message
from amqp10broker.queues import commands
from amqp10broker.queues.classic import backlog
from amqp10broker.queues.classic import durability as classic_store
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.settings import QueueSettings
from tests.support.examples import tried
from tests.support.memory_journal import MemoryJournal, MemoryScratch
from tests.support.reply_addresses import new_reply_to
from tests.support.selecting import coloured, selector

COLOURS = "rgb"
WANTED = {"r": "colour = 'r'", "rg": "colour IN ('r', 'g')", "b": "colour = 'b'", "rgb": "colour IS NOT NULL"}
SCAN_MAX = 3


@contextmanager
def short_parts() -> Iterator[None]:
    with (
        patch.object(backlog, "HEAD_MESSAGES_MAX", 6),
        patch.object(backlog, "HEADS_IN_MEMORY", 1),
        patch.object(backlog, "PAGE_MESSAGES_MAX", 5),
        patch.object(classic_store, "PAGE_MESSAGES_MAX", 5),
        patch.object(classic_store, "RECORD_MESSAGES_MAX", 7),
    ):
        yield


@dataclass
class Entry:
    number: int
    colour: str
    level: int
    expiry: int | None
    durable: bool
    size: int = 0
    holder: commands.ConsumerRef | None = None
    ready: bool = True
    had: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return -self.level, self.number


@dataclass
class Taker:
    ref: commands.ConsumerRef
    colours: str
    browses: bool
    settled: bool
    credit: int = 0
    count: int = 0
    seen: int = 0
    epoch: int = 0
    keys: dict[int, int] = field(default_factory=dict)
    shown: set[int] = field(default_factory=set)
    drain: bool = False
    asked: int = 0
    cancelled: bool = False


class Selecting(RuleBasedStateMachine):
    """Random commands; the queue's task goes on in between, or does not yet."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = short_parts()
        self.parts.__enter__()
        self.now = 1_000
        self.restarted = False
        self.entries: list[Entry] = []
        self.takers: list[Taker] = []
        self.publisher = new_reply_to("publisher")
        self.asker = new_reply_to("consumer")

    def teardown(self) -> None:
        self.parts.__exit__(None, None, None)

    @initialize(
        priorities=st.booleans(), limit=st.sampled_from([None, None, 12, 25]), in_journal=st.booleans()
    )
    def begin(self, priorities: bool, limit: int | None, in_journal: bool) -> None:
        self.store: ClassicStore | None = None
        self.log = MemoryJournal(records_max=8)
        if in_journal:
            self.store = ClassicStore(7, self.log, Spool(MemoryScratch))
        self.limit = limit
        self.top = 2 if priorities else 0
        self.settings = QueueSettings(
            max_priority=self.top or None, max_length=limit, dead_letter_exchange="dead"
        )
        self.queue = self._empty()

    def _empty(self) -> ClassicQueue:
        return ClassicQueue(
            "q", durable=True, settings=self.settings, store=self.store, now_ms=self.now, scan_max=SCAN_MAX
        )

    # --- what clients do --------------------------------------------------------------------------

    @rule(
        messages=st.lists(
            st.tuples(st.sampled_from(COLOURS), st.integers(0, 2), st.sampled_from([None, None, 5, 50])),
            min_size=1,
            max_size=9,
        ),
        durable=st.booleans(),
        at_once=st.booleans(),
    )
    def publish(self, messages: list[tuple[str, int, int | None]], durable: bool, at_once: bool) -> None:
        batch: list[Message] = []
        ids: list[int] = []
        for colour, priority, ttl in messages:
            number = len(self.entries)
            expiry = None if ttl is None else self.now + ttl
            self.entries.append(Entry(number, colour, min(priority, self.top), expiry, durable))
            batch.append(coloured(number, colour, priority=priority, ttl=ttl, durable=durable))
            self.entries[-1].size = len(batch[-1][1])
            ids.append(number)
        self.do(commands.Publish(self.publisher.publisher(), ids, batch, True), at_once)
        # What comes back may go beyond it, until something is published.
        if self.limit is not None:
            assert self.queue.ready <= self.limit

    @precondition(lambda self: len(self.takers) < 5)
    @rule(
        wants=st.sampled_from(["r", "rg", "b", "rgb", "all"]),
        browses=st.booleans(),
        settled=st.booleans(),
        priority=st.integers(0, 1),
    )
    def subscribe(self, wants: str, browses: bool, settled: bool, priority: int) -> None:
        # What went out settled may come again after a restart, or may not.
        settled = settled and self.store is None
        taker = Taker(self.asker.consumer(), COLOURS if wants == "all" else wants, browses, settled)
        self.takers.append(taker)
        filters = None if wants == "all" else selector(WANTED[wants])
        self.do(
            commands.Subscribe(
                taker.ref, settled, priority=priority, filters=filters, browse=browses, counted=not browses
            )
        )

    @precondition(lambda self: self.takers)
    @rule(data=st.data(), credit=st.integers(0, 7), drain=st.booleans(), at_once=st.booleans())
    def grant(self, data: st.DataObject, credit: int, drain: bool, at_once: bool) -> None:
        self._grant(data.draw(st.sampled_from(self.takers)), credit, drain=drain, at_once=at_once)

    def _grant(self, taker: Taker, credit: int, *, drain: bool, at_once: bool = True) -> None:
        if taker.cancelled or taker.asked:
            return
        taker.credit, taker.drain = credit, drain
        taker.asked += 1
        self.do(commands.Credit(taker.ref, taker.count, credit, drain, taker.seen), at_once)

    @precondition(lambda self: self.takers)
    @rule(data=st.data(), delivery_outcome=st.sampled_from(commands.DeliveryOutcome))
    def settle(self, data: st.DataObject, delivery_outcome: commands.DeliveryOutcome) -> None:
        taker = data.draw(st.sampled_from(self.takers))
        if not taker.keys or taker.settled:
            return
        keys = data.draw(st.lists(st.sampled_from(sorted(taker.keys)), unique=True, min_size=1))
        for key in keys:
            entry = self.entries[taker.keys.pop(key)]
            if not taker.browses:
                self._put(
                    entry,
                    back=delivery_outcome
                    in (commands.DeliveryOutcome.REQUEUE, commands.DeliveryOutcome.REQUEUE_FAILED),
                )
        self.do(commands.Settle(taker.ref, keys, delivery_outcome))

    @precondition(lambda self: self.takers)
    @rule(data=st.data(), count=st.integers(1, 5), again=st.booleans())
    def give_back(self, data: st.DataObject, count: int, again: bool) -> None:
        """The last deliveries were not sent, and the client takes its credit back. `again`: its next grant
        is enough for all messages there are.
        """
        taker = data.draw(st.sampled_from(self.takers))
        if taker.cancelled or not taker.keys:
            return
        keys = list(taker.keys)[-count:]
        messages = []
        for key in keys:
            entry = self.entries[taker.keys.pop(key)]
            taker.shown.discard(entry.number)
            messages.append(coloured(entry.number, entry.colour))
            if not taker.browses:
                self._put(entry, back=True)
        taker.epoch += 1
        taker.credit = 0
        self.do(commands.GiveBack(taker.ref, keys, messages, taker.count, taker.seen, taker.epoch))
        if again:
            self._grant(taker, len(self.entries) + 1, drain=False)

    @precondition(lambda self: self.takers)
    @rule(
        data=st.data(),
        delivery_outcome=st.sampled_from([commands.DeliveryOutcome.ACCEPT, commands.DeliveryOutcome.REQUEUE]),
        cancel=st.booleans(),
    )
    def leave(self, data: st.DataObject, delivery_outcome: commands.DeliveryOutcome, cancel: bool) -> None:
        taker = data.draw(st.sampled_from(self.takers))
        if cancel and not taker.cancelled:
            taker.cancelled, taker.credit = True, 0
            self.do(commands.Cancel(taker.ref))
            return
        self.takers.remove(taker)
        if not taker.browses:
            for number in taker.keys.values():
                self._put(
                    self.entries[number],
                    back=delivery_outcome is commands.DeliveryOutcome.REQUEUE and not taker.settled,
                )
        self.do(commands.Unsubscribe(taker.ref, (), (), taker.seen, delivery_outcome))

    @rule()
    def purge(self) -> None:
        for entry in self.entries:
            entry.ready = False
        self.do(commands.Purge(self.asker.request()))

    @precondition(lambda self: getattr(self, "store", None) is not None)
    @rule()
    def clean(self) -> None:
        """Remove the oldest file of the journal; its live records are written again."""
        self.store.flush()
        self.log.clean_oldest(self.store.relocate)

    @precondition(lambda self: getattr(self, "store", None) is not None)
    @rule()
    def restart(self) -> None:
        """Persistent messages that are not settled return to their places."""
        self.store.flush()
        self.log = self.log.again()
        self.store = ClassicStore(7, self.log, Spool(MemoryScratch))
        self.store.restore(self.log.records)
        self.queue = self._empty()
        self.queue.recover(self.store.backlogs())
        self.restarted = True
        for entry in self.entries:
            entry.ready = entry.durable and (entry.ready or entry.holder is not None)
            entry.holder = None
        self.takers.clear()
        self.do(commands.TICK)

    @rule(time=st.sampled_from([1, 7, 60]))
    def wait(self, time: int) -> None:
        self.now += time
        self.do(commands.TICK)

    # --- what comes of it -------------------------------------------------------------------------

    def do(self, command: object, at_once: bool = True) -> None:
        self.queue.apply(command, self.now)
        self._note()
        turns = 0
        if self.queue.unsafe:
            self.queue.safe_up_to(10**9)
        while at_once and (due := self.queue.deadline()) is not None and due <= self.now:
            self.queue.apply(commands.TICK, self.now)
            self._note()
            turns += 1
            assert turns < 10_000, "it never comes to an end"
        if at_once:
            self._nothing_is_left()

    def _put(self, entry: Entry, *, back: bool) -> None:
        entry.holder = None
        entry.ready = back

    def _note(self) -> None:
        if self.store is not None:
            self.store.flush()
        for effects in self.queue.take_effects().values():
            for effect in effects:
                if isinstance(effect, commands.Deliver):
                    self._deliver(effect)
                elif isinstance(effect, commands.CreditReply):
                    self._reply(effect)
        for letters in self.queue.take_dead_letters():
            numbers = [int(content.rpartition(b"#")[2]) for _, content in letters.messages]
            for number in numbers:
                entry = self.entries[number]
                if letters.reason == "expired":
                    assert entry.ready
                    assert entry.expiry <= self.now
                elif letters.reason == "maxlen":
                    lowest = min(each.level for each in self.entries if each.ready)
                    assert entry is next(
                        each for each in self.entries if each.ready and each.level == lowest
                    ), "a limit drops the head of the lowest level"
                if letters.reason != "rejected":
                    entry.ready = False

    def _find(self, ref: commands.ConsumerRef) -> Taker | None:
        return next((each for each in self.takers if each.ref == ref), None)

    def _deliver(self, effect: commands.Deliver) -> None:
        taker = self._find(effect.consumer)
        assert taker is not None, "to a consumer that has gone"
        assert effect.epoch == taker.epoch
        numbers = [int(content.rpartition(b"#")[2]) for _, content in effect.messages]
        places = [self.entries[number].place for number in numbers]
        assert places == sorted(places), "in the order of the queue"
        for key, number in zip(effect.keys, numbers, strict=True):
            entry = self.entries[number]
            assert entry.colour in taker.colours, "it did not select that"
            assert entry.ready, "it was there"
            assert entry.expiry is None or entry.expiry >= self.now, "it had not expired"
            if taker.browses:
                assert number not in taker.shown, "it was shown that before"
                taker.shown.add(number)
            else:
                entry.ready, entry.holder, entry.had = False, taker.ref, True
            taker.keys[key] = number
        taker.seen += len(numbers)
        taker.count += len(numbers)
        taker.credit -= len(numbers)
        assert taker.credit >= 0, "more than it had credit for"

    def _reply(self, reply: commands.CreditReply) -> None:
        taker = self._find(reply.consumer)
        if taker is None:
            return
        taker.asked -= 1
        if reply.epoch != taker.epoch:
            return
        if taker.drain:
            assert reply.credit == 0
            taker.count += taker.credit
            taker.credit = 0
        assert (reply.delivery_count, reply.credit) == (taker.count, taker.credit)

    def _wants(self, taker: Taker, entry: Entry) -> bool:
        alive = entry.expiry is None or entry.expiry >= self.now
        return entry.ready and alive and entry.colour in taker.colours

    def _nothing_is_left(self) -> None:
        for taker in self.takers:
            assert not taker.asked or taker.cancelled, "each request is answered"
            if not taker.credit:
                continue
            for entry in self.entries:
                if not self._wants(taker, entry):
                    continue
                if taker.browses:
                    assert entry.had or entry.number in taker.shown, "it was not shown what is there"
                else:
                    raise AssertionError(f"{taker} does not get {entry}")
            part = self.queue.queue_status().parts[taker.ref]
            if part.looking is not None:
                assert part.looking.rests

    @invariant()
    def counts_are_those_of_the_list(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert self.queue.ready == sum(entry.ready for entry in self.entries)
        held = sum(len(each.keys) for each in self.takers if not (each.browses or each.settled))
        assert self.queue.unsettled == held
        weight = self.queue.weight()
        keys = [
            key for each in self.takers if not (each.browses or each.settled) for key in each.keys.values()
        ]
        assert weight.unsettled == sum(self.entries[number].size for number in keys)
        ready = [entry.size for entry in self.entries if entry.ready]
        # After a restart what is not read yet counts as it is in the journal.
        self.restarted = self.restarted and bool(ready)
        assert weight.ready == sum(ready) or self.restarted
        assert weight.ready_in_memory == len(ready) or self.store is not None
        assert self.queue.consumers == sum(not (each.browses or each.cancelled) for each in self.takers)


TestSelecting = Selecting.TestCase
TestSelecting.settings = hypothesis_settings(max_examples=tried(60), stateful_step_count=40, deadline=None)
