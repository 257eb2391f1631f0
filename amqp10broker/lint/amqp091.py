"""What one client of AMQP 0-9-1 does, watched frame by frame."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import field
from typing import Final

from amqp10broker.amqp091.errors import AmqpHardError
from amqp10broker.amqp091.methods import (
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
    BasicQos,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ExchangeDeclare,
    QueueDeclare,
    TxCommit,
    TxSelect,
)
from amqp10broker.amqp091.properties import decode_properties
from amqp10broker.dataclass import dataclass
from amqp10broker.frames.records import Known, Recorded
from amqp10broker.lint import rules
from amqp10broker.lint.findings import Book, Evidence, Rule, evidence_of
from amqp10broker.lint.habits import Confirms, Settling
from amqp10broker.lint.rules import SECOND_NS

CONNECTION_FORCED: Final = 320
"""Not of the client's doing: the broker stops, or an operator has closed it."""
_PERSISTENT: Final = 2
_FRAME_BYTES: Final = 7
_PROPERTIES_AT: Final = _FRAME_BYTES + 12


@dataclass(slots=True, eq=False)
class _Consumer:
    """One consumer, or what a channel gets by basic.get.

    Attributes:
        tag, queue: its own.
        no_ack: it does not acknowledge.
        prefetch: that of its channel when it began; 0: unlimited.
        known: its consume was seen.
        settling: of what it got.
        persistent: persistent messages that it got.
        last: the last frame about it.
    """

    tag: str
    queue: str
    no_ack: bool
    prefetch: int
    last: Evidence
    known: bool = True
    settling: Settling = field(default_factory=Settling)
    persistent: int = 0


@dataclass(slots=True, eq=False)
class _Channel:
    number: int
    began: bool
    prefetch: int = 0
    confirms: Confirms | None = None
    transacts: bool = False
    carried: int = 0
    unconfirmed: int = 0
    published: int = 0
    under_way: deque[int] = field(default_factory=deque)
    in_transaction: int = 0
    small_commits: int = 0
    asked: deque[_Consumer] = field(default_factory=deque)
    consumers: dict[str, _Consumer] = field(default_factory=dict)
    fetcher: _Consumer | None = None
    fetches_no_ack: deque[bool] = field(default_factory=deque)
    got: dict[int, _Consumer] = field(default_factory=dict)
    header_of: _Consumer | None = None
    polls: int = 0
    empty: int = 0


