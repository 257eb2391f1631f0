"""Plays the client of an AMQP 0-9-1 connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields, replace
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import (
    ChannelEvent,
    ChannelOpened,
    ConsumeObserved,
    ConsumerEnded,
    Direction,
    MessageDelivered,
    MessagesConfirmed,
    ObservedChannel,
    ObservedChannels,
    ObservedConsumer,
)
from amqp10broker.observe.frames.records import TracedFrame
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import (
    END,
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    method_frame,
)
from amqp10broker.protocols.connection import AMQP_091_HEADER, WireProtocol
from amqp10broker.tools.replay.player import (
    Difference,
    DifferenceKind,
    Player,
    RecordedConnection,
    ReplayLogin,
    Step,
    other_end,
    otherwise,
)

_LEDGER_MESSAGES: Final = (
    methods.BasicDeliver,
    methods.BasicGetOk,
    methods.BasicGetEmpty,
    methods.BasicAck,
    methods.BasicNack,
    methods.BasicReturn,
)
_NO_REPLIES: Final = (*_LEDGER_MESSAGES, methods.BasicCancel, methods.ChannelFlow, methods.ChannelClose)


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
            case ConsumeObserved():
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
            case methods.QueueDeclareOk() if self._naming and self._naming.pop(0):
                self.names.append(method.queue)
            case methods.BasicGetOk() | methods.BasicGetEmpty():
                answer = "a message" if isinstance(method, methods.BasicGetOk) else "no message"
                self.gets[len(self.gets) + 1] = answer
            case methods.BasicReturn():
                reply = f"{method.reply_code} {method.reply_text}"
                self.returned[reply] = self.returned.get(reply, 0) + 1
            case methods.ChannelClose():
                self.error = f"{method.reply_code} {method.reply_text}"
            case _:
                pass
        if not isinstance(method, _NO_REPLIES):
            self.replies.append(method.NAME)

    def asked(self, method: Any) -> None:
        if isinstance(method, methods.QueueDeclare) and not method.no_wait:
            self._naming.append(not method.queue)


class Ledger091:
    """The ledger of one connection. `error`: of the broker's close; None without one. `answers`: number of
    frames of the broker that begin or end something, or answer the client.
    """

    def __init__(self) -> None:
        self.state = ObservedChannels()
        self.started: methods.ConnectionStart | None = None
        self.tuned: methods.ConnectionTune | None = None
        self.opened = False
        self.closing = False
        self.closed = False
        self.error: str | None = None
        self.blocked = False
        self.channels: dict[ObservedChannel, LedgerChannel] = {}
        self.answers = 0

    def channel(self, number: int) -> LedgerChannel | None:
        """Return the channel of this number, unless both sides have closed it."""
        found = self.state.by_number.get(number)
        return None if found is None else self.channels.get(found)

    def apply(self, direction: Direction, number: int, method: Any) -> None:
        """Record a frame; `method`: None for contents."""
        if method is None:
            return
        if direction == "out":
            self.answers += not isinstance(method, _LEDGER_MESSAGES)
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
            case methods.ConnectionClose() if direction == "in":
                self.closing = True
            case _ if direction == "in":
                pass
            case methods.ConnectionStart():
                self.started = method
            case methods.ConnectionTune():
                self.tuned = method
            case methods.ConnectionOpenOk():
                self.opened = True
            case methods.ConnectionBlocked() | methods.ConnectionUnblocked():
                self.blocked = isinstance(method, methods.ConnectionBlocked)
            case methods.ConnectionClose():
                self.error = f"{method.reply_code} {method.reply_text}"
            case methods.ConnectionCloseOk():
                self.closed = True
            case _:
                pass


_ACCESS_REFUSED: Final = 403
_MESSAGES: Final = (
    methods.BasicPublish,
    methods.BasicAck,
    methods.BasicNack,
    methods.BasicReject,
    methods.BasicGet,
)
# Answers that depend on this broker, and secrets.
_MADE_HERE: Final = (
    methods.ConnectionSecureOk,
    methods.ConnectionCloseOk,
    methods.ConnectionUpdateSecret,
    methods.ChannelCloseOk,
    methods.ChannelFlowOk,
)


class Player091(Player):
    protocol = WireProtocol.AMQP_091
    header = AMQP_091_HEADER
    heartbeat = HEARTBEAT
    _was: Ledger091
    _now: Ledger091

    def __init__(self, part: RecordedConnection, login: ReplayLogin) -> None:
        super().__init__(part, login)
        self.ready = True
        self._was = Ledger091()
        self._now = Ledger091()
        self._channels: dict[LedgerChannel, LedgerChannel] = {}
        self._given_up: set[LedgerChannel | Ledger091] = set()
        self._frame_max = FRAME_MIN_SIZE
        self._heartbeat_s = 0
        self._publishing: dict[int, bool] = {}
        self.controls: list[tuple[int, bool]] = []
        ledger = Ledger091()
        for step in part.steps:
            before, body = ledger.answers, step.frame.body
            ledger.apply(step.direction, step.frame.channel, body)
            asks = body is not None and not isinstance(body, _MESSAGES)
            if asks if step.sent else ledger.answers > before:
                self.controls.append((step.index, step.sent))

    def heartbeat_s(self) -> float:
        return self._heartbeat_s / 2

    # --- frames of the broker -----------------------------------------------------------------------

    def take(self, frame: TracedFrame) -> None:
        if frame.channel < 0:
            self.over = f"the broker does not speak AMQP 0-9-1: {frame.said}"
            return
        body = frame.body
        self._now.apply("out", frame.channel, body)
        match body:
            case methods.ConnectionClose():
                self._say(0, methods.ConnectionCloseOk())
                if not self._now.opened:
                    self.refused = body.reply_code == _ACCESS_REFUSED
                if not self._now.closing and (
                    self.refused or not self.broker_closes(methods.ConnectionClose)
                ):
                    self.over = f"the broker closed the connection: {body.reply_code} {body.reply_text}"
                self.closed = True
            case methods.ConnectionCloseOk():
                self.closed = True
            case methods.ChannelClose():
                self._say(frame.channel, methods.ChannelCloseOk())
            case methods.ChannelFlow():
                self._say(frame.channel, methods.ChannelFlowOk(body.active))
            case _:
                pass

    # --- conditions ---------------------------------------------------------------------------------

    def waits_for(self, step: Step) -> str | None:
        body, number = step.frame.body, step.frame.channel
        now = self._now
        match body:
            case methods.ConnectionStartOk():
                return None if now.started is not None else "connection.start"
            case methods.ConnectionTuneOk():
                return None if now.tuned is not None else "connection.tune"
            case methods.ConnectionOpen():
                return None
            case methods.ConnectionClose():
                return self.still_owed()
            case _:
                pass
        if self._was.opened and not now.opened:
            return "connection.open-ok"
        was = self._was.channel(number)
        other = None if was is None else self._channels.get(was)
        if was is None or other is None or other.state.ended or was in self._given_up:
            return None
        if len(other.replies) < len(was.replies):
            return f"{was.replies[len(other.replies)]} on {was}"
        if len(other.gets) < len(was.gets):
            return f"the answer to basic.get on {was}"
        match body:
            case methods.BasicPublish() if now.blocked or other.state.stopped:
                return "the broker to read publishes"
            case methods.BasicAck() | methods.BasicNack() | methods.BasicReject():
                for tag in was.state.named(body):
                    consumer, place = was.tags[tag]
                    if len(_same(consumer, was, other).ids) <= place:
                        return f"delivery {place + 1} of {consumer} on {was}"
            case methods.BasicCancel() | methods.ChannelClose():
                return self._channel_owes(was, other)
            case _:
                pass
        return None

    def _channel_owes(self, was: LedgerChannel, now: LedgerChannel | None) -> str | None:
        if now is None or was in self._given_up or (now.state.ended and not was.state.ended):
            return None
        if len(now.replies) < len(was.replies):
            return f"{was.replies[len(now.replies)]} on {was}"
        if len(now.gets) < len(was.gets):
            return f"the answer to basic.get on {was}"
        for consumer in was.consumers.values():
            other = _same(consumer, was, now)
            if len(other.ids) < len(consumer.ids):
                return f"delivery {len(other.ids) + 1} of {consumer} on {was}"
            if consumer.cancelled and not other.cancelled:
                return f"basic.cancel of {consumer} on {was}"
        if len(now.outcomes) < len(was.outcomes):
            return f"{len(was.outcomes) - len(now.outcomes)} confirms on {was}"
        if sum(now.returned.values()) < sum(was.returned.values()):
            return f"basic.return on {was}"
        if was.error is not None and not now.state.ended:
            return f"channel.close of {was}"
        return None

    def still_owed(self) -> str | None:
        if self._was in self._given_up or self.over is not None:
            return None
        if self._was.opened and not self._now.opened:
            return "connection.open-ok"
        for channel in self._was.channels.values():
            owed = self._channel_owes(channel, self._channels.get(channel))
            if owed is not None:
                return owed
        if self._was.error is not None and self._now.error is None:
            return "connection.close"
        if self._was.closed and not self._now.closed:
            return "connection.close-ok"
        return None

    def give_up(self, step: Step) -> None:
        was = self._was.channel(step.frame.channel)
        if not self._now.opened:
            self.lost("the broker does not answer")
        self._given_up.add(self._was if was is None else was)

    # --- frames of the client -----------------------------------------------------------------------

    def say(self, step: Step) -> None:
        body, number, frame = step.frame.body, step.frame.channel, step.frame
        was = self._was.channel(number)
        now = None if was is None else self._channels.get(was)
        tags: list[int] = []
        if was is not None and isinstance(body, methods.BasicAck | methods.BasicNack | methods.BasicReject):
            tags = was.state.named(body)
        self._was.apply("in", number, body)
        if self.over is not None or self._now.error is not None or isinstance(body, _MADE_HERE):
            return
        match body:
            case methods.ConnectionStartOk():
                login = self.login
                response = b"\0" + login.user.encode() + b"\0" + login.password.encode()
                mechanism = "PLAIN" if login.user else "ANONYMOUS"
                self._say(
                    0, replace(body, mechanism=mechanism, response=response if login.user else b"replay")
                )
            case methods.ConnectionTuneOk():
                self._tune(body)
            case methods.ConnectionOpen():
                vhost = self.login.vhost
                self._say(0, body if vhost is None else methods.ConnectionOpen(vhost))
            case methods.ConnectionClose():
                self._say(0, body)
            case methods.ChannelOpen():
                self._say(number, body)
                opened, channel = self._was.channel(number), self._now.channel(number)
                assert opened is not None
                assert channel is not None
                self._channels[opened] = channel
            case _ if was is None or now is None or now.state.ended:
                self._publishing[number] = False
            case None:
                self._content(number, frame)
            case methods.BasicAck() | methods.BasicNack() | methods.BasicReject():
                self._settle(was, now, body, tags)
            case _:
                self._publishing[number] = isinstance(body, methods.BasicPublish)
                self._say(number, self._named(body))

    def _tune(self, body: methods.ConnectionTuneOk) -> None:
        # The recorded client's values, as far as this broker offers as much.
        offered = self._now.tuned
        assert offered is not None
        frame_max = min(each for each in (body.frame_max or 2**32 - 1, offered.frame_max or 2**32 - 1))
        channel_max = min(each for each in (body.channel_max or 65_535, offered.channel_max or 65_535))
        self._frame_max = frame_max
        self._heartbeat_s = body.heartbeat
        taken = methods.ConnectionTuneOk(
            channel_max=0 if not offered.channel_max and not body.channel_max else channel_max,
            frame_max=0 if not offered.frame_max and not body.frame_max else frame_max,
            heartbeat=body.heartbeat,
        )
        self._say(0, taken)

    def _named(self, method: Any) -> Any:
        # With the names that this broker has chosen for queues and consumers.
        chosen: dict[str, str] = {}
        tags: dict[str, str] = {}
        for was, now in self._channels.items():
            chosen.update(zip(was.names, now.names, strict=False))
            for consumer in was.consumers.values():
                tags[consumer.state.tag] = _same(consumer, was, now).state.tag
        given: dict[str, Any] = {}
        for each in fields(method):
            value = getattr(method, each.name)
            if each.name in ("queue", "routing_key", "destination") and value in chosen:
                given[each.name] = chosen[value]
            elif each.name == "consumer_tag" and isinstance(method, methods.BasicCancel) and tags.get(value):
                given[each.name] = tags[value]
        return replace(method, **given) if given else method

    def _content(self, number: int, frame: TracedFrame) -> None:
        if not self._publishing.get(number):
            return
        if frame.data[0] != methods.FRAME_BODY:
            self.send(frame.data)
            return
        room = self._frame_max - FRAME_OVERHEAD
        for start in range(0, frame.payload_bytes, room):
            size = min(room, frame.payload_bytes - start)
            self.send(HEADER.pack(methods.FRAME_BODY, number, size) + bytes(size) + END)

    def _settle(
        self,
        was: LedgerChannel,
        now: LedgerChannel,
        body: methods.BasicAck | methods.BasicNack | methods.BasicReject,
        tags: list[int],
    ) -> None:
        mine: list[int] = []
        for tag in tags:
            consumer, place = was.tags[tag]
            ids = _same(consumer, was, now).ids
            if place < len(ids) and ids[place] in now.state.unsettled:
                mine.append(ids[place])
        if not mine:
            return
        if not isinstance(body, methods.BasicReject) and body.multiple:
            last = max(mine)
            if now.state.named(replace(body, delivery_tag=last)) == sorted(mine):
                self._say(now.state.number, replace(body, delivery_tag=last))
                return
            body = replace(body, multiple=False)
        for tag in mine:
            self._say(now.state.number, replace(body, delivery_tag=tag))

    def _say(self, number: int, method: methods.Method) -> None:
        self._now.apply("in", number, method)
        self.send(method_frame(number, method))

    def close(self) -> None:
        if not self._now.closing and self.over is None and self._now.opened and self._now.error is None:
            close = methods.ConnectionClose(200, "the recording ends here")
            self._now.apply("in", 0, close)
            self.write(method_frame(0, close))

    # --- differences --------------------------------------------------------------------------------

    def differences(self) -> Iterator[Difference]:
        yield from self.ends()
        if self.over is None and (said := other_end(self._was.error, self._now.error)):
            yield self.difference(DifferenceKind.ERROR, "", said)
        for channel in self._was.channels.values():
            if channel in self._channels:
                yield from self._of_channel(channel, self._channels[channel])

    def _of_channel(self, was: LedgerChannel, now: LedgerChannel) -> Iterator[Difference]:
        if said := other_end(was.error, now.error):
            yield self.difference(DifferenceKind.ERROR, was, said)
        for said in otherwise(was.outcomes, now.outcomes, "message"):
            yield self.difference(DifferenceKind.OUTCOME, was, said)
        for said in otherwise(was.gets, now.gets, "basic.get"):
            yield self.difference(DifferenceKind.OUTCOME, was, said)
        for reply in sorted(was.returned.keys() | now.returned.keys()):
            before, after = was.returned.get(reply, 0), now.returned.get(reply, 0)
            if before != after:
                said = f"{before} messages were returned with {reply} in the recording, {after} now"
                yield self.difference(DifferenceKind.OUTCOME, was, said)
        if self.over is not None or now.error is not None:
            return  # the lost connection explains what is missing
        for reply in was.replies[len(now.replies) :]:
            yield self.difference(DifferenceKind.MISSING, was, f"{reply} did not come")
        if missing := len(was.outcomes.keys() - now.outcomes.keys()):
            yield self.difference(
                DifferenceKind.MISSING, was, f"{missing} of {len(was.outcomes)} confirms did not come"
            )
        for consumer in was.consumers.values():
            other = _same(consumer, was, now)
            if (missing := len(consumer.ids) - len(other.ids)) > 0:
                said = f"{missing} of {len(consumer.ids)} messages did not come"
                yield self.difference(DifferenceKind.MISSING, f"{consumer} on {was}", said)
            if consumer.cancelled != other.cancelled:
                said = "cancelled by the broker " + ("now" if other.cancelled else "in the recording alone")
                yield self.difference(DifferenceKind.ERROR, f"{consumer} on {was}", said)


def _same(consumer: LedgerConsumer, was: LedgerChannel, now: LedgerChannel) -> LedgerConsumer:
    if consumer is was.got:
        return now.got
    place, others = list(was.consumers.values()).index(consumer), list(now.consumers.values())
    return others[place] if place < len(others) else LedgerConsumer(consumer.state, consumer.queue)
