"""The records of quorum queues in the journal.

==============  ======================  =========================================================
kind            index                   payload, integers little-endian
==============  ======================  =========================================================
`EMPTY`,        of the entry in its     ``applied u64``; then of `COMMANDS`: places of messages and
`COMMANDS`,     group's log; the        what `queues.quorum.command_codec` makes; of `CONFIG`:
`CONFIG`        record's term is its    `raft.codec.CONFIG`
`HARD`          0                       `raft.codec.HARD`
`STATE`         of the last entry       `raft.codec.POINT`, then what `queues.quorum.snapshot` makes
                in it
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

Places (`PLACES`) list the messages of the record, which can be found so without decoding commands.

A node may have had another member of the group before. Records before the `BEGINS` of a member that was
added belong to that one; but before a repeated one (after cleaning), messages are its own.
Behind it stand term and vote again, and the state.

Kinds 16 to 47 are the quorum queues'.
"""

from __future__ import annotations

import struct
from typing import Final

from amqp10broker.layout import REST, U32, U64, Layout, Many, row
from amqp10broker.queues.quorum.command_codec import Place
from amqp10broker.raft.codec import POINT
from amqp10broker.raft.entries import Kind

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

PLACES: Final[Many] = Many(Layout(Place, first=U64, messages=U32, at=U32, length=U32))
STATE_OF: Final = row(POINT, REST)
"""The point that a state stands for, and the state."""
