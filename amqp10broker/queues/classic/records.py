"""The records of classic queues in the journal.

==============  ==========================  =====================================================
kind            index                       payload
==============  ==========================  =====================================================
`MESSAGES`      position of the first one   `HEAD`, and the batch
`GONE`          0                           `REMOVED`
`DELIVERED`     position of the last one    level u8: those up to it may have been delivered
==============  ==========================  =====================================================

Kinds 1 to 15 are the classic queues'.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from amqp10broker.layout import NUMBERS, U16, U32, U64, Layout, Many, maybe, row
from amqp10broker.message.batch import encode_batch
from amqp10broker.message.message import Message
from amqp10broker.queues.classic.extents import grows, ranges_of

MESSAGES: Final = 1
GONE: Final = 2
DELIVERED: Final = 3


class MessagesHead(NamedTuple):
    """The head of the payload of `MESSAGES`. `level`: as in `store`, with one for delayed messages.
    `expiries`, `dues`: of each message; None: none expires, or is delayed. `moved`: former positions of these
    messages as delayed ones; None: they were not delayed.
    """

    level: int
    messages: int
    expiries: Sequence[int] | None
    dues: Sequence[int] | None
    moved: Sequence[int] | None


COLUMN: Final = maybe(NUMBERS)
HEAD: Final = Layout(MessagesHead, level=U16, messages=U32, expiries=COLUMN, dues=COLUMN, moved=COLUMN)
_PLAIN: Final = Struct("<HI3x")
"""`HEAD` without columns, as of almost all records."""
REMOVED: Final = row(U16, Many(row(U64, U64)))
"""Level, and runs of positions that are gone: the first, and the one behind the last."""


def encode_messages(
    level: int,
    messages: Sequence[Message],
    expiries: Sequence[int] | None,
    dues: Sequence[int] | None = None,
    moved: Sequence[int] | None = None,
) -> list[bytes]:
    pieces = encode_batch(messages)
    if expiries is None and dues is None and moved is None:
        pieces[0] = _PLAIN.pack(level, len(messages)) + pieces[0]
    else:
        pieces[0] = HEAD.encode(MessagesHead(level, len(messages), expiries, dues, moved)) + pieces[0]
    return pieces


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return unique positions, in any order, as runs (first, behind the last)."""
    if not positions:
        return []
    if positions[-1] - positions[0] == len(positions) - 1 and grows(positions):
        return [(positions[0], positions[-1] + 1)]
    return ranges_of(sorted(positions))
