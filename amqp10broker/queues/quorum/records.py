"""The records of quorum queues in the journal.

==============  ======================  =========================================================
kind            index                   payload, integers little-endian
==============  ======================  =========================================================
`EMPTY`,        of the entry in its     ``applied u64``; then of `COMMANDS`: places of messages and
`COMMANDS`,     group's log; the        what `queues.quorum.command_codec` makes; of `CONFIG`: what
`CONFIG`        record's term is its    `raft.codec.encode_config` makes
`HARD`          0                       what `raft.codec.encode_hard` makes
`STATE`         of the last entry       ``length u32``, so much of `raft.codec.encode_point`, then what
                in it                   `queues.quorum.snapshot` makes
`RELOCATED`     of the first message;   places of messages; batches of messages
                the record's term is
                what was applied
`STAGED`        number of the transfer  as `RELOCATED`, of a state that the leader sends
`INSTALLED`     of the last entry       ``transfer u64``, then as `STATE`: all that is staged of the
                in it                   transfer, and this, take the place of all there was
`BEGINS`        0: it has nothing yet;  ``member u64``: a member that was added to the group begins.
                1: repeated             Written for these only
==============  ======================  =========================================================

`applied` is the index of the last entry that the queue had applied when the record was appended: what a
start may apply again while it reads. The group decides on the entries behind that.

An entry with an index not above that of the entry before, and with another term, takes the place of
that one, and all behind it go. With the same term it is the same entry, appended again because its file was
cleaned. Whatever is needed behind a state stands behind its record.

Staged records of one transfer do not count before its `INSTALLED`, nor when records of another one follow
them.

Places list the messages of the record, which can be found so without decoding commands:
``count u32``, then for each run ``index of the first u64 | messages u32 | where their batch begins u32 |
bytes of it u32``.

A node may have had another member of the group before. Records before the `BEGINS` of a member that was
added belong to that one; but before a repeated one (after cleaning), messages are its own.
Behind it stand term and vote again, and the state.

Kinds 16 to 47 are the quorum queues'.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from amqp10broker.queues.quorum.command_codec import Place
from amqp10broker.raft.codec import decode_point, encode_point
from amqp10broker.raft.entries import Kind, Point
from amqp10broker.raft.errors import BadBytes

RELOCATED: Final = 16

ENTRIES: Final = 32
EMPTY: Final = ENTRIES + Kind.EMPTY
COMMANDS: Final = ENTRIES + Kind.COMMAND
CONFIG: Final = ENTRIES + Kind.CONFIG
HARD: Final = 35
STATE: Final = 36
STAGED: Final = 37
INSTALLED: Final = 38
BEGINS: Final = 39

APPLIED: Final = struct.Struct("<Q")
TRANSFER: Final = struct.Struct("<Q")
MEMBER: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_PLACE: Final = struct.Struct("<QIII")


def encode_places(places: Sequence[Place]) -> bytes:
    return _COUNT.pack(len(places)) + b"".join(_PLACE.pack(*place) for place in places)


def decode_places(payload: bytes, at: int = 0) -> tuple[list[Place], int]:
    """Decode places, and return the offset behind them. Raises `ValueError` if they are cut off."""
    try:
        count = _COUNT.unpack_from(payload, at)[0]
        start = at + _COUNT.size
        end = start + count * _PLACE.size
        if end > len(payload):
            raise ValueError("places of messages are cut off")
        return [Place(*values) for values in _PLACE.iter_unpack(payload[start:end])], end
    except struct.error as error:
        raise ValueError(f"no places of messages: {error}") from error


def encode_state(point: Point, state: bytes) -> list[bytes]:
    head = encode_point(point)
    return [_COUNT.pack(len(head)), head, state]


def decode_state(payload: bytes) -> tuple[Point, bytes]:
    """Decode the result of `encode_state`. Raises `ValueError` if it is not valid."""
    try:
        end = _COUNT.size + _COUNT.unpack_from(payload)[0]
        return decode_point(payload[_COUNT.size : end]), payload[end:]
    except (struct.error, BadBytes) as error:
        raise ValueError(f"no state: {error}") from error
