"""The classic queue: first in, first out, in memory.

Every message has a position, a number that only grows. `fresh` holds messages nobody has had, in
order of position; `returned` those that came back, always of lower position than any fresh one, so
that a requeued message is delivered again exactly where it was. What consumers hold and have not
settled is in their own maps, by position.

Consumers with credit take turns. Credit is never what settlement gives back: only `Credit` moves it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, assert_never

from amqp10broker.amqp10.serial import MASK, limit_left
from amqp10broker.message.message import Message, acquired
from amqp10broker.queues.commands import (
    DELETE,
    AttachPublisher,
    Cancel,
    Command,
    Configure,
    ConsumerRef,
    Credit,
    Delete,
    DetachPublisher,
    GiveBack,
    Inspect,
    Publish,
    PublisherRef,
    Purge,
    ReplyTo,
    RequestRef,
    Settle,
    Subscribe,
    Touch,
    Unsubscribe,
    Verdict,
)
from amqp10broker.queues.effects import (
    Answer,
    Confirmed,
    CreditReply,
    Deliver,
    Effect,
    QueueDeleted,
    Refusal,
    Subscribed,
    SubscribeRefused,
    Unconfirmed,
)
from amqp10broker.queues.settings import DEFAULTS, QueueSettings

TURN_MAX: Final = 32
"""Deliveries one consumer gets at most before the next has its turn. Long turns make batches, and
batches make deliveries cheap."""

_TURNS_PER_GRANT: Final = 8
"""A consumer's turn is an eighth of what it was granted: who asks for few at a time gets them one by
one in rotation with the others, who asks for hundreds gets them in batches."""

_SHARED_OUT_MAX: Final = 8
"""With so few consumers, a backlog shorter than their turns is shared out evenly."""


class Consumer:
    """One consumer's part of the queue.

    Attributes:
        credit: deliveries it may have now.
        delivery_count: deliveries it had, as `Credit` counts them; a drain jumps ahead.
        handed_out: deliveries it had, all of them.
        turn: deliveries it gets before the next consumer.
        unsettled: position -> message as delivered; of a settled consumer only what may still be on
            its way to the session.
        settled: deliveries count as accepted when they have reached the session.
        epoch: of its last `GiveBack`.
        exclusive: it has the queue for itself.
        counted: it is a consumer for counts and auto-delete, which a fetch of one message is not.
        cancelled: it gets no more, and holds what it has not settled.
    """

    __slots__ = (
        "cancelled",
        "counted",
        "credit",
        "delivery_count",
        "epoch",
        "exclusive",
        "handed_out",
        "queued",
        "ref",
        "settled",
        "turn",
        "unsettled",
    )

    def __init__(self, ref: ConsumerRef, *, settled: bool, exclusive: bool, counted: bool) -> None:
        self.ref = ref
        self.settled = settled
        self.exclusive = exclusive
        self.counted = counted
        self.cancelled = False
        self.credit = 0
        self.delivery_count = 0
        self.handed_out = 0
        self.epoch = 0
        self.turn = 1
        self.unsettled: dict[int, Message] = {}
        self.queued = False


class ClassicQueue:
    """A classic queue's state. `apply` is the only way to change it.

    Attributes:
        name: the queue's name.
        settings: replaced by `Configure`.
        durable: declared durable; memory is all there is here.
        auto_delete: goes with the last of its consumers, if it ever had one.
        deleted: it is gone; nothing is accepted any more.
        failed: it is gone because of a fault; publishers hear the difference.
    """

    def __init__(
        self, name: str, *, durable: bool, auto_delete: bool = False, settings: QueueSettings = DEFAULTS
    ) -> None:
        self.name = name
        self.settings = settings
        self.durable = durable
        self.auto_delete = auto_delete
        self.deleted = False
        self.failed = False
        self._fresh: deque[Message] = deque()
        self._fresh_position = 0
        self._returned: list[tuple[int, Message]] = []
        self._consumers: dict[ConsumerRef, Consumer] = {}
        self._publishers: dict[PublisherRef, None] = {}
        self._turns: deque[Consumer] = deque()
        self._effects: dict[ReplyTo, list[Effect]] = {}
        self._delivering: dict[Consumer, tuple[list[int], list[Message]]] = {}

    @property
    def ready(self) -> int:
        """Messages waiting for a consumer."""
        return len(self._fresh) + len(self._returned)

    @property
    def unsettled(self) -> int:
        """Messages handed out and not settled."""
        return sum(len(consumer.unsettled) for consumer in self._consumers.values() if not consumer.settled)

    @property
    def consumers(self) -> int:
        """Links and AMQP 0-9-1 consumers that may get messages."""
        return sum(1 for each in self._consumers.values() if each.counted and not each.cancelled)

    @property
    def publishers(self) -> int:
        """Links whose fixed target this queue is."""
        return len(self._publishers)

    def apply(self, command: Command) -> None:
        """Change the state; effects wait in `take_effects`."""
        match command:
            case Publish():
                self._publish(command)
            case Settle():
                self._settle(command)
            case Credit():
                self._credit(command)
            case GiveBack():
                self._give_back(command)
            case Subscribe():
                self._subscribe(command)
            case Cancel():
                self._cancel(command)
            case Unsubscribe():
                self._unsubscribe(command)
            case AttachPublisher():
                if self.deleted:
                    self._tell(command.publisher.reply_to, QueueDeleted(command.publisher, self.name))
                else:
                    self._publishers[command.publisher] = None
            case DetachPublisher():
                self._publishers.pop(command.publisher, None)
            case Inspect():
                self._answer(command.request)
            case Purge():
                self._purge(command)
            case Delete():
                self._delete(command)
            case Configure():
                self.settings = command.settings
            case Touch():
                return
            case _:
                assert_never(command)

    def take_effects(self) -> dict[ReplyTo, list[Effect]]:
        """Effects since the last call, in order for each who asked."""
        if self._delivering:
            for consumer in list(self._delivering):
                self._flush(consumer)
        effects, self._effects = self._effects, {}
        return effects

    def break_down(self, at_work: Iterable[Command]) -> None:
        """End because of a fault: nobody can trust the state any more.

        Args:
            at_work: commands of which nobody has heard what became: now they are answered as too late,
                before anybody hears that the queue is gone.
        """
        self.take_effects()
        self.failed = self.deleted = True
        for command in at_work:
            self.apply(command)
        self.deleted = False
        self._delete(DELETE)

    # --- commands ---------------------------------------------------------------------------------

    def _publish(self, command: Publish) -> None:
        if self.deleted:
            self._tell(
                command.publisher.reply_to,
                Unconfirmed(command.publisher, command.ids, command.settled, self.failed, self.name),
            )
            return
        self._fresh.extend(command.messages)
        self._tell(command.publisher.reply_to, Confirmed(command.publisher, command.ids, command.settled))
        if self._turns:
            self._serve()

    def _settle(self, command: Settle) -> None:
        consumer = self._consumers.get(command.consumer)
        if consumer is None:
            return
        pop = consumer.unsettled.pop
        if command.verdict in (Verdict.ACCEPT, Verdict.DISCARD, Verdict.DISCARD_FAILED):
            for key in command.keys:
                pop(key, None)
        else:
            failed = command.verdict is Verdict.REQUEUE_FAILED
            for key in command.keys:
                message = pop(key, None)
                if message is not None:
                    heappush(self._returned, (key, acquired(message, failed=failed)))
            self._serve()
        if consumer.cancelled and not consumer.unsettled:
            del self._consumers[command.consumer]

    def _give_back(self, command: GiveBack) -> None:
        consumer = self._consumers.get(command.consumer)
        if consumer is None:
            return
        self._take_back(consumer, command.keys, command.messages, command.seen)
        consumer.delivery_count = command.delivery_count
        consumer.epoch = command.epoch
        self._set_credit(consumer, 0)
        self._serve()

    def _take_back(
        self, consumer: Consumer, keys: Sequence[int], messages: Sequence[Message], seen: int
    ) -> None:
        """Requeue deliveries that never reached the client, as they are."""
        self._delivering.pop(consumer, None)
        unsettled = consumer.unsettled
        on_its_way = consumer.handed_out - seen
        if on_its_way:
            for key in list(unsettled)[-on_its_way:]:
                heappush(self._returned, (key, unsettled.pop(key)))
        consumer.handed_out = seen
        for key, message in zip(keys, messages, strict=True):
            # Our own copy, where there is one: the session's may be in another protocol's encoding.
            held = unsettled.pop(key, None)
            if held is not None:
                heappush(self._returned, (key, held))
            elif consumer.settled:
                heappush(self._returned, (key, message))

    def _trim(self, consumer: Consumer, seen: int) -> None:
        """A settled consumer's deliveries are final when they have reached the session."""
        if consumer.settled:
            unsettled = consumer.unsettled
            on_its_way = consumer.handed_out - seen
            for key in list(unsettled)[: len(unsettled) - on_its_way]:
                del unsettled[key]

    def _unsubscribe(self, command: Unsubscribe) -> None:
        consumer = self._consumers.pop(command.consumer, None)
        if consumer is None:
            return
        self._take_back(consumer, command.unsent, command.unsent_messages, command.seen)
        self._set_credit(consumer, 0)
        if not consumer.settled and command.verdict in (Verdict.REQUEUE, Verdict.REQUEUE_FAILED):
            failed = command.verdict is Verdict.REQUEUE_FAILED
            for key, message in consumer.unsettled.items():
                heappush(self._returned, (key, acquired(message, failed=failed)))
        self._serve()
        self._end_of(consumer)

    def _subscribe(self, command: Subscribe) -> None:
        ref = command.consumer
        if self.deleted:
            self._tell(ref.reply_to, QueueDeleted(ref, self.name))
            return
        if command.counted:
            others = [each for each in self._consumers.values() if each.counted and not each.cancelled]
            if any(each.exclusive for each in others) or (command.exclusive and others):
                self._tell(ref.reply_to, SubscribeRefused(ref, self.name))
                return
        self._consumers[ref] = Consumer(
            ref, settled=command.settled, exclusive=command.exclusive, counted=command.counted
        )
        if command.answer:
            self._tell(ref.reply_to, Subscribed(ref))

    def _cancel(self, command: Cancel) -> None:
        consumer = self._consumers.get(command.consumer)
        if consumer is None or consumer.cancelled:
            return
        self._set_credit(consumer, 0)
        consumer.cancelled = True
        if consumer.settled or not consumer.unsettled:
            del self._consumers[command.consumer]
        self._end_of(consumer)

    def _end_of(self, consumer: Consumer) -> None:
        """A consumer is gone: an auto-delete queue goes with its last."""
        if self.auto_delete and consumer.counted and not self.deleted and not self.consumers:
            self._delete(DELETE)

    def _answer(self, request: RequestRef) -> None:
        refused = Refusal.GONE if self.deleted else None
        self._tell(request.reply_to, Answer(request, self.ready, self.consumers, refused))

    def _purge(self, command: Purge) -> None:
        self._answer(command.request)
        self._fresh_position += len(self._fresh)
        self._fresh.clear()
        self._returned.clear()

    def _credit(self, command: Credit) -> None:
        consumer = self._consumers.get(command.consumer)
        if consumer is None:
            return
        self._trim(consumer, command.seen)
        credit = limit_left(command.delivery_count, command.credit, consumer.delivery_count)
        consumer.turn = min(TURN_MAX, credit // _TURNS_PER_GRANT) or 1
        self._set_credit(consumer, credit)
        self._serve()
        if command.drain and consumer.credit:
            consumer.delivery_count = (consumer.delivery_count + consumer.credit) & MASK
            self._set_credit(consumer, 0)
        self._flush(consumer)
        self._tell(
            command.consumer.reply_to,
            CreditReply(
                command.consumer,
                consumer.delivery_count,
                consumer.credit,
                self.ready,
                command.drain,
                consumer.epoch,
            ),
        )

    def _set_credit(self, consumer: Consumer, credit: int) -> None:
        consumer.credit = credit
        if credit and not consumer.queued:
            consumer.queued = True
            self._turns.append(consumer)
        elif not credit and consumer.queued:
            consumer.queued = False
            self._turns.remove(consumer)

    def _delete(self, command: Delete) -> None:
        request = command.request
        refused = None
        if self.deleted:
            refused = Refusal.GONE
        elif command.if_unused and self.consumers:
            refused = Refusal.IN_USE
        elif command.if_empty and self.ready:
            refused = Refusal.NOT_EMPTY
        if request is not None:
            self._tell(request.reply_to, Answer(request, self.ready, self.consumers, refused))
        if refused is not None:
            return
        self.deleted = True
        for consumer in self._consumers.values():
            self._flush(consumer)
            self._tell(consumer.ref.reply_to, QueueDeleted(consumer.ref, self.name))
        for publisher in self._publishers:
            self._tell(publisher.reply_to, QueueDeleted(publisher, self.name))
        self._consumers.clear()
        self._publishers.clear()
        self._turns.clear()
        self._fresh.clear()
        self._returned.clear()

    # --- delivering -------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Hand out ready messages while any consumer has credit."""
        turns = self._turns
        ready = self.ready
        waiting = len(turns)  # consumers whose turn in this round is still to come
        while turns and ready:
            consumer = turns[0]
            if len(turns) == 1:
                count = min(consumer.credit, ready)
            else:
                count = min(consumer.credit, consumer.turn, ready)
                if len(turns) <= _SHARED_OUT_MAX:
                    count = min(count, -(-ready // waiting))
            self._hand_out(consumer, count)
            ready -= count
            if consumer.credit:
                turns.rotate(-1)
            else:
                turns.popleft()
                consumer.queued = False
            waiting = waiting - 1 or len(turns)

    def _hand_out(self, consumer: Consumer, count: int) -> None:
        delivering = self._delivering.get(consumer)
        if delivering is None:
            delivering = self._delivering[consumer] = ([], [])
        keys, messages = delivering
        consumer.credit -= count
        consumer.handed_out += count
        consumer.delivery_count = (consumer.delivery_count + count) & MASK
        left = count
        while left and self._returned:
            position, message = heappop(self._returned)
            keys.append(position)
            messages.append(message)
            consumer.unsettled[position] = message
            left -= 1
        if left:
            take = self._fresh.popleft
            taken = [take() for _ in range(left)]
            first = self._fresh_position
            self._fresh_position = first + left
            positions = range(first, first + left)
            keys.extend(positions)
            messages.extend(taken)
            consumer.unsettled.update(zip(positions, taken, strict=True))

    def _flush(self, consumer: Consumer) -> None:
        delivering = self._delivering.pop(consumer, None)
        if delivering is not None:
            self._tell(consumer.ref.reply_to, Deliver(consumer.ref, *delivering, consumer.epoch))

    def _tell(self, reply_to: ReplyTo, effect: Effect) -> None:
        effects = self._effects.get(reply_to)
        if effects is None:
            self._effects[reply_to] = [effect]
        else:
            effects.append(effect)
