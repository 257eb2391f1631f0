"""The layout of a quorum queue's state in bytes, without messages; `queue` encodes and decodes it.

A snapshot replaces all commands before it. Equal states make equal bytes. Live messages are written as ranges
of indexes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, groupby, repeat, starmap
from types import SimpleNamespace
from typing import Final

from amqp10broker.layout import (
    BYTES,
    FLAG,
    I64,
    TEXT,
    U8,
    U32,
    U64,
    Field,
    Fixed,
    Layout,
    Many,
    Varying,
    choice,
    from_little_endian,
    little_endian,
    mapping,
    maybe,
    optional,
    piece,
    row,
)
from amqp10broker.queues.commands import DeadLetterReason
from amqp10broker.queues.journal import ranges_of
from amqp10broker.queues.layouts import CONSUMER, EFFECT, PEER, PUBLISHER, SETTINGS
from amqp10broker.queues.quorum.consumer import ConsumerSelection
from amqp10broker.queues.quorum.node_links import NodeLink
from amqp10broker.queues.quorum.ordered_entries import SIZE_BITS, delivered_at, size_of
from amqp10broker.queues.quorum.ready import FAIR_LEVELS

LIVE_MAX: Final = 1 << 28
"""This bound keeps damaged bytes from taking all memory."""
_PLAIN: Final = 0
_RUNS: Final = 1


def _write_column(numbers: Iterable[int], pieces: list[bytes]) -> None:
    plain = array("Q", numbers)
    runs = array("Q", chain.from_iterable((value, sum(1 for _ in same)) for value, same in groupby(plain)))
    kind, numbers = (_RUNS, runs) if len(runs) < len(plain) else (_PLAIN, plain)
    pieces.append(bytes((kind,)) + len(numbers).to_bytes(4, "little") + little_endian(numbers))


def _read_column(data: bytes, at: int) -> tuple[Sequence[int], int]:
    kind, at = data[at], at + 1
    numbers, at = _numbers(data, at)
    if kind == _PLAIN:
        return numbers.tolist(), at
    _check(sum(numbers[1::2]))
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return list(chain.from_iterable(starmap(repeat, pairs))), at


def _check(count: int) -> None:
    if count > LIVE_MAX:
        raise ValueError(f"{count} numbers; a queue has at most {LIVE_MAX} messages")


def _numbers(data: bytes, at: int) -> tuple[array[int], int]:
    start = at + 4
    content, end = piece(data, start, start + 8 * int.from_bytes(data[at:start], "little"))
    return from_little_endian("Q", content), end


COLUMN: Final = Varying(_write_column, _read_column)
"""Numbers, or each with the length of its run, whichever is shorter."""


def _read_indexes(data: bytes, at: int) -> tuple[list[int], int]:
    ranges, at = _PAIRS.read(data, at)
    _check(sum(max(0, end - first) for first, end in ranges))
    return list(chain.from_iterable(starmap(range, ranges))), at


def _write_unsettled(unsettled: dict[int, int], pieces: list[bytes]) -> None:
    held = unsettled.values()
    _COLUMNS.write((unsettled, map(delivered_at, held), map(size_of, held)), pieces)


def _read_unsettled(data: bytes, at: int) -> tuple[dict[int, int], int]:
    columns, at = _COLUMNS.read(data, at)
    return {key: when << SIZE_BITS | size for key, when, size in zip(*columns, strict=True)}, at


_COLUMNS: Final = row(COLUMN, COLUMN, COLUMN)
_PAIRS: Final = Many(row(U64, U64))
INDEXES: Final = Varying(lambda indexes, pieces: _PAIRS.write(ranges_of(indexes), pieces), _read_indexes)
"""Sorted numbers, as ranges."""
_LINE: Final = row(INDEXES, COLUMN, COLUMN)


def _selection(lines: int) -> Layout[ConsumerSelection]:
    cursor = row(*[U64] * (lines + 1))
    return Layout(ConsumerSelection, ConsumerSelection, wanted=BYTES, at=cursor, ends=optional(cursor))


_SELECTION: Final = _selection(FAIR_LEVELS + 2)
UNSETTLED: Final = Varying(_write_unsettled, _read_unsettled)
SELECTION: Final = maybe(_SELECTION)
_NODE: Final = row(U32, U32)

_CONSUMER: Final[Mapping[str, Field]] = {
    "ref": CONSUMER,
    "number": U64,
    "settled": FLAG,
    "counted": FLAG,
    "priority": I64,
    "timeout_ms": optional(U64),
    "credit": U64,
    "delivery_count": U64,
    "handed_out": U64,
    "turn": U64,
    "epoch": U64,
    "cancelled": FLAG,
    "silent": FLAG,
    "active": FLAG,
    # A message may exceed it; by how much does not matter.
    "room": Fixed("Q", "max({0}, 0)"),
    "name": TEXT,
    "unsettled": UNSETTLED,
}
_VERSION: Final = Layout(SimpleNamespace, version=U32)
_HEAD: Final[Mapping[str, Field]] = {
    "version": U32,
    "now_ms": U64,
    "next_index": U64,
    "full": FLAG,
    "settings": SETTINGS,
}
BEGINNING: Final = Layout(SimpleNamespace, **_HEAD)


def _state(lines: int, selection: Varying) -> Layout[SimpleNamespace]:
    return Layout(
        SimpleNamespace,
        **_HEAD,
        lines=row(*[_LINE] * lines),
        ready=row(U64, U64),
        returned=COLUMN,
        tail=COLUMN,
        returns_to_tail=_PAIRS,
        delayed=Many(row(*[U64] * 5)),
        places=Many(row(U64, I64)),
        expiries=_PAIRS,
        later=row(INDEXES, *[COLUMN] * 4),
        consumers=Many(Layout(SimpleNamespace, **_CONSUMER, selection=selection)),
        kinds=Many(row(U64, U64, BYTES)),
        counted=INDEXES,
        counts=COLUMN,
        pending=Many(row(U64, U64, choice(DeadLetterReason))),
        publishers=Many(PUBLISHER),
        made=U64,
        unused_since=U64,
        turns=COLUMN,
        holder=optional(U64),
        suspects=mapping(_NODE, optional(U64)),
        gone=mapping(U32, U32),
        links=mapping(_NODE, Layout(NodeLink, last=U64, heard=U64, kept=Many(row(U64, PEER, EFFECT)))),
        again=row(U64, Many(row(U8, U64))),
    )


_STATE: Final = _state(FAIR_LEVELS + 2, SELECTION)


@cache
def state_of(levels: int) -> Layout[SimpleNamespace]:
    # The state has a line for each level of priorities, and two more.
    return _STATE if levels == FAIR_LEVELS else _state(levels + 2, maybe(_selection(levels + 2)))


def version_of(data: bytes) -> int:
    return int(_VERSION.decode_part(data)[0].version)
