"""The faults that a broker injects on request: the active ones, their targets, and the messages that they
hold back.

`FaultySession` and `FaultyChannel` change messages from queues in `handle`, commands to queues in
`take_commands`, and frames to the client in `take_output`; the engines are not involved. Only a broker in
test mode makes such parts, so that in production no branch depends on faults.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, NotFound
from amqp10broker.metadata.queue import QueueCommand, QueueHandle
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.running import FaultKind
from amqp10broker.operations.snapshot import FaultView
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp10.connection import encode_frame
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpLinkError, AmqpSessionError
from amqp10broker.protocols.amqp10.link import FRAME_HEADER_BYTES, LinkAttaching, ReceiverLink
from amqp10broker.protocols.amqp10.performatives import Flow, decode_composite
from amqp10broker.protocols.serial import diff
from amqp10broker.queues.commands import (
    Command,
    Confirmed,
    ConsumerRef,
    DeliveryOutcome,
    Effect,
    PeerId,
    Publish,
    PublisherRef,
    PublishRejected,
    Settle,
)
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.context import ChannelContext, SessionContext
from amqp10broker.sessions.messages import SessionMessage

FAULTS_MAX: Final = 64


OF_MAIL: Final = frozenset(
    {FaultKind.REJECT_PUBLISHES, FaultKind.HOLD_CONFIRMS, FaultKind.REDELIVER, FaultKind.PAUSE_QUEUE}
)
OF_BYTES: Final = frozenset({FaultKind.HOLD_BYTES, FaultKind.RESET_AFTER})
"""Faults of a connection's stream (`runtime.observe.faults`), for the whole connection: no queue, no link."""
AT_ONCE: Final = frozenset({FaultKind.DETACH, FaultKind.END, FaultKind.CLOSE})
"""Faults that are injected once, on what exists then."""


@dataclass(eq=False, slots=True)
class Fault:
    """An active fault.

    Attributes:
        queue: a shell pattern for the queue, or the address of a link; None: any.
        client: a shell pattern for the container-id or connection name; None: any.
        link: a shell pattern for the link's name; None: any.
        most: how many messages or attaches it concerns, how much credit it leaves, or after how many frames
            it resets a connection; None: all, or no credit.
        hits: how often it was injected.
        mail: commands that are held, for their queues.
        effects: confirms that are held, for their publishers.
        watched: messages published since, with confirms that are held.
        flows: the last flow of each link with limited credit, as the broker made it.
        limits: the delivery-count up to which each link was given credit.
        frames: the number of frames sent to each connection since.
        bytes: those held in either direction.
        ahead: sessions and channels that a fault at once has not reached yet.
    """

    number: int
    kind: FaultKind
    vhost: str
    queue: str | None
    client: str | None
    link: str | None
    most: int | None
    condition: str
    code: ReplyCode
    text: str
    hits: int = 0
    mail: list[QueueCommand] = field(default_factory=list)
    effects: list[Confirmed] = field(default_factory=list)
    watched: set[tuple[PublisherRef, int]] = field(default_factory=set)
    flows: dict[ReceiverLink, tuple[PeerId, bytes]] = field(default_factory=dict)
    limits: dict[ReceiverLink, int] = field(default_factory=dict)
    frames: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
    ahead: set[PeerId] = field(default_factory=set)

    def concerns(self, client: str) -> bool:
        return self.client is None or fnmatchcase(client, self.client)

    def matches(self, link: str | None, *queues: str | None) -> bool:
        """Return whether the fault applies to a link (None: a channel) and a queue of any of these names."""
        if self.link is not None and (link is None or not fnmatchcase(link, self.link)):
            return False
        return self.queue is None or any(fnmatchcase(each, self.queue) for each in queues if each)

    def take(self, wanted: int) -> int:
        """Reserve up to `wanted` messages of those that it still applies to; return how many."""
        taken = wanted if self.most is None else min(wanted, max(0, self.most - self.hits))
        self.hits += taken
        return taken

    @property
    def held(self) -> int:
        """The number of held messages and the like, and of sessions and channels not reached yet."""
        mail = sum(len(each.ids) if isinstance(each, Publish) else 1 for _, each in self.mail)
        effects = sum(len(each.ids) for each in self.effects)
        return mail + effects + len(self.flows) + self.bytes + len(self.ahead)

    def view(self) -> FaultView:
        targets = self.vhost, self.queue, self.client, self.link
        return FaultView(self.number, str(self.kind), *targets, self.most, self.hits, self.held)


