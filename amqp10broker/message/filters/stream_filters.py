"""Filters of streams: the first offset of a consumer, and the chunks that it reads."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.fields import FilterError, shown
from amqp10broker.protocols.amqp091 import codec as t091
from amqp10broker.protocols.amqp10 import types as t10

# --- the first offset of a consumer --------------------------------------------------------------
#
# Filter ``rabbitmq:stream-offset-spec`` of AMQP 1.0, argument ``x-stream-offset`` of AMQP 0-9-1:
#
# ==========================  =============================  ==========================
# meaning                     AMQP 1.0                       AMQP 0-9-1
# ==========================  =============================  ==========================
# first, last, next           string or symbol               long string
# an offset                   any integer from 0             any integer from 0
# a point in time             timestamp (milliseconds)       timestamp (seconds)
# so long ago                 string or symbol: ``10m``      long string: ``10m``
# ==========================  =============================  ==========================
#
# The opener of the stream resolves an interval.


class OffsetWord(StrEnum):
    FIRST = "first"
    """The first message that the stream still has."""
    LAST = "last"
    """The first message of the last chunk."""
    NEXT = "next"
    """The first message that is published from now on."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The message with this offset, or the nearest one that exists."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The chunk that contains a point in time, in ms since 1970. It may have earlier messages."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class Interval:
    duration_ms: int


OffsetSpec: TypeAlias = OffsetWord | Offset | AtTime | Interval

# Without a limit of digits a text of megabytes would be read as a number.
_INTERVAL: Final = re.compile("([0-9]{1,18})([YMDhms])")
_SECOND_MS: Final = 1000
_DAY_MS: Final = 24 * 3600 * _SECOND_MS
# RabbitMQ's years and months, as in x-max-age.
_UNITS_MS: Final = {
    "Y": 365 * _DAY_MS,
    "M": 30 * _DAY_MS,
    "D": _DAY_MS,
    "h": 3600 * _SECOND_MS,
    "m": 60 * _SECOND_MS,
    "s": _SECOND_MS,
}

_INTEGERS_10: Final = frozenset(
    (int, t10.UByte, t10.UShort, t10.UInt, t10.ULong, t10.Byte, t10.Short, t10.Int, t10.Long)
)
_INTEGERS_091: Final = frozenset(
    (int, t091.Int8, t091.UInt8, t091.Int16, t091.UInt16, t091.Int32, t091.UInt32, t091.Int64)
)


def from_amqp10(value: Any) -> OffsetSpec:
    kind = type(value)
    if kind is t10.Timestamp:
        return AtTime(int(value))
    if kind is str or kind is t10.Symbol:
        spec = _from_text(value)
        if spec is None:
            raise FilterError(
                f"offset {shown(value)} is neither 'first', 'last', 'next' nor an interval such as '10m' "
                "(Y, M, D, h, m, s)"
            )
        return spec
    if kind in _INTEGERS_10 and value >= 0:
        return Offset(int(value))
    raise FilterError(
        f"offset {shown(value)} must be a string, a symbol, a timestamp or an integer that is not negative"
    )


def end_from_amqp10(value: Any) -> int:
    if type(value) in _INTEGERS_10 and value >= 0:
        return int(value)
    raise FilterError(
        f"end offset {shown(value)} must be an integer that is not negative, the first that is not wanted"
    )


def from_amqp091(value: Any, type_name: Callable[[object], str]) -> OffsetSpec:
    """Read a consumer argument ``x-stream-offset``."""
    kind = type(value)
    spec: OffsetSpec | None = None
    if kind is t091.Timestamp:
        spec = AtTime(int(value) * _SECOND_MS)
    elif kind is str:
        spec = _from_text(value)
    elif kind in _INTEGERS_091 and value >= 0:
        spec = Offset(int(value))
    if spec is None:
        given = int(value) if kind in _INTEGERS_091 else shown(value) if kind is str else type_name(value)
        raise FilterError(
            "offset must be 'first', 'last', 'next', an interval such as '10m' (Y, M, D, h, m, s), "
            f"a timestamp or an integer that is not negative, not {given}"
        )
    return spec


def _from_text(text: str) -> OffsetSpec | None:
    with suppress(ValueError):
        return OffsetWord(text)
    found = _INTERVAL.fullmatch(text)
    return None if found is None else Interval(int(found[1]) * _UNITS_MS[found[2]])


# --- the filter of a chunk -----------------------------------------------------------------------
#
# A publisher gives a message a filter value (annotation or header ``x-stream-filter-value``). A chunk's head
# has the values of its messages as a Bloom filter, and a consumer that names values reads only chunks that
# may contain one of them. It checks the values of the messages itself. The filter's form on disk is fixed:
#
# * nothing at all: no message of the chunk has a filter value;
# * otherwise `size_bytes` (16 to 255, argument ``x-stream-filter-size-bytes``) bytes. The highest bit of the
#   first means that there are messages without a filter value beside those that have one; its other bits are
#   the number of hashes k, 1 to 16. The rest is m bits, bit i being bit i % 8, counted from the lowest, of
#   byte 1 + i // 8. A value sets the bits (a + j * b) % m for j from 0 to k - 1, where a and b are the two
#   halves, little-endian, of the 16-byte BLAKE2b hash (RFC 7693, no key) of its UTF-8; b is made odd.

SIZE_BYTES_MIN: Final = 16
SIZE_BYTES_MAX: Final = 255
SIZE_BYTES_DEFAULT: Final = 16

_HASHES_MAX: Final = 16
_UNFILTERED: Final = 0x80
_CACHE_ENTRIES: Final = 4096


def chunk_filter(values: Iterable[str | None], size_bytes: int = SIZE_BYTES_DEFAULT) -> bytes:
    """Make the filter of a chunk. `values`: those of its messages; None for a message without one."""
    assert SIZE_BYTES_MIN <= size_bytes <= SIZE_BYTES_MAX
    distinct = set(values)
    unfiltered = None in distinct
    named = [value for value in distinct if value is not None]
    if not named:
        return b""
    bits = (size_bytes - 1) * 8
    # The fewest false positives are at m / n * ln 2 hashes.
    hashes = min(max(round(bits / len(named) * math.log(2)), 1), _HASHES_MAX)
    filled = 0
    for value in named:
        start, step = _hash(value)
        for index in range(hashes):
            filled |= 1 << (start + index * step) % bits
    first = hashes | (_UNFILTERED if unfiltered else 0)
    return bytes((first,)) + filled.to_bytes(size_bytes - 1, "little")


@lru_cache(maxsize=_CACHE_ENTRIES)
def _hash(value: str) -> tuple[int, int]:
    # The codec of AMQP 0-9-1 stores bytes that are not UTF-8 as surrogates.
    content = value.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(content, digest_size=16, usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Selects chunks that may contain a message with one of the values, and with `match_unfiltered`, a
    message without one.
    """

    values: tuple[str, ...]
    match_unfiltered: bool = False

    def may_match(self, chunk: bytes) -> bool:
        """Return whether to read a chunk, by its filter."""
        if not chunk:
            return self.match_unfiltered
        first = chunk[0]
        if first & _UNFILTERED and self.match_unfiltered:
            return True
        bits = (len(chunk) - 1) * 8
        filled = int.from_bytes(chunk[1:], "little")
        hashes = first & ~_UNFILTERED
        for value in self.values:
            start, step = _hash(value)
            if all(filled >> (start + index * step) % bits & 1 for index in range(hashes)):
                return True
        return False
