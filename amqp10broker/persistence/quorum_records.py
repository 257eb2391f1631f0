"""The records of quorum queues in the journal.

==============  ======================  =========================================================
kind            index                   payload, integers little-endian
==============  ======================  =========================================================
`ENTRY`         number of the entry     places of messages; what `queues.quorum.command_codec` makes
`STATE`         number of the last      what `queues.quorum.snapshot` makes
                entry in it
`RELOCATED`     of the first message    places of messages; batches of messages
==============  ======================  =========================================================

Entries are numbered without gaps, from 1. An entry whose number is not above that of the entry before takes
the place of that one, which nobody has carried out.

Places say which messages the record holds, so that nobody has to understand the commands to find them:
``count u32``, then for each run ``index of the first u64 | messages u32 | where their batch begins u32 |
bytes of it u32``.

Before format 3 there were `OLD_COMMANDS` and `OLD_SNAPSHOT`, whose index is that of a message. They are
read, and stay until their files are cleaned. In the places of the former a run may be of fewer messages
than its batch holds: those that were not taken are at its end.

Kinds 16 to 31 are the quorum queues'.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from amqp10broker.queues.quorum.command_codec import Place

OLD_COMMANDS: Final = 16
RELOCATED: Final = 17
OLD_SNAPSHOT: Final = 18
ENTRY: Final = 19
STATE: Final = 20

_COUNT: Final = struct.Struct("<I")
_PLACE: Final = struct.Struct("<QIII")


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
