"""The state of the channels of one AMQP 0-9-1 connection as its methods show it.

As `link_state` for AMQP 1.0, with consumers, deliveries and confirms in the place of links: methods of both
directions are the input, in the order in which the broker received and sent them; state and events are the
output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import Direction
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelOpen,
    ConfirmSelect,
    TxSelect,
)

Settlement = BasicAck | BasicNack | BasicReject


@dataclass(eq=False, slots=True)
class ObservedConsumer:
    """One consumer, or, with empty `tag` and `queue`, all deliveries of a channel by basic.get. `tag`: empty
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
        stopped: the broker has asked for no more publishes.
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
            case ConfirmSelect() if not self.confirms:
                self.confirms, self.published = True, 0
            case TxSelect():
                self.transacts = True
            case BasicPublish():
                self.published += 1
                if self.confirms:
                    self.unconfirmed[self.published] = None
            case BasicConsume():
                consumer = ObservedConsumer(method.queue, method.consumer_tag, method.no_ack)
                if method.no_wait:
                    self.consumers[consumer.tag] = consumer
                else:
                    self._asked.append(consumer)
                yield ConsumerAsked(self, consumer)
            case BasicCancel() if method.no_wait:
                yield from self._end_consumer(method.consumer_tag, by_broker=False)
            case BasicGet():
                self._gets.append(method.no_ack)
            case BasicAck() | BasicNack() | BasicReject():
                yield from self._settle(self.named(method), gives_back=not isinstance(method, BasicAck))
            case BasicRecover() | BasicRecoverAsync():
                yield from self._settle(list(self.unsettled), gives_back=True)
            case _:
                pass

    def sent(self, method: Any) -> Iterator[ChannelEvent]:
        """Apply a method of the broker."""
        match method:
            case BasicConsumeOk() if self._asked:
                consumer = self._asked.popleft()
                consumer.tag = method.consumer_tag
                self.consumers[consumer.tag] = consumer
            case BasicDeliver() if method.consumer_tag in self.consumers:
                consumer = self.consumers[method.consumer_tag]
                yield self._deliver(consumer, method.delivery_tag, consumer.no_ack)
            case BasicGetOk():
                no_ack = self._gets.popleft() if self._gets else False
                yield self._deliver(self.getter, method.delivery_tag, no_ack)
            case BasicGetEmpty() if self._gets:
                self._gets.popleft()
            case BasicAck() | BasicNack():
                numbers = _covered(self.unconfirmed, method.delivery_tag, method.multiple)
                for number in numbers:
                    del self.unconfirmed[number]
                yield MessagesConfirmed(self, numbers, isinstance(method, BasicNack))
            case BasicCancel() | BasicCancelOk():
                by_broker = isinstance(method, BasicCancel)
                yield from self._end_consumer(method.consumer_tag, by_broker=by_broker)
            case ChannelFlow():
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
    """The client opens a channel."""

    channel: ObservedChannel


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """A side closes a channel; `answered`: as the second one."""

    channel: ObservedChannel
    answered: bool


@dataclass(frozen=True, slots=True)
class ConsumerAsked:
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
    """The broker delivers a message; `no_ack`: it is settled."""

    channel: ObservedChannel
    consumer: ObservedConsumer
    delivery_tag: int
    no_ack: bool


@dataclass(frozen=True, slots=True)
class SettlementObserved:
    """The client settles deliveries of a consumer, or gives them back."""

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
    | ConsumerAsked
    | ConsumerEnded
    | MessageDelivered
    | SettlementObserved
    | MessagesConfirmed
)


class ObservedChannels:
    """The channels of one connection, by number."""

    def __init__(self) -> None:
        self.by_number: dict[int, ObservedChannel] = {}

    def channel(self, number: int) -> ObservedChannel:
        """Return a channel; one that is not known was opened before the first frame."""
        return self.by_number.setdefault(number, ObservedChannel(number, recorded=False))

    def apply(self, direction: Direction, number: int, method: Any) -> list[ChannelEvent]:
        """Apply a frame; return what it changes. `method`: others than those of channels have no effect."""
        if not number:
            return []
        if isinstance(method, ChannelOpen):
            channel = self.by_number[number] = ObservedChannel(number)
            return [ChannelOpened(channel)]
        channel = self.channel(number)
        if isinstance(method, ChannelClose | ChannelCloseOk):
            answered, channel.ended = channel.ended, True
            if isinstance(method, ChannelCloseOk):
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
