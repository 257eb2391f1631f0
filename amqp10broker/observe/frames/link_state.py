"""The state of one connection as its frames show it: sessions, windows, links, credit, deliveries; of AMQP
0-9-1 channels, consumers, deliveries and confirms.

Frames of both directions are the input, in the order in which the broker received and sent them; state and
events the output. Only the specification's arithmetic is used, so that frames of any broker will do. A
delivery counts when the broker begins to send it, or has received it whole (part 2, section 2.6.7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import field
from typing import Any, Final, Literal, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.credit import SenderCredit
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Role,
    Transfer,
)
from amqp10broker.protocols.serial import MASK, add, diff, limit_left

Direction = Literal["in", "out"]
"""Frames to the broker, or from it."""
Span = tuple[int, int]
"""The first and the last delivery-id of a range."""
OTHER: Final[dict[Direction, Direction]] = {"in": "out", "out": "in"}


@dataclass(eq=False, slots=True)
class ObservedWindow:
    """The transfers of one direction of a session. `left`: of the receiver's window; None: unknown."""

    next_id: int = 0
    left: int | None = None
    initial_id: int = 0

    def count(self, frames: int) -> None:
        self.next_id = add(self.next_id, frames)
        if self.left is not None:
            self.left = max(0, self.left - frames)

    def allow(self, next_id: int | None, window: int) -> None:
        """Apply the window of the receiver's flow; `next_id`: None before it has received a begin."""
        self.left = limit_left(self.initial_id if next_id is None else next_id, window, self.next_id)


@dataclass(eq=False, slots=True)
class ObservedLink:
    """One link.

    Attributes:
        direction: that of its deliveries: "in" if the client sends.
        terminus: the client's target if it sends, else its source.
        address: that of the terminus; a dynamic one is known from the broker's attach on.
        handles: by the direction of the frames that name it.
        attached: both sides have attached it.
        ended: a side has detached, or the session has ended.
        recorded: all frames since the attach are known.
        unsettled: delivery-ids.
        partial: the delivery-id of a delivery with more frames to come.
    """

    name: str
    direction: Direction
    terminus: Any = None
    address: str = ""
    handles: dict[Direction, int] = field(default_factory=dict)
    attached: bool = False
    ended: bool = False
    recorded: bool = True
    initial_count: int = 0
    credit: SenderCredit = field(default_factory=SenderCredit)
    unsettled: set[int] = field(default_factory=set)
    partial: int | None = None

    def copy(self) -> Self:
        other = copy(self)
        other.credit, other.unsettled = copy(self.credit), set(self.unsettled)
        return other

    def spend(self, deliveries: int) -> None:
        """Count deliveries, including those beyond the credit."""
        credit = self.credit
        covered = min(deliveries, credit.link_credit)
        credit.spend(covered)
        if covered < deliveries:
            credit.delivery_count = add(credit.delivery_count, deliveries - covered)


@dataclass(frozen=True, slots=True)
class BeginObserved:
    """A side has sent begin; `answered`: as the second one, here and below."""

    session: ObservedSession
    answered: bool


@dataclass(frozen=True, slots=True)
class AttachObserved:
    """A side has sent attach."""

    session: ObservedSession
    link: ObservedLink
    answered: bool


@dataclass(frozen=True, slots=True)
class FlowObserved:
    """A flow names a link; `grants`: it is the receiver's, and sets the credit."""

    session: ObservedSession
    link: ObservedLink
    grants: bool


@dataclass(frozen=True, slots=True)
class TransferObserved:
    """One transfer frame of a delivery; `begins`, `ends`: the first, the last."""

    session: ObservedSession
    link: ObservedLink
    delivery_id: int
    begins: bool
    ends: bool


@dataclass(frozen=True, slots=True)
class DispositionObserved:
    """A disposition names these unsettled deliveries of a link; `settled`: they are settled now."""

    session: ObservedSession
    link: ObservedLink
    delivery_ids: Collection[int]
    settled: bool


@dataclass(frozen=True, slots=True)
class DetachObserved:
    """A side has sent detach."""

    session: ObservedSession
    link: ObservedLink
    answered: bool


