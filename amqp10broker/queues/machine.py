"""The base class of all queues' states, their effects, and the rotation of their consumers.

Only commands change a machine, each with its time. It returns effects. The passing of time is a command too
(`Tick`). So a log can drive a machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate, islice
from typing import Any, Final, Protocol, TypeVar, assert_never

from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    ANSWERED_WHEN_GONE,
    DELETE,
    NO_BOUND,
    Answer,
    AttachPublisher,
    ConsumerRef,
    CreditReply,
    DeadLetters,
    Delete,
    Deliver,
    DetachPublisher,
    Effect,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    QueueDeleted,
    Refusal,
    RequestRef,
    Unconfirmed,
)
from amqp10broker.queues.queue_status import QueueCounters, QueueStats, QueueStatus, QueueWeight

TURN_MAX: Final = 32
"""The most messages that a consumer gets before the next one. Long turns make batches, and deliveries in
batches take less time.
"""

_TURNS_PER_GRANT: Final = 8
"""A consumer's turn is an eighth of its grant: a small grant gets messages one by one in rotation with the
others, a grant of hundreds gets batches.
"""

_SHARED_OUT_MAX: Final = 8
"""Up to so few consumers share every batch. With more, a batch goes to so many, or to as many as make each
part a turn: a message takes twice as long in a hundred parts of a batch, and five times in a thousand.
"""

SCAN_MAX: Final = 1_000
"""The messages of one queue that selecting and browsing consumers look at before other tasks run: some ms."""


class Taker(Protocol):
    credit: int
    room: int
    turn: int


T = TypeVar("T")
C = TypeVar("C", bound=Taker)


class RoundRobin(OrderedDict[T, None]):
    """Consumers in the order of rotation."""

    def turn_by(self, takers: Sequence[T], count: int) -> None:
        """Rotate after these first consumers got `count` messages each."""
        for taker in takers[: count % len(takers) or len(takers)]:
            self.move_to_end(taker)


def turn_within(credit: int) -> int:
    return min(TURN_MAX, credit // _TURNS_PER_GRANT) or 1


def next_takers(ring: RoundRobin[C], ready: int) -> tuple[list[C], int, int]:
    """Return the consumers that get messages next, the messages for all of them, and a bound of bytes.

    Each consumer gets one message in as many rounds as all of them have credit for. After so many bytes of
    contents one of them may have no room. `ready`: the number of messages, at least 1.
    """
    size = len(ring)
    if size > _SHARED_OUT_MAX:
        size = max(_SHARED_OUT_MAX, -(-ready // next(iter(ring)).turn))
    takers = list(islice(ring, min(size, ready)))
    rounds = ready // len(takers)
    if rounds == 1:
        return takers, len(takers), NO_BOUND
    rounds = min(rounds, min([each.credit for each in takers]))
    return takers, rounds * len(takers), min([each.room for each in takers])


def turn_of(consumer: Taker, ring: Sized, ready: int, waiting: int) -> int:
    """Return how many messages the first consumer of a ring gets now, where some consumers select."""
    if len(ring) == 1:
        return min(consumer.credit, ready)
    count = min(consumer.credit, consumer.turn, ready)
    if len(ring) <= _SHARED_OUT_MAX:
        count = min(count, -(-ready // waiting))
    return count


def that_fill(sizes: Iterable[int], room: int) -> int:
    """Return how many of these sizes, from the first on, use up the room. Their sum must exceed it."""
    for count, used in enumerate(accumulate(sizes), 1):
        if used >= room:
            return count
    raise AssertionError("there is room for all of them")


class QueueConsumer(Protocol):
    ref: ConsumerRef
    epoch: int
    room: int
    credit: int
    delivery_count: int

    @property
    def shown(self) -> Sequence[int]:
        """The consumer's progress for `Deliver.shown`."""


class Outbox:
    """Effects to be sent. Deliveries to one consumer are collected until another effect is sent to it."""

    __slots__ = ("_again", "_delivering", "_effects")

    def __init__(self) -> None:
        self._effects: dict[PeerId, list[Effect]] = {}
        self._delivering: dict[QueueConsumer, tuple[list[int], list[Message]]] = {}
        # Those of these consumers that get messages which were handed out before.
        self._again: dict[QueueConsumer, None] = {}

    def tell(self, reply_to: PeerId, effect: Effect) -> None:
        effects = self._effects.get(reply_to)
        if effects is None:
            self._effects[reply_to] = [effect]
        else:
            effects.append(effect)

    def deliver(
        self,
        consumer: QueueConsumer,
        keys: Sequence[int],
        messages: Sequence[Message],
        *,
        again: bool = False,
    ) -> None:
        delivering = self._delivering.get(consumer)
        if delivering is None:
            delivering = self._delivering[consumer] = ([], [])
        delivering[0].extend(keys)
        delivering[1].extend(messages)
        if again:
            self._again[consumer] = None

    def reply(self, consumer: QueueConsumer, available: int, *, drain: bool) -> CreditReply:
        """Answer a `Credit`, behind the deliveries that it caused."""
        if consumer in self._delivering:
            self.flush(consumer)
        reply = CreditReply(
            consumer.ref, consumer.delivery_count, consumer.credit, available, drain, consumer.epoch
        )
        self.tell(consumer.ref.reply_to, reply)
        return reply

    def end(self, consumers: Iterable[QueueConsumer], queue: str) -> None:
        for consumer in consumers:
            self.flush(consumer)
            self.tell(consumer.ref.reply_to, QueueDeleted(consumer.ref, queue))

    def flush(self, consumer: QueueConsumer) -> None:
        """Stop collecting for a consumer, so that later effects follow its deliveries."""
        delivering = self._delivering.pop(consumer, None)
        if delivering is not None:
            again = consumer in self._again
            spent = consumer.room <= 0
            deliver = Deliver(consumer.ref, *delivering, consumer.epoch, spent, again, consumer.shown)
            self.tell(consumer.ref.reply_to, deliver)
            if again:
                del self._again[consumer]

    def withdraw(self, consumer: QueueConsumer) -> None:
        """Discard the collected deliveries to a consumer, which the queue has taken back."""
        self._delivering.pop(consumer, None)
        self._again.pop(consumer, None)

    def take(self) -> dict[PeerId, list[Effect]]:
        if self._delivering:
            for consumer in list(self._delivering):
                self.flush(consumer)
        effects, self._effects = self._effects, {}
        return effects