class Client091:
    """One connection.

    Attributes:
        carried: messages, in both directions.
    """

    def __init__(self, number: int, book: Book, *, begins: bool) -> None:
        self._number = number
        self._book = book
        self._begins = begins
        self._channels: dict[int, _Channel] = {}
        self._declared: dict[Hashable, int] = {}
        self._declared_again = 0
        self._returned: dict[tuple[str, str], int] = {}
        self._short_channels = 0
        self._blocked_ns: int | None = None
        self._published_blocked = 0
        self._told_cancels = not begins
        self._now_ns = 0
        self.carried = 0

    def know(self, known: Known) -> None:
        """A consumer that was there already."""
        evidence = Evidence(known.at_ns, f"the consumer '{known.name}' was there already")
        consumer = _Consumer(known.name, known.address or "", False, 0, evidence, known=False)
        self._channel(known.channel).consumers[known.name] = consumer

    def take(self, record: Recorded) -> None:
        """Look at a frame."""
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
        """The connection has ended, or the recording."""
        self._now_ns = max(now_ns, self._now_ns)
        for channel in list(self._channels.values()):
            self._end_channel(channel)

    def _channel(self, number: int) -> _Channel:
        return self._channels.setdefault(number, _Channel(number, began=False))

    # --- of the client ----------------------------------------------------------------------------

    def _received(self, channel: _Channel, body: object, record: Recorded) -> None:
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
                self._get(channel, body, record)
            case BasicConsume():
                self._consume(channel, body, record)
            case BasicCancel():
                self._end_consumer(channel, channel.consumers.pop(body.consumer_tag, None))
            case BasicQos():
                channel.prefetch = body.prefetch_count
            case QueueDeclare():
                if body.queue and not body.passive:
                    self._declare(("queue", body.queue), record)
            case ExchangeDeclare():
                if not body.passive:
                    self._declare(("exchange", body.exchange), record)
            case ConfirmSelect():
                channel.confirms = channel.confirms or Confirms()
            case TxSelect():
                channel.transacts = True
            case TxCommit():
                self._commit(channel, record)
            case ChannelOpen():
                self._channels[channel.number] = _Channel(channel.number, began=True)
            case ChannelClose() | ChannelCloseOk():
                self._end_channel(channel)
            case ConnectionStartOk():
                capabilities = body.client_properties.get("capabilities")
                told = isinstance(capabilities, dict) and capabilities.get("consumer_cancel_notify")
                self._told_cancels = bool(told)
            case ConnectionTuneOk():
                if not body.heartbeat:
                    self._note(rules.NO_HEARTBEAT, "", "heartbeat 0", record)
            case _:
                pass

    def _publish(self, channel: _Channel, publish: BasicPublish, record: Recorded) -> None:
        self._carry(channel)
        channel.published += 1
        channel.in_transaction += channel.transacts
        key = publish.exchange, publish.routing_key
        if self._returned.get(key, 0) >= rules.FEW:
            where = f"exchange '{key[0]}', routing key '{key[1]}', channel {channel.number}"
            said = f"{self._returned[key]} messages were returned, and it goes on"
            self._note(rules.RETURNS_IGNORED, where, said, record)
        if channel.confirms is not None:
            channel.under_way.append(channel.published)
            if channel.confirms.sent():
                said = f"{channel.confirms.alone} messages, one at a time"
                self._note(rules.ONE_IN_FLIGHT, f"channel {channel.number}", said, record)
        if self._blocked_ns is not None and record.at_ns - self._blocked_ns >= SECOND_NS:
            self._published_blocked += 1
            if self._published_blocked >= rules.FEW:
                said = f"{self._published_blocked} publishes while it was blocked"
                self._note(rules.PUBLISHES_BLOCKED, "", said, record)
        channel.header_of = None

    def _settle(
        self, channel: _Channel, tag: int, multiple: bool, gives_back: bool, record: Recorded
    ) -> None:
        first = next(iter(channel.got), tag) if multiple else tag
        tags = [each for each in channel.got if each <= tag or not tag] if multiple else [tag]
        touched: set[_Consumer] = set()
        for each in tags:
            consumer = channel.got.pop(each, None)
            if consumer is not None:
                consumer.settling.settled(each, record.at_ns, gives_back=gives_back)
                touched.add(consumer)
        for consumer in touched:
            consumer.last = evidence_of(record)
            consumer.settling.came(first, max(tags), record.at_ns, gives_back)
            for rule, said in consumer.settling.faults():
                self._note(rule, self._where(channel, consumer), said, record)

    def _get(self, channel: _Channel, get: BasicGet, record: Recorded) -> None:
        channel.polls += 1
        channel.fetches_no_ack.append(get.no_ack)
        if channel.polls >= rules.OFTEN and channel.empty * 5 >= channel.polls * 4:
            said = f"{channel.polls} basic.get, {channel.empty} of them for nothing"
            self._note(rules.POLLS, f"channel {channel.number}", said, record)

    def _consume(self, channel: _Channel, consume: BasicConsume, record: Recorded) -> None:
        consumer = _Consumer(
            consume.consumer_tag, consume.queue, consume.no_ack, channel.prefetch, evidence_of(record)
        )
        if consume.no_wait:
            channel.consumers[consume.consumer_tag] = consumer
        else:
            channel.asked.append(consumer)
        if not self._told_cancels:
            said = "the client is not told if its queue is deleted"
            self._note(rules.NO_CANCEL_NOTICE, self._where(channel, consumer), said, record)

    def _declare(self, thing: tuple[str, str], record: Recorded) -> None:
        times = self._declared[thing] = self._declared.get(thing, 0) + 1
        if times == 1:
            return
        self._declared_again += 1
        if self._declared_again >= rules.OFTEN:
            said = f"{self._declared_again} declarations of what it had declared"
            self._note(rules.DECLARES_AGAIN, "", said, record)

    def _commit(self, channel: _Channel, record: Recorded) -> None:
        channel.small_commits = channel.small_commits + 1 if channel.in_transaction == 1 else 0
        channel.in_transaction = 0
        if channel.small_commits >= rules.OFTEN:
            said = f"{channel.small_commits} commits of one message"
            self._note(rules.COMMIT_PER_MESSAGE, f"channel {channel.number}", said, record)

    # --- of the broker ----------------------------------------------------------------------------

    def _sent(self, channel: _Channel, body: object, record: Recorded) -> None:
        match body:
            case BasicDeliver():
                consumer = channel.consumers.get(body.consumer_tag)
                if consumer is not None:
                    self._deliver(channel, consumer, body.delivery_tag, consumer.no_ack, record)
            case BasicGetOk():
                fetcher = channel.fetcher
                if fetcher is None:
                    fetcher = channel.fetcher = _Consumer("", "", False, 1, evidence_of(record))
                no_ack = channel.fetches_no_ack.popleft() if channel.fetches_no_ack else False
                self._deliver(channel, fetcher, body.delivery_tag, no_ack, record)
            case BasicGetEmpty():
                channel.empty += 1
                if channel.fetches_no_ack:
                    channel.fetches_no_ack.popleft()
            case BasicConsumeOk():
                if channel.asked:
                    consumer = channel.asked.popleft()
                    consumer.tag = body.consumer_tag
                    channel.consumers[body.consumer_tag] = consumer
            case BasicCancel():
                self._end_consumer(channel, channel.consumers.pop(body.consumer_tag, None))
            case BasicAck() | BasicNack():
                self._confirmed(channel, body)
            case BasicReturn():
                key = body.exchange, body.routing_key
                self._returned[key] = self._returned.get(key, 0) + 1
                channel.header_of = None
            case ConnectionBlocked():
                self._blocked_ns, self._published_blocked = record.at_ns, 0
            case ConnectionUnblocked():
                self._blocked_ns = None
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
        self, channel: _Channel, consumer: _Consumer, tag: int, no_ack: bool, record: Recorded
    ) -> None:
        self._carry(channel)
        channel.header_of = consumer
        if no_ack or not consumer.known:
            return
        channel.got[tag] = consumer
        consumer.settling.delivered(tag, record.at_ns)
        held = len(consumer.settling.held)
        if not consumer.prefetch and held >= rules.HELD_MANY:
            said = f"it held {held} messages"
            self._note(rules.PREFETCH_UNLIMITED, self._where(channel, consumer), said, record)

    def _confirmed(self, channel: _Channel, body: BasicAck | BasicNack) -> None:
        if channel.confirms is None:
            return
        count = 0
        if body.multiple:
            while channel.under_way and channel.under_way[0] <= body.delivery_tag:
                channel.under_way.popleft()
                count += 1
        elif body.delivery_tag in channel.under_way:
            channel.under_way.remove(body.delivery_tag)
            count = 1
        if count:
            channel.confirms.confirmed(count)

    # --- contents ---------------------------------------------------------------------------------

    def _content(self, channel: _Channel, record: Recorded) -> None:
        """A header or a body; only the properties of a header say something."""
        data = record.frame.data
        if data[:1] != bytes((FRAME_HEADER,)):
            return
        try:
            properties = decode_properties(data[_PROPERTIES_AT:-1])
        except AmqpHardError:
            return  # its frame says so itself
        if properties.delivery_mode != _PERSISTENT:
            return
        if record.direction == "in":
            self._published_persistent(channel, record)
        elif (consumer := channel.header_of) is not None and consumer.no_ack:
            consumer.persistent += 1
            if consumer.persistent >= rules.FEW:
                said = f"{consumer.persistent} persistent messages without acknowledgement"
                self._note(rules.AUTO_ACK, self._where(channel, consumer), said, record)

    def _published_persistent(self, channel: _Channel, record: Recorded) -> None:
        if channel.confirms is not None or channel.transacts or not channel.began:
            return
        channel.unconfirmed += 1
        if channel.unconfirmed >= rules.FEW:
            said = f"{channel.unconfirmed} persistent messages"
            self._note(rules.UNCONFIRMED, f"channel {channel.number}", said, record)

    # --- ends -------------------------------------------------------------------------------------

    def _end_consumer(self, channel: _Channel, consumer: _Consumer | None) -> None:
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
        if channel.began and channel.carried <= 1:
            self._short_channels += 1
            if self._short_channels >= rules.OFTEN:
                said = f"{self._short_channels} channels for at most one message each"
                self._book.note(rules.SESSION_PER_MESSAGE, self._number, "", said)

    # --- helpers ----------------------------------------------------------------------------------

    def _carry(self, channel: _Channel) -> None:
        channel.carried += 1
        self.carried += 1

    @staticmethod
    def _where(channel: _Channel, consumer: _Consumer) -> str:
        if not consumer.queue and not consumer.tag:
            return f"basic.get of channel {channel.number}"
        return f"consumer '{consumer.tag}' of {consumer.queue or 'no queue'}, channel {channel.number}"

    def _note(self, rule: Rule, where: str, said: str, record: Recorded) -> None:
        self._book.note(rule, self._number, where, said, evidence_of(record))
