"""Whoever asks queues, in tests that have no broker."""

from __future__ import annotations

from itertools import count
from typing import Any

from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.queues.commands import PeerId, ReplyTo
from amqp10broker.runtime.mailbox import EffectBox, ReplyRegistry

_SESSIONS = count(1)


def new_reply_to(label: str = "somebody") -> ReplyTo:
    return ReplyTo(PeerId(0, 0, next(_SESSIONS)), label)


def reply_to_at(queue: DeclaredQueue, box: EffectBox) -> ReplyTo:
    """Return a reply address of a running broker's queue, with a mailbox."""
    handle: Any = queue.handle
    reply_registry: ReplyRegistry = handle._reply_registry
    return reply_registry.open("test", box)
