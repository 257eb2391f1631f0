"""The records of quorum queues in the journal.

==============  ========================  =======================================================
kind            index                     payload, integers little-endian
==============  ========================  =======================================================
`COMMANDS`      of the first message      places of messages; what `queues.quorum_log` makes
`RELOCATED`     of the first message      places of messages; batches of messages
`SNAPSHOT`      of the next message       what `queues.quorum_snapshot` makes
==============  ========================  =======================================================

Places say which messages the record holds, so that nobody has to understand the commands to find them:
``count u32``, then for each run ``index of the first u64 | messages u32 | where their batch begins u32 |
bytes of it u32``. A batch may hold more messages than its run says: those that were not taken.

Kinds 16 to 31 are the quorum queues'.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

COMMANDS: Final = 16
RELOCATED: Final = 17
SNAPSHOT: Final = 18

_COUNT: Final = struct.Struct("<I")
_PLACE: Final = struct.Struct("<QIII")


class Place(NamedTuple):
    """Where a run of messages lies in a record."""

    first: int
    """Index of the first message."""
    messages: int
    at: int
    """Where the batch begins, counted from the end of the places."""
    length: int
    """Bytes of the batch."""


def encode_places(places: Sequence[Place]) -> bytes:
    """What stands in front of a record's payload."""
    return _COUNT.pack(len(places)) + b"".join(_PLACE.pack(*place) for place in places)


def decode_places(payload: bytes) -> tuple[list[Place], int]:
    """The places, and where they end.

    Raises:
        ValueError: they are cut off.
    """
    try:
        count = _COUNT.unpack_from(payload)[0]
        end = _COUNT.size + count * _PLACE.size
        if end > len(payload):
            raise ValueError("places of messages are cut off")
        return [Place(*values) for values in _PLACE.iter_unpack(payload[_COUNT.size : end])], end
    except struct.error as error:
        raise ValueError(f"no places of messages: {error}") from error
