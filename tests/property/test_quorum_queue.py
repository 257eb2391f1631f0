"""The quorum queue against a simple model: every message is in one place, with the right counts, in order.

The model plays the sessions, which see late what the queue gave them, send it or not, settle it, give it
back or go away. Beside the queue run two replicas that get the same commands as bytes of a log: one from
the beginning, one that is thrown away and made again of a snapshot now and then. All three are always in
the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, islice
from random import Random
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.message.amqp10 import decode_head, header_of, make_head
from amqp10broker.message.dead_letter_heads import X_ACQUIRED_COUNT, X_DELIVERY_COUNT
from amqp10broker.message.message import Message
from amqp10broker.message.traits import X_OPT_DELIVERY_DELAY
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long, UByte, UInt
from amqp10broker.protocols.serial import add, diff
from amqp10broker.queues import commands
from amqp10broker.queues.quorum.commands import (
    DlxSettle,
    NodeGone,
    QuorumCommand,
    SessionGone,
    decode_commands,
    encode_commands,
)
from amqp10broker.queues.quorum.ordered_entries import size_of
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.quorum.ready import ReadyIndexes
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings, RetryType

REQUEUES = (commands.DeliveryOutcome.REQUEUE, commands.DeliveryOutcome.REQUEUE_FAILED)
FAILS = (commands.DeliveryOutcome.REQUEUE_FAILED, commands.DeliveryOutcome.DISCARD_FAILED)
T = TypeVar("T")

RARE = (
    "configure",
    "configure",
    "cancel",
    "unsubscribe",
    "unsubscribe",
    "node_restarts",
    "purge",
    "the_publisher_comes_anew",
    "a_session_is_lost",
    "somebody_who_came_back_is_not_lost",
)
START_MS = 1_000_000
PEERS = ((0, 1), (0, 2), (1, 1))
"""Node and session of those who ask."""


def message_of(number: int, priority: int | None, ttl_ms: int | None, delay_ms: int | None = None) -> Message:
    header = Header(
        priority=None if priority is None else UByte(priority), ttl=None if ttl_ms is None else UInt(ttl_ms)
    )
    annotations = None if delay_ms is None else {X_OPT_DELIVERY_DELAY: Long(delay_ms)}
    return make_head(header, annotations, "", "q"), b"%d" % number


Dice = st.DataObject | Random
"""Hypothesis chooses, or a random walk does."""


def one_of(data: Dice, things: Iterable[T]) -> T:
    return data.choice(list(things)) if isinstance(data, Random) else data.draw(st.sampled_from(list(things)))


def some_of(data: Dice, things: list[T]) -> list[T]:
    if isinstance(data, Random):
        return things if data.random() < 0.5 else data.sample(things, data.randint(0, len(things)))
    return data.draw(st.one_of(st.just(things), st.lists(st.sampled_from(things), unique=True)))


def normal_level(ready: ReadyIndexes) -> list[int]:
    """Return indexes of the normal level and of returns to its tail, the next one first."""
    behind = dict(ready.behind.items())
    numbers = ready.tail.columns()[0]
    returned = [(behind[number], 0, number) for number in numbers]
    index_of = dict(zip(numbers, ready.indexes_of_tail(), strict=True))
    published = [(index, 1, index) for index in ready.normal.columns()[0]]
    return [key if kind else index_of[key] for _, kind, key in sorted(returned + published)]


class Held:
    """One consumer, as its session knows it."""

    def __init__(self, ref: commands.ConsumerRef, *, settled: bool, counted: bool, priority: int) -> None:
        self.ref = ref
        self.settled = settled
        self.counted = counted
        self.priority = priority
        self.delivery_count = 0
        self.seen = 0
        self.epoch = 0
        self.coming: list[tuple[int, int]] = []
        """Key and number of the message."""
        self.unsent: list[tuple[int, int]] = []
        self.sent: dict[int, int] = {}
        self.cancelled = False
        self.gone = False
        self.active: bool | None = None


class QuorumQueueMachine(RuleBasedStateMachine):
    """Random commands, and everything that can be known about what comes of them."""

    timed = False

    def __init__(self) -> None:
        super().__init__()
        self.now = START_MS
        self.settings = QueueSettings(dead_letter_exchange="dlx")
        self.queue = QuorumQueue("q", settings=self.settings, now_ms=self.now)
        self.replica = QuorumQueue("q", settings=self.settings, now_ms=self.now)
        self.replica.follow()
        self.other = QuorumQueue("q", settings=self.settings, now_ms=self.now)
        self.other.follow()
        # Two sessions at one node, one at another.
        self.peers = [
            commands.ReplyTo(commands.PeerId(node, 7 + node, session), "s") for node, session in PEERS
        ]
        self.publisher = self.peers[0].publisher()
        self.consumers: list[Held] = []
        self.published = 0
        self.finished: set[int] = set()
        self.acquired: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.messages: dict[int, Message] = {}
        self.dlx_held: dict[int, int] = {}
        self.order = Order()
        self.replies_due: list[commands.Credit] = []
        self.purged: int | None = None
        self.settled_due: list[list[int]] = []

    # --- the three queues -------------------------------------------------------------------------

    def do(self, command: QuorumCommand) -> None:
        """Give one command to the replicas as bytes, and then to the queue as an object."""
        before = encode_snapshot(self.queue)
        now = max(self.now, self.queue.messages.now_ms)
        encoded = encode_commands([command], now, self.queue.messages.next_index)
        entry = b"".join(encoded.pieces)
        assert entry == b"".join(encode_commands([command], now, self.queue.messages.next_index).pieces)
        for replica in (self.replica, self.other):
            decoded = decode_commands(entry)
            assert decoded.first == replica.messages.next_index
            for each in decoded.commands:
                replica.apply(each, decoded.now_ms)
        assert encode_snapshot(self.queue) == before, "nobody has told the queue yet"
        self.queue.apply(command, now)
        assert self.queue.messages.next_index == encoded.end, "indexes are known before"
        self.hear()

    @rule()
    def restore_the_other_from_a_snapshot(self) -> None:
        data = encode_snapshot(self.queue)
        bodies = self.other.parts()[0].bodies
        self.other = decode_snapshot("q", data, bodies)
        self.other.follow()
        assert encode_snapshot(self.other) == data

    @invariant()
    def all_three_are_in_the_same_state(self) -> None:
        snapshot = encode_snapshot(self.queue)
        assert encode_snapshot(self.replica) == snapshot
        assert encode_snapshot(self.other) == snapshot
        assert self.replica.deadline() == self.queue.deadline()
        for replica in (self.replica, self.other):
            assert not replica.take_effects()
            assert not replica.take_dead_letters()

    # --- what sessions do -------------------------------------------------------------------------

    @rule(data=st.data(), what=st.sampled_from(RARE))
    def something_rare(self, data: Dice, what: str) -> None:
        """One rule covers all endings, or most runs would end everything before it began."""
        getattr(self, what)(data)

    @initialize(single=st.booleans(), limited=st.sampled_from([1, 2, 20, None]), consumers=st.integers(0, 3))
    def configure_at_first(self, single: bool, limited: int | None, consumers: int) -> None:
        self.settings = QueueSettings(
            dead_letter_exchange="dlx", single_active_consumer=single, delivery_limit=limited
        )
        self.do(commands.AttachPublisher(self.publisher))
        self.do(commands.Configure(self.settings))
        for priority in (0, 0, 1)[:consumers]:
            self.subscribe(settled=False, counted=True, priority=priority)

    def configure(self, data: Dice) -> None:
        overflow = one_of(data, [Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH])
        self.settings = QueueSettings(
            dead_letter_exchange="dlx",
            single_active_consumer=self.settings.single_active_consumer,
            delivery_limit=one_of(data, [None, 1, 20]),
            max_length=one_of(data, [None, None, 0, 5, 30]),
            max_length_bytes=one_of(data, [None, None, 40]),
            overflow=overflow,
            dead_letter_strategy=one_of(data, DeadLetterStrategy),
            message_ttl_ms=one_of(data, [None, 100]) if self.timed else None,
            retry_type=one_of(data, RetryType) if self.timed else RetryType.DISABLED,
            retry_min_ms=50,
            retry_max_ms=120,
            consumer_timeout_ms=one_of(data, [None, 300]) if self.timed else None,
        )
        pending_before = set(self.pending())
        self.do(commands.Configure(self.settings))
        deleted = pending_before - set(self.pending())
        self.finished |= deleted
        self.dlx_held = {key: number for key, number in self.dlx_held.items() if number not in deleted}

    @rule(
        count=st.sampled_from([3, 12, 1]),
        priorities=st.sampled_from([(None,), (5,), (None, 9), (None, 5, 4)]),
        ttls=st.sampled_from([(None,), (70,), (200, None), (None, 70, 0)]),
        delays=st.sampled_from([(None,), (None,), (60,), (90, None, None, 40, 200)]),
    )
    def publish(
        self,
        count: int,
        priorities: tuple[int | None, ...],
        ttls: tuple[int | None, ...],
        delays: tuple[int | None, ...],
    ) -> None:
        numbers = range(self.published, self.published + count)
        self.published += count
        timed = (ttls, delays) if self.timed else ((None,), (None,))
        kinds = list(islice(zip(cycle(priorities), *map(cycle, timed)), count))
        pairs = list(zip(numbers, kinds, strict=True))
        messages = [message_of(number, *kind) for number, kind in pairs]
        self.messages.update(zip(numbers, messages, strict=True))
        self.confirmed: list[int] = []
        self.rejected: list[int] = []
        self.order.publish(
            [(number, (kind[0] or 0) > 4) for number, kind in zip(numbers, kinds, strict=True)]
        )
        full = self.queue.parts()[0].full
        self.do(commands.Publish(self.publisher, numbers, messages, False))
        assert [*self.confirmed, *self.rejected] == list(numbers)
        if self.rejected:
            assert self.settings.overflow is Overflow.REJECT_PUBLISH
            assert full or self.settings.max_length is not None or self.settings.max_length_bytes is not None
        if full and self.queue.parts()[0].full:
            assert not self.confirmed

    @precondition(lambda self: len(self.open) < 5)
    @rule(
        settled=st.booleans(), counted=st.sampled_from([True, True, True, False]), priority=st.integers(0, 2)
    )
    def subscribe(self, settled: bool, counted: bool, priority: int) -> None:
        ref = self.peers[len(self.consumers) % len(self.peers)].consumer()
        consumer = Held(ref, settled=settled, counted=counted, priority=priority)
        self.consumers.append(consumer)
        self.do(commands.Subscribe(consumer.ref, settled, counted=counted, priority=priority))
        if counted and self.settings.single_active_consumer:
            assert consumer.active is not None, "a consumer must hear whether it is active"

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        link_credit=st.sampled_from([30, 4, 1, 0]),
        drain=st.sampled_from([False, False, True]),
    )
    def grant(self, data: Dice, link_credit: int, drain: bool) -> None:
        consumer = one_of(data, self.open)
        behind = one_of(data, [0, len(consumer.coming)])
        command = commands.Credit(
            consumer.ref, add(consumer.delivery_count, -behind), link_credit, drain, consumer.seen
        )
        self.replies_due.append(command)
        self.do(command)
        assert not self.replies_due

    @precondition(lambda self: any(each.coming or each.sent for each in self.living))
    @rule(
        data=st.data(),
        delivery_outcome=st.sampled_from([*REQUEUES, *commands.DeliveryOutcome]),
        strangers=st.booleans(),
    )
    def settle(self, data: Dice, delivery_outcome: commands.DeliveryOutcome, strangers: bool) -> None:
        consumer = one_of(data, [each for each in self.living if each.coming or each.sent])
        self.take(consumer, keep=0)
        if consumer.settled:
            return
        keys = some_of(data, sorted(consumer.sent))
        self.decide([consumer.sent.pop(key) for key in keys], delivery_outcome)
        told = [*keys, *([10**9] if strangers else [])]
        self.settled_due.append(told)
        self.do(commands.Settle(consumer.ref, told, delivery_outcome, answer=True))
        assert not self.settled_due

    def lose_memory(self, consumer: Held, back: list[tuple[int, int]]) -> None:
        """A settled delivery that reached the session is forgotten: it comes back as the session has it."""
        if not back:
            return
        held = self.queue.parts()[1].by_ref[consumer.ref].unsettled
        for key, number in back:
            if key not in held:
                assert consumer.settled
                self.acquired.pop(number, None)
                self.failures.pop(number, None)
                self.order.forget(number, high=(header_of(self.messages[number][0]).priority or 0) > 4)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), keep=st.integers(0, 20))
    def take_mail(self, data: Dice, keep: int) -> None:
        """A session takes deliveries out of its mailbox; some are sent to the client at once."""
        self.take(one_of(data, self.living), keep)

    def take(self, consumer: Held, keep: int) -> None:
        consumer.seen += len(consumer.coming)
        consumer.unsent += consumer.coming
        consumer.coming = []
        count = max(0, len(consumer.unsent) - keep)
        sent, consumer.unsent = consumer.unsent[:count], consumer.unsent[count:]
        for key, number in sent:
            if consumer.settled:
                self.finished.add(number)
            else:
                consumer.sent[key] = number

    @precondition(lambda self: self.open)
    @rule(data=st.data(), keep=st.integers(0, 10))
    def give_back(self, data: Dice, keep: int) -> None:
        self.put_back(one_of(data, self.open), keep)

    def cancel(self, data: Dice) -> None:
        if not self.open:
            return
        consumer = one_of(data, self.open)
        self.put_back(consumer, 0)
        consumer.cancelled = True
        self.do(commands.Cancel(consumer.ref))

    def put_back(self, consumer: Held, keep: int) -> None:
        back, consumer.unsent = consumer.unsent[keep:], consumer.unsent[:keep]
        self.lose_memory(consumer, back)
        self.order.put_back([number for _, number in (*consumer.coming, *back)])
        consumer.delivery_count = add(consumer.delivery_count, -len(consumer.coming) - len(back))
        consumer.coming.clear()
        consumer.epoch += 1
        self.do(
            commands.GiveBack(
                consumer.ref,
                [key for key, _ in back],
                [self.messages[number] for _, number in back],
                consumer.delivery_count,
                consumer.seen,
                consumer.epoch,
            )
        )

    def unsubscribe(self, data: Dice) -> None:
        if not self.living:
            return
        consumer = one_of(data, self.living)
        delivery_outcome = one_of(data, commands.DeliveryOutcome)
        consumer.gone = True
        unsent, consumer.unsent = consumer.unsent, []
        self.lose_memory(consumer, unsent)
        self.order.put_back([number for _, number in (*consumer.coming, *unsent)])
        consumer.coming.clear()
        self.decide(list(consumer.sent.values()), delivery_outcome)
        consumer.sent.clear()
        self.do(
            commands.Unsubscribe(
                consumer.ref,
                [key for key, _ in unsent],
                [self.messages[number] for _, number in unsent],
                consumer.seen,
                delivery_outcome,
            )
        )

    def node_restarts(self, data: Dice) -> None:
        """Restart one of the clients' nodes; clients of the other one stay."""
        node, incarnation, _ = one_of(data, self.peers).id
        gone = [each.id for each in self.peers if each.id.node == node]
        last = incarnation + one_of(data, [0, 3])
        self.lose(gone, NodeGone(node, last), incarnation=last + 1)

    def a_session_is_lost(self, data: Dice) -> None:
        peer = one_of(data, self.peers).id
        self.lose([peer], SessionGone(peer))

    def somebody_who_came_back_is_not_lost(self, data: Dice) -> None:
        """A late loss is of an older start of a node, or of a session that does not exist."""
        peer = one_of(data, self.peers).id
        self.lose([], NodeGone(peer.node, peer.incarnation - 1))
        self.lose([], SessionGone(peer._replace(session=10**9)))

    def lose(
        self, gone: list[commands.PeerId], command: QuorumCommand, *, incarnation: int | None = None
    ) -> None:
        """Some peers are gone; with an incarnation they return under it."""
        held: list[tuple[int, int]] = []
        for consumer in self.living:
            if consumer.ref.reply_to not in gone:
                continue
            consumer.gone = True
            inside = [*consumer.coming, *consumer.unsent, *consumer.sent.items()]
            if consumer.settled:
                self.finished.update(number for _, number in inside)
            else:
                held += inside
            consumer.coming.clear()
            consumer.unsent.clear()
            consumer.sent.clear()
        self.decide([number for _, number in sorted(held)], commands.DeliveryOutcome.REQUEUE_FAILED)
        self.do(command)
        assert self.queue.consumers == sum(1 for each in self.open if each.counted)
        assert self.queue.publishers == (self.publisher.reply_to not in gone)
        if incarnation is not None:
            for at, each in enumerate(self.peers):
                if each.id in gone:
                    self.peers[at] = commands.ReplyTo(each.id._replace(incarnation=incarnation), "s")
            if self.publisher.reply_to in gone:
                self.publisher = self.peers[0].publisher()
        self.do(commands.AttachPublisher(self.publisher))

    def purge(self, data: Dice) -> None:
        gone = {*self.waiting(), *self.pending()}
        self.finished |= gone
        self.order.clear()
        self.dlx_held.clear()
        self.do(commands.Purge(self.peers[0].request()))
        assert self.purged == len(gone)

    @rule()
    def the_internal_consumer_takes(self) -> None:
        for dead in self.queue.take_dlx():
            number = int(dead.message[1])
            assert dead.key not in self.dlx_held
            self.dlx_held[dead.key] = number
            self.check_counts(number, dead.message)
        assert len(self.dlx_held) <= 32
        assert len(self.dlx_held) == min(32, self.queue.dlx)

    @precondition(lambda self: self.dlx_held)
    @rule(data=st.data())
    def the_internal_consumer_settles(self, data: Dice) -> None:
        keys = some_of(data, sorted(self.dlx_held))
        self.finished.update(self.dlx_held.pop(key) for key in keys)
        self.do(DlxSettle([*keys, 10**9]))

    @rule(late=st.sampled_from([1, 49, 60, 130, 301]))
    def time_passes(self, late: int) -> None:
        if not self.timed:
            return
        self.now += late
        self.do(commands.Tick())
        deadline = self.queue.deadline()
        assert deadline is None or deadline > self.now, "what is due was done"

    def the_publisher_comes_anew(self, data: Dice) -> None:
        self.do(commands.DetachPublisher(self.publisher))
        self.do(commands.AttachPublisher(self.publisher))
        assert self.queue.publishers == 1

    # --- the model --------------------------------------------------------------------------------

    @property
    def living(self) -> list[Held]:
        return [consumer for consumer in self.consumers if not consumer.gone]

    @property
    def open(self) -> list[Held]:
        return [consumer for consumer in self.living if not consumer.cancelled]

    def waiting(self) -> list[int]:
        ready, bodies = self.queue.parts()[0].ready, self.queue.parts()[0].bodies
        indexes = [*ready.indexes_of_returns(), *ready.lines[1].columns()[0], *normal_level(ready)]
        indexes += [entry[2] for entry in ready.delayed_returns]
        indexes += ready.later.indexes()
        return [int(body) for _, body in bodies.fetch(indexes)] if indexes else []

    def pending(self) -> list[int]:
        messages = self.queue.parts()[0]
        entries = list(messages.pending.entries)
        return [int(body) for _, body in messages.bodies.fetch(entries)] if entries else []

    def decide(self, numbers: list[int], delivery_outcome: commands.DeliveryOutcome) -> None:
        if delivery_outcome is commands.DeliveryOutcome.ACCEPT:
            self.finished.update(numbers)
            return
        for number in numbers:
            self.acquired[number] = self.acquired.get(number, 0) + 1
            self.failures[number] = self.failures.get(number, 0) + (delivery_outcome in FAILS)
        if delivery_outcome in REQUEUES:
            limit = self.settings.delivery_limit
            back = [number for number in numbers if limit is None or self.acquired[number] <= limit]
            self.order.give_returns(back, to_tail=limit is None)

    def hear(self) -> None:
        delivered: set[int] = set()
        told = self.queue.take_effects()
        assert told.keys() <= {each.id for each in self.peers}
        effects = [effect for batch in told.values() for effect in batch]
        for effect in effects:
            match effect:
                case commands.Deliver():
                    delivered |= self.hear_deliver(effect)
                case commands.CreditReply():
                    self.hear_reply(effect)
                case commands.Confirmed():
                    self.confirmed += effect.ids
                case commands.PublishRejected():
                    self.rejected += effect.ids
                    self.finished.update(effect.ids)
                    self.order.remove(set(effect.ids))
                case commands.TimedOut():
                    self.hear_timeout(effect)
                case commands.ActiveChanged():
                    consumer = self.find(effect.consumer)
                    assert consumer.active is not effect.active
                    consumer.active = effect.active
                case commands.Settled():
                    assert effect.keys == self.settled_due.pop(0)
                case commands.Answer():
                    self.purged = effect.ready
                case _:
                    raise AssertionError(effect)
        self.order.take(delivered, self.hear_dead_letters())
        self.order.remove(set(self.pending()))
        if not self.timed:
            self.order.check(self.queue, self.waiting())

    def find(self, ref: commands.ConsumerRef) -> Held:
        return next(each for each in self.consumers if each.ref == ref)

    def hear_deliver(self, effect: commands.Deliver) -> set[int]:
        consumer = self.find(effect.consumer)
        assert not consumer.gone
        assert not consumer.cancelled
        if self.settings.single_active_consumer:
            assert consumer.counted
        assert effect.epoch == consumer.epoch
        numbers = [int(body) for _, body in effect.messages]
        for number, message in zip(numbers, effect.messages, strict=True):
            self.check_counts(number, message)
        consumer.coming += zip(effect.keys, numbers, strict=True)
        consumer.delivery_count = add(consumer.delivery_count, len(numbers))
        return set(numbers)

    def check_counts(self, number: int, message: Message) -> None:
        header, annotations = decode_head(message[0])
        acquired, failures = self.acquired.get(number, 0), self.failures.get(number, 0)
        assert header.first_acquirer is (acquired == 0)
        assert header.delivery_count == failures
        assert annotations.get(X_ACQUIRED_COUNT) == (acquired or None)
        assert annotations.get(X_DELIVERY_COUNT) == (failures if acquired else None)

    def hear_reply(self, reply: commands.CreditReply) -> None:
        due = self.replies_due.pop(0)
        consumer = self.find(reply.consumer)
        assert due.consumer == reply.consumer
        assert reply.drain == due.drain
        limit = add(due.delivery_count, due.credit)
        if due.drain:
            assert reply.credit == 0
            consumer.delivery_count = reply.delivery_count
            assert diff(reply.delivery_count, limit) >= 0
        else:
            assert reply.delivery_count == consumer.delivery_count
            assert reply.credit == max(0, diff(limit, reply.delivery_count))

    def hear_timeout(self, effect: commands.TimedOut) -> None:
        consumer = self.find(effect.consumer)
        keys = set(effect.keys)
        taken: list[int] = []
        for key in effect.keys:
            found = consumer.sent.pop(key, None)
            if found is None:
                found = next(number for each, number in (*consumer.coming, *consumer.unsent) if each == key)
            taken.append(found)
        # What was on its way is taken out of the session's hands as well.
        assert not consumer.settled
        consumer.seen += len(consumer.coming)
        consumer.unsent += consumer.coming
        consumer.coming = []
        consumer.unsent = [pair for pair in consumer.unsent if pair[0] not in keys]
        self.decide(taken, commands.DeliveryOutcome.REQUEUE)

    def hear_dead_letters(self) -> set[int]:
        dead: set[int] = set()
        for letters in self.queue.take_dead_letters():
            assert letters.exchange == "dlx"
            for message in letters.messages:
                number = int(message[1])
                dead.add(number)
                if letters.reason is commands.DeadLetterReason.MAXLEN:
                    assert self.settings.overflow is Overflow.DROP_HEAD
                if letters.reason is commands.DeadLetterReason.EXPIRED:
                    assert self.timed
                if letters.reason is commands.DeadLetterReason.DELIVERY_LIMIT:
                    assert self.acquired[number] > self.settings.delivery_limit
                self.check_counts(number, message)
        assert not dead & self.finished
        self.finished |= dead
        return dead

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        places = [*self.waiting(), *self.pending(), *self.finished]
        for consumer in self.consumers:
            places += [number for _, number in (*consumer.coming, *consumer.unsent)]
            places += consumer.sent.values()
        assert sorted(places) == list(range(self.published))

    @invariant()
    def counts_are_right(self) -> None:
        messages, service, _ = self.queue.parts()
        assert self.queue.ready + self.queue.delayed == len(self.waiting())
        held = [number for each in self.living if not each.settled for number in each.sent.values()]
        held += [
            number for each in self.living if not each.settled for _, number in (*each.coming, *each.unsent)
        ]
        assert self.queue.unsettled == len(held)
        assert self.queue.consumers == sum(1 for each in self.open if each.counted)
        sizes = {number: len(message[1]) for number, message in self.messages.items()}
        assert messages.counted()[1] == sum(sizes[each] for each in (*self.waiting(), *self.pending()))
        weight = self.queue.weight()
        assert weight.unsettled == sum(sizes[each] for each in held)
        if not self.queue.delayed:
            assert weight.ready == sum(sizes[each] for each in self.waiting())
        assert sorted(messages.counts) == sorted(
            index for index in messages.counts if self.acquired.get(int(messages.bodies.fetch([index])[0][1]))
        )
        for consumer in service.by_ref.values():
            for index, value in consumer.unsettled.items():
                assert size_of(value) == len(messages.bodies.fetch([index])[0][1])

    @invariant()
    def no_message_is_kept_for_nothing(self) -> None:
        messages, service, _ = self.queue.parts()
        held = sum(len(each.unsettled) for each in service.by_ref.values())
        known = {index for each in service.by_ref.values() for index in each.unsettled}
        assert {*messages.ready.places, *messages.ready.expiries} <= known
        assert len(messages.bodies) == self.queue.ready + self.queue.delayed + self.queue.dlx + held

    @invariant()
    def limits_hold(self) -> None:
        full = self.queue.parts()[0].full
        if full:
            count, size = self.queue.parts()[0].counted()
            assert (
                count * 5 > (self.settings.max_length or 0) * 4
                or size * 5 > (self.settings.max_length_bytes or 0) * 4
            )

    @invariant()
    def nothing_waits_that_could_go(self) -> None:
        if self.queue.ready:
            assert not self.queue.parts()[1].turns

    @invariant()
    def one_is_active(self) -> None:
        if not self.settings.single_active_consumer:
            return
        able = [each for each in self.open if each.counted]
        active = [each for each in able if each.active]
        assert len(active) <= 1
        if active:
            assert active[0].priority == max(each.priority for each in able) or self.timed
        elif able and not self.timed:
            # The one that is quiescing holds something.
            holder = self.queue.parts()[1].activity.holder
            assert holder.unsettled


