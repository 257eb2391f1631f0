"""Time to live, delay and length limits of messages, from their own properties and the queue's settings."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from amqp10broker.message.message import Message
from amqp10broker.message.traits import traits_of
from amqp10broker.queues.settings import Overflow, QueueSettings

_HEAD: Final = itemgetter(0)


def expiries_of(
    messages: Sequence[Message], queue_ttl_ms: int | None, now_ms: int
) -> tuple[Sequence[int] | None, bool]:
    """Return the expiry of each newly published message, in ms; 0: never; None instead of a list: no message
    expires.

    The smaller of the queue's and the message's time to live counts. Returns the expiries, and whether some
    message requests a delay (`dues_of`).
    """
    ttls: dict[bytes, int | None] = {}
    delays = False
    for head in set(map(_HEAD, messages)):
        _, _, ttl, delay = traits_of(head)
        ttls[head] = _smaller(ttl, queue_ttl_ms)
        if delay is not None:
            delays = True
    if len(ttls) == 1:
        ttl = next(iter(ttls.values()))
        return (None if ttl is None else [now_ms + ttl] * len(messages)), delays
    if all(ttl is None for ttl in ttls.values()):
        return None, delays
    when = {head: 0 if ttl is None else now_ms + ttl for head, ttl in ttls.items()}
    return [when[head] for head, _ in messages], delays


def dues_of(messages: Sequence[Message], now_ms: int) -> list[int]:
    """Return when each newly published message may be delivered, in ms; 0: it requests no delay."""
    delays = [traits_of(head).delay for head, _ in messages]
    return [0 if delay is None else delay.due_ms(now_ms) for delay in delays]


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def rejects(settings: QueueSettings) -> bool:
    """Return whether publishes may be refused for length."""
    return settings.overflow is not Overflow.DROP_HEAD and is_limited(settings)


def is_limited(settings: QueueSettings) -> bool:
    return settings.max_length is not None or settings.max_length_bytes is not None


def is_over(settings: QueueSettings, count: int, size: int) -> bool:
    return (settings.max_length is not None and count > settings.max_length) or (
        settings.max_length_bytes is not None and size > settings.max_length_bytes
    )
