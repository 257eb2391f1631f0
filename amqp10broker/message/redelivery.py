"""The head of a message that a quorum queue delivers again: its history so far.

The queue stores a message as published, and beside it the number of acquisitions, of failed deliveries,
and the annotations of `modified` outcomes. They are written into the head at a redelivery:
`x-acquired-count` and `x-delivery-count` as annotations of AMQP 1.0 or headers of AMQP 0-9-1, the
delivery-count and first-acquirer of the header, the redelivered flag.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import (
    HEAD_BYTES_MAX,
    X_EXCHANGE,
    X_OPT_DEATHS,
    X_ROUTING_KEY,
    decode_head,
    encode_head,
)
from amqp10broker.message.death_history import X_DEATH
from amqp10broker.message.delay import X_OPT_DELIVERY_TIME, milliseconds_in
from amqp10broker.message.message import Message
from amqp10broker.message.values import DROPPED, name_of, value_to_amqp091
from amqp10broker.protocols.amqp091.properties import decode_properties, encode_properties
from amqp10broker.protocols.amqp091.types import Int64
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.types import Long, Map, Symbol
from amqp10broker.protocols.numbers import EncodeError

X_ACQUIRED_COUNT: Final = Symbol("x-acquired-count")
X_DELIVERY_COUNT: Final = Symbol("x-delivery-count")

_OURS: Final = frozenset((X_EXCHANGE, X_ROUTING_KEY, X_OPT_DEATHS, X_DEATH))
"""Keys that a consumer may not write by the outcome modified: the message's origin and its deaths."""

_CACHE_ENTRIES: Final = 4096


def redelivered(
    message: Message, acquired: int, failures: int, annotations: bytes = b"", *, shows_0: bool = True
) -> Message:
    """Return the message for the next consumer. `annotations`: an encoded map that `modified` outcomes merged
    into its annotations; empty: none. `shows_0`: ``x-delivery-count`` is there without failures, too.
    """
    head, content = message
    if len(head) + len(annotations) <= HEAD_BYTES_MAX:
        return _remembered(head, acquired, failures, annotations, shows_0), content
    return _redelivered_head(head, acquired, failures, annotations, shows_0), content


def merged(annotations: bytes, more: bytes) -> bytes:
    """Merge two encoded maps of annotations; entries of the second take precedence. Empty: none."""
    if not annotations or not more:
        return annotations or more
    return encode({**_items(annotations), **_items(more)})


def delivery_time_ms(annotations: bytes) -> int | None:
    """The earliest time of the next delivery, as requested by a `modified` outcome. RabbitMQ checks the
    value, not its type: RabbitMQ's own client for Python sends a long, others a timestamp.
    """
    return milliseconds_in(_items(annotations).get(X_OPT_DELIVERY_TIME))


def _items(annotations: bytes) -> dict[Any, Any]:
    value, _ = decode(annotations)
    # A map with a key that Python cannot hash merges nothing: such a key is not a symbol, and was refused
    # before.
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
        # The annotations of an AMQP 1.0 client have no encoding here: leave them out rather than the message.
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
