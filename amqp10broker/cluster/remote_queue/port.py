"""The node of links: its connections to other nodes, what is known of these, and its sessions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from amqp10broker.cluster.remote_queue.messages import LinkMessage, encode
from amqp10broker.cluster.wire import FrameKind
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import (
    AttachPublisher,
    Command,
    Delete,
    Inspect,
    PeerId,
    Publish,
    Purge,
    Subscribe,
)
from amqp10broker.queues.effects import Answer, Effect, QueueDeleted, QueueDown, Refusal, Unconfirmed

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that may wait for the connection to one node before commands stay in their links."""

SendFrame = Callable[[int, FrameKind, int, Sequence[bytes]], bool]
"""Sends a frame: node, kind, group, body; False: there is no connection."""


@dataclass(eq=False)
class LinkPort:
    """See the module.

    Attributes:
        connected: other nodes to which there is a connection.
        incarnations: the last known start of each node of the cluster, this one among them; 0: none is known.
        stirred: queues whose links have deadlines, or had.
        on_stirred: called when the first of them begins to wait.
        send_frame: sends a frame to another node.
        waiting_bytes: returns the bytes that wait for the connection to a node.
        tell: delivers effects to sessions of this node.
        now_ms: milliseconds of a clock that never runs back.
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
        """Note that the link to this queue has a deadline from now on, or another."""
        if not self.stirred:
            self.on_stirred()
        self.stirred[group] = None

    def send(self, node: int, group: int, message: LinkMessage) -> bool:
        """Send a message to a node, within this one as the same record; False: there is no connection."""
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
    """Add the answers to commands that the queue does not execute: it is gone, or cannot be reached.
    `answered`: requests that have an answer already.
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