class Order:
    """In which order messages are to be served: three lists of numbers, each the next one first."""

    def __init__(self) -> None:
        self.returns: list[int] = []
        self.high: list[int] = []
        self.normal: list[int] = []
        self.from_returns: dict[int, int] = {}
        """Of messages that were taken out of `returns`: the number of their return."""
        self.return_number: dict[int, int] = {}
        self.is_high: set[int] = set()
        self.place: dict[int, int] = {}
        """Of each message: its place in the line of its level; it grows with each entry."""
        self.published_at: dict[int, int] = {}
        """The place that it had first, to which it goes when the queue had let it go."""
        self.made = 0

    def publish(self, messages: list[tuple[int, bool]]) -> None:
        for number, high in messages:
            self.made += 1
            self.place[number] = self.published_at[number] = self.made
            if high:
                self.is_high.add(number)
            (self.high if high else self.normal).append(number)

    def give_returns(self, numbers: list[int], *, to_tail: bool) -> None:
        for number in numbers:
            self.made += 1
            if to_tail:
                self.is_high.discard(number)
                self.from_returns.pop(number, None)
                self.place[number] = self.made
                self.normal.append(number)
            else:
                self.return_number[number] = self.made
                self.returns.append(number)

    def put_back(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self.from_returns:
                self.return_number[number] = self.from_returns.pop(number)
                self.returns.append(number)
                self.returns.sort(key=self.return_number.__getitem__)
            else:
                line = self.high if number in self.is_high else self.normal
                line.append(number)
                line.sort(key=self.place.__getitem__)

    def forget(self, number: int, *, high: bool) -> None:
        self.from_returns.pop(number, None)
        self.place[number] = self.published_at[number]
        (self.is_high.add if high else self.is_high.discard)(number)

    def take(self, delivered: set[int], dead: set[int]) -> None:
        """Messages left: each line loses from its front, and returns go before all others."""
        self.remove(dead)
        if delivered & {*self.high, *self.normal}:
            assert set(self.returns) <= delivered, "others were served before returns"
        for line in (self.returns, self.high, self.normal):
            gone = [number for number in line if number in delivered]
            assert line[: len(gone)] == gone, "a message was served before its turn"
        for number in self.returns:
            if number in delivered:
                self.from_returns[number] = self.return_number[number]
        self.remove(delivered)

    def remove(self, numbers: set[int]) -> None:
        for name in ("returns", "high", "normal"):
            setattr(self, name, [number for number in getattr(self, name) if number not in numbers])

    def clear(self) -> None:
        self.remove({*self.returns, *self.high, *self.normal})

    def check(self, queue: QuorumQueue, waiting: list[int]) -> None:
        assert [*self.returns, *self.high, *self.normal] == waiting


class NoOrder(Order):
    def take(self, delivered: set[int], dead: set[int]) -> None:
        return


class TimedQuorumQueueMachine(QuorumQueueMachine):
    """With times to live, delayed retries and time-outs; the order is not compared."""

    timed = True

    def __init__(self) -> None:
        super().__init__()
        self.order = NoOrder()


TestQuorumQueue = QuorumQueueMachine.TestCase
TestQuorumQueue.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestTimedQuorumQueue = TimedQuorumQueueMachine.TestCase
TestTimedQuorumQueue.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


INVARIANTS = (
    QuorumQueueMachine.all_three_are_in_the_same_state,
    QuorumQueueMachine.every_message_is_in_one_place,
    QuorumQueueMachine.counts_are_right,
    QuorumQueueMachine.no_message_is_kept_for_nothing,
    QuorumQueueMachine.limits_hold,
    QuorumQueueMachine.nothing_waits_that_could_go,
    QuorumQueueMachine.one_is_active,
)


def walk(machine: QuorumQueueMachine, seed: int, steps: int) -> None:
    """A long run in which every rule gets its share, which Hypothesis does not see to.

    Args:
        machine: fresh.
        seed: of all choices.
        steps: rules to carry out.
    """
    dice = Random(seed)
    choose = dice.choice
    machine.configure_at_first(choose([True, False, False]), choose([1, 2, 20, None]), choose([1, 2, 3]))
    for _ in range(steps):
        kind = choose("pppgggggsssssssttbiddwwS" + ("" if dice.random() < 0.5 else "rR"))
        match kind:
            case "p":
                machine.publish(
                    choose([1, 3, 12, 40]),
                    choose([(None,), (5,), (None, 9), (None, 5, 4)]),
                    choose([(None,), (70,), (200, None), (None, 70, 0)]),
                    choose([(None,), (None,), (60,), (90, None, None, 40, 200)]),
                )
            case "g" if machine.open:
                machine.grant(dice, choose([0, 1, 4, 30]), choose([True, False, False]))
            case "s" if any(each.coming or each.sent for each in machine.living):
                machine.settle(dice, choose([*REQUEUES, *commands.DeliveryOutcome]), choose([True, False]))
            case "t" if machine.living:
                machine.take_mail(dice, choose([0, 0, 3, 20]))
            case "b" if machine.open:
                machine.give_back(dice, choose([0, 0, 2, 10]))
            case "i":
                machine.the_internal_consumer_takes()
            case "d" if machine.dlx_held:
                machine.the_internal_consumer_settles(dice)
            case "w":
                machine.time_passes(choose([1, 49, 60, 130, 301]))
            case "S" if len(machine.open) < 5:
                machine.subscribe(choose([False, False, True]), dice.random() < 0.8, choose([0, 0, 1, 2]))
            case "r":
                machine.something_rare(dice, choose(RARE))
            case "R":
                machine.restore_the_other_from_a_snapshot()
        for check in INVARIANTS:
            check(machine)


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_one_channel_quorum_queue")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "requeue_multiple_false", "requeue_multiple_true")
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "return", "returns")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "requeue_test",
    "return_auto_checked_out_test",
    "return_checked_out_test",
    "return_multiple_test",
    "return_non_existent_test",
    "return_test",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_pq_SUITE",
    "property",
    note="random commands against a model, and two replicas that are fed the log, one of them from snapshots",
)
@pytest.mark.rabbitmq(
    "rabbit_fifo_prop_SUITE",
    "max_length",
    "messages_total",
    "simple_prefetch",
    "simple_prefetch_without_checkout_cancel",
    "single_active",
    "single_active_ordering",
    "snapshots",
    "snapshots_dlx",
    "test_run_log",
    note="random commands against a model, and two replicas that are fed the log, one of them from snapshots",
)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [QuorumQueueMachine, TimedQuorumQueueMachine])
def test_long_walks(kind: type[QuorumQueueMachine], seed: int) -> None:
    walk(kind(), seed, 150)
