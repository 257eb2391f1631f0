"""Time to live and length limits: what the settings of a queue come to for messages."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from amqp10broker.message.message import Message
from amqp10broker.message.traits import traits_of
from amqp10broker.queues.settings import Overflow, QueueSettings

_HEAD: Final = itemgetter(0)


def expiries_of(messages: Sequence[Message], queue_ttl_ms: int | None, now_ms: int) -> Sequence[int] | None:
    """When each message expires that is published now, in milliseconds; 0: never. None: none does.

    The smaller one counts of the queue's time to live and the message's own.
    """
    heads = set(map(_HEAD, messages))
    ttls = {head: _smaller(traits_of(head).ttl_ms, queue_ttl_ms) for head in heads}
    if len(ttls) == 1:
        ttl = next(iter(ttls.values()))
        return None if ttl is None else [now_ms + ttl] * len(messages)
    if all(ttl is None for ttl in ttls.values()):
        return None
    when = {head: 0 if ttl is None else now_ms + ttl for head, ttl in ttls.items()}
    return [when[head] for head, _ in messages]


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def rejects(settings: QueueSettings) -> bool:
    """Whether publishes may be refused for length."""
    return settings.overflow is not Overflow.DROP_HEAD and is_limited(settings)


def is_limited(settings: QueueSettings) -> bool:
    """Whether there is a limit of length."""
    return settings.max_length is not None or settings.max_length_bytes is not None


def is_over(settings: QueueSettings, count: int, size: int) -> bool:
    """Whether so many messages with so many bytes of content are too many."""
    return (settings.max_length is not None and count > settings.max_length) or (
        settings.max_length_bytes is not None and size > settings.max_length_bytes
    )
