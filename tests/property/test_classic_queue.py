"""The classic queue against a simple model: every message is in one place, whatever is asked of it.

The model plays the sessions: what a queue gave them is seen late, sent to the client or not, settled,
given back, or met by a session that has gone. It reads the queue's ready messages to compare places.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.message.amqp10 import header_of, make_head
from amqp10broker.message.message import Message
from amqp10broker.message.traits import X_OPT_DELIVERY_DELAY, X_OPT_DELIVERY_TIME
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.protocols.serial import MASK, add, diff
from amqp10broker.queues import commands
from amqp10broker.queues.classic import durability as classic_store
from amqp10broker.queues.classic import ready
from amqp10broker.queues.classic.consumers import ClassicConsumer
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.settings import QueueSettings
from tests.support.examples import tried
from tests.support.memory_journal import MemoryJournal, MemoryScratch
from tests.support.queue_bench import consumers_of, fresh_of, returned_of
from tests.support.reply_addresses import new_reply_to
from tests.support.stored_queue import shorten_pages

HEAD = make_head(None, None, "", "q")
WRAPS = (0, 1, 2**31 - 3, 2**31, MASK - 2, MASK)
FAILS = (commands.DeliveryOutcome.REQUEUE_FAILED,)
ENDS = (
    commands.DeliveryOutcome.ACCEPT,
    commands.DeliveryOutcome.DISCARD,
    commands.DeliveryOutcome.DISCARD_FAILED,
)


class Held:
    """One consumer, as its session knows it."""

    def __init__(
        self, ref: commands.ConsumerRef, session: Party, *, settled: bool, delivery_count: int
    ) -> None:
        self.ref = ref
        self.session = session
        self.settled = settled
        self.delivery_count = delivery_count
        self.credit = 0
        self.seen = 0
        self.epoch = 0
        self.coming: list[tuple[int, Message]] = []
        self.unsent: list[tuple[int, Message]] = []
        self.sent: list[int] = []
        self.gone = False


class Party:
    def __init__(self, number: int) -> None:
        self.reply_to = new_reply_to(str(number))
        self.publisher = self.reply_to.publisher()
        self.alive = True


class ClassicQueueMachine(RuleBasedStateMachine):
    """Random commands, taken up one by one or several at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ClassicQueue("q", durable=True)
        self.parties = [Party(number) for number in range(3)]
        self.consumers: list[Held] = []
        self.published = 0
        self.finished: set[int] = set()
        self.acquired: set[int] = set()
        self.failures: dict[int, int] = {}
        self.replies_due: dict[commands.ConsumerRef, list[tuple[int, int, bool]]] = {}
        self.confirms_due: dict[commands.PublisherRef, list[tuple[tuple[int, ...], bool]]] = {}
        self.deleted = False
        self.holding = 0

    # --- what sessions do -------------------------------------------------------------------------

    @initialize(parties=st.integers(1, 3))
    def attach(self, parties: int) -> None:
        self.parties = self.parties[:parties]
        for party in self.parties:
            self.queue.apply(commands.AttachPublisher(party.publisher), 0)

    @rule(count=st.integers(0, 3))
    def hold(self, count: int) -> None:
        """The next few commands are taken up in one batch, as when they wait in the mailbox."""
        self.holding = max(self.holding, count + 1)
        self._after()

    @rule(data=st.data(), count=st.integers(1, 40), settled=st.booleans())
    def publish(self, data: st.DataObject, count: int, settled: bool) -> None:
        party = data.draw(st.sampled_from(self.parties))
        if not party.alive:
            return
        keys = tuple(range(self.published, self.published + count))
        self.published += count
        if self.deleted:
            self.finished.update(keys)
        self.confirms_due.setdefault(party.publisher, []).append((keys, settled))
        self.queue.apply(
            commands.Publish(party.publisher, keys, [(HEAD, b"%d" % key) for key in keys], settled), 0
        )
        self._after()

    @rule(data=st.data(), settled=st.booleans(), start=st.sampled_from(WRAPS))
    def subscribe(self, data: st.DataObject, settled: bool, start: int) -> None:
        party = data.draw(st.sampled_from(self.parties))
        if not party.alive or self.deleted or len(self.consumers) > 12:
            return
        consumer = Held(party.reply_to.consumer(), party, settled=settled, delivery_count=start)
        self.queue.apply(commands.Subscribe(consumer.ref, settled), 0)
        self.inside(consumer).delivery_count = start
        self.consumers.append(consumer)
        self._after()

    @precondition(lambda self: self.living)
    @rule(data=st.data(), link_credit=st.integers(0, 60), drain=st.booleans(), stale=st.booleans())
    def grant(self, data: st.DataObject, link_credit: int, drain: bool, stale: bool) -> None:
        """A session grants from its own count, which lacks the deliveries on their way."""
        consumer = data.draw(st.sampled_from(self.living))
        behind = (len(consumer.coming) if stale else 0) if not self.holding else 0
        base = add(consumer.delivery_count, -behind)
        self.queue.apply(commands.Credit(consumer.ref, base, link_credit, drain, consumer.seen), 0)
        self.replies_due.setdefault(consumer.ref, []).append((base, link_credit, drain))
        self._after()

    @precondition(lambda self: self.living)
    @rule(data=st.data(), delivery_outcome=st.sampled_from(commands.DeliveryOutcome), foreign=st.booleans())
    def settle(self, data: st.DataObject, delivery_outcome: commands.DeliveryOutcome, foreign: bool) -> None:
        """Settle any deliveries that reached the client, in any order, and some that did not exist."""
        consumer = data.draw(st.sampled_from(self.living))
        if consumer.settled:
            return
        keys = data.draw(st.lists(st.sampled_from(consumer.sent), unique=True)) if consumer.sent else []
        for key in keys:
            consumer.sent.remove(key)
            self._decide(key, delivery_outcome)
        strangers = [self.published + 5, -1] if foreign else []
        self.queue.apply(commands.Settle(consumer.ref, [*keys, *strangers], delivery_outcome), 0)
        self._after()

    @precondition(lambda self: self.living)
    @rule(data=st.data(), keep=st.integers(0, 40))
    def take_mail(self, data: st.DataObject, keep: int) -> None:
        """A session takes deliveries out of its mailbox; some are sent to the client at once."""
        consumer = data.draw(st.sampled_from(self.living))
        consumer.seen += len(consumer.coming)
        consumer.unsent += consumer.coming
        consumer.coming = []
        self._send(consumer, len(consumer.unsent) - keep)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), keep=st.integers(0, 10))
    def give_back(self, data: st.DataObject, keep: int) -> None:
        """The client has lowered its credit, so unsent deliveries go back."""
        consumer = data.draw(st.sampled_from(self.living))
        back, consumer.unsent = consumer.unsent[keep:], consumer.unsent[:keep]
        # What is on its way is taken back by the queue, and not accepted by the session any more.
        consumer.delivery_count = add(consumer.delivery_count, -len(consumer.coming) - len(back))
        consumer.coming.clear()
        consumer.epoch += 1
        self.queue.apply(
            commands.GiveBack(
                consumer.ref,
                [key for key, _ in back],
                [each for _, each in back],
                consumer.delivery_count,
                consumer.seen,
                consumer.epoch,
            ),
            0,
        )
        self._after()

    @precondition(lambda self: self.living)
    @rule(data=st.data(), delivery_outcome=st.sampled_from(commands.DeliveryOutcome))
    def unsubscribe(self, data: st.DataObject, delivery_outcome: commands.DeliveryOutcome) -> None:
        self._leave(data.draw(st.sampled_from(self.living)), delivery_outcome)
        self._after()

    @precondition(lambda self: any(party.alive for party in self.parties[1:]))
    @rule(data=st.data())
    def lose_session(self, data: st.DataObject) -> None:
        """A session's task ends: it unsubscribes, and effects on their way to it are lost."""
        party = data.draw(st.sampled_from([party for party in self.parties[1:] if party.alive]))
        party.alive = False
        for consumer in self.living_of(party):
            self._leave(consumer, commands.DeliveryOutcome.REQUEUE)
        self.queue.apply(commands.DetachPublisher(party.publisher), 0)
        self._after()

    @precondition(lambda self: not self.deleted and self.published > 20)
    @rule(really=st.integers(0, 9))
    def delete(self, really: int) -> None:
        if really:
            return
        self.queue.apply(commands.DELETE, 0)
        self.deleted = True
        self._take_up()
        self.finished = set(range(self.published))
        for consumer in self.consumers:
            consumer.gone = True
            consumer.coming.clear()
            consumer.unsent.clear()
            consumer.sent.clear()

    # --- the model --------------------------------------------------------------------------------

    @property
    def living(self) -> list[Held]:
        return [consumer for consumer in self.consumers if not consumer.gone]

    def living_of(self, party: Party) -> list[Held]:
        return [consumer for consumer in self.living if consumer.session is party]

    def _decide(self, key: int, delivery_outcome: commands.DeliveryOutcome) -> None:
        if delivery_outcome in ENDS:
            self.finished.add(key)
            return
        self.acquired.add(key)
        if delivery_outcome in FAILS:
            self.failures[key] = self.failures.get(key, 0) + 1

    def _send(self, consumer: Held, count: int) -> None:
        if count <= 0:
            return
        sent, consumer.unsent = consumer.unsent[:count], consumer.unsent[count:]
        for key, _ in sent:
            if consumer.settled:
                self.finished.add(key)
            else:
                consumer.sent.append(key)

    def _leave(self, consumer: Held, delivery_outcome: commands.DeliveryOutcome) -> None:
        consumer.gone = True
        self.replies_due.pop(consumer.ref, None)
        for key in consumer.sent:
            self._decide(key, delivery_outcome)
        consumer.sent.clear()
        unsent, consumer.unsent = consumer.unsent, []
        self.queue.apply(
            commands.Unsubscribe(
                consumer.ref,
                [key for key, _ in unsent],
                [each for _, each in unsent],
                consumer.seen,
                delivery_outcome,
            ),
            0,
        )
        consumer.coming.clear()

    def _after(self) -> None:
        if self.holding:
            self.holding -= 1
        if not self.holding:
            self._take_up()

    def _take_up(self) -> None:
        """The queue's task passes its effects on; sessions that have gone get none."""
        for reply_to, batch in self.queue.take_effects().items():
            party = next(each for each in self.parties if each.reply_to.id == reply_to)
            if party.alive:
                for effect in batch:
                    self._hear(effect)
        assert not self.queue.take_effects()

    def _hear(self, effect: object) -> None:
        match effect:
            case commands.Deliver():
                consumer = next(each for each in self.consumers if each.ref == effect.consumer)
                assert list(effect.keys) == [int(bare) for _, bare in effect.messages]
                if consumer.gone or effect.epoch != consumer.epoch:
                    return  # the queue has taken them back
                self._count_deliveries(consumer, effect)
                consumer.coming += zip(effect.keys, effect.messages, strict=True)
            case commands.CreditReply():
                self._check_reply(effect)
            case commands.Confirmed():
                assert (tuple(effect.ids), effect.settled) == self.confirms_due[effect.publisher].pop(0)
            case commands.Unconfirmed():
                assert self.deleted
                assert (tuple(effect.ids), effect.settled) == self.confirms_due[effect.publisher].pop(0)
            case commands.QueueDeleted():
                assert self.deleted
            case _:
                raise AssertionError(effect)

    def _count_deliveries(self, consumer: Held, effect: commands.Deliver) -> None:
        for key, (head, _) in zip(effect.keys, effect.messages, strict=True):
            header = header_of(head)
            assert bool(header.first_acquirer) == (key not in self.acquired)
            assert header.delivery_count == self.failures.get(key, 0)
        consumer.delivery_count = add(consumer.delivery_count, len(effect.keys))

    def _check_reply(self, reply: commands.CreditReply) -> None:
        due = self.replies_due.get(reply.consumer)
        consumer = next(each for each in self.consumers if each.ref == reply.consumer)
        if due is None or consumer.gone:
            return
        base, link_credit, drain = due.pop(0)
        assert reply.drain == drain
        if reply.epoch != consumer.epoch:
            return  # overtaken by a give-back: the session asks again
        limit = add(base, link_credit)
        if drain:
            assert reply.credit == 0
            if diff(reply.delivery_count, consumer.delivery_count):
                # Something was forfeited: then nothing was ready, and the count is the limit.
                assert reply.delivery_count == limit
                assert reply.available == 0
            consumer.delivery_count = reply.delivery_count
        else:
            assert reply.delivery_count == consumer.delivery_count
            assert reply.credit == max(0, diff(limit, reply.delivery_count))
        assert diff(reply.delivery_count, limit) <= 0 or reply.credit == 0

    def inside(self, consumer: Held) -> ClassicConsumer:
        return next(each for each in consumers_of(self.queue) if each.ref == consumer.ref)

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if self.holding or self.deleted:
            return
        returned = [key for key, _ in returned_of(self.queue)]
        fresh = [int(bare) for _, bare in fresh_of(self.queue)]
        places = [*returned, *fresh, *self.finished]
        for consumer in self.consumers:
            places += [key for key, _ in consumer.coming]
            places += [key for key, _ in consumer.unsent]
            places += consumer.sent
        assert sorted(places) == list(range(self.published))
        assert self.queue.ready == len(returned) + len(fresh)
        assert fresh == sorted(fresh)
        assert not returned or not fresh or max(returned) < fresh[0]
        held = {key for consumer in self.living if not consumer.settled for key in consumer.sent}
        waiting = {key for each in self.living if not each.settled for key, _ in (*each.coming, *each.unsent)}
        inside = [key for each in consumers_of(self.queue) if not each.settled for key in each.unsettled]
        assert sorted(inside) == sorted(held | waiting)
        assert self.queue.unsettled == len(inside)
        for consumer in self.living:
            # Of a settled consumer's deliveries the queue keeps those that may not have arrived.
            kept = self.inside(consumer).unsettled
            assert {key for key, _ in consumer.coming} <= kept.keys()

    @invariant()
    def nothing_waits_that_could_go(self) -> None:
        if self.holding:
            return
        if self.queue.ready:
            assert all(consumer.credit == 0 for consumer in consumers_of(self.queue))

    @invariant()
    def a_deleted_queue_is_empty(self) -> None:
        if self.deleted:
            assert (
                self.queue.ready == self.queue.unsettled == self.queue.consumers == self.queue.publishers == 0
            )

    def teardown(self) -> None:
        """A new consumer drains all messages in order."""
        if self.deleted:
            return
        self.holding = 0
        self._take_up()
        for consumer in self.living:
            self._leave(consumer, commands.DeliveryOutcome.REQUEUE)
        self._take_up()
        last = Held(self.parties[0].reply_to.consumer(), self.parties[0], settled=False, delivery_count=0)
        self.consumers.append(last)
        self.queue.apply(commands.Subscribe(last.ref, settled=False), 0)
        self.queue.apply(commands.Credit(last.ref, 0, self.published + 1, drain=True, seen=0), 0)
        self.replies_due[last.ref] = [(0, self.published + 1, True)]
        self._take_up()
        keys = [key for key, _ in last.coming]
        assert keys == [key for key in range(self.published) if key not in self.finished]