@dataclass(frozen=True, slots=True)
class EndObserved:
    """A side has sent end."""

    session: ObservedSession
    answered: bool


LinkEvent = (
    BeginObserved
    | AttachObserved
    | FlowObserved
    | TransferObserved
    | DispositionObserved
    | DetachObserved
    | EndObserved
)
"""Events of links. A flow without handle has no event, nor has a frame about an unknown or ended link."""


class ObservedSession:
    """One session. `links`: by the direction of the frames and the handle in them; `begun`: each side's
    begin; `windows`: by the direction of the transfers.
    """

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.begun: dict[Direction, Begin] = {}
        self.ended = False
        self.windows: dict[Direction, ObservedWindow] = {"in": ObservedWindow(), "out": ObservedWindow()}
        self.links: dict[Direction, dict[int, ObservedLink]] = {"in": {}, "out": {}}
        self._asked: dict[tuple[str, Direction], tuple[Direction, ObservedLink]] = {}

    @property
    def established(self) -> bool:
        """Whether both sides have begun it."""
        return len(self.begun) == len(OTHER)

    def add(self, link: ObservedLink) -> None:
        """Add a link that is attached already."""
        for direction, handle in link.handles.items():
            self.links[direction][handle] = link

    def all_links(self) -> list[ObservedLink]:
        return list(dict.fromkeys([*self.links["in"].values(), *self.links["out"].values()]))

    def copy_with(self, link: ObservedLink) -> ObservedSession:
        """Return a session with this link only, and with windows of its own."""
        other = ObservedSession(self.channel)
        other.windows = {direction: copy(window) for direction, window in self.windows.items()}
        other.add(link)
        return other

    def apply(self, direction: Direction, body: Any) -> list[LinkEvent]:
        match body:
            case Transfer():
                return self._transfer(direction, body)
            case Flow():
                return self._flow(direction, body)
            case Disposition():
                spans = ((body.first, body.first if body.last is None else body.last),)
                settled = bool(body.settled)
                found = self.settle(direction, body.role, spans, settled=settled)
                return [DispositionObserved(self, link, numbers, settled) for link, numbers in found]
            case Attach():
                return [self._attach(direction, body)]
            case Detach():
                link = self.links[direction].pop(body.handle, None)
                if link is None:
                    return []
                answered, link.ended = link.ended, True
                return [DetachObserved(self, link, answered)]
            case _:
                return []

    def begin(self, direction: Direction, body: Begin) -> BeginObserved:
        answered = OTHER[direction] in self.begun
        self.begun[direction] = body
        window = self.windows[direction]
        window.next_id = window.initial_id = body.next_outgoing_id
        self.windows[OTHER[direction]].allow(None, body.incoming_window)
        return BeginObserved(self, answered)

    def end(self) -> EndObserved:
        answered, self.ended = self.ended, True
        for link in self.all_links():
            link.ended = True
        return EndObserved(self, answered)

    def _attach(self, direction: Direction, body: Attach) -> AttachObserved:
        sender = direction if body.role == Role.SENDER else OTHER[direction]
        asked_by, link = self._asked.pop((body.name, sender), (direction, None))
        answered = link is not None and asked_by != direction
        if link is None or not answered:
            link = ObservedLink(body.name, sender)
            self._asked[body.name, sender] = direction, link
        link.attached = answered
        terminus = body.target if sender == "in" else body.source
        if direction == "in":
            link.terminus = terminus
        if not link.address:
            link.address = str(getattr(terminus, "address", None) or "")
        if direction == sender:
            link.credit.delivery_count = link.initial_count = body.initial_delivery_count or 0
        link.handles[direction] = body.handle
        self.links[direction][body.handle] = link
        return AttachObserved(self, link, answered)

    def _flow(self, direction: Direction, flow: Flow) -> list[LinkEvent]:
        self.windows[OTHER[direction]].allow(flow.next_incoming_id, flow.incoming_window)
        self.windows[direction].next_id = flow.next_outgoing_id
        link = None if flow.handle is None else self.links[direction].get(flow.handle)
        if link is None or link.ended:
            return []
        credit, count = link.credit, flow.delivery_count
        grants = link.direction != direction and flow.link_credit is not None
        if grants:
            credit.set(
                link.initial_count if count is None else count, flow.link_credit or 0, drain=flow.drain
            )
        elif link.direction == direction and count is not None:
            # The sender may have given up credit to answer a drain.
            given_up = (count - credit.delivery_count) & MASK
            if given_up <= credit.link_credit or diff(count, credit.delivery_count) > 0:
                credit.link_credit = max(0, credit.link_credit - given_up)
                credit.delivery_count = count
        return [FlowObserved(self, link, grants)]

    def transfers(
        self,
        direction: Direction,
        handle: int,
        spans: Iterable[Span],
        count: int,
        *,
        settled: bool,
    ) -> ObservedLink | None:
        """Apply `count` deliveries of one frame each; return their link."""
        self.windows[direction].count(count)
        link = self.links[direction].get(handle)
        if link is None or link.ended or link.direction != direction:
            return None
        link.partial = None
        if not settled:
            for first, last in spans:
                link.unsettled.update(_ids(first, diff(last, first) + 1))
        link.spend(count)
        return link

    def _transfer(self, direction: Direction, body: Transfer) -> list[LinkEvent]:
        self.windows[direction].count(1)
        link = self.links[direction].get(body.handle)
        if link is None or link.ended or link.direction != direction:
            return []
        begins, ends = link.partial is None, body.aborted or not body.more
        number = (body.delivery_id or 0) if link.partial is None else link.partial
        if begins and not body.settled and not body.resume:
            link.unsettled.add(number)
        if begins if direction == "out" else ends:
            link.spend(1)
        if body.aborted or (ends and body.resume):
            link.unsettled.discard(number)
        link.partial = None if ends else number
        return [TransferObserved(self, link, number, begins, ends)]

    def named(
        self, direction: Direction, role: bool, spans: Iterable[Span]
    ) -> list[tuple[ObservedLink, set[int]]]:
        """Return the unsettled deliveries that a disposition names, by link."""
        sender = OTHER[direction] if role == Role.RECEIVER else direction
        found = []
        for link in self.links[sender].values():
            if link.unsettled and link.direction == sender and not link.ended:
                numbers: set[int] = set()
                for first, last in spans:
                    numbers |= within(link.unsettled, first, last)
                if numbers:
                    found.append((link, numbers))
        return found

    def settle(
        self, direction: Direction, role: bool, spans: Iterable[Span], *, settled: bool
    ) -> list[tuple[ObservedLink, set[int]]]:
        """Apply a disposition of deliveries in these ranges; return the named ones, as `named`."""
        found = self.named(direction, role, spans)
        if settled:
            for link, numbers in found:
                link.unsettled -= numbers
        return found


