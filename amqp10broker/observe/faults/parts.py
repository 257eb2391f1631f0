"""Sessions and channels that inject the faults of a `Faults`, and otherwise behave as usual.

The broker chooses the classes when it starts. Letters from queues are changed in `handle`, commands to queues
in `take_mail`, frames to the client in `take_output`; the engines are not involved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle
from amqp10broker.observe.faults.table import OF_FLOWS, OF_MAIL, Fault, FaultKind, Faults, Unwanted
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, AmqpHardError
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpLinkError, AmqpSessionError
from amqp10broker.protocols.amqp10.events import LinkAttaching
from amqp10broker.protocols.amqp10.frames import FRAME_HEADER_BYTES, encode_frame
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Flow, Modified, decode_composite
from amqp10broker.protocols.serial import MASK, diff
from amqp10broker.queues.commands import Command, ConsumerRef, PublisherRef
from amqp10broker.routing.exchange import Exchange
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp091.context import ChannelContext
from amqp10broker.sessions.amqp091.publishing import Publishing
from amqp10broker.sessions.amqp10.consumer import Consumer
from amqp10broker.sessions.amqp10.publisher import Publisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.context import SessionContext
from amqp10broker.sessions.mail import Frames, SessionLetter

_DESCRIPTOR_AT: Final = 10
_ATTACHES: Final = frozenset({FaultKind.REFUSE_ATTACHES})
_RETURNS: Final = frozenset({FaultKind.RETURN_PUBLISHES})
_ECHOES: Final = frozenset({FaultKind.HOLD_ECHOES})
_WINDOWS: Final = frozenset({FaultKind.CLOSE_WINDOW})
_STOPS: Final = frozenset({FaultKind.STOP_PUBLISHERS})
_MODIFIED: Final = Modified(delivery_failed=True)


class FaultySession(BrokerSession):
    """A session that injects faults."""

    def __init__(
        self, faults: Faults, channel: int, begin: Any, context: SessionContext, **rest: Any
    ) -> None:
        self._faults = faults
        self._whose = context.vhost.name, context.container_id
        faults.join(context.reply_to.id, context.vhost.name)
        self._alarm = rest["alarm"]
        self._shut = faults.begins(FaultKind.CLOSE_WINDOW, *self._whose) is not None
        small = faults.begins(FaultKind.FRAME_SIZE, *self._whose)
        frame_size = rest["frame_size_max"] if small is None else min(rest["frame_size_max"], small)
        rest |= {"alarm": self._alarm or self._shut, "frame_size_max": frame_size}
        super().__init__(channel, begin, context, **rest)

    def handle(self, letter: SessionLetter) -> None:
        for fault in self._faults.at_once(self.reply_to.id, self._whose[1]):
            if not self.session.ended:
                self._act(fault)
        self._note_window_of_ours()
        for link in self._faults.take_owed(self.reply_to.id):
            if not self.session.ended:
                self.session.send_session_flow() if link is None else self.session.send_flow(link)
        if isinstance(letter, list):
            for effect in letter:
                if isinstance(effect, Unwanted) and effect.publisher in self.links.publishers:
                    publisher = self.links.publishers[effect.publisher]
                    publisher.count_down(effect.ids, _MODIFIED, settled=effect.settled)
            letter = self._faults.confirmed([each for each in letter if not isinstance(each, Unwanted)])
        elif isinstance(letter, Frames):
            self._note_echoes(letter.items)
        super().handle(letter)

    def on_alarm(self, *, on: bool) -> None:
        self._alarm = on
        if not self._shut:
            super().on_alarm(on=on)

    def take_mail(self) -> list[tuple[QueueHandle, Command]]:
        mail = super().take_mail()
        faults = self._faults.on(OF_MAIL, *self._whose)
        return self._faults.posted(faults, self.vhost, self._link_name, mail) if faults and mail else mail

    def take_output(self) -> Sequence[bytes | memoryview]:
        pieces = [*super().take_output(), *self._faults.take_due(self.reply_to.id)]
        faults = self._faults.on(OF_FLOWS, *self._whose)
        return [self._sent(faults, frame) for frame in _frames(b"".join(pieces))] if faults else pieces

    def release(self) -> None:
        self._faults.leave(self.reply_to.id)
        super().release()

    def _attach(self, event: LinkAttaching) -> None:
        ends = (event.attach.source, event.attach.target)
        addresses = [str(address) for each in ends if (address := getattr(each, "address", None))]
        queues = [address.rpartition("/")[2] for address in addresses]
        for fault in self._faults.on(_ATTACHES, *self._whose):
            if fault.matches(event.link.name, *addresses, *queues) and fault.take(1):
                raise AmqpLinkError(fault.condition, fault.text)
        super()._attach(event)

    def _link_name(self, ref: PublisherRef | ConsumerRef) -> str | None:
        end: Publisher | Consumer | None = (
            self.links.publishers.get(ref) if isinstance(ref, PublisherRef) else self.links.consumers.get(ref)
        )
        return None if end is None else end.link.name

    def _note_window_of_ours(self) -> None:
        # The window is held closed as long as a fault requires it, or an alarm is on.
        shut = bool(self._faults.on(_WINDOWS, *self._whose))
        if shut is self._shut:
            return
        if shut:
            self._faults.begins(FaultKind.CLOSE_WINDOW, *self._whose)
        self._shut = shut
        if not self._alarm and not self.session.ended:
            (self.session.incoming.close if shut else self.session.incoming.reopen)()

    def _note_echoes(self, items: Sequence[object]) -> None:
        for fault in self._faults.on(_ECHOES, *self._whose):
            for flow in [each for each in items if isinstance(each, Flow) and each.echo]:
                link = None if flow.handle is None else self.session.links.by_remote.get(flow.handle)
                if link is None and (flow.handle is not None or fault.link or fault.queue):
                    continue
                if link is None or any(each.link is link for each in self._ends(fault)):
                    fault.echoes.setdefault((self.reply_to.id, link), False)

    def _ends(self, fault: Fault) -> Iterator[Consumer | Publisher]:
        ends: list[Consumer | Publisher] = [*self.consumers, *self.publishers]
        for end in ends:
            queue = None if end.queue is None else end.queue.name
            if end.link.attached and fault.matches(end.link.name, end.address, queue):
                yield end

    def _act(self, fault: Fault) -> None:
        # Raises if the fault is to close the connection.
        ends = list(self._ends(fault))
        if (fault.queue is not None or fault.link is not None) and not ends:
            return
        if fault.kind is FaultKind.DETACH:
            for end in ends[: fault.take(len(ends))]:
                self.links.detach(end.link, AmqpLinkError(fault.condition, fault.text))
        elif fault.take(1):
            if fault.kind is FaultKind.CLOSE:
                raise AmqpConnectionError(fault.condition, fault.text)
            self._fail(AmqpSessionError(fault.condition, fault.text))

    def _sent(self, faults: list[Fault], frame: bytes) -> bytes:
        # Empty: the frame is not sent.
        if frame[_DESCRIPTOR_AT] != Flow.DESCRIPTOR:
            return frame
        flow, _ = decode_composite(frame[FRAME_HEADER_BYTES:])
        assert isinstance(flow, Flow)
        meant = replace(flow)
        for fault in faults:
            end = next((each for each in self._ends(fault) if each.link.handle == flow.handle), None)
            link = None if end is None else end.link
            if fault.kind is FaultKind.HOLD_ECHOES:
                asked = self.reply_to.id, link
                if (link is None) is (flow.handle is None) and asked in fault.echoes:
                    fault.hits += not fault.echoes[asked]
                    fault.echoes[asked] = True
                    return b""
                continue
            if link is None:
                continue
            before = replace(flow)
            goes = self._changed(fault, link, flow)
            if goes and flow == before:
                continue
            fault.hits += 1
            fault.flows[link] = self.reply_to.id, frame
            if not goes:
                return b""
        return frame if flow == meant else encode_frame(self.session.channel, flow.encode())

    def _changed(self, fault: Fault, link: SenderLink | ReceiverLink, flow: Flow) -> bool:
        # Returns whether the flow is sent at all.
        if fault.kind is FaultKind.IGNORE_DRAINS:
            return not (flow.drain and isinstance(link, SenderLink))
        if fault.kind is FaultKind.WRONG_DELIVERY_COUNT and flow.delivery_count is not None:
            flow.delivery_count = (flow.delivery_count + (1 if fault.most is None else fault.most)) & MASK
        elif fault.kind is FaultKind.LIMIT_CREDIT and isinstance(link, ReceiverLink):
            flow.link_credit = self._limited(fault, link, flow)
        return True

    def _limited(self, fault: Fault, link: ReceiverLink, flow: Flow) -> int:
        # The credit that a fault leaves of a grant.
        given = flow.delivery_count or 0
        limit = fault.limits.setdefault(link, given + (fault.most or 0))
        return max(0, min(flow.link_credit or 0, diff(limit, given)))


class FaultyPublishing(Publishing):
    """Publishing on a channel, where a fault makes queues appear missing."""

    def __init__(self, faults: Faults, whose: tuple[str, str], *parts: Any) -> None:
        super().__init__(*parts)
        self._faults = faults
        self._whose = whose

    def _to_queues(
        self,
        exchange: Exchange,
        queues: Sequence[DeclaredQueue],
        messages: list[Message],
        mandatory: bool,
    ) -> None:
        for fault in self._faults.on(_RETURNS, *self._whose):
            if fault.matches(None, *(queue.name for queue in queues)):
                taken = fault.take(len(messages))
                super()._to_queues(exchange, (), messages[:taken], mandatory)
                messages = messages[taken:]
        super()._to_queues(exchange, queues, messages, mandatory)


class FaultyChannel(BrokerChannel):
    """A channel that injects faults; those of links do not apply to it."""

    def __init__(self, faults: Faults, number: int, context: ChannelContext) -> None:
        self._faults = faults
        self._whose = context.vhost.name, faults.client_of(context.connection)
        faults.join(context.reply_to.id, context.vhost.name)
        self._flow_stopped = False
        small = faults.begins(FaultKind.FRAME_SIZE, *self._whose)
        if small is not None:
            context.frame_max = min(context.frame_max or small, small)
        super().__init__(number, context)

    def _new_publishing(self) -> Publishing:
        return FaultyPublishing(
            self._faults,
            self._whose,
            self.context,
            self.post,
            self._return,
            lambda: self.subscribing.reply_address,
            self._counters,
        )

    def handle(self, letter: SessionLetter) -> None:
        for fault in self._faults.at_once(self.context.reply_to.id, self._whose[1]):
            if self.state is ChannelState.OPEN:
                self._guarded(self._act, fault)
        super().handle(self._faults.confirmed(letter) if isinstance(letter, list) else letter)
        self._note_flow()

    def take_mail(self) -> list[tuple[QueueHandle, Command]]:
        mail = super().take_mail()
        faults = self._faults.on(OF_MAIL, *self._whose)
        if not faults or not mail:
            return mail
        return self._faults.posted(faults, self.context.vhost, lambda ref: None, mail)

    def release(self) -> None:
        self._faults.leave(self.context.reply_to.id)
        super().release()

    def _note_flow(self) -> None:
        # The client is notified when it is to stop publishing, and when it may continue.
        if self.state is not ChannelState.OPEN:
            self._flow_stopped = False
            return
        stopped = bool(self._faults.on(_STOPS, *self._whose))
        if stopped is not self._flow_stopped:
            if stopped:
                self._faults.begins(FaultKind.STOP_PUBLISHERS, *self._whose)
            self._flow_stopped = stopped
            self.write(methods.ChannelFlow(not stopped))

    def _act(self, fault: Fault) -> None:
        # Raises if the fault is to close the channel or the connection.
        lasting = self.consuming.lasting
        consumers = [each for each in lasting if fault.link is None and fault.matches(None, each.queue.name)]
        if fault.link is not None or (fault.queue is not None and not consumers):
            return
        if fault.kind is FaultKind.DETACH:
            for consumer in consumers[: fault.take(len(consumers))]:
                self.subscribing.cancel_for_us(consumer, fault.text)
        elif fault.take(1):
            error = AmqpHardError if fault.kind is FaultKind.CLOSE else AmqpChannelError
            raise error(fault.code, fault.text)


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at : at + size]
        at += size
