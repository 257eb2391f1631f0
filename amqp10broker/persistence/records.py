"""The records of classic queues in the journal.

==============  ==========================  =====================================================
kind            index                       payload, integers little-endian
==============  ==========================  =====================================================
`MESSAGES`      position of the first one   level u8, flags u8, 0 u16, count u32; if flag 1 is set,
                                            when each expires u64 * count; the batch
`GONE`          0                           level u8; runs of positions: first u64, count u32
`DELIVERED`     position of the last one    level u8: those up to it may have been delivered
==============  ==========================  =====================================================

Kinds 1 to 15 are the classic queues'.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from amqp10broker.message.batch import encode_batch
from amqp10broker.message.message import Message

MESSAGES: Final = 1
GONE: Final = 2
DELIVERED: Final = 3

_START: Final = struct.Struct("<BBHI")
_RUN: Final = struct.Struct("<QI")
_EXPIRES: Final = 1


def encode_messages(level: int, messages: Sequence[Message], expiries: Sequence[int] | None) -> list[bytes]:
    """The payload of `MESSAGES`, in pieces."""
    count = len(messages)
    pieces = encode_batch(messages)
    start = _START.pack(level, 0 if expiries is None else _EXPIRES, 0, count)
    if expiries is not None:
        start += struct.pack(f"<{count}Q", *expiries)
    pieces[0] = start + pieces[0]
    return pieces


def decode_start(payload: bytes) -> tuple[int, int, Sequence[int] | None, int]:
    """Level, count, when each expires, and where the batch begins.

    Raises:
        ValueError: it is no such payload.
    """
    try:
        level, flags, _, count = _START.unpack_from(payload)
        if not flags & _EXPIRES:
            return level, count, None, _START.size
        return level, count, struct.unpack_from(f"<{count}Q", payload, _START.size), _START.size + 8 * count
    except struct.error as error:
        raise ValueError(f"a record of messages is cut off: {error}") from error


def encode_gone(level: int, runs: Sequence[tuple[int, int]]) -> bytes:
    """The payload of `GONE`: (first, behind the last) of each run."""
    return bytes((level,)) + b"".join([_RUN.pack(start, stop - start) for start, stop in runs])


def decode_gone(payload: bytes) -> Iterator[tuple[int, int]]:
    """The runs in the payload of `GONE`.

    Raises:
        ValueError: it is no such payload.
    """
    if len(payload) % _RUN.size != 1:
        raise ValueError("a record of removed messages is cut off")
    for first, count in _RUN.iter_unpack(payload[1:]):
        yield first, first + count


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Positions as (first, behind the last) of each run; in any order, each once."""
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
