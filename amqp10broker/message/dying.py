"""What dead-lettering makes of a message: the history in its head, the new exchange and key, no time to live.

Only the head changes, and it stays in its protocol's encoding; body and bare message are as published. So
the work is done once for all messages of a batch that share a head. What the records mean, and how the
broker's own are told from what a client published under the same name, is in docs/adr/0015.

The message counts as one that nobody has had yet in its new queue: it is not redelivered. For a consumer of
AMQP 1.0 it still has no first acquirer, so in that encoding the field first-acquirer is left out, which
means false, until somebody acquires it; then it says false. The count of failed deliveries is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from amqp10broker.amqp091.codec import decode_shortstr
from amqp10broker.amqp091.properties import decode_properties, encode_properties
from amqp10broker.amqp10.types import Symbol
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import (
    X_CC,
    X_EXCHANGE,
    X_OPT_DEATHS,
    X_ROUTING_KEY,
    decode_head,
    encode_head,
    extra_keys,
    has_own_deaths,
    with_deaths_placed,
)
from amqp10broker.message.deaths import (
    X_DEATH,
    Death,
    from_annotation,
    from_header,
    recorded,
    times_of,
    to_annotation,
    with_times,
)
from amqp10broker.message.values import NAME_BYTES_MAX

_CC: Final = "CC"
_FIRST: Final = ("x-first-death-reason", "x-first-death-queue", "x-first-death-exchange")
_LAST: Final = ("x-last-death-reason", "x-last-death-queue", "x-last-death-exchange")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why messages leave a queue, and where they go.

    Attributes:
        queue: which they leave.
        reason: rejected, expired, maxlen or delivery_limit.
        now_ms: the wall clock, in milliseconds.
        exchange: the dead-letter exchange.
        routing_key: the dead-letter routing key; None: the messages keep theirs.
    """

    queue: str
    reason: str
    now_ms: int
    exchange: str
    routing_key: str | None


class DeadLettered(NamedTuple):
    """What becomes of all messages with one head."""

    head: bytes
    routing_keys: tuple[str, ...]
    """By which they are routed now: the dead-letter routing key, or all they were published with."""
    deaths: tuple[Death, ...]
    """With this event, which is the first."""


def dead_lettered(head: bytes, cause: Cause) -> DeadLettered:
    """The head of a message that leaves a queue, and how it is routed.

    Args:
        head: as the message lay in the queue, with a failed delivery counted already.
        cause: why it leaves.
    """
    return _dead_lettered091(head, cause) if head[0] == amqp091.MARK else _dead_lettered10(head, cause)


def deaths_of(head: bytes) -> tuple[Death, ...]:
    """The broker's records of a message, newest first; what a client published under their name is none."""
    if head[0] == amqp091.MARK:
        times = amqp091.death_times(head)
        if not times:
            return ()
        headers = decode_properties(amqp091.split_head(head)[1]).headers or {}
        return with_times(from_header(headers.get(X_DEATH)), times)
    annotations = decode_head(head)[1]
    return from_annotation(annotations[X_OPT_DEATHS]) if has_own_deaths(annotations) else ()


def _dead_lettered10(head: bytes, cause: Cause) -> DeadLettered:
    header, annotations = decode_head(head)
    before = from_annotation(annotations[X_OPT_DEATHS]) if has_own_deaths(annotations) else ()
    exchange = annotations[X_EXCHANGE]
    keys = (annotations[X_ROUTING_KEY], *extra_keys(head))
    deaths = recorded(before, _text(cause.queue), cause.reason, cause.now_ms, exchange, keys, header.ttl)
    for name, value in _summary(deaths[0], exchange, first=not before).items():
        annotations[Symbol(name)] = value
    annotations[X_EXCHANGE] = _text(cause.exchange)
    if cause.routing_key is not None:
        keys = (cause.routing_key,)
        annotations[X_ROUTING_KEY] = _text(cause.routing_key)
        annotations.pop(X_CC, None)
    annotations[X_OPT_DEATHS] = to_annotation(deaths)
    header.ttl = None
    header.first_acquirer = None
    return DeadLettered(encode_head(header, with_deaths_placed(annotations, ours=True)), keys, deaths)


def _dead_lettered091(head: bytes, cause: Cause) -> DeadLettered:
    names, given, _ = amqp091.split_head(head)
    exchange, pos = decode_shortstr(names, 0)
    routing_key, _ = decode_shortstr(names, pos)
    properties = decode_properties(given)
    headers: dict[str, Any] = dict(properties.headers or {})
    times = amqp091.death_times(head)
    before = with_times(from_header(headers.get(X_DEATH)), times) if times else ()
    keys: tuple[str, ...] = (routing_key, *headers.get(_CC, ()))
    ttl_ms = None if properties.expiration is None else int(properties.expiration)
    deaths = recorded(before, _text(cause.queue), cause.reason, cause.now_ms, exchange, keys, ttl_ms)
    headers.update(_summary(deaths[0], exchange, first=not before))
    headers[X_DEATH] = [death.to_table() for death in deaths]
    if cause.routing_key is not None:
        keys = (cause.routing_key,)
        routing_key = cause.routing_key
        headers.pop(_CC, None)
    properties.headers = headers
    properties.expiration = None
    dead = amqp091.make_head(
        _short(cause.exchange),
        _short(routing_key),
        encode_properties(properties),
        delivery_count=amqp091.delivery_count(head),
        death_times=times_of(deaths),
    )
    return DeadLettered(dead, keys, deaths)


def _summary(death: Death, exchange: str, *, first: bool) -> dict[str, str]:
    """The headers that say the last event in short, and the first one, which is written once."""
    values = (death.reason, death.queue, exchange)
    summary = dict(zip(_FIRST, values, strict=True)) if first else {}
    return summary | dict(zip(_LAST, values, strict=True))


def _text(text: str) -> str:
    """The text as UTF-8 can hold it: JSON can spell halves of a surrogate pair."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _short(text: str) -> str:
    """The beginning that fits a short string; a dead-letter routing key may be longer."""
    content = _text(text).encode()
    return content[:NAME_BYTES_MAX].decode("utf-8", "ignore")
