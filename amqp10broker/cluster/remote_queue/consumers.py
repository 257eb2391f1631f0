"""The consumers and browsers of one node at one replicated queue.

Deliveries that never reached the node count as `missed`: the queue's numbers of the consumer include them,
and the sessions' numbers do not.

Browsers are neither in the log nor in the replicated state. Their node stores the subscription of each, its
last request and its position, and sends them to each new leader (`LinkBrowsers.anew`). Lost messages are
delivered again, because they were not counted. Between the two ends browsers have epochs of their own, which
grow with each `GiveBack` and each renewal, so that late answers are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import (
    NO_BOUND,
    ActiveChanged,
    AttachPublisher,
    Cancel,
    Command,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    DetachPublisher,
    Effect,
    GiveBack,
    PublisherRef,
    QueueDeleted,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    SubscribeRefused,
    TimedOut,
    Unsubscribe,
)
from amqp10broker.queues.quorum.commands import encoded


@dataclass(slots=True, eq=False)
class RemoteConsumer:
    """A consumer of this node. `seen`: deliveries of the present epoch that its session has. `selects`: the
    queue answers a drain when the search has ended. `held`: the number of unsettled deliveries.
    """

    settled: bool
    counted: bool
    selects: bool
    draining: bool = False
    cancelled: bool = False
    seen: int = 0
    missed: int = 0
    epoch: int = 0
    held: int = 0
    active: bool | None = None

    @classmethod
    def of(cls, command: Subscribe) -> Self:
        return cls(command.settled, command.counted, encoded(command.filters) is not None)

    @property
    def gone(self) -> bool:
        return self.cancelled and (self.held <= 0 or self.settled)

    def note(self, command: Credit | Settle | GiveBack | Cancel) -> None:
        match command:
            case Credit():
                self.draining = command.drain and self.selects
            case Settle():
                self.held -= len(command.keys)
            case GiveBack():
                self.held -= self.seen - command.seen + len(command.keys)
                self.seen, self.epoch = command.seen, command.epoch
            case Cancel():
                self.cancelled = True

    def counts(self, effect: Deliver | CreditReply | ActiveChanged | TimedOut) -> bool:
        """Count an effect; return whether the session gets it."""
        match effect:
            case Deliver():
                if self.cancelled or effect.epoch != self.epoch:
                    return False
                self.seen += len(effect.keys)
                self.held += len(effect.keys)
            case CreditReply():
                self.draining = self.draining and not effect.drain
            case ActiveChanged():
                self.active = effect.active
            case TimedOut():
                self.held -= len(effect.keys)
        return True

    def delivery_count(self, count: int) -> int:
        return (count - self.missed) & MASK


class RemoteConsumers(dict[ConsumerRef, RemoteConsumer]):
    __slots__ = ()

    def as_counted(self, command: Command) -> Command:
        """Return a command with the queue's numbers."""
        if isinstance(command, Credit | GiveBack):
            consumer = self.get(command.consumer)
            missed = 0 if consumer is None else consumer.missed
            if missed:
                count = (command.delivery_count + missed) & MASK
                return replace(command, seen=command.seen + missed, delivery_count=count)
        return command

    def without_missed(self, reply: CreditReply) -> CreditReply:
        """Return a reply with the session's numbers."""
        consumer = self[reply.consumer]
        if not consumer.missed:
            return reply
        return replace(reply, delivery_count=consumer.delivery_count(reply.delivery_count))


@dataclass(slots=True, eq=False)
class HeldByConsumer:
    _settled: bool
    _cancelled: bool = False
    seen: int = 0
    count: int = 0
    asked: int = 0
    epoch: int = 0

    @property
    def gone(self) -> bool:
        """Whether it is cancelled, has no delivery, and expects no `Settled`."""
        return self._cancelled and not self.asked and (self._settled or self.count <= 0)

    def note(self, command: Command) -> None:
        match command:
            case Settle():
                self.count -= len(command.keys)
                self.asked += command.answer
            case GiveBack():
                # Deliveries on their way went back, too.
                self.count -= self.seen - command.seen + len(command.keys)
                self.seen, self.epoch = command.seen, command.epoch
            case Cancel():
                self._cancelled = True
            case _:
                return


def drop_gone(consumers: dict[ConsumerRef, Any], ref: ConsumerRef) -> None:
    """Remove a consumer to which neither the queue nor the session refers any more."""
    if consumers[ref].gone:
        del consumers[ref]


class HomeUsers:
    """The consumers and publishers of a queue on one other node, as both ends count them."""

    __slots__ = ("consumers", "publishers")

    def __init__(self) -> None:
        self.consumers: dict[ConsumerRef, HeldByConsumer] = {}
        self.publishers: dict[PublisherRef, None] = {}

    def note(self, command: Command) -> None:
        match command:
            case Subscribe():
                self.consumers[command.consumer] = HeldByConsumer(command.settled)
            case Settle() | GiveBack() | Cancel():
                held = self.consumers.get(command.consumer)
                if held is not None:
                    held.note(command)
                    drop_gone(self.consumers, command.consumer)
            case Unsubscribe():
                self.consumers.pop(command.consumer, None)
            case AttachPublisher():
                self.publishers[command.publisher] = None
            case DetachPublisher():
                self.publishers.pop(command.publisher, None)
            case _:
                return

    def counts(self, effect: Effect) -> bool:
        """Count an effect; return whether its receiver is one of these."""
        match effect:
            case Deliver() | Settled():
                held = self.consumers.get(effect.consumer)
                if held is None:
                    return False
                if isinstance(effect, Settled):
                    held.asked -= 1
                    drop_gone(self.consumers, effect.consumer)
                elif effect.epoch == held.epoch:  # the queue has those again that a `GiveBack` overtook
                    held.seen += len(effect.keys)
                    held.count += len(effect.keys)
                return True
            case SubscribeRefused():
                return self.consumers.pop(effect.consumer, None) is not None
            case QueueDeleted():
                ref = effect.ref
                if isinstance(ref, ConsumerRef):
                    return self.consumers.pop(ref, None) is not None
                known = ref in self.publishers
                self.publishers.pop(ref, None)
                return known
            case _:
                return getattr(effect, "consumer", None) in self.consumers


