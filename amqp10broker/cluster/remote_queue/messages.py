"""The messages between the two ends of a link, and their bytes.

A link connects all sessions of one start of a node with one queue. Its commands are numbered from 1, so that
the queue executes each once under any leader. Within a node the records are passed by reference and must not
be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from amqp10broker.cluster.wire import FrameKind, PeerFrame
from amqp10broker.dataclass import dataclass
from amqp10broker.layout import FLAG, TEXT, U32, U64, Layout, Many, OneOf, as_bytes, choice, mapping, maybe
from amqp10broker.message.filters.fields import FilterError
from amqp10broker.message.filters.filter_set import Filters, decode_wanted, encode_wanted
from amqp10broker.queues.commands import (
    Answer,
    AttachPublisher,
    Command,
    ConsumerRef,
    Delete,
    Deliver,
    Effect,
    Inspect,
    PeerId,
    Publish,
    Purge,
    QueueDeleted,
    QueueDown,
    Refusal,
    Subscribe,
    Unconfirmed,
)
from amqp10broker.queues.layouts import CONSUMER, EFFECT, OF_SESSIONS, PEER, SHOWN, SUBSCRIPTION, UNLOGGED
from amqp10broker.queues.quorum.node_links import ConsumerFacts
from amqp10broker.queues.quorum.selecting import OF_CONSUMERS


@dataclass(slots=True, eq=False)
class CommandBatch:
    """Consecutively numbered commands, at least one. `token`: that of the last `ResumeRemote`. `first`: the
    number of the first command. `heard`: the index of the last entry with effects that the node has.
    """

    token: int
    first: int
    heard: int
    commands: Sequence[Command]

    @property
    def last(self) -> int:
        return self.first + len(self.commands) - 1


@dataclass(slots=True, eq=False)
class Browse:
    """Requests of browsers of a quorum queue, at least one; not in a log, so neither numbered nor
    repeated.
    """

    token: int
    commands: Sequence[Command]


@dataclass(slots=True, eq=False)
class ResumeRemote:
    """A node has found the leader of the queue, and reports its position.

    Attributes:
        token: that of this attempt; later messages carry it.
        heard: the index of the last entry with effects that it has; 0: none.
        first: the number of the first command that it stores: all before are executed.
        seen: for each consumer, the deliveries of the present epoch that its session had, as the queue
            counts.
    """

    token: int
    incarnation: int
    heard: int
    first: int
    seen: Mapping[ConsumerRef, int]


@dataclass(slots=True, eq=False)
class RemoteResumed:
    """The answer to `ResumeRemote`: the part of the queue's state that concerns the node.

    Attributes:
        index: that of the entry with this state; the effects of later ones follow.
        deleted: the queue was deleted.
        consumers: all that exist at the node.
        last: the number of the last executed command; all answers up to it are in the state, or in `kept`.
        kept: effects that do not follow from the state and that the node does not have, in order.
        deliveries: those of its consumers that their sessions have not had, in order.
    """

    token: int
    index: int
    last: int
    deleted: bool
    kept: Sequence[Effect]
    deliveries: Sequence[Deliver]
    consumers: Mapping[ConsumerRef, ConsumerFacts]


@dataclass(slots=True, eq=False)
class RemoteEffects:
    """Effects for the sessions of a node. `index`: that of the entry that made them; 0: the queue has no log.
    `done`: the number of the last executed command.
    """

    token: int
    index: int
    done: int
    effects: Mapping[PeerId, list[Effect]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaderIs:
    """The sender leads the queue and accepts commands.

    Attributes:
        term: since which term; 0: the queue is on one node only.
        again: it missed commands, or the link's token is unknown: `ResumeRemote` must be sent again.
        no_more: the sender does not lead the queue any more.
        full: its disk is full: publishes stay in their links until the next `LeaderIs`.
    """

    term: int
    again: bool = False
    no_more: bool = False
    full: bool = False


LinkMessage = CommandBatch | Browse | ResumeRemote | RemoteResumed | RemoteEffects | LeaderIs


def _decode_filters(data: bytes) -> Filters:
    try:
        return decode_wanted(data)
    except FilterError as error:
        raise ValueError(str(error)) from error


FILTERS: Final = maybe(as_bytes(encode_wanted, _decode_filters))


_new_subscribe: Final[Callable[..., Subscribe]] = Subscribe


def _subscribe(*values: Any) -> Subscribe:
    filters = values[7]
    return _new_subscribe(*values[:7], None if filters is None else filters.offset, *values[7:])


def _batch(token: int, first: int, heard: int, commands: Sequence[Command]) -> CommandBatch:
    if not commands or not first:
        raise ValueError("there is none, or they are numbered from 0")
    return CommandBatch(token, first, heard, commands)


def is_browsers(command: Command) -> bool:
    return command.browse if isinstance(command, Subscribe) else isinstance(command, OF_CONSUMERS)


def _browse(token: int, commands: Sequence[Command]) -> Browse:
    if not commands or not all(map(is_browsers, commands)):
        raise ValueError("there is no command, or one that is not of a browser")
    return Browse(token, commands)


def _resume(
    token: int, incarnation: int, heard: int, first: int, seen: Mapping[ConsumerRef, int]
) -> ResumeRemote:
    if not first:
        raise ValueError("commands are numbered from 1")
    return ResumeRemote(token, incarnation, heard, first, seen)


def _resumed(*values: Any) -> RemoteResumed:
    resumed = RemoteResumed(*values)
    if not all(isinstance(each, Deliver) for each in resumed.deliveries):
        raise ValueError("among deliveries are other effects")
    return resumed


_COMMANDS: Final = Many(
    OneOf(
        "command of a session",
        {
            **OF_SESSIONS,
            **UNLOGGED,
            5: Layout(
                Subscribe, _subscribe, **SUBSCRIPTION, filters=FILTERS,
                browse=FLAG, shown=SHOWN, enqueued_time=FLAG, name=TEXT,
            ),
        },
    )
)  # fmt: skip
_EFFECTS: Final = Many(EFFECT)
_FACTS: Final = Layout(
    ConsumerFacts, delivery_count=U32, credit=U64, available=U64, epoch=U64,
    active=choice((None, False, True)), missed=U64,
)  # fmt: skip

BODIES: Final[Mapping[FrameKind, Layout[Any]]] = {
    FrameKind.COMMANDS: Layout(CommandBatch, _batch, token=U32, first=U64, heard=U64, commands=_COMMANDS),
    FrameKind.BROWSE: Layout(Browse, _browse, token=U32, commands=_COMMANDS),
    FrameKind.EFFECTS: Layout(
        RemoteEffects, token=U32, index=U64, done=U64, effects=mapping(PEER, _EFFECTS)
    ),
    FrameKind.RESUME: Layout(
        ResumeRemote, _resume, token=U32, incarnation=U32, heard=U64, first=U64, seen=mapping(CONSUMER, U64)
    ),
    FrameKind.RESUMED: Layout(
        RemoteResumed, _resumed, token=U32, index=U64, last=U64, deleted=FLAG, kept=_EFFECTS,
        deliveries=_EFFECTS, consumers=mapping(CONSUMER, _FACTS),
    ),
    FrameKind.LEADER_IS: Layout(LeaderIs, term=U64, again=FLAG, no_more=FLAG, full=FLAG),
}  # fmt: skip
_KINDS: Final = {layout.record: kind for kind, layout in BODIES.items()}


def encode(message: LinkMessage) -> tuple[FrameKind, list[bytes]]:
    kind = _KINDS[type(message)]
    return kind, BODIES[kind].pieces(message)


def decode(frame: PeerFrame) -> LinkMessage:
    """The inverse of `encode`. Raises `BadBytes`."""
    message: LinkMessage = BODIES[frame.kind].decode(frame.body)
    return message


WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes that may wait for the connection to one node before commands stay in their links."""

