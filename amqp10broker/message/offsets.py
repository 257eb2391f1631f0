"""Messages of a stream: kept without their offset, delivered with it.

A stream keeps the encoding of AMQP 1.0. A delivery says in the annotation ``x-stream-offset`` where in
the stream it stands, which no two messages have in common. So a stream keeps heads that end where the
eight bytes of the offset belong: thousands of messages still share one, and a delivery costs adding
them. An ``x-stream-offset`` that a publisher wrote (it copies from another stream) is taken out.

A consumer that asks for it is told in ``x-opt-enqueued-time``, too, when the message was written here.
That is one time for a chunk, so a head is made once for all messages of a chunk that share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Final

from amqp10broker.amqp10.codec import encode
from amqp10broker.amqp10.types import Long, Symbol, Timestamp, ULong
from amqp10broker.message.amqp10 import HEAD_BYTES_MAX, decode_head, encode_head
from amqp10broker.message.convert import OFFSET_BYTES, X_STREAM_OFFSET, all_to_amqp10
from amqp10broker.message.filters.bloom import X_STREAM_FILTER_VALUE, filter_value
from amqp10broker.message.message import Message

X_OPT_ENQUEUED_TIME: Final = Symbol("x-opt-enqueued-time")
# Eight bytes with no shorter encoding, so that the place for any offset is as long.
_PLACEHOLDER: Final = Long(2**63 - 1)
_ANY_OFFSET: Final = bytes(OFFSET_BYTES)
_NO_TIME: Final = Timestamp(0)
_TIME_BYTES: Final = 8
_OFFSET_KEY: Final = encode(X_STREAM_OFFSET) + encode(_PLACEHOLDER)[:-OFFSET_BYTES]
"""What stands between the time and the offset: the constructor of the latter included."""
_ULONG_END: Final = encode(X_STREAM_OFFSET) + encode(ULong(2**64 - 1))[:-OFFSET_BYTES]
"""How kept heads ended in data folders before RabbitMQ's long was written."""
_FILTER_VALUE: Final = X_STREAM_FILTER_VALUE.encode()
_CACHE_ENTRIES: Final = 4096
_HEAD: Final = itemgetter(0)
_pack_offset = Struct(">Q").pack
_pack_time = Struct(">q").pack


def kept(messages: Sequence[Message]) -> list[Message]:
    """The messages as a stream keeps them.

    Args:
        messages: as published, in either encoding.
    """
    converted = all_to_amqp10(messages)
    heads = {head: kept_head(head) for head in set(map(_HEAD, converted))}
    return [(heads[head], content) for head, content in converted]


def kept_now(messages: list[Message]) -> list[Message]:
    """The messages as `kept` makes them now.

    Args:
        messages: of one chunk as it was read, perhaps written when an offset was still a ulong.
    """
    # A chunk is written at one time, so one message tells for all.
    if not messages[0][0].endswith(_ULONG_END):
        return messages
    heads = {head: head[: -len(_OFFSET_KEY)] + _OFFSET_KEY for head in set(map(_HEAD, messages))}
    return [(heads[head], content) for head, content in messages]


def delivered(messages: Sequence[Message], offset: int) -> list[Message]:
    """Messages of a stream as consumers get them.

    Args:
        messages: as `kept` made them.
        offset: of the first one; the others follow without a gap.
    """
    pack = _pack_offset
    return [(head + pack(number), content) for number, (head, content) in enumerate(messages, start=offset)]


def delivered_with_time(messages: Sequence[Message], offsets: Iterable[int], time_ms: int) -> list[Message]:
    """Messages of a stream as consumers get them that ask when they were enqueued.

    Args:
        messages: as `kept` made them.
        offsets: of each.
        time_ms: when they were written, in milliseconds since 1970.
    """
    pack = _pack_offset
    middle = _pack_time(time_ms) + _OFFSET_KEY
    heads = {head: _timed_start(head) + middle for head in set(map(_HEAD, messages))}
    return [
        (heads[head] + pack(number), content)
        for (head, content), number in zip(messages, offsets, strict=True)
    ]


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


def _timed_start(head: bytes) -> bytes:
    """Of a head that a stream keeps, one that ends where the eight bytes of a time belong."""
    return _cached_timed(head) if len(head) <= HEAD_BYTES_MAX else _without_time(head)


def _without_time(head: bytes) -> bytes:
    header, annotations = decode_head(head + _ANY_OFFSET)
    annotations.pop(X_OPT_ENQUEUED_TIME, None)
    del annotations[X_STREAM_OFFSET]
    annotations[X_OPT_ENQUEUED_TIME] = _NO_TIME
    annotations[X_STREAM_OFFSET] = _PLACEHOLDER
    return encode_head(header, annotations)[: -(_TIME_BYTES + len(_OFFSET_KEY) + OFFSET_BYTES)]


_cached = lru_cache(maxsize=_CACHE_ENTRIES)(_without_offset)
_cached_timed = lru_cache(maxsize=_CACHE_ENTRIES)(_without_time)
