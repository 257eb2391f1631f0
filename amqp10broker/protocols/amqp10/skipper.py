"""Skipping values without building them: the walking part of the AMQP 1.0 codec. Import it from `codec`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amqp10broker.protocols.amqp10.decoder import (
    READERS,
    TYPE_NAMES,
    WIDTHS_MIN,
    Extent,
    Opener,
    Reader,
    array_head,
    check_room,
    check_used_up,
    distinct,
    extent8,
    extent32,
    open8,
    open32,
    truncated,
)
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.types import DEPTH_MAX

Skipper = Callable[[bytes, int, int, int], int]
"""As `decoder.Reader`, but returns the position only."""


def skip(data: bytes, pos: int = 0, end: int | None = None) -> int:
    """Walk over one value and return the position after it. Accepts and refuses exactly the same bytes as
    `decode`: texts and the uniqueness of map keys are checked too.
    """
    if end is None:
        end = len(data)
    elif end > len(data):
        raise truncated("value", pos)
    return _skip(data, pos, end, 0)


def _skip(data: bytes, pos: int, end: int, depth: int) -> int:
    if pos >= end:
        raise truncated("value", pos)
    code = data[pos]
    width = _OPAQUE_WIDTHS[code]
    if width < 0:
        return _SKIPPERS[code](data, pos + 1, end, depth)
    pos += 1 + width
    if pos > end:
        raise truncated(TYPE_NAMES[code], pos - width)
    return pos


def _by_reading(reader: Reader) -> Skipper:
    return lambda data, pos, end, depth: reader(data, pos, end, depth)[1]


def _skip_binary(extent: Extent) -> Skipper:
    return lambda data, pos, end, depth: extent(data, pos, end, "binary")[1]


def _text8(what: str, reader: Reader) -> Skipper:
    # ASCII is valid without decoding; the reader checks any other text.
    def skip(data: bytes, pos: int, end: int, depth: int) -> int:
        start, stop = extent8(data, pos, end, what)
        if not data[start:stop].isascii():
            reader(data, pos, end, depth)
        return stop

    return skip


def _skip_compound(opened: Opener, what: str, walk: Callable[[bytes, int, int, int, int], int]) -> Skipper:
    def skip(data: bytes, pos: int, end: int, depth: int) -> int:
        pos, stop, count = opened(data, pos, end, what)
        return walk(data, pos, stop, count, depth)

    return skip


def _skip_items(data: bytes, pos: int, stop: int, count: int, depth: int) -> int:
    check_room("list", pos, stop, count, depth)
    depth += 1
    widths = _OPAQUE_WIDTHS
    for _ in range(count):
        if pos >= stop:
            raise truncated("list", pos)
        # As `_skip`, inline. An item of fixed width may run over the end here: that is found below.
        code = data[pos]
        pos += 1
        pos = pos + widths[code] if widths[code] >= 0 else _SKIPPERS[code](data, pos, stop, depth)
    check_used_up("list", pos, stop)
    return stop


def _skip_pairs(data: bytes, pos: int, stop: int, count: int, depth: int) -> int:
    # Keys are built after all, since they must differ; values are walked over.
    if count & 1:
        raise DecodeError(f"map at offset {pos} has an odd count of {count}")
    check_room("map", pos, stop, count, depth)
    start = pos
    keys = []
    for _ in range(count >> 1):
        if pos >= stop:
            raise truncated("map", pos)
        key, pos = READERS[data[pos]](data, pos + 1, stop, depth + 1)
        keys.append(key)
        pos = _skip(data, pos, stop, depth + 1)
    check_used_up("map", pos, stop)
    distinct(keys, start)
    return stop


def _skip_described(data: bytes, pos: int, end: int, depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise DecodeError(f"described value at offset {pos} is nested more than {DEPTH_MAX} deep")
    return _skip(data, _skip(data, pos, end, depth + 1), end, depth + 1)


def _skip_array(data: bytes, pos: int, stop: int, count: int, depth: int) -> int:
    _descriptors, code, pos = array_head(data, pos, stop, count, depth)
    width = _OPAQUE_WIDTHS[code]
    if width >= 0:
        pos += width * count
    else:
        skipper = _SKIPPERS[code]
        for _ in range(count):
            pos = skipper(data, pos, stop, depth + 1)
    check_used_up("array", pos, stop)
    return stop


_SKIPPERS: Final[list[Skipper]] = [_by_reading(reader) for reader in READERS]
_SKIPPERS[0x00] = _skip_described
_SKIPPERS[0xA0] = _skip_binary(extent8)
_SKIPPERS[0xA1] = _text8("string", READERS[0xA1])
_SKIPPERS[0xA3] = _text8("symbol", READERS[0xA3])
_SKIPPERS[0xB0] = _skip_binary(extent32)
_SKIPPERS[0xC0] = _skip_compound(open8, "list", _skip_items)
_SKIPPERS[0xC1] = _skip_compound(open8, "map", _skip_pairs)
_SKIPPERS[0xD0] = _skip_compound(open32, "list", _skip_items)
_SKIPPERS[0xD1] = _skip_compound(open32, "map", _skip_pairs)
_SKIPPERS[0xE0] = _skip_compound(open8, "array", _skip_array)
_SKIPPERS[0xF0] = _skip_compound(open32, "array", _skip_array)

# The width of content without invalid values, or -1 where a skipper must check it.
_OPAQUE_WIDTHS: Final = [
    width if width >= 0 and code < 0xA0 and TYPE_NAMES[code] != "char" and code != 0x56 else -1
    for code, width in enumerate(WIDTHS_MIN)
]