class QueueMachine(ABC):
    """The state of one queue. Only `apply` changes it, and what a kind of queue adds for its store. `failed`:
    it was ended because of a fault.
    """

    def __init__(self, name: str, counters: QueueCounters | None = None) -> None:
        """Create a queue without publishers. `counters`: continued from an earlier state."""
        self.name = name
        self.deleted = False
        self.failed = False
        self._publishers: dict[PublisherRef, None] = {}
        self._outbox = Outbox()
        self._tell = self._outbox.tell
        self.counters = counters or QueueCounters()
        self._dead_letters: list[DeadLetters] = []

    @property
    @abstractmethod
    def ready(self) -> int:
        """The messages that wait for a consumer; in a stream, those that can be read."""

    @property
    def not_handed_out(self) -> int:
        return self.ready

    @property
    @abstractmethod
    def unsettled(self) -> int: ...

    @property
    @abstractmethod
    def consumers(self) -> int: ...

    @property
    def publishers(self) -> int:
        """The number of links with this queue as their fixed target."""
        return len(self._publishers)

    @abstractmethod
    def queue_status(self) -> QueueStatus: ...

    @abstractmethod
    def figures(self) -> QueueStats: ...

    def weight(self) -> QueueWeight | None:
        """Return the bytes of its messages; None: this kind of queue does not count them."""
        return None

    @abstractmethod
    def apply(self, command: Any, now_ms: int) -> None:
        """Apply a command. `now_ms`: wall clock. A time before the last command's counts as the last."""

    @abstractmethod
    def deadline(self) -> int | None:
        """Return when the next `Tick` is due, in ms; 0: at once; None: never."""

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        """Return whether it would accept all of these messages now, in one publish."""
        return True

    def take_effects(self) -> dict[PeerId, list[Effect]]:
        """Return the effects since the last call, in order for each receiver."""
        return self._outbox.take()

    def take_dead_letters(self) -> list[DeadLetters]:
        """Return the messages to be dead-lettered at most once since the last call."""
        dead_letters = self._dead_letters[:]
        self._dead_letters.clear()
        return dead_letters

    def break_down(self, at_work: Iterable[object]) -> None:
        """End the queue because of a fault, after which its state is not reliable. `at_work`: commands
        without effects so far, which are answered as too late.
        """
        self.take_effects()
        self.failed = self.deleted = True
        self._break_off()
        for command in at_work:
            if isinstance(command, ANSWERED_WHEN_GONE):
                self.apply(command, 0)
        self._end()

    def _break_off(self) -> None:  # noqa: B027, most kinds have nothing to do
        ...

    @abstractmethod
    def _let_go(self) -> None: ...

    def _end(self) -> None:
        self.deleted = True
        self._let_go()
        for publisher in self._publishers:
            self._tell(publisher.reply_to, QueueDeleted(publisher, self.name))
        self._publishers.clear()

    def _delete(self, command: Delete = DELETE) -> None:
        refused = None
        if self.deleted:
            refused = Refusal.GONE
        elif command.if_unused and self.consumers:
            refused = Refusal.IN_USE
        elif command.if_empty and self.not_handed_out:
            refused = Refusal.NOT_EMPTY
        if command.request is not None:
            self._answer(command.request, self.not_handed_out, refused)
        if refused is None:
            self._end()

    def _apply_common(self, command: AttachPublisher | DetachPublisher | Inspect | Delete) -> None:
        # Handle the commands that most kinds of queues apply alike.
        match command:
            case AttachPublisher():
                if not self._is_gone_for(command.publisher):
                    self._publishers[command.publisher] = None
            case DetachPublisher():
                self._publishers.pop(command.publisher, None)
            case Inspect():
                self._answer(command.request, self.ready)
            case Delete():
                self._delete(command)
            case _:
                assert_never(command)

    def _is_gone_for(self, ref: ConsumerRef | PublisherRef) -> bool:
        # In this case the new client is notified.
        if self.deleted:
            self._tell(ref.reply_to, QueueDeleted(ref, self.name))
        return self.deleted

    def _refuse(self, command: Publish, *, failed: bool = False) -> None:
        # A queue with failed storage reports that, whatever `failed` is.
        publisher, failed = command.publisher, failed or self.failed
        self._tell(
            publisher.reply_to, Unconfirmed(publisher, command.ids, command.settled, failed, self.name)
        )

    @property
    def next_offset(self) -> int | None:
        return None

    def _answer(self, request: RequestRef, count: int, refused: Refusal | None = None) -> Answer:
        # A deleted queue refuses in any case.
        refused = Refusal.GONE if self.deleted else refused
        answer = Answer(request, count, self.consumers, refused, self.next_offset)
        self._tell(request.reply_to, answer)
        return answer