TestClassicQueue = ClassicQueueMachine.TestCase
TestClassicQueue.settings = settings(max_examples=tried(200), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("seen", [0, 2])
def test_deliver_that_nobody_hears_is_requeued_once(settled: bool, seen: int) -> None:
    """Credit and the session's end come in one batch: deliveries it has not seen are requeued once."""
    queue = ClassicQueue("q", durable=False)
    reply_to = new_reply_to("s")
    ref = reply_to.consumer()
    queue.apply(
        commands.Publish(reply_to.publisher(), range(5), [(HEAD, b"%d" % n) for n in range(5)], True), 0
    )
    queue.apply(commands.Subscribe(ref, settled=settled), 0)
    queue.apply(commands.Credit(ref, 0, seen, drain=False, seen=0), 0)
    queue.take_effects()
    queue.apply(commands.Credit(ref, 0, 3, drain=False, seen=seen), 0)
    queue.apply(commands.Unsubscribe(ref, [], [], seen, commands.DeliveryOutcome.ACCEPT), 0)
    assert queue.ready == 5 - seen
    queue.take_effects()
    assert queue.ready == 5 - seen


GROUP = 7
HERE = new_reply_to("1.1")
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
        self.log = MemoryJournal(records_max=8)
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
        self.consumer: commands.ConsumerRef | None = None
        self.granted = 0
        self.make_queue()

    def make_queue(self) -> None:
        kept = None
        if self.durable:
            kept = self.store = ClassicStore(GROUP, self.log, Spool(MemoryScratch))
            kept.restore(self.log.records)
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
        self.queue.apply(commands.Publish(self.publisher, numbers, messages, False), self.now)
        self.take()

    def become_ready(self, number: int) -> None:
        self.ready[number] = self.arrived
        self.arrived += 1

    @rule(passed=st.integers(1, 60))
    def wait(self, passed: int) -> None:
        """The queue is woken at the time it has set, now and then somewhat late."""
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
            self.queue.apply(commands.TICK, self.now)
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
        self.queue.apply(commands.Subscribe(self.consumer, False), self.now)

    @precondition(lambda self: self.consumer is not None)
    @rule(credit=st.integers(1, 40))
    def grant(self, credit: int) -> None:
        assert self.consumer is not None
        self.queue.apply(commands.Credit(self.consumer, self.granted, credit, True, self.granted), self.now)
        self.granted += credit
        got = self.take()
        expected = sorted(self.ready, key=lambda number: (-self.level[number], self.ready[number]))[:credit]
        assert [number for _, number in got] == expected
        for key, number in got:
            self.held[key] = number, self.ready.pop(number)

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        delivery_outcome=st.sampled_from([commands.DeliveryOutcome.ACCEPT, commands.DeliveryOutcome.REQUEUE]),
    )
    def settle(self, data: st.DataObject, delivery_outcome: commands.DeliveryOutcome) -> None:
        assert self.consumer is not None
        keys = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
        self.queue.apply(commands.Settle(self.consumer, keys, delivery_outcome), self.now)
        self.take()
        for key in keys:
            number, place = self.held.pop(key)
            if delivery_outcome is commands.DeliveryOutcome.REQUEUE:
                self.ready[number] = place

    @rule(really=st.integers(0, 3))
    def purge(self, really: int) -> None:
        if not really:
            self.queue.apply(commands.Purge(HERE.request()), self.now)
            self.take()
            self.ready.clear()
            self.later.clear()

    @precondition(lambda self: self.durable)
    @rule()
    def clean(self) -> None:
        self.store.flush()
        self.log.clean_oldest(self.store.relocate)

    @precondition(lambda self: self.durable)
    @rule(passed=st.integers(0, 60))
    def restart(self, passed: int) -> None:
        self.store.flush()
        self.log = self.log.again()
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
                if isinstance(effect, commands.Deliver):
                    for key, (head, body) in zip(effect.keys, effect.messages, strict=True):
                        assert header_of(head).delivery_count == 0
                        got.append((key, int(body)))
                elif isinstance(effect, commands.Confirmed):
                    confirmed.update(effect.ids)
        assert not confirmed & self.safe, "confirmed before it was safe"
        if self.queue.unsafe:
            self.queue.safe_up_to(10**9)
            assert not self.queue.unsafe
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

    settings = settings(max_examples=tried(100), stateful_step_count=30, deadline=None)

    @pytest.fixture(autouse=True)
    def _short_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shorten_pages(monkeypatch)
        monkeypatch.setattr(classic_store, "_BUCKET", 4)
        monkeypatch.setattr(ready, "SOON_MESSAGES_MAX", 8)
        monkeypatch.setattr(ready, "PAGE_MESSAGES", 3)
