"""The heads of messages that are dead-lettered, or delivered again by a quorum queue.

Only the head changes, and it stays in its protocol's encoding. So the work is done once for all messages of a
batch that share a head, and most of it once for those of AMQP 0-9-1 that differ in other properties only.

A dead letter has no time to live, and is not redelivered. Its first-acquirer is left out, which means false,
until a consumer acquires it; then it is false. The count of failed deliveries remains.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import (
    HEAD_BYTES_MAX,
    X_CC,
    X_EXCHANGE,
    X_OPT_DEATHS,
    X_ROUTING_KEY,
    decode_head,
    encode_head,
    has_own_deaths,
    with_deaths_placed,
)
from amqp10broker.message.convert import DROPPED, NAME_BYTES_MAX, name_of, value_to_amqp091
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
from amqp10broker.message.message import Message
from amqp10broker.message.traits import X_OPT_DELIVERY_TIME, milliseconds_in
from amqp10broker.protocols.amqp091.codec import (
    Int64,
    decode_shortstr,
    decode_table,
    encode_shortstr,
    encode_table,
)
from amqp10broker.protocols.amqp091.properties import (
    EXPIRATION,
    HEADERS,
    decode_properties,
    encode_properties,
    locate,
)
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.types import Array, Long, Map, Symbol
from amqp10broker.protocols.serial import EncodeError

REMEMBERED_MAX: Final = 4096
"""The most results remembered within one batch."""

_CC: Final = "CC"
_FIRST: Final = ("x-first-death-reason", "x-first-death-queue", "x-first-death-exchange")
_LAST: Final = ("x-last-death-reason", "x-last-death-queue", "x-last-death-exchange")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why messages leave a queue, and where they are sent. `routing_key`: None: they keep theirs."""

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


# The common parts of AMQP 0-9-1 messages that differ in other properties only: names, headers, hidden keys,
# times of the records, routing keys, records.
_History = tuple[bytes, bytes, bytes, bytes, tuple[str, ...], tuple[Death, ...]]


class DeadLetterHeads:
    __slots__ = ("_cause", "_histories")

    def __init__(self, cause: Cause) -> None:
        self._cause = cause
        self._histories: dict[tuple[bytes, ...], _History] = {}

    def of(self, head: bytes) -> DeadLettered:
        """Make a message's dead letter. `head`: as in the queue, with a failed delivery counted already."""
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
            # The record does not contain these keys, because they are hidden from the client that reads it.
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


# --- redelivery ----------------------------------------------------------------------------------
#
# A quorum queue stores a message as published, and beside it the number of acquisitions, of failed
# deliveries, and the annotations of `modified` outcomes, which are written into the head at a redelivery.

X_ACQUIRED_COUNT: Final = Symbol("x-acquired-count")
X_DELIVERY_COUNT: Final = Symbol("x-delivery-count")

_OURS: Final = frozenset((X_EXCHANGE, X_ROUTING_KEY, X_OPT_DEATHS, X_DEATH))
"""Keys that a consumer may not write by the outcome modified: the message's origin and its deaths."""

_CACHE_ENTRIES: Final = 4096


def redelivered(
    message: Message, acquired: int, failures: int, annotations: bytes = b"", *, shows_0: bool = True
) -> Message:
    """Return the message for the next consumer. `annotations`: an encoded map of `modified` outcomes.
    `shows_0`: ``x-delivery-count`` is set without failures, too.
    """
    head, content = message
    if len(head) + len(annotations) <= HEAD_BYTES_MAX:
        return _remembered(head, acquired, failures, annotations, shows_0), content
    return _redelivered_head(head, acquired, failures, annotations, shows_0), content


def merged(annotations: bytes, more: bytes) -> bytes:
    """Merge two encoded maps of annotations; entries of the second take precedence."""
    if not annotations or not more:
        return annotations or more
    return encode({**_items(annotations), **_items(more)})


def delivery_time_ms(annotations: bytes) -> int | None:
    """Return the earliest time of the next delivery, as requested by a `modified` outcome."""
    return milliseconds_in(_items(annotations).get(X_OPT_DELIVERY_TIME))


def _items(annotations: bytes) -> dict[Any, Any]:
    value, _ = decode(annotations)
    # A map with a key that Python cannot hash merges nothing: its key was refused before.
    return {} if isinstance(value, Map) else value


def _redelivered_head(head: bytes, acquired: int, failures: int, annotations: bytes, shows_0: bool) -> bytes:
    counts = {X_ACQUIRED_COUNT: acquired}
    if failures or shows_0:
        counts[X_DELIVERY_COUNT] = failures
    more = _items(annotations) if annotations else {}
    if head[0] == amqp091.MARK:
        return _head091(head, counts, failures, more)
    header, merged_annotations = decode_head(head)
    header.first_acquirer = False
    header.delivery_count = (header.delivery_count or 0) + failures
    merged_annotations.update((key, more[key]) for key in more if key not in _OURS)
    merged_annotations.update((key, Long(count)) for key, count in counts.items())
    return encode_head(header, merged_annotations)


def _head091(head: bytes, counts: dict[Symbol, int], failures: int, more: dict[Any, Any]) -> bytes:
    names, given, _ = amqp091.split_head(head)
    properties = decode_properties(given)
    headers = dict(properties.headers or {})
    for key, value in more.items():
        name, converted = name_of(key), value_to_amqp091(value)
        if name is not None and name not in _OURS and converted is not DROPPED:
            headers[name] = converted
    headers.update((str(key), Int64(count)) for key, count in counts.items())
    properties.headers = headers
    try:
        encoded = encode_properties(properties)
    except EncodeError:
        # The annotations of an AMQP 1.0 client have no encoding here.
        properties.headers = {name: value for name, value in headers.items() if name not in map(str, more)}
        encoded = encode_properties(properties)
    return amqp091.join_head(
        names,
        encoded,
        redelivered=True,
        delivery_count=amqp091.delivery_count(head) + failures,
        hidden_keys=amqp091.hidden_keys_of(head),
        death_times=amqp091.death_times(head),
    )


_remembered = lru_cache(maxsize=_CACHE_ENTRIES)(_redelivered_head)
