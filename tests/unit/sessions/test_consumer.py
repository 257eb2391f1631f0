"""A consumer of AMQP 0-9-1 and its queue: what it asks for, when letters cross."""

from __future__ import annotations

from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import Command, CreditReply, Deliver, Publish, Subscribe
from amqp10broker.queues.queue_status import QueueCounters, QueueStats
from amqp10broker.sessions.amqp091.consuming import ChannelConsumer, ConsumerTerms
from amqp10broker.sessions.counters import Moment
from amqp10broker.sessions.credit import QueueCredit
from tests.support.askers import new_asker

REPLY_TO = new_asker("1.1")


class Wire:
    """A consumer, a classic queue, and the letters between them, which move when the test says so."""

    def __init__(self, *, prefetch: int, messages: int) -> None:
        self.queue = ClassicQueue("q", durable=True)
        self.letters: list[Command] = []
        ref = REPLY_TO.consumer()
        declared = DeclaredQueue("q", "/", "classic", True, None, False, {}, self)
        terms = ConsumerTerms(no_ack=False, tag="c", prefetch=prefetch)
        self.consumer = ChannelConsumer(terms, QueueCredit(declared, ref, self._put), Moment())
        self.queue.apply(Subscribe(ref, False), 0)
        numbers = range(messages)
        contents = [(b"\x91" + bytes(9), b"%d" % number) for number in numbers]
        self.queue.apply(Publish(new_asker("2.1").publisher(), numbers, contents, True), 0)
        self.queue.take_effects()

    def _put(self, command: QueueCommand) -> None:
        command[0].post(command[1])

    def post(self, command: Command) -> None:
        self.letters.append(command)

    @property
    def counters(self) -> QueueCounters:
        return QueueCounters()

    def figures(self) -> QueueStats:
        return QueueStats()

    def exchange(self) -> None:
        """The queue works off its letters, and the consumer what comes back."""
        letters, self.letters = self.letters, []
        for letter in letters:
            self.queue.apply(letter, 0)
        for effect in self.queue.take_effects().get(REPLY_TO.id, []):
            if isinstance(effect, Deliver):
                self.consumer.on_deliver(effect)
            elif isinstance(effect, CreditReply):
                self.consumer.on_reply(effect)


def test_a_request_that_crossed_a_give_back_does_not_raise_the_next() -> None:
    """The queue's count in its late answer is of before: taken for a drain's, it would be asked for again."""
    wire = Wire(prefetch=2, messages=10)
    wire.consumer.request()
    wire.consumer.give_back()
    wire.exchange()
    assert (wire.consumer.unsent, wire.queue.ready) == (0, 10)
    wire.consumer.request()
    wire.exchange()
    assert [body for _, body in wire.consumer.messages] == [b"0", b"1"]
    assert wire.queue.ready == 8