class ObservedConnection:
    """The state of one connection. `opened`, `closed`: each side's open and close."""

    def __init__(self) -> None:
        self.opened: dict[Direction, Open] = {}
        self.closed: dict[Direction, Close] = {}
        self._sessions: dict[tuple[Direction, int], ObservedSession] = {}

    def session(self, direction: Direction, channel: int) -> ObservedSession | None:
        return self._sessions.get((direction, channel))

    def sessions(self) -> list[ObservedSession]:
        return list(dict.fromkeys(self._sessions.values()))

    def know(self, channel: int, *links: ObservedLink) -> None:
        """Add a session with this channel in both directions, and links that precede the first frame.

        Its windows have at most the stated size: transfers before the first frame are not counted.
        """
        session = self._sessions.get(("in", channel))
        if session is None:
            session = self._sessions["in", channel] = self._sessions["out", channel] = ObservedSession(
                channel
            )
        for link in links:
            session.add(link)

    def apply(self, direction: Direction, channel: int, body: Any) -> list[LinkEvent]:
        """Apply a frame; return the changes."""
        session = self._sessions.get((direction, channel))
        match body:
            case Open():
                self.opened[direction] = body
            case Close():
                self.closed[direction] = body
            case Begin():
                asked = None
                if body.remote_channel is not None:
                    asked = self._sessions.get((OTHER[direction], body.remote_channel))
                session = ObservedSession(channel) if asked is None else asked
                self._sessions[direction, channel] = session
                return [session.begin(direction, body)]
            case End() if session is not None:
                del self._sessions[direction, channel]
                return [session.end()]
            case _ if session is not None:
                return session.apply(direction, body)
            case _:
                pass
        return []