@dataclass(slots=True, eq=False)
class _Browser:
    """The state of one browser. `since_ms`: since when it waits for a leader; None: it does not. `asked`: its
    last `Credit`, if no drain or `GiveBack` has used it up. `room`: the bytes of it that are left. `quiet`:
    the answer of this epoch is dropped, because the session has one.
    """

    subscribed: Subscribe
    since_ms: int | None
    told: bool = False
    back: list[int] = field(default_factory=list, init=False)
    asked: Credit | None = None
    waits: bool = False
    room: int = NO_BOUND
    quiet: int | None = None
    epoch: int = 0
    wire: int = 0
    seen: int = 0
    count: int = 0
    asked_epoch: int = 0
    asked_wire: int = 0
    shown: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.shown = self.subscribed.shown


class LinkBrowsers(dict[ConsumerRef, _Browser]):
    __slots__ = ()

    # --- from sessions ----------------------------------------------------------------------------

    def says(self, command: Command) -> bool:
        if type(command) is Subscribe:
            return command.browse
        return getattr(command, "consumer", None) in self

    def ask(self, command: Command, since_ms: int | None) -> Command | Settled | None:
        """Return the request for the leader, or the answer if the leader is not needed. `since_ms`: it waits
        for a leader from now on; None: there is one.
        """
        if isinstance(command, Subscribe):
            self[command.consumer] = _Browser(command, since_ms)
            return command
        assert isinstance(command, Credit | GiveBack | Settle | Cancel | Unsubscribe)
        browser = self[command.consumer]
        match command:
            case Credit():
                browser.asked, browser.asked_epoch, browser.waits = command, browser.epoch, True
                browser.asked_wire, browser.room = browser.wire, command.room
            case GiveBack():
                browser.epoch, browser.seen = command.epoch, command.seen
                browser.count = command.delivery_count
                browser.back += command.keys
                browser.wire += 1
                return replace(command, messages=(), epoch=browser.wire)
            case Settle():
                return Settled(command.consumer, command.keys) if command.answer else None
            case _:
                del self[command.consumer]
        return command

    # --- to a leader ------------------------------------------------------------------------------

    def anew(self) -> tuple[list[Command], list[CreditReply]]:
        """Return the requests for a new leader, and the answers that no leader will give."""
        commands: list[Command] = []
        answers: list[CreditReply] = []
        for ref, browser in self.items():
            if browser.since_ms is None:
                browser.wire += 1
            browser.since_ms = browser.quiet = None
            answer = browser.subscribed.answer and not browser.told
            commands.append(replace(browser.subscribed, shown=browser.shown, answer=answer))
            if browser.wire:
                back = GiveBack(ref, [*browser.back], (), browser.count, browser.seen, browser.wire)
                commands.append(back)
            asked = browser.asked
            if asked is None:
                continue
            if browser.asked_epoch != browser.epoch:
                if browser.waits:
                    answers.append(CreditReply(ref, browser.count, 0, 0, asked.drain, browser.asked_epoch))
                browser.asked, browser.waits = None, False
            elif browser.waits or browser.room > 0:
                browser.asked_wire = browser.wire
                commands.append(replace(asked, room=max(1, browser.room)))
                if not browser.waits:
                    browser.quiet = browser.wire
        return commands, answers

    def waiting_since(self) -> int | None:
        return min((each.since_ms for each in self.values() if each.since_ms is not None), default=None)

    def late(self, since_ms: int) -> list[ConsumerRef]:
        return [ref for ref, each in self.items() if each.since_ms is not None and each.since_ms <= since_ms]

    # --- from the leader --------------------------------------------------------------------------

    def heard(self, effect: Effect) -> Effect | None:
        """Return the effect for the session of a browser, or None."""
        match effect:
            case Deliver():
                browser = self[effect.consumer]
                return self._delivered(browser, effect) if effect.epoch == browser.wire else None
            case CreditReply():
                return self._replied(self[effect.consumer], effect)
            case Subscribed():
                browser = self[effect.consumer]
                changed, browser.told = not browser.told, True
                return effect if changed else None
            case _:
                return effect

    def _delivered(self, browser: _Browser, deliver: Deliver) -> Deliver:
        count = len(deliver.keys)
        browser.seen += count
        browser.count = (browser.count + count) & MASK
        if deliver.shown:
            # Messages that were given back and still wait there are before this.
            browser.shown = deliver.shown
            browser.back.clear()
        browser.room = 0 if deliver.spent else browser.room - sum(len(each[1]) for each in deliver.messages)
        return replace(deliver, epoch=browser.epoch)

    def _replied(self, browser: _Browser, reply: CreditReply) -> CreditReply | None:
        if reply.epoch == browser.quiet:
            browser.quiet = None
            return None
        if not browser.waits or reply.epoch != browser.asked_wire:
            return None
        browser.waits = False
        if browser.asked_epoch != browser.epoch:
            browser.asked = None
        elif reply.drain:
            browser.asked = None
            browser.count = reply.delivery_count
        return replace(reply, epoch=browser.asked_epoch)
