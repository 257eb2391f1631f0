"""What a comparison of two AMQP 0-9-1 connections needs beyond their state: answers, outcomes, ends."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.channel_state import (
    ChannelEvent,
    ChannelOpened,
    ConsumerAsked,
    ConsumerEnded,
    MessageDelivered,
    MessagesConfirmed,
    ObservedChannel,
    ObservedChannels,
    ObservedConsumer,
)
from amqp10broker.observe.frames.link_state import Direction
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicDeliver,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelFlow,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
    ConnectionUnblocked,
    QueueDeclare,
    QueueDeclareOk,
)

_MESSAGES: Final = (BasicDeliver, BasicGetOk, BasicGetEmpty, BasicAck, BasicNack, BasicReturn)
_NO_REPLIES: Final = (*_MESSAGES, BasicCancel, ChannelFlow, ChannelClose)


@dataclass(eq=False, slots=True)
class LedgerConsumer:
    """One consumer, or all deliveries of a channel by basic.get. `ids`: delivery-tags in order; `cancelled`:
    by the broker.
    """

    state: ObservedConsumer
    queue: str
    ids: list[int] = field(default_factory=list)
    cancelled: bool = False

    def __str__(self) -> str:
        return f"consumer of '{self.queue}'"


@dataclass(eq=False, slots=True)
class LedgerChannel:
    """One channel. `error`: of the broker's close; `tags`: of each delivery the consumer, and its place."""

    state: ObservedChannel
    error: str | None = None
    outcomes: dict[int, str] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    replies: list[str] = field(default_factory=list)
    gets: dict[int, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    consumers: dict[ObservedConsumer, LedgerConsumer] = field(default_factory=dict)
    tags: dict[int, tuple[LedgerConsumer, int]] = field(default_factory=dict)
    got: LedgerConsumer = field(init=False)
    _naming: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.got = LedgerConsumer(self.state.getter, "basic.get")

    def __str__(self) -> str:
        return f"channel {self.state.number}"

    def take(self, event: ChannelEvent) -> None:
        match event:
            case ConsumerAsked():
                self.consumers[event.consumer] = LedgerConsumer(event.consumer, event.consumer.queue)
            case ConsumerEnded() if event.by_broker:
                self.consumers[event.consumer].cancelled = True
            case MessageDelivered():
                consumer = self.consumers.get(event.consumer, self.got)
                self.tags[event.delivery_tag] = (consumer, len(consumer.ids))
                consumer.ids.append(event.delivery_tag)
            case MessagesConfirmed():
                outcome = "refused (basic.nack)" if event.refused else "confirmed"
                self.outcomes |= dict.fromkeys(event.numbers, outcome)
            case _:
                pass

    def replied(self, method: Any) -> None:
        match method:
            case QueueDeclareOk() if self._naming and self._naming.pop(0):
                self.names.append(method.queue)
            case BasicGetOk() | BasicGetEmpty():
                answer = "a message" if isinstance(method, BasicGetOk) else "no message"
                self.gets[len(self.gets) + 1] = answer
            case BasicReturn():
                reply = f"{method.reply_code} {method.reply_text}"
                self.returned[reply] = self.returned.get(reply, 0) + 1
            case ChannelClose():
                self.error = f"{method.reply_code} {method.reply_text}"
            case _:
                pass
        if not isinstance(method, _NO_REPLIES):
            self.replies.append(method.NAME)

    def asked(self, method: Any) -> None:
        if isinstance(method, QueueDeclare) and not method.no_wait:
            self._naming.append(not method.queue)


class Ledger091:
    """The ledger of one connection. `error`: of the broker's close; None without one. `answers`: number of
    frames of the broker that begin or end something, or answer the client.
    """

    def __init__(self) -> None:
        self.state = ObservedChannels()
        self.started: ConnectionStart | None = None
        self.tuned: ConnectionTune | None = None
        self.opened = False
        self.closing = False
        self.closed = False
        self.error: str | None = None
        self.blocked = False
        self.channels: dict[ObservedChannel, LedgerChannel] = {}
        self.answers = 0

    def channel(self, number: int) -> LedgerChannel | None:
        """Return the channel of this number, if it was opened and is not closed by both sides."""
        found = self.state.by_number.get(number)
        return None if found is None else self.channels.get(found)

    def apply(self, direction: Direction, number: int, method: Any) -> None:
        """Record a frame; `method`: None for contents."""
        if method is None:
            return
        if direction == "out":
            self.answers += not isinstance(method, _MESSAGES)
        self._of_connection(direction, method)
        channel = self.channel(number)
        if channel is not None:
            (channel.replied if direction == "out" else channel.asked)(method)
        for event in self.state.apply(direction, number, method):
            if isinstance(event, ChannelOpened):
                self.channels[event.channel] = LedgerChannel(event.channel)
            elif channel is not None:
                channel.take(event)

    def _of_connection(self, direction: Direction, method: Any) -> None:
        match method:
            case ConnectionClose() if direction == "in":
                self.closing = True
            case _ if direction == "in":
                pass
            case ConnectionStart():
                self.started = method
            case ConnectionTune():
                self.tuned = method
            case ConnectionOpenOk():
                self.opened = True
            case ConnectionBlocked() | ConnectionUnblocked():
                self.blocked = isinstance(method, ConnectionBlocked)
            case ConnectionClose():
                self.error = f"{method.reply_code} {method.reply_text}"
            case ConnectionCloseOk():
                self.closed = True
            case _:
                pass
