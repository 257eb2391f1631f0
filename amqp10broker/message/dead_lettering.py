"""Dead-lettering of messages: the history in the head, the new exchange and key, no time to live.

Only the head changes, and it stays in its protocol's encoding; body and bare message are as published. So
the work is done once for all messages of a batch that share a head, and most of it once for those of AMQP
0-9-1 with heads that differ in other properties only. The broker's records are marked in the head, because
a client may publish headers of the same name.

The message counts as not acquired in its new queue: it is not redelivered. For a consumer of AMQP 1.0 it
still has no first acquirer, so in that encoding the field first-acquirer is left out, which means false,
until a consumer acquires it; then it is false. The count of failed deliveries remains.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import (
    X_CC,
    X_EXCHANGE,
    X_OPT_DEATHS,
    X_ROUTING_KEY,
    decode_head,
    encode_head,
    has_own_deaths,
    with_deaths_placed,
)
from amqp10broker.message.death_history import (
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
from amqp10broker.protocols.amqp091.codec import (
    decode_shortstr,
    decode_table,
    encode_shortstr,
    encode_table,
)
from amqp10broker.protocols.amqp091.properties import EXPIRATION, HEADERS, locate
from amqp10broker.protocols.amqp10.types import Array, Symbol

REMEMBERED_MAX: Final = 4096
"""The most results remembered within one batch: a batch with more different heads hardly repeats them."""

_CC: Final = "CC"
_FIRST: Final = ("x-first-death-reason", "x-first-death-queue", "x-first-death-exchange")
_LAST: Final = ("x-last-death-reason", "x-last-death-queue", "x-last-death-exchange")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why messages leave a queue, and their new route. `routing_key`: None: they retain theirs."""

    queue: str
    reason: str
    now_ms: int
    exchange: str
    routing_key: str | None


class DeadLettered(NamedTuple):
    head: bytes
    routing_keys: tuple[str, ...]
    """The dead-letter routing key, or all keys that the message was published with."""
    deaths: tuple[Death, ...]
    """With this event, which is the first."""


# The common parts of AMQP 0-9-1 messages that differ in other properties only: names, headers, hidden keys,
# times of the records, routing keys, records.
_History = tuple[bytes, bytes, bytes, bytes, tuple[str, ...], tuple[Death, ...]]


class Dying:
    __slots__ = ("_cause", "_histories")

    def __init__(self, cause: Cause) -> None:
        self._cause = cause
        self._histories: dict[tuple[bytes, ...], _History] = {}

    def of(self, head: bytes) -> DeadLettered:
        """`head`: as it was in the queue, with a failed delivery counted already."""
        return self._of_091(head) if head[0] == amqp091.MARK else self._of_10(head)

    def _of_10(self, head: bytes) -> DeadLettered:
        cause = self._cause
        header, annotations = decode_head(head)
        before = from_annotation(annotations[X_OPT_DEATHS]) if has_own_deaths(annotations) else ()
        # Consumers may add annotations by the outcome modified, so these may have any shape.
        exchange, routing_key = annotations[X_EXCHANGE], annotations[X_ROUTING_KEY]
        exchange = exchange if isinstance(exchange, str) else ""
        routing_key = routing_key if isinstance(routing_key, str) else ""
        keys = (routing_key, *_keys_in(annotations.get(X_CC)))
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

    def _of_091(self, head: bytes) -> DeadLettered:
        names, given, _ = amqp091.split_head(head)
        flags, values, headers_at, expiration_at = locate(given)
        hidden, times = amqp091.hidden_keys_of(head), amqp091.death_times(head)
        of = (names, given[headers_at], given[expiration_at], hidden, times)
        history = self._histories.get(of)
        if history is None:
            if len(self._histories) >= REMEMBERED_MAX:
                self._histories.clear()
            history = self._histories[of] = self._history(*of)
        names, headers, hidden, times, keys, deaths = history
        properties = b"".join(
            (
                ((flags | HEADERS) & ~EXPIRATION).to_bytes(2, "big"),
                given[values : headers_at.start],
                headers,
                given[headers_at.stop : expiration_at.start],
                given[expiration_at.stop :],
            )
        )
        count = amqp091.delivery_count(head)
        dead = amqp091.join_head(
            names, properties, delivery_count=count, hidden_keys=hidden, death_times=times
        )
        return DeadLettered(dead, keys, deaths)

    def _history(
        self, names: bytes, headers_given: bytes, expiration: bytes, hidden: bytes, times: bytes
    ) -> _History:
        cause = self._cause
        exchange, pos = decode_shortstr(names, 0)
        routing_key, _ = decode_shortstr(names, pos)
        headers = decode_table(headers_given, 0)[0] if headers_given else {}
        before = with_times(from_header(headers.get(X_DEATH)), times) if times else ()
        keys: tuple[str, ...] = (routing_key, *_keys_in(headers.get(_CC)))
        ttl_ms = int(expiration[1:]) if expiration else None
        deaths = recorded(before, _text(cause.queue), cause.reason, cause.now_ms, exchange, keys, ttl_ms)
        headers.update(_summary(deaths[0], exchange, first=not before))
        headers[X_DEATH] = [death.to_table() for death in deaths]
        if cause.routing_key is None:
            # The record does not contain these: they are hidden from the client that reads it.
            keys += amqp091.decode_hidden_keys(hidden)
        else:
            keys = (cause.routing_key,)
            routing_key = cause.routing_key
            headers.pop(_CC, None)
            hidden = b""
        return (
            encode_shortstr(_short(cause.exchange)) + encode_shortstr(_short(routing_key)),
            encode_table(headers),
            hidden,
            times_of(deaths),
            keys,
            deaths,
        )


def _keys_in(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple | Array) and all(isinstance(key, str) for key in value):
        return tuple(map(str, value))
    return ()


def _summary(death: Death, exchange: str, *, first: bool) -> dict[str, str]:
    values = (death.reason, death.queue, exchange)
    summary = dict(zip(_FIRST, values, strict=True)) if first else {}
    return summary | dict(zip(_LAST, values, strict=True))


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _short(text: str) -> str:
    content = _text(text).encode()
    return content[:NAME_BYTES_MAX].decode("utf-8", "ignore")
