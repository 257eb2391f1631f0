"""Effects that an end of a link makes itself, for sessions of its node."""

from __future__ import annotations

from collections.abc import Container, Iterable

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

EffectsBySession = dict[PeerId, list[Effect]]


def add_effect(out: EffectsBySession, peer: PeerId, effect: Effect) -> None:
    """Add an effect to those of a session."""
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

    Args:
        answered: requests that have an answer already.
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
