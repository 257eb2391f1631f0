"""The first offset of a consumer: the filter ``rabbitmq:stream-offset-spec`` of AMQP 1.0 and the argument
``x-stream-offset`` of AMQP 0-9-1.

==========================  =============================  ==========================
meaning                     AMQP 1.0                       AMQP 0-9-1
==========================  =============================  ==========================
first, last, next           string or symbol               long string
an offset                   any integer from 0             any integer from 0
a point in time             timestamp (milliseconds)       timestamp (seconds)
so long ago                 string or symbol: ``10m``      long string: ``10m``
==========================  =============================  ==========================

A point in time is as exact as chunks are: the stream begins with the chunk that contains it, which may
have earlier messages. The opener of the stream resolves an interval, because nothing here has a clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from amqp10broker.dataclass import dataclass
from amqp10broker.message.filters.errors import FilterError, shown
from amqp10broker.protocols.amqp091 import types as t091
from amqp10broker.protocols.amqp10 import types as t10


@dataclass(frozen=True, slots=True)
class First:
    """The first message that the stream still has."""


@dataclass(frozen=True, slots=True)
class Last:
    """The first message of the last chunk."""


@dataclass(frozen=True, slots=True)
class Next:
    """The first message that is published from now on; the default."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The message with this offset, or the nearest one that exists."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The chunk that contains a point in time."""

    time_ms: int
    """The time in milliseconds since 1970-01-01T00:00:00Z."""


@dataclass(frozen=True, slots=True)
class Interval:
    duration_ms: int


OffsetSpec: TypeAlias = First | Last | Next | Offset | AtTime | Interval

_WORDS: Final[dict[str, OffsetSpec]] = {"first": First(), "last": Last(), "next": Next()}

# Eighteen digits are more than the age of the universe in seconds; without a bound, a text of megabytes would
# be read as a number.
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
    """Read the value of a filter ``amqp10broker:stream-end-offset``: the first offset that is not wanted."""
    if type(value) in _INTEGERS_10 and value >= 0:
        return int(value)
    raise FilterError(
        f"end offset {shown(value)} must be an integer that is not negative, the first that is not wanted"
    )


def from_amqp091(value: Any, type_name: Callable[[object], str]) -> OffsetSpec:
    """Read a consumer argument ``x-stream-offset``. Raises `FilterError`, with what is allowed."""
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
    word = _WORDS.get(text)
    if word is not None:
        return word
    found = _INTERVAL.fullmatch(text)
    return None if found is None else Interval(int(found[1]) * _UNITS_MS[found[2]])
