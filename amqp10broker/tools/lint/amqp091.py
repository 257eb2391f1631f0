"""Watches one AMQP 0-9-1 client frame by frame."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.records import KnownLink, RecordedFrame
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.methods import (
    FRAME_HEADER,
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
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionTuneOk,
    TxSelect,
)
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.tools.lint import rules
from amqp10broker.tools.lint.findings import Book, Evidence, Rule, evidence_of
from amqp10broker.tools.lint.habits import SettlingHabit

# Not caused by the client: the broker stops, or an operator has closed the connection.
CONNECTION_FORCED: Final = 320
_PERSISTENT: Final = 2
_FRAME_BYTES: Final = 7
_PROPERTIES_AT: Final = _FRAME_BYTES + 12


@dataclass(slots=True, eq=False)
class _LintedConsumer:
    # `settling` and `persistent` are of its deliveries; `known`: its consume was recorded.

    tag: str
    queue: str
    no_ack: bool
    last: Evidence
    known: bool = True
    settling: SettlingHabit = field(default_factory=SettlingHabit)
    persistent: int = 0


@dataclass(slots=True, eq=False)
class _Channel:
    number: int
    began: bool
    confirms: bool = False
    transacts: bool = False
    unconfirmed: int = 0
    asked: deque[_LintedConsumer] = field(default_factory=deque)
    consumers: dict[str, _LintedConsumer] = field(default_factory=dict)
    fetcher: _LintedConsumer | None = None
    fetches_no_ack: deque[bool] = field(default_factory=deque)
    got: dict[int, _LintedConsumer] = field(default_factory=dict)
    header_of: _LintedConsumer | None = None


class Client091:
    """The state and the findings of one AMQP 0-9-1 connection."""

    def __init__(self, number: int, book: Book) -> None:
        self._number = number
        self._book = book
        self._channels: dict[int, _Channel] = {}
        self._returned: dict[tuple[str, str], int] = {}
        self._now_ns = 0

    def know(self, known: KnownLink) -> None:
        evidence = Evidence(known.at_ns, f"the consumer '{known.name}' was there already")
        consumer = _LintedConsumer(known.name, known.address or "", False, evidence, known=False)
        self._channel(known.channel).consumers[known.name] = consumer

    def take(self, record: RecordedFrame) -> None:
        self._now_ns = record.at_ns
        body, number = record.frame.body, record.frame.channel
        channel = self._channel(number)
        if body is None:
            self._content(channel, record)
        elif record.direction == "in":
            self._received(channel, body, record)
        else:
            self._sent(channel, body, record)

    def finish(self, now_ns: int) -> None:
        self._now_ns = max(now_ns, self._now_ns)
        for channel in list(self._channels.values()):
            self._end_channel(channel)

    def _channel(self, number: int) -> _Channel:
        return self._channels.setdefault(number, _Channel(number, began=False))

    # --- of the client ----------------------------------------------------------------------------

    def _received(self, channel: _Channel, body: object, record: RecordedFrame) -> None:
        match body:
            case BasicPublish():
                self._publish(channel, body, record)
            case BasicAck():
                self._settle(channel, body.delivery_tag, body.multiple, False, record)
            case BasicNack():
                self._settle(channel, body.delivery_tag, body.multiple, True, record)
            case BasicReject():
                self._settle(channel, body.delivery_tag, False, True, record)
            case BasicGet():
                channel.fetches_no_ack.append(body.no_ack)
            case BasicConsume():
                self._consume(channel, body, record)
            case BasicCancel():
                self._end_consumer(channel, channel.consumers.pop(body.consumer_tag, None))
            case ConfirmSelect():
                channel.confirms = True
            case TxSelect():
                channel.transacts = True
            case ChannelOpen():
                self._channels[channel.number] = _Channel(channel.number, began=True)
            case ChannelClose() | ChannelCloseOk():
                self._end_channel(channel)
            case ConnectionTuneOk():
                if not body.heartbeat:
                    self._note(rules.NO_HEARTBEAT, "", "heartbeat 0", record)
            case _:
                pass

    def _publish(self, channel: _Channel, publish: BasicPublish, record: RecordedFrame) -> None:
        key = publish.exchange, publish.routing_key
        if self._returned.get(key, 0) >= rules.FEW:
            where = f"exchange '{key[0]}', routing key '{key[1]}', channel {channel.number}"
            said = f"{self._returned[key]} messages were returned, and it goes on"
            self._note(rules.RETURNS_IGNORED, where, said, record)
        channel.header_of = None

    def _settle(
        self, channel: _Channel, tag: int, multiple: bool, gives_back: bool, record: RecordedFrame
    ) -> None:
        tags = [each for each in channel.got if each <= tag or not tag] if multiple else [tag]
        touched: set[_LintedConsumer] = set()
        for each in tags:
            consumer = channel.got.pop(each, None)
            if consumer is not None:
                consumer.settling.settled(each, gives_back=gives_back)
                touched.add(consumer)
        for consumer in touched:
            consumer.last = evidence_of(record)
            for rule, said in consumer.settling.faults():
                self._note(rule, self._where(channel, consumer), said, record)

    def _consume(self, channel: _Channel, consume: BasicConsume, record: RecordedFrame) -> None:
        consumer = _LintedConsumer(consume.consumer_tag, consume.queue, consume.no_ack, evidence_of(record))
        if consume.no_wait:
            channel.consumers[consume.consumer_tag] = consumer
        else:
            channel.asked.append(consumer)

    # --- of the broker ----------------------------------------------------------------------------

    def _sent(self, channel: _Channel, body: object, record: RecordedFrame) -> None:
        match body:
            case BasicDeliver():
                consumer = channel.consumers.get(body.consumer_tag)
                if consumer is not None:
                    self._deliver(channel, consumer, body.delivery_tag, consumer.no_ack, record)
            case BasicGetOk():
                fetcher = channel.fetcher
                if fetcher is None:
                    fetcher = channel.fetcher = _LintedConsumer("", "", False, evidence_of(record))
                no_ack = channel.fetches_no_ack.popleft() if channel.fetches_no_ack else False
                self._deliver(channel, fetcher, body.delivery_tag, no_ack, record)
            case BasicGetEmpty():
                if channel.fetches_no_ack:
                    channel.fetches_no_ack.popleft()
            case BasicConsumeOk():
                if channel.asked:
                    consumer = channel.asked.popleft()
                    consumer.tag = body.consumer_tag
                    channel.consumers[body.consumer_tag] = consumer
            case BasicCancel():
                self._end_consumer(channel, channel.consumers.pop(body.consumer_tag, None))
            case BasicReturn():
                key = body.exchange, body.routing_key
                self._returned[key] = self._returned.get(key, 0) + 1
                channel.header_of = None
            case ChannelClose():
                said = f"{body.reply_code}: {body.reply_text}"
                self._note(rules.ENDED_BY_ERROR, f"channel {channel.number}", said, record)
                self._end_channel(channel)
            case ConnectionClose() if body.reply_code != CONNECTION_FORCED:
                said = f"{body.reply_code}: {body.reply_text}"
                self._note(rules.ENDED_BY_ERROR, "", said, record)
            case ChannelCloseOk():
                self._end_channel(channel)
            case _:
                pass

    def _deliver(
        self, channel: _Channel, consumer: _LintedConsumer, tag: int, no_ack: bool, record: RecordedFrame
    ) -> None:
        channel.header_of = consumer
        if no_ack or not consumer.known:
            return
        channel.got[tag] = consumer
        consumer.settling.delivered(tag, record.at_ns)

    # --- contents ---------------------------------------------------------------------------------

    def _content(self, channel: _Channel, record: RecordedFrame) -> None:
        # A header or a body; only the properties of a header matter.
        data = record.frame.data
        if data[:1] != bytes((FRAME_HEADER,)):
            return
        try:
            properties = decode_properties(data[_PROPERTIES_AT:-1])
        except AmqpHardError:
            return  # its frame contains that
        if properties.delivery_mode != _PERSISTENT:
            return
        if record.direction == "in":
            self._published_persistent(channel, record)
        elif (consumer := channel.header_of) is not None and consumer.no_ack:
            consumer.persistent += 1
            if consumer.persistent >= rules.FEW:
                said = f"{consumer.persistent} persistent messages without acknowledgement"
                self._note(rules.AUTO_ACK, self._where(channel, consumer), said, record)

    def _published_persistent(self, channel: _Channel, record: RecordedFrame) -> None:
        if channel.confirms or channel.transacts or not channel.began:
            return
        channel.unconfirmed += 1
        if channel.unconfirmed >= rules.FEW:
            said = f"{channel.unconfirmed} persistent messages"
            self._note(rules.UNCONFIRMED, f"channel {channel.number}", said, record)

    # --- ends -------------------------------------------------------------------------------------

    def _end_consumer(self, channel: _Channel, consumer: _LintedConsumer | None) -> None:
        if consumer is None:
            return
        for rule, said in consumer.settling.at_the_end(self._now_ns):
            self._book.note(rule, self._number, self._where(channel, consumer), said, consumer.last)

    def _end_channel(self, channel: _Channel) -> None:
        if self._channels.get(channel.number) is not channel:
            return
        del self._channels[channel.number]
        for consumer in (*channel.consumers.values(), channel.fetcher):
            self._end_consumer(channel, consumer)

    @staticmethod
    def _where(channel: _Channel, consumer: _LintedConsumer) -> str:
        if not consumer.queue and not consumer.tag:
            return f"basic.get of channel {channel.number}"
        return f"consumer '{consumer.tag}' of {consumer.queue or 'no queue'}, channel {channel.number}"

    def _note(self, rule: Rule, where: str, said: str, record: RecordedFrame) -> None:
        self._book.note(rule, self._number, where, said, evidence_of(record))
