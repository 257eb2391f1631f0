"""Watches one AMQP 0-9-1 client frame by frame."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.channel_state import (
    ChannelEnded,
    ChannelEvent,
    ConsumerAsked,
    ConsumerEnded,
    MessageDelivered,
    ObservedChannel,
    ObservedChannels,
    ObservedConsumer,
    SettlementObserved,
)
from amqp10broker.observe.frames.records import KnownLink, RecordedFrame
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.methods import (
    FRAME_HEADER,
    BasicPublish,
    BasicReturn,
    ChannelClose,
    ConnectionClose,
    ConnectionTuneOk,
)
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.tools.lint.findings import (
    AUTO_ACK,
    ENDED_BY_ERROR,
    FEW,
    NO_HEARTBEAT,
    RETURNS_IGNORED,
    UNCONFIRMED,
    Book,
    Evidence,
    Rule,
    SettlingHabit,
    evidence_of,
)

# Not caused by the client: the broker stops, or an operator has closed the connection.
CONNECTION_FORCED: Final = 320
_PERSISTENT: Final = 2
_FRAME_BYTES: Final = 7
_PROPERTIES_AT: Final = _FRAME_BYTES + 12


@dataclass(slots=True, eq=False)
class _LintedConsumer:
    # `settling` and `persistent` are of its deliveries.

    last: Evidence
    settling: SettlingHabit = field(default_factory=SettlingHabit)
    persistent: int = 0


class Client091:
    """The state and the findings of one AMQP 0-9-1 connection."""

    def __init__(self, number: int, book: Book) -> None:
        self._number = number
        self._book = book
        self._state = ObservedChannels()
        self._consumers: dict[ObservedConsumer, _LintedConsumer] = {}
        # Of each channel: persistent messages without confirms; the consumer of the content that follows.
        self._unconfirmed: Counter[ObservedChannel] = Counter()
        self._header_of: dict[ObservedChannel, ObservedConsumer] = {}
        self._returned: Counter[tuple[str, str]] = Counter()
        self._now_ns = 0

    def know(self, known: KnownLink) -> None:
        consumer = ObservedConsumer(known.address or "", known.name, recorded=False)
        self._state.channel(known.channel).consumers[known.name] = consumer
        said = f"the consumer '{known.name}' was there already"
        self._consumers[consumer] = _LintedConsumer(Evidence(known.at_ns, said))

    def take(self, record: RecordedFrame) -> None:
        self._now_ns = record.at_ns
        body, number = record.frame.body, record.frame.channel
        if body is None:
            if number > 0:
                self._content(self._state.channel(number), record)
            return
        for event in self._state.apply(record.direction, number, body):
            self._take(event, body, record)
        if isinstance(body, BasicPublish | BasicReturn):
            self._header_of.pop(self._state.channel(number), None)
        match body:
            case BasicPublish():
                self._publish(number, body, record)
            case BasicReturn():
                self._returned[body.exchange, body.routing_key] += 1
            case ConnectionTuneOk() if not body.heartbeat:
                self._note(NO_HEARTBEAT, "", "heartbeat 0", record)
            case ConnectionClose() if record.direction == "out" and body.reply_code != CONNECTION_FORCED:
                self._note(ENDED_BY_ERROR, "", f"{body.reply_code}: {body.reply_text}", record)
            case _:
                pass

    def finish(self, now_ns: int) -> None:
        self._now_ns = max(now_ns, self._now_ns)
        for channel in self._state.by_number.values():
            self._end_channel(channel)

    def _take(self, event: ChannelEvent, body: Any, record: RecordedFrame) -> None:
        match event:
            case ConsumerAsked():
                self._consumers[event.consumer] = _LintedConsumer(evidence_of(record))
            case MessageDelivered():
                self._deliver(event, record)
            case SettlementObserved() if event.consumer in self._consumers:
                self._settle(event, record)
            case ConsumerEnded():
                self._end_consumer(event.channel, event.consumer)
            case ChannelEnded(answered=False):
                if record.direction == "out" and isinstance(body, ChannelClose):
                    said = f"{body.reply_code}: {body.reply_text}"
                    self._note(ENDED_BY_ERROR, f"channel {event.channel.number}", said, record)
                self._end_channel(event.channel)
            case _:
                pass

    def _publish(self, number: int, publish: BasicPublish, record: RecordedFrame) -> None:
        exchange, key = publish.exchange, publish.routing_key
        returned = self._returned[exchange, key]
        if returned >= FEW:
            where = f"exchange '{exchange}', routing key '{key}', channel {number}"
            said = f"{returned} messages were returned, and it goes on"
            self._note(RETURNS_IGNORED, where, said, record)

    def _deliver(self, event: MessageDelivered, record: RecordedFrame) -> None:
        self._header_of[event.channel] = event.consumer
        if event.no_ack or not event.consumer.recorded:
            return
        consumer = self._consumers.setdefault(event.consumer, _LintedConsumer(evidence_of(record)))
        consumer.settling.delivered(event.delivery_tag, record.at_ns)

    def _settle(self, event: SettlementObserved, record: RecordedFrame) -> None:
        consumer = self._consumers[event.consumer]
        for tag in event.delivery_tags:
            consumer.settling.settled(tag, gives_back=event.gives_back)
        consumer.last = evidence_of(record)
        for rule, said in consumer.settling.faults():
            self._note(rule, _where(event.channel, event.consumer), said, record)

    # --- contents ---------------------------------------------------------------------------------

    def _content(self, channel: ObservedChannel, record: RecordedFrame) -> None:
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
            return
        consumer = self._header_of.get(channel)
        linted = None if consumer is None else self._consumers.get(consumer)
        if consumer is not None and linted is not None and consumer.no_ack:
            linted.persistent += 1
            if linted.persistent >= FEW:
                said = f"{linted.persistent} persistent messages without acknowledgement"
                self._note(AUTO_ACK, _where(channel, consumer), said, record)

    def _published_persistent(self, channel: ObservedChannel, record: RecordedFrame) -> None:
        if channel.confirms or channel.transacts or not channel.recorded:
            return
        self._unconfirmed[channel] += 1
        if self._unconfirmed[channel] >= FEW:
            said = f"{self._unconfirmed[channel]} persistent messages"
            self._note(UNCONFIRMED, f"channel {channel.number}", said, record)

    # --- ends -------------------------------------------------------------------------------------

    def _end_consumer(self, channel: ObservedChannel, consumer: ObservedConsumer) -> None:
        linted = self._consumers.pop(consumer, None)
        if linted is not None:
            for rule, said in linted.settling.at_the_end(self._now_ns):
                self._book.note(rule, self._number, _where(channel, consumer), said, linted.last)

    def _end_channel(self, channel: ObservedChannel) -> None:
        self._unconfirmed.pop(channel, None)
        self._header_of.pop(channel, None)
        for consumer in (*channel.consumers.values(), channel.getter):
            self._end_consumer(channel, consumer)

    def _note(self, rule: Rule, where: str, said: str, record: RecordedFrame) -> None:
        self._book.note(rule, self._number, where, said, evidence_of(record))


def _where(channel: ObservedChannel, consumer: ObservedConsumer) -> str:
    if not consumer.queue and not consumer.tag:
        return f"basic.get of channel {channel.number}"
    return f"consumer '{consumer.tag}' of {consumer.queue or 'no queue'}, channel {channel.number}"
