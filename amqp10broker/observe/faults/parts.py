"""Sessions and channels that inject the faults of a `Faults`, and otherwise behave as usual.

The broker chooses the classes when it starts. Letters from queues are changed in `handle`, commands to queues
in `take_commands`, frames to the client in `take_output`; the engines are not involved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.observe.faults.table import OF_MAIL, Fault, Faults
from amqp10broker.operations.running import FaultKind
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, AmqpHardError
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpLinkError, AmqpSessionError
from amqp10broker.protocols.amqp10.events import LinkAttaching
from amqp10broker.protocols.amqp10.frames import FRAME_HEADER_BYTES, encode_frame
from amqp10broker.protocols.amqp10.link import ReceiverLink
from amqp10broker.protocols.amqp10.performatives import Flow, decode_composite
from amqp10broker.protocols.serial import diff
from amqp10broker.queues.commands import ConsumerRef, PublisherRef
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.context import ChannelContext, SessionContext
from amqp10broker.sessions.messages import SessionMessage

_DESCRIPTOR_AT: Final = 10
_ATTACHES: Final = frozenset({FaultKind.REFUSE_ATTACHES})
_CREDIT: Final = frozenset({FaultKind.LIMIT_CREDIT})


class FaultySession(BrokerSession):
    """A session that injects faults."""

    def __init__(
        self, faults: Faults, channel: int, begin: Any, context: SessionContext, **rest: Any
    ) -> None:
        self._faults = faults
        self._whose = context.vhost.name, context.container_id
        faults.join(context.reply_to.id, context.vhost.name)
        super().__init__(channel, begin, context, **rest)

    def handle(self, message: SessionMessage) -> None:
        for fault in self._faults.at_once(self.reply_to.id, self._whose[1]):
            if not self.session.ended:
                self._act(fault)
        super().handle(self._faults.confirmed(message) if isinstance(message, list) else message)

    def take_commands(self) -> list[QueueCommand]:
        commands = super().take_commands()
        faults = self._faults.on(OF_MAIL, *self._whose)
        return self._faults.posted(faults, self.vhost, self._link_name, commands) if faults else commands

    def take_output(self) -> Sequence[bytes | memoryview]:
        pieces = [*super().take_output(), *self._faults.take_due(self.reply_to.id)]
        faults = self._faults.on(_CREDIT, *self._whose)
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
        end: LinkPublisher | LinkConsumer | None = (
            self.links.publishers.get(ref) if isinstance(ref, PublisherRef) else self.links.consumers.get(ref)
        )
        return None if end is None else end.link.name

    def _ends(self, fault: Fault) -> Iterator[LinkConsumer | LinkPublisher]:
        ends: list[LinkConsumer | LinkPublisher] = [*self.consumers, *self.publishers]
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
        if frame[_DESCRIPTOR_AT] != Flow.DESCRIPTOR:
            return frame
        flow, _ = decode_composite(frame[FRAME_HEADER_BYTES:])
        assert isinstance(flow, Flow)
        granted = flow.link_credit
        for fault in faults:
            end = next((each for each in self._ends(fault) if each.link.handle == flow.handle), None)
            if end is None or not isinstance(end.link, ReceiverLink):
                continue
            left = self._limited(fault, end.link, flow)
            if left != flow.link_credit:
                flow.link_credit = left
                fault.hits += 1
                fault.flows[end.link] = self.reply_to.id, frame
        return frame if flow.link_credit == granted else encode_frame(self.session.channel, flow.encode())

    def _limited(self, fault: Fault, link: ReceiverLink, flow: Flow) -> int:
        # The credit that a fault leaves of a grant.
        given = flow.delivery_count or 0
        limit = fault.limits.setdefault(link, given + (fault.most or 0))
        return max(0, min(flow.link_credit or 0, diff(limit, given)))


class FaultyChannel(BrokerChannel):
    """A channel that injects faults; those of links do not apply to it."""

    def __init__(self, faults: Faults, number: int, context: ChannelContext) -> None:
        self._faults = faults
        self._whose = context.vhost.name, faults.client_of(context.connection)
        faults.join(context.reply_to.id, context.vhost.name)
        super().__init__(number, context)

    def handle(self, message: SessionMessage) -> None:
        for fault in self._faults.at_once(self.context.reply_to.id, self._whose[1]):
            if self.state is ChannelState.OPEN:
                self._guarded(self._act, fault)
        super().handle(self._faults.confirmed(message) if isinstance(message, list) else message)

    def take_commands(self) -> list[QueueCommand]:
        commands = super().take_commands()
        faults = self._faults.on(OF_MAIL, *self._whose)
        if not faults:
            return commands
        return self._faults.posted(faults, self.context.vhost, lambda ref: None, commands)

    def release(self) -> None:
        self._faults.leave(self.context.reply_to.id)
        super().release()

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