class Faults:
    """All faults of a broker; `changed` is called when one was injected or lifted."""

    def __init__(
        self, post: Callable[[Mapping[PeerId, list[Effect]]], None], client_of: Callable[[object], str]
    ) -> None:
        self._post = post
        self.client_of = client_of
        self.changed: Callable[[], None] = lambda: None
        self._on: dict[int, Fault] = {}
        self._numbers = count(1)
        self._parts: dict[PeerId, str] = {}
        self._due: defaultdict[PeerId, list[tuple[ReceiverLink, bytes]]] = defaultdict(list)

    # --- requests ---------------------------------------------------------------------------------

    def inject(
        self,
        kind: str,
        vhost: str,
        queue: str | None,
        client: str | None,
        link: str | None,
        most: int | None,
        condition: str,
        code: int,
        text: str,
    ) -> FaultView:
        """Inject a fault until `lift`. Raises `BadRequest`."""
        if len(self._on) >= FAULTS_MAX:
            raise BadRequest(
                "fault", f"{FAULTS_MAX} faults are on already: lift one with 'amqp10broker fault lift'"
            )
        try:
            reply = ReplyCode(code)
        except ValueError:
            codes = ", ".join(str(each.value) for each in ReplyCode)
            raise BadRequest("fault", f"{code} is no reply code of AMQP 0-9-1, which are {codes}") from None
        kept = FaultKind(kind)
        if kept in OF_BYTES and (queue is not None or link is not None):
            text = f"{kind} is for all of a client, whatever its queues and links: leave them out, or name it"
            raise BadRequest("fault", text)
        number = next(self._numbers)
        targets = vhost, queue, client, link
        fault = self._on[number] = Fault(number, kept, *targets, most, condition, reply, text)
        if kept in AT_ONCE:
            fault.ahead = self._parts_of(vhost)
            self._wake(fault.ahead)
        self.changed()
        return fault.view()

    def lift(self, number: int) -> FaultView:
        """End a fault, release what it holds, and return it as it was. Raises `NotFound`."""
        fault = self._on.pop(number, None)
        if fault is None:
            on = ", ".join(f"{each.number} ({each.kind})" for each in self._on.values()) or "none"
            raise NotFound(f"fault {number}", f"fault {number} is not on; {on} is")
        view = fault.view()
        for handle, command in fault.mail:
            handle.post(command)
        confirms: defaultdict[PeerId, list[Effect]] = defaultdict(list)
        for effect in fault.effects:
            confirms[effect.publisher.reply_to].append(effect)
        self._post(confirms)
        for link, (peer, frame) in fault.flows.items():
            if peer in self._parts:
                self._due[peer].append((link, frame))
        self._wake(set(self._due))
        self.changed()
        return view

    def views(self) -> list[FaultView]:
        return [fault.view() for fault in self._on.values()]

    def _parts_of(self, vhost: str) -> set[PeerId]:
        return {peer for peer, its_vhost in self._parts.items() if its_vhost == vhost}

    def _wake(self, peers: set[PeerId]) -> None:
        # Sessions and channels run a step without an event.
        self._post({peer: [] for peer in peers})

    # --- injection --------------------------------------------------------------------------------

    def join(self, peer: PeerId, vhost: str) -> None:
        """Register a session or channel; active faults at once do not apply to it."""
        self._parts[peer] = vhost

    def at_once(self, peer: PeerId, client: str) -> list[Fault]:
        reached = [fault for fault in self._on.values() if peer in fault.ahead]
        for fault in reached:
            fault.ahead.discard(peer)
        return [fault for fault in reached if fault.concerns(client)]

    def leave(self, peer: PeerId) -> None:
        for fault in self._on.values():
            fault.ahead.discard(peer)
        self._parts.pop(peer, None)
        self._due.pop(peer, None)

    def end(self, connection: int) -> None:
        for fault in self._on.values():
            fault.frames.pop(connection, None)

    def on(self, kinds: frozenset[FaultKind], vhost: str, client: str) -> list[Fault]:
        return [
            fault
            for fault in self._on.values()
            if fault.kind in kinds and fault.vhost == vhost and fault.concerns(client)
        ]

    @property
    def any(self) -> bool:
        return bool(self._on)

    def take_due(self, peer: PeerId) -> list[bytes]:
        """Return flows that were held back, and are due."""
        return [frame for link, frame in self._due.pop(peer, ()) if link.attached]

    def posted(
        self,
        faults: list[Fault],
        vhost: VirtualHost,
        link_of: Callable[[PublisherRef | ConsumerRef], str | None],
        mail: Sequence[QueueCommand],
    ) -> list[QueueCommand]:
        """Return the part of a session's commands to queues that faults leave."""
        left: list[QueueCommand] = []
        for handle, command in mail:
            queue = next((each.name for each in vhost if each.handle is handle), "")
            ref = getattr(command, "publisher", None) or getattr(command, "consumer", None)
            link = None if ref is None else link_of(ref)
            commands: Sequence[Command] = (command,)
            for fault in faults:
                if fault.matches(link, queue):
                    commands = [
                        rest for each in commands for rest in self._posted(fault, queue, handle, each)
                    ]
            left += [(handle, each) for each in commands]
        return left

    def _posted(self, fault: Fault, queue: str, handle: QueueHandle, command: Command) -> Sequence[Command]:
        if fault.kind is FaultKind.PAUSE_QUEUE:
            if not queue:  # it answers by itself (direct reply-to), or was deleted meanwhile
                return (command,)
            fault.hits += 1
            fault.mail.append((handle, command))
            return ()
        if fault.kind is FaultKind.REDELIVER:
            return self._settled(fault, command) if isinstance(command, Settle) else (command,)
        if not isinstance(command, Publish):
            return (command,)
        rest = self._published(fault, queue, command)
        return (rest,) if rest.ids else ()

    def _settled(self, fault: Fault, settle: Settle) -> Sequence[Command]:
        # Accepted deliveries go back, as if the settlement had been lost.
        if settle.delivery_outcome is not DeliveryOutcome.ACCEPT or not (
            taken := fault.take(len(settle.keys))
        ):
            return (settle,)
        back, rest = settle.keys[:taken], settle.keys[taken:]
        if not rest:
            return (replace(settle, keys=back, delivery_outcome=DeliveryOutcome.REQUEUE_FAILED),)
        # One answer, if one is requested.
        return (
            replace(settle, keys=back, delivery_outcome=DeliveryOutcome.REQUEUE_FAILED, answer=False),
            replace(settle, keys=rest),
        )

    def _published(self, fault: Fault, queue: str, publish: Publish) -> Publish:
        taken = fault.take(len(publish.ids))
        ids, publisher, settled = publish.ids[:taken], publish.publisher, publish.settled
        if fault.kind is FaultKind.HOLD_CONFIRMS:
            fault.watched.update((publisher, each) for each in ids)
            return publish
        if not taken:
            return publish
        self._post({publisher.reply_to: [PublishRejected(publisher, ids, settled, queue)]})
        return Publish(publisher, publish.ids[taken:], publish.messages[taken:], settled)

    def confirmed(self, effects: Sequence[Effect]) -> list[Effect]:
        holding = [fault for fault in self._on.values() if fault.watched]
        if not holding:
            return list(effects)
        left: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Confirmed):
                ids = list(effect.ids)
                for fault in holding:
                    held = [each for each in ids if (effect.publisher, each) in fault.watched]
                    if held:
                        fault.effects.append(Confirmed(effect.publisher, held, effect.settled))
                    fault.watched.difference_update((effect.publisher, each) for each in held)
                    ids = [each for each in ids if each not in held]
                if not ids:
                    continue
                effect = Confirmed(effect.publisher, ids, effect.settled)
            left.append(effect)
        return left


_DESCRIPTOR_AT: Final = 10
_ATTACHES: Final = frozenset({FaultKind.REFUSE_ATTACHES})
_CREDIT: Final = frozenset({FaultKind.LIMIT_CREDIT})


class FaultySession(BrokerSession):
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
        return (
            self._faults.posted(faults, self.context.vhost, self._link_name, commands) if faults else commands
        )

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
        # This raises an error if the fault must close the connection.
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
    """Faults of links do not apply to it."""

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
        # This raises an error if the fault must close the channel or the connection.
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