def within(known: set[int], first: int, last: int) -> set[int]:
    """Return the known delivery-ids of an inclusive range, which may be as large as the number space."""
    span = diff(last, first)
    if 0 <= span < len(known):
        return known.intersection(_ids(first, span + 1))
    return {number for number in known if 0 <= diff(number, first) <= span}


def _ids(first: int, count: int) -> range | list[int]:
    if first + count <= MASK + 1:
        return range(first, first + count)
    return [(first + offset) & MASK for offset in range(count)]


Settlement = methods.BasicAck | methods.BasicNack | methods.BasicReject


@dataclass(eq=False, slots=True)
class ObservedConsumer:
    """A consumer, or, with empty `tag` and `queue`, all deliveries of a channel by basic.get. `tag`: empty
    until consume-ok if the broker chooses it. `recorded`: its consume is known.
    """

    queue: str = ""
    tag: str = ""
    no_ack: bool = False
    recorded: bool = True


@dataclass(eq=False, slots=True)
class ObservedChannel:
    """One channel.

    Attributes:
        recorded: all frames since its open are known.
        published: messages so far, or since confirm.select: then this is the number of the last one.
        unconfirmed: numbers of messages, in order.
        unsettled: delivery-tags in order, with the consumer.
        stopped: the broker has stopped publishes by channel.flow.
        ended: a side has closed it.
    """

    number: int
    recorded: bool = True
    confirms: bool = False
    transacts: bool = False
    published: int = 0
    unconfirmed: dict[int, None] = field(default_factory=dict)
    consumers: dict[str, ObservedConsumer] = field(default_factory=dict)
    getter: ObservedConsumer = field(default_factory=ObservedConsumer)
    unsettled: dict[int, ObservedConsumer] = field(default_factory=dict)
    stopped: bool = False
    ended: bool = False
    _asked: deque[ObservedConsumer] = field(default_factory=deque)
    _gets: deque[bool] = field(default_factory=deque)

    def named(self, method: Settlement) -> list[int]:
        """Return the delivery-tags that a settlement of the client covers."""
        return _covered(self.unsettled, method.delivery_tag, getattr(method, "multiple", False))

    def received(self, method: Any) -> Iterator[ChannelEvent]:
        """Apply a method of the client."""
        match method:
            case methods.ConfirmSelect() if not self.confirms:
                self.confirms, self.published = True, 0
            case methods.TxSelect():
                self.transacts = True
            case methods.BasicPublish():
                self.published += 1
                if self.confirms:
                    self.unconfirmed[self.published] = None
            case methods.BasicConsume():
                consumer = ObservedConsumer(method.queue, method.consumer_tag, method.no_ack)
                if method.no_wait:
                    self.consumers[consumer.tag] = consumer
                else:
                    self._asked.append(consumer)
                yield ConsumeObserved(self, consumer)
            case methods.BasicCancel() if method.no_wait:
                yield from self._end_consumer(method.consumer_tag, by_broker=False)
            case methods.BasicGet():
                self._gets.append(method.no_ack)
            case methods.BasicAck() | methods.BasicNack() | methods.BasicReject():
                yield from self._settle(
                    self.named(method), gives_back=not isinstance(method, methods.BasicAck)
                )
            case methods.BasicRecover() | methods.BasicRecoverAsync():
                yield from self._settle(list(self.unsettled), gives_back=True)
            case _:
                pass

    def sent(self, method: Any) -> Iterator[ChannelEvent]:
        """Apply a method of the broker."""
        match method:
            case methods.BasicConsumeOk() if self._asked:
                consumer = self._asked.popleft()
                consumer.tag = method.consumer_tag
                self.consumers[consumer.tag] = consumer
            case methods.BasicDeliver() if method.consumer_tag in self.consumers:
                consumer = self.consumers[method.consumer_tag]
                yield self._deliver(consumer, method.delivery_tag, consumer.no_ack)
            case methods.BasicGetOk():
                no_ack = self._gets.popleft() if self._gets else False
                yield self._deliver(self.getter, method.delivery_tag, no_ack)
            case methods.BasicGetEmpty() if self._gets:
                self._gets.popleft()
            case methods.BasicAck() | methods.BasicNack():
                numbers = _covered(self.unconfirmed, method.delivery_tag, method.multiple)
                for number in numbers:
                    del self.unconfirmed[number]
                yield MessagesConfirmed(self, numbers, isinstance(method, methods.BasicNack))
            case methods.BasicCancel() | methods.BasicCancelOk():
                by_broker = isinstance(method, methods.BasicCancel)
                yield from self._end_consumer(method.consumer_tag, by_broker=by_broker)
            case methods.ChannelFlow():
                self.stopped = not method.active
            case _:
                pass

    def _deliver(self, consumer: ObservedConsumer, tag: int, no_ack: bool) -> MessageDelivered:
        if not no_ack:
            self.unsettled[tag] = consumer
        return MessageDelivered(self, consumer, tag, no_ack)

    def _settle(self, tags: Sequence[int], *, gives_back: bool) -> Iterator[SettlementObserved]:
        settled: dict[ObservedConsumer, list[int]] = {}
        for tag in tags:
            settled.setdefault(self.unsettled.pop(tag), []).append(tag)
        for consumer, own in settled.items():
            yield SettlementObserved(self, consumer, own, gives_back)

    def _end_consumer(self, tag: str, *, by_broker: bool) -> Iterator[ConsumerEnded]:
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            yield ConsumerEnded(self, consumer, by_broker)


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    channel: ObservedChannel


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """A side closes a channel; `answered`: as the second one."""

    channel: ObservedChannel
    answered: bool


