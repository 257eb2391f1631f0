"""A quorum queue's journal: after a restart at any record the queue is as it was, with nobody attached.

Random commands, a few to a record, small files that are cleaned while the queue goes on. After each record
the node may be started again from what is there, and its queue is compared with the one that went on: same
state in bytes, same messages.
"""

from __future__ import annotations

from random import Random

import pytest

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    AttachPublisher,
    Configure,
    ConsumerRef,
    Credit,
    Deliver,
    DeliveryOutcome,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    Purge,
    ReplyTo,
    Settle,
    Subscribe,
    Tick,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.quorum.commands import DlxSettle, NodeGone, QuorumCommand
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings
from tests.support.memory_journal import MemoryJournal
from tests.support.quorum_single import Alone, store_on

NORMAL = make_head(None, None, "", "q")
SETTINGS = [
    QueueSettings(delivery_limit=3),
    QueueSettings(delivery_limit=None),
    QueueSettings(max_length=20, message_ttl_ms=50),
    QueueSettings(
        max_length=30,
        overflow=Overflow.REJECT_PUBLISH,
        dead_letter_exchange="dlx",
        dead_letter_strategy=DeadLetterStrategy.AT_LEAST_ONCE,
    ),
]


class Life:
    """One queue with its store, and sessions that hold deliveries."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now = 1_000
        self.journal = MemoryJournal()
        self.settings = SETTINGS[0]
        self.published = 0
        self.incarnation = 0
        self.start()

    def start(self) -> None:
        """The node starts: its sessions are numbered from the beginning, and named after this start."""
        self.incarnation += 1
        self.reply_to = ReplyTo(PeerId(0, self.incarnation, 1), "s")
        self.publisher = self.reply_to.publisher()
        self.alone = Alone(self.journal, self.settings, self.now, incarnation=self.incarnation)
        self.store, self.queue = self.alone.store, self.alone.queue
        self.held: dict[ConsumerRef, list[tuple[int, Message]]] = {}
        self.settled: set[ConsumerRef] = set()
        self.seen: dict[ConsumerRef, int] = {}
        self.epochs: dict[ConsumerRef, int] = {}

    def record(self) -> None:
        """Apply some commands as one record, and handle the effects as sessions do."""
        self.now += self.dice.choice([0, 1, 20, 20, -15])  # a clock may be set back
        commands = [each for _ in range(self.dice.randint(1, 4)) for each in self.command()]
        self.alone.carry_out(commands or [Tick()], self.now)
        self.queue.take_dead_letters()
        assert self.queue.consumers == len(self.held)
        for effect in self.queue.take_effects().get(self.reply_to.id, []):
            if (
                isinstance(effect, Deliver)
                and effect.consumer in self.held
                # What was told before it was given back is not taken.
                and effect.epoch == self.epochs[effect.consumer]
            ):
                self.held[effect.consumer] += zip(effect.keys, effect.messages, strict=True)
                self.seen[effect.consumer] += len(effect.keys)

    def command(self) -> list[QuorumCommand]:
        dice = self.dice
        consumers = list(self.held)  # by their coming: a seed is the same life in every run
        consumer = dice.choice(consumers) if consumers else None
        match dice.choice("pppppssssccccuabxtdSni"):
            case "p":
                count = dice.choice([1, 2, 10])
                numbers = range(self.published, self.published + count)
                self.published += count
                messages = [(NORMAL, b"%d" % number + b"." * dice.choice([0, 60])) for number in numbers]
                return [Publish(self.publisher, numbers, messages, False)]
            case "S" if len(consumers) < 3:
                ref = self.reply_to.consumer()
                self.held[ref] = []
                self.seen[ref] = self.epochs[ref] = 0
                settled = dice.random() < 0.3
                if settled:
                    self.settled.add(ref)
                return [Subscribe(ref, settled), Credit(ref, 0, 20, False, 0)]
            case "c" if consumer is not None:
                return [
                    Credit(consumer, self.seen[consumer], dice.choice([0, 5, 30]), False, self.seen[consumer])
                ]
            case "s" if consumer is not None and consumer not in self.settled:
                held = self.held[consumer]
                chosen = dice.sample(held, dice.randint(0, len(held)))
                self.held[consumer] = [each for each in held if each not in chosen]
                delivery_outcome = dice.choice(
                    [DeliveryOutcome.ACCEPT, DeliveryOutcome.ACCEPT, *DeliveryOutcome]
                )
                return [Settle(consumer, [key for key, _ in chosen], delivery_outcome)]
            case "b" if consumer is not None:
                back, self.held[consumer] = self.held[consumer], []
                count = self.seen[consumer]
                keys, messages = [key for key, _ in back], [message for _, message in back]
                self.epochs[consumer] += 1
                return [GiveBack(consumer, keys, messages, count, count, self.epochs[consumer])]
            case "u" if consumer is not None:
                back = self.held.pop(consumer) if consumer in self.settled else []
                self.held.pop(consumer, None)
                keys, messages = [key for key, _ in back], [message for _, message in back]
                return [
                    Unsubscribe(
                        consumer, keys, messages, self.seen[consumer], dice.choice(list(DeliveryOutcome))
                    )
                ]
            case "a":
                return [AttachPublisher(self.publisher)]
            case "i":
                return [Inspect(self.reply_to.request()), Tick(), Touch()]
            case "n":
                return [NodeGone(0, self.incarnation - 1)]  # late: those of this start are not meant
            case "x" if dice.random() < 0.1:
                return [Purge(self.reply_to.request())]
            case "d":
                return [DlxSettle([each.key for each in self.queue.take_dlx()])]
            case "t":
                self.settings = dice.choice(SETTINGS)
                return [Configure(self.settings)]
        return []

    def clean(self) -> None:
        if len(self.journal.files) < 3:
            return
        killed_in = self.dice.random() if self.dice.random() < 0.3 else 1.0
        for _ in self.store.relocate(min(self.journal.files)):
            if self.dice.random() < 0.5:
                self.record()
            if self.dice.random() > killed_in:
                return  # what lives in the file is there twice, in part
        if killed_in == 1.0:
            self.journal.drop_oldest()

    def compare_with_a_restart(self) -> None:
        """A node that is started now has the same queue."""
        bodies = self.queue.parts()[0].bodies
        state = encode_snapshot(self.queue)
        expected = decode_snapshot("q", state, bodies)
        journal = self.journal.again()
        store = store_on(journal, incarnation=self.incarnation + 1)
        store.restore(journal.records)
        found = store.recovered(self.settings, self.now)
        indexes = [index for index in expected.live_indexes() if not self.sent_settled(index)]
        # The one it is compared with lives on in the same memory: only what it would say is of interest.
        messages = bodies.fetch(indexes) if indexes else []
        expected.parts()[0].bodies = Nothing()
        expected.apply(NodeGone(0, self.incarnation), self.now)
        assert encode_snapshot(found) == encode_snapshot(expected)
        assert len(store.bodies) == len(found.live_indexes())
        mine = dict(zip(indexes, messages, strict=True))
        for index, message in self.contents(found, store):
            if index in mine:
                assert message == mine[index]
        assert {file: size for file, size in journal.live.items() if size}.keys() <= journal.files.keys()

    def sent_settled(self, index: int) -> bool:
        return any(index in each.unsettled for each in self.queue.parts()[1].by_ref.values() if each.settled)

    @staticmethod
    def contents(queue: QuorumQueue, store: QuorumStore) -> list[tuple[int, Message]]:
        indexes = sorted(queue.live_indexes())
        return list(zip(indexes, store.bodies.fetch(indexes), strict=True)) if indexes else []


class Nothing:
    """Bodies of a queue that is not asked for any."""

    def put(self, first: int, messages: object) -> None: ...
    def put_again(self, index: int, message: Message) -> None: ...
    def drop(self, indexes: object) -> None: ...
    def clear(self) -> None: ...
    def fetch(self, indexes: object) -> list[Message]:
        raise AssertionError("nobody asked for messages")


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_message_is_delevered_after_snapshot")
@pytest.mark.parametrize("seed", range(12))
def test_a_restart_after_any_record_finds_the_same_queue(seed: int) -> None:
    life = Life(seed)
    for step in range(60):
        life.record()
        if life.dice.random() < 0.3:
            life.clean()
        life.compare_with_a_restart()
        if step % 20 == 19:
            life.journal = life.journal.again()
            life.start()