SendFrame = Callable[[int, FrameKind, int, Sequence[bytes]], bool]
"""(node, kind, group, body) -> False if there is no connection."""


@dataclass(eq=False)
class LinkPort:
    """The node, as its links use it.

    Attributes:
        connected: other nodes with a connection.
        incarnations: the last known start of each node of the cluster; 0: unknown.
        stirred: queues with links that have deadlines, or had.
        on_stirred: called when the first of them begins to wait.
        waiting_bytes: returns the bytes that wait for the connection to a node.
        tell: delivers effects to sessions of this node.
        now_ms: a clock that never runs back.
        deliver: takes a message of this node to itself.
    """

    node: int
    incarnation: int
    send_frame: SendFrame
    waiting_bytes: Callable[[int], int]
    tell: Callable[[Mapping[PeerId, list[Effect]]], None]
    now_ms: Callable[[], int]
    deliver: Callable[[int, int, LinkMessage], None] = lambda node, group, message: None
    connected: dict[int, None] = field(default_factory=dict, init=False)
    suspected: frozenset[int] = frozenset()
    stirred: dict[int, None] = field(default_factory=dict, init=False)
    on_stirred: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.incarnations: dict[int, int] = {self.node: self.incarnation}

    @property
    def peers(self) -> Sequence[int]:
        return [self.node, *self.connected]

    def crowded(self, node: int) -> bool:
        return node != self.node and self.waiting_bytes(node) > WAITING_BYTES_MAX

    def stir(self, group: int) -> None:
        """Note that the link to this queue has a new deadline."""
        if not self.stirred:
            self.on_stirred()
        self.stirred[group] = None

    def send(self, node: int, group: int, message: LinkMessage) -> bool:
        """Send a message to a node; return False if there is no connection."""
        if node == self.node:
            self.deliver(node, group, message)
            return True
        kind, body = encode(message)
        return self.send_frame(node, kind, group, body)


EffectsBySession = dict[PeerId, list[Effect]]


def add_effect(out: EffectsBySession, peer: PeerId, effect: Effect) -> None:
    effects = out.get(peer)
    if effects is None:
        out[peer] = [effect]
    else:
        effects.append(effect)


def refuse(
    out: EffectsBySession,
    commands: Iterable[Command],
    queue: str,
    why: Refusal,
    answered: Container[object] = (),
) -> None:
    """Add the answers to commands that the queue does not execute. `answered`: requests with an answer
    already.
    """
    gone = why is Refusal.GONE
    for command in commands:
        match command:
            case Publish():
                publisher = command.publisher
                refused = Unconfirmed(publisher, command.ids, command.settled, failed=not gone, queue=queue)
                add_effect(out, publisher.reply_to, refused)
            case AttachPublisher() if gone:
                ref = command.publisher
                add_effect(out, ref.reply_to, QueueDeleted(ref, queue))
            case Subscribe():
                consumer = command.consumer
                end = QueueDeleted if gone else QueueDown
                add_effect(out, consumer.reply_to, end(consumer, queue))
            case Inspect() | Purge() | Delete():
                request = command.request
                if request is not None and request not in answered:
                    add_effect(out, request.reply_to, Answer(request, 0, 0, why))
            case _:
                continue