@dataclass(frozen=True, slots=True)
class ConsumeObserved:
    """The client begins to consume."""

    channel: ObservedChannel
    consumer: ObservedConsumer


@dataclass(frozen=True, slots=True)
class ConsumerEnded:
    """A consumer is cancelled by the broker, or by the client with the broker's answer."""

    channel: ObservedChannel
    consumer: ObservedConsumer
    by_broker: bool


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A delivery of a message. `no_ack`: it is settled."""

    channel: ObservedChannel
    consumer: ObservedConsumer
    delivery_tag: int
    no_ack: bool


@dataclass(frozen=True, slots=True)
class SettlementObserved:
    """The client settles deliveries of a consumer, or returns them."""

    channel: ObservedChannel
    consumer: ObservedConsumer
    delivery_tags: Sequence[int]
    gives_back: bool


@dataclass(frozen=True, slots=True)
class MessagesConfirmed:
    """The broker confirms messages of these numbers, or refuses them."""

    channel: ObservedChannel
    numbers: Sequence[int]
    refused: bool


ChannelEvent = (
    ChannelOpened
    | ChannelEnded
    | ConsumeObserved
    | ConsumerEnded
    | MessageDelivered
    | SettlementObserved
    | MessagesConfirmed
)


class ObservedChannels:
    """The channels of one connection."""

    def __init__(self) -> None:
        self.by_number: dict[int, ObservedChannel] = {}

    def channel(self, number: int) -> ObservedChannel:
        """Return a channel; an unknown one was opened before the first frame."""
        return self.by_number.setdefault(number, ObservedChannel(number, recorded=False))

    def apply(self, direction: Direction, number: int, method: Any) -> list[ChannelEvent]:
        """Apply a frame; return the changes."""
        if not number:
            return []
        if isinstance(method, methods.ChannelOpen):
            channel = self.by_number[number] = ObservedChannel(number)
            return [ChannelOpened(channel)]
        channel = self.channel(number)
        if isinstance(method, methods.ChannelClose | methods.ChannelCloseOk):
            answered, channel.ended = channel.ended, True
            if isinstance(method, methods.ChannelCloseOk):
                del self.by_number[number]
            return [ChannelEnded(channel, answered)]
        if channel.ended:
            return []
        return list(channel.received(method) if direction == "in" else channel.sent(method))


def _covered(known: dict[int, Any], number: int, multiple: bool) -> list[int]:
    # Delivery-tag 0 with `multiple` covers all.
    if not multiple:
        return [number] if number in known else []
    return [each for each in known if each <= number or not number]
