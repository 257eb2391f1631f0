"""Heads of the messages that streams store and deliver.

A stream stores the encoding of AMQP 1.0. Stored heads end where the eight bytes of the offset, in
annotation ``x-stream-offset``, belong: thousands of messages share one, and a delivery only appends them.
On request a delivery also has the time of writing, one for a chunk, in ``x-opt-enqueued-time``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from struct import Struct
from typing import Final

from amqp10broker.message.amqp10 import decode_head, encode_head, remembering
from amqp10broker.message.convert import OFFSET_BYTES, X_STREAM_OFFSET, all_to_amqp10, to_amqp10
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.types import Long, Symbol, Timestamp

X_STREAM_FILTER_VALUE: Final = "x-stream-filter-value"
_NAME: Final = X_STREAM_FILTER_VALUE.encode()

X_OPT_ENQUEUED_TIME: Final = Symbol("x-opt-enqueued-time")
# Eight bytes with no shorter encoding.
_PLACEHOLDER: Final = Long(2**63 - 1)
_ANY_OFFSET: Final = bytes(OFFSET_BYTES)
_NO_TIME: Final = Timestamp(0)
_TIME_BYTES: Final = 8
_OFFSET_KEY: Final = encode(X_STREAM_OFFSET) + encode(_PLACEHOLDER)[:-OFFSET_BYTES]
"""The bytes between the time and the offset, including the constructor of the latter."""
_HEAD: Final = itemgetter(0)
_pack_offset = Struct(">Q").pack
_pack_time = Struct(">q").pack


def kept(messages: Sequence[Message]) -> list[Message]:
    converted = all_to_amqp10(messages)
    heads = {head: kept_head(head) for head in set(map(_HEAD, converted))}
    return [(heads[head], content) for head, content in converted]


def delivered(messages: Sequence[Message], offset: int) -> list[Message]:
    """Return stored messages as delivered, from this offset on without a gap."""
    pack = _pack_offset
    return [(head + pack(number), content) for number, (head, content) in enumerate(messages, start=offset)]


def delivered_with_time(messages: Sequence[Message], offsets: Iterable[int], time_ms: int) -> list[Message]:
    pack = _pack_offset
    middle = _pack_time(time_ms) + _OFFSET_KEY
    heads = {head: _timed_start(head) + middle for head in set(map(_HEAD, messages))}
    return [
        (heads[head] + pack(number), content)
        for (head, content), number in zip(messages, offsets, strict=True)
    ]


def filter_values(messages: Sequence[Message]) -> set[str | None]:
    return {filter_value((head + _ANY_OFFSET, b"")) for head in set(map(_HEAD, messages))}


@remembering
def kept_head(head: bytes) -> bytes:
    header, annotations = decode_head(head)
    annotations.pop(X_STREAM_OFFSET, None)
    annotations[X_STREAM_OFFSET] = _PLACEHOLDER
    return encode_head(header, annotations)[:-OFFSET_BYTES]


@remembering
def _timed_start(head: bytes) -> bytes:
    header, annotations = decode_head(head + _ANY_OFFSET)
    annotations.pop(X_OPT_ENQUEUED_TIME, None)
    del annotations[X_STREAM_OFFSET]
    annotations[X_OPT_ENQUEUED_TIME] = _NO_TIME
    annotations[X_STREAM_OFFSET] = _PLACEHOLDER
    return encode_head(header, annotations)[: -(_TIME_BYTES + len(_OFFSET_KEY) + OFFSET_BYTES)]


def filter_value(message: Message) -> str | None:
    """Return the filter value; None if it is missing, empty, or not a string, as in RabbitMQ."""
    head = message[0]
    if _NAME not in head:
        return None
    if head[0]:
        head = to_amqp10((head, b""))[0]
    return _filter_value(head)


@remembering
def _filter_value(head: bytes) -> str | None:
    value = decode_head(head)[1].get(X_STREAM_FILTER_VALUE)
    return value if type(value) is str and value else None
