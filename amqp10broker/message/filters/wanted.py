"""The filters of a consumer as bytes, for a stream at another node.

An encoded filter-set of AMQP 1.0, whatever the consumer's protocol: `filters.from_amqp10` reads it there
as it reads a client's.
"""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.message.filters.errors import FilterError
from amqp10broker.message.filters.filters import (
    END_OFFSET,
    MATCH_UNFILTERED,
    OFFSET_SPEC,
    STREAM_FILTER,
    Filters,
    from_amqp10,
)
from amqp10broker.message.filters.offset_spec import AtTime, First, Interval, Last, Next, Offset, OffsetSpec
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.types import Described, Map, Symbol, Timestamp, ULong

_TIME_MAX_MS: Final = 2**63 - 1
"""The last time that a timestamp can represent."""


def encode_wanted(filters: Filters) -> bytes:
    entries: dict[Symbol, Any] = {}
    if filters.offset is not None:
        _add(entries, OFFSET_SPEC, _offset(filters.offset))
    if filters.end is not None:
        _add(entries, END_OFFSET, ULong(filters.end))
    if filters.bloom is not None:
        _add(entries, STREAM_FILTER, list(filters.bloom.values))
        _add(entries, MATCH_UNFILTERED, filters.bloom.match_unfiltered)
    if filters.messages is not None:
        entries.update(filters.messages.entries)
    return encode(entries)


def decode_wanted(data: bytes) -> Filters:
    try:
        entries, end = decode(data)
    except DecodeError as error:
        raise FilterError(f"what a consumer asks of a stream cannot be read: {error}") from error
    if end != len(data) or not isinstance(entries, dict | Map):
        raise FilterError("what a consumer asks of a stream is no map")
    found = from_amqp10(entries)
    if found.refused:
        raise FilterError(found.refused[0].reason)
    return found.filters


def _add(entries: dict[Symbol, Any], sort: str, value: Any) -> None:
    entries[Symbol(sort)] = Described(Symbol(sort), value)


def _offset(spec: OffsetSpec) -> Any:
    match spec:
        case First():
            return "first"
        case Last():
            return "last"
        case Next():
            return "next"
        case Offset(offset):
            return ULong(offset)
        case AtTime(time_ms):
            return Timestamp(min(time_ms, _TIME_MAX_MS))
        case Interval(duration_ms):
            return f"{duration_ms // 1000}s"
