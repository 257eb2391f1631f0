"""Messages of a stream: kept without their offset, delivered with it.

A stream keeps the encoding of AMQP 1.0. A delivery says in the annotation ``x-stream-offset`` where in
the stream it stands, which no two messages have in common. So a stream keeps heads that end where the
eight bytes of the offset belong: thousands of messages still share one, and a delivery costs adding
them. An ``x-stream-offset`` that a publisher wrote (it copies from another stream) is taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Final

from amqp10broker.amqp10.types import ULong
from amqp10broker.message.amqp10 import HEAD_BYTES_MAX, decode_head, encode_head
from amqp10broker.message.convert import OFFSET_BYTES, X_STREAM_OFFSET, all_to_amqp10
from amqp10broker.message.filters.bloom import X_STREAM_FILTER_VALUE, filter_value
from amqp10broker.message.message import Message

# Eight bytes with no shorter encoding, so that the place for any offset is as long.
_PLACEHOLDER: Final = ULong(2**64 - 1)
_ANY_OFFSET: Final = bytes(OFFSET_BYTES)
_FILTER_VALUE: Final = X_STREAM_FILTER_VALUE.encode()
_CACHE_ENTRIES: Final = 4096
_HEAD: Final = itemgetter(0)
_pack_offset = Struct(">Q").pack


def kept(messages: Sequence[Message]) -> list[Message]:
    """The messages as a stream keeps them.

    Args:
        messages: as published, in either encoding.
    """
    converted = all_to_amqp10(messages)
    heads = {head: kept_head(head) for head in set(map(_HEAD, converted))}
    return [(heads[head], content) for head, content in converted]


def delivered(messages: Sequence[Message], offset: int) -> list[Message]:
    """Messages of a stream as consumers get them.

    Args:
        messages: as `kept` made them.
        offset: of the first one; the others follow without a gap.
    """
    pack = _pack_offset
    return [(head + pack(number), content) for number, (head, content) in enumerate(messages, start=offset)]


def kept_head(head: bytes) -> bytes:
    """The head that a stream keeps for a head of AMQP 1.0."""
    return _cached(head) if len(head) <= HEAD_BYTES_MAX else _without_offset(head)


def filter_values(messages: Sequence[Message]) -> set[str | None]:
    """The different ``x-stream-filter-value`` of messages as `kept` made them; None: some have none."""
    # Most messages have none, and looking for its name in the bytes says so at once.
    return {
        filter_value((head + _ANY_OFFSET, b"")) if _FILTER_VALUE in head else None
        for head in set(map(_HEAD, messages))
    }


def _without_offset(head: bytes) -> bytes:
    header, annotations = decode_head(head)
    annotations.pop(X_STREAM_OFFSET, None)
    annotations[X_STREAM_OFFSET] = _PLACEHOLDER
    return encode_head(header, annotations)[:-OFFSET_BYTES]


_cached = lru_cache(maxsize=_CACHE_ENTRIES)(_without_offset)
