"""The records of classic queues in the journal.

==============  ==========================  =====================================================
kind            index                       payload, integers little-endian
==============  ==========================  =====================================================
`MESSAGES`      position of the first one   level u8, flags u8, 0 u16, count u32; if flag 1 is set,
                                            when each expires u64 * count; if flag 2 is set, when each is
                                            due u64 * count; if flag 4 is set, its position as a delayed
                                            message u64 * count; the batch
`GONE`          0                           level u8; runs of positions: first u64, count u32
`DELAYED_GONE`  0                           likewise of delayed messages; the level is 0
`DELIVERED`     position of the last one    level u8: those up to it may have been delivered
==============  ==========================  =====================================================

Kinds 1 to 15 are the classic queues'. Messages with flag 2 are delayed ones, which have positions of their
own, and the level 0; messages with flag 4 were delayed ones, and have left those positions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from amqp10broker.message.batch import encode_batch
from amqp10broker.message.message import Message
from amqp10broker.queues.classic.store import DELAYED

MESSAGES: Final = 1
GONE: Final = 2
DELIVERED: Final = 3
DELAYED_GONE: Final = 4

_START: Final = struct.Struct("<BBHI")
_RUN: Final = struct.Struct("<QI")
_EXPIRES: Final = 1
_DUE: Final = 2
_MOVED: Final = 4


class MessagesHead(NamedTuple):
    """The head of the payload of `MESSAGES`."""

    level: int
    messages: int
    expiries: Sequence[int] | None
    dues: Sequence[int] | None
    moved: Sequence[int] | None
    """Former positions of these messages as delayed ones."""
    at: int


def encode_messages(
    level: int,
    messages: Sequence[Message],
    expiries: Sequence[int] | None,
    dues: Sequence[int] | None = None,
    moved: Sequence[int] | None = None,
) -> list[bytes]:
    count = len(messages)
    pieces = encode_batch(messages)
    if expiries is None and dues is None and moved is None:
        pieces[0] = _START.pack(level, 0, 0, count) + pieces[0]
        return pieces
    flags = 0
    columns = b""
    for flag, column in ((_EXPIRES, expiries), (_DUE, dues), (_MOVED, moved)):
        if column is not None:
            flags |= flag
            columns += struct.pack(f"<{count}Q", *column)
    pieces[0] = _START.pack(level % DELAYED, flags, 0, count) + columns + pieces[0]
    return pieces


def decode_start(payload: bytes) -> MessagesHead:
    """Decode the head of the payload of `MESSAGES`. Raises `ValueError` if it is not valid."""
    try:
        level, flags, _, count = _START.unpack_from(payload)
        if not flags:
            return MessagesHead(level, count, None, None, None, _START.size)
        at = _START.size
        found: dict[int, Sequence[int]] = {}
        for flag in (_EXPIRES, _DUE, _MOVED):
            if flags & flag:
                found[flag] = struct.unpack_from(f"<{count}Q", payload, at)
                at += 8 * count
    except struct.error as error:
        raise ValueError(f"a record of messages is cut off: {error}") from error
    level = DELAYED if flags & _DUE else level
    return MessagesHead(level, count, found.get(_EXPIRES), found.get(_DUE), found.get(_MOVED), at)


def encode_gone(level: int, runs: Sequence[tuple[int, int]]) -> bytes:
    """Encode runs (first, behind the last) as the payload of `GONE`, or `DELAYED_GONE`."""
    return bytes((level % DELAYED,)) + b"".join([_RUN.pack(start, stop - start) for start, stop in runs])


def decode_gone(payload: bytes) -> Iterator[tuple[int, int]]:
    """Iterate over the runs in the payload of `GONE`. Raises `ValueError` if it is not valid."""
    if len(payload) % _RUN.size != 1:
        raise ValueError("a record of removed messages is cut off")
    for first, count in _RUN.iter_unpack(payload[1:]):
        yield first, first + count


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return unique positions, in any order, as runs (first, behind the last)."""
    if not positions:
        return []
    if positions[-1] - positions[0] == len(positions) - 1 and _grows(positions):
        return [(positions[0], positions[-1] + 1)]
    runs: list[tuple[int, int]] = []
    start = stop = -1
    for position in sorted(positions):
        if position == stop:
            stop += 1
        else:
            if stop > start:
                runs.append((start, stop))
            start, stop = position, position + 1
    runs.append((start, stop))
    return runs


def _grows(positions: Sequence[int]) -> bool:
    return isinstance(positions, range) or positions == list(range(positions[0], positions[-1] + 1))
