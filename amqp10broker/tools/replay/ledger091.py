"""The state of an AMQP 0-9-1 connection: channels, consumers, deliveries, confirms, ends."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
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
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelOpen,
    ConfirmSelect,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
    ConnectionUnblocked,
    Method,
    QueueDeclare,
    QueueDeclareOk,
)

_MESSAGES: Final = (BasicDeliver, BasicGetOk, BasicGetEmpty, BasicAck, BasicNack, BasicReturn)


@dataclass(eq=False, slots=True)
class LedgerConsumer:
    """One consumer, or all deliveries of a channel by basic.get."""

    queue: str
    tag: str = ""
    no_ack: bool = False
    ids: list[int] = field(default_factory=list)
    cancelled: bool = False

    def __str__(self) -> str:
        return f"consumer of '{self.queue}'"


@dataclass(eq=False, slots=True)
class LedgerChannel:
    """One channel. `published`: messages so far; with confirms this is the number of the last one."""

    number: int
    gone: bool = False
    error: str | None = None
    confirms: bool = False
    published: int = 0
    outcomes: dict[int, str] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    replies: list[str] = field(default_factory=list)
    gets: dict[int, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    consumers: list[LedgerConsumer] = field(default_factory=list)
    tags: dict[int, tuple[LedgerConsumer, int]] = field(default_factory=dict)
    unsettled: dict[int, None] = field(default_factory=dict)
    stopped: bool = False
    _by_tag: dict[str, LedgerConsumer] = field(default_factory=dict)
    _unnamed: list[LedgerConsumer] = field(default_factory=list)
    _getting: list[bool] = field(default_factory=list)
    _naming: list[bool] = field(default_factory=list)
    _unconfirmed: dict[int, None] = field(default_factory=dict)
    _got: LedgerConsumer | None = None

    def __str__(self) -> str:
        return f"channel {self.number}"

    def sent(self, method: Method) -> None:
        match method:
            case ConfirmSelect():
                self.confirms = True
            case BasicPublish():
                self.published += 1
                if self.confirms:
                    self._unconfirmed[self.published] = None
            case QueueDeclare() if not method.no_wait:
                self._naming.append(not method.queue)
            case BasicConsume():
                consumer = LedgerConsumer(method.queue, method.consumer_tag, method.no_ack)
                self.consumers.append(consumer)
                if method.consumer_tag:
                    self._by_tag[method.consumer_tag] = consumer
                else:
                    self._unnamed.append(consumer)
            case BasicGet():
                self._getting.append(method.no_ack)
            case BasicAck() | BasicNack() | BasicReject():
                for tag in self.meant(method):
                    del self.unsettled[tag]
            case BasicRecover() | BasicRecoverAsync():
                self.unsettled.clear()
            case _:
                pass

    def meant(self, method: BasicAck | BasicNack | BasicReject) -> list[int]:
        """Return the delivery-tags that a settlement of the client covers."""
        if isinstance(method, BasicReject) or not method.multiple:
            return [method.delivery_tag] if method.delivery_tag in self.unsettled else []
        if not method.delivery_tag:
            return list(self.unsettled)
        return [tag for tag in self.unsettled if tag <= method.delivery_tag]

    def came(self, method: Method) -> None:
        match method:
            case BasicDeliver():
                consumer = self._by_tag.get(method.consumer_tag)
                if consumer is not None:
                    self._delivered(consumer, method.delivery_tag, consumer.no_ack)
            case BasicGetOk():
                if self._got is None:
                    self._got = LedgerConsumer("basic.get")
                self._delivered(
                    self._got, method.delivery_tag, self._getting.pop(0) if self._getting else False
                )
                self.gets[len(self.gets) + 1] = "a message"
            case BasicGetEmpty():
                del self._getting[:1]
                self.gets[len(self.gets) + 1] = "no message"
            case BasicAck() | BasicNack():
                self._confirmed(method)
            case BasicReturn():
                reply = f"{method.reply_code} {method.reply_text}"
                self.returned[reply] = self.returned.get(reply, 0) + 1
            case BasicCancel():
                cancelled = self._by_tag.get(method.consumer_tag)
                if cancelled is not None:
                    cancelled.cancelled = True
            case ChannelFlow():
                self.stopped = not method.active
            case ChannelClose():
                self.error = f"{method.reply_code} {method.reply_text}"
                self.gone = True
            case _:
                self._replied(method)

    def _replied(self, method: Method) -> None:
        self.replies.append(method.NAME)
        match method:
            case QueueDeclareOk():
                if self._naming and self._naming.pop(0):
                    self.names.append(method.queue)
            case BasicConsumeOk():
                known = self._by_tag.get(method.consumer_tag)
                if known is None and self._unnamed:
                    known = self._unnamed.pop(0)
                    known.tag = method.consumer_tag
                    self._by_tag[method.consumer_tag] = known
            case ChannelCloseOk():
                self.gone = True
            case _:
                pass

    def _delivered(self, consumer: LedgerConsumer, tag: int, no_ack: bool) -> None:
        self.tags[tag] = (consumer, len(consumer.ids))
        consumer.ids.append(tag)
        if not no_ack:
            self.unsettled[tag] = None

    @property
    def got(self) -> LedgerConsumer:
        if self._got is None:
            self._got = LedgerConsumer("basic.get")
        return self._got

    def _confirmed(self, method: BasicAck | BasicNack) -> None:
        outcome = "confirmed" if isinstance(method, BasicAck) else "refused (basic.nack)"
        numbers = [method.delivery_tag]
        if method.multiple:
            numbers = []
            for number in self._unconfirmed:
                if method.delivery_tag and number > method.delivery_tag:
                    break
                numbers.append(number)
        for number in numbers:
            self._unconfirmed.pop(number, None)
            self.outcomes[number] = outcome


class Ledger091:
    """The state of one connection. `error`: of the broker's close; None without one. `answers`: number of
    frames of the broker that begin or end something, or answer the client.
    """

    def __init__(self) -> None:
        self.started: ConnectionStart | None = None
        self.tuned: ConnectionTune | None = None
        self.opened = False
        self.closing = False
        self.closed = False
        self.error: str | None = None
        self.blocked = False
        self.channels: dict[int, LedgerChannel] = {}
        self.all_channels: list[LedgerChannel] = []
        self.answers = 0

    def sent(self, number: int, method: Any) -> LedgerChannel | None:
        """Record a method of the client; return the channel that it opens."""
        match method:
            case ChannelOpen():
                channel = self.channels[number] = LedgerChannel(number)
                self.all_channels.append(channel)
                return channel
            case ConnectionClose():
                self.closing = True
            case ChannelClose() | ChannelCloseOk():
                channel_gone = self.channels.get(number)
                if channel_gone is not None and isinstance(method, ChannelCloseOk):
                    del self.channels[number]
            case _:
                known = self.channels.get(number)
                if known is not None:
                    known.sent(method)
        return None

    def came(self, number: int, method: Any) -> None:
        if method is None:
            return
        self.answers += not isinstance(method, _MESSAGES)
        match method:
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
                channel = self.channels.get(number)
                if channel is not None:
                    channel.came(method)
                    if isinstance(method, ChannelCloseOk):
                        del self.channels[number]
