"""The records of a ring. They are plain tuples, because there is one for every run of frames while it is on.

Each begins with the time in nanoseconds by a monotonic clock, and its `RecordKind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, auto
from operator import itemgetter
from typing import Any, Final

from amqp10broker.protocols.serial import ranges

HEAD_BYTES: Final = 64
"""The number of bytes stored of the first frame of a run, and of a payload."""
Span = tuple[int, int]
_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(1)


class RecordKind(IntEnum):
    """The kind of a record, which determines its fields after time and kind."""

    MARK = auto()
    """A `Mark`: a state that changes without a frame."""
    TRANSFERS_IN = auto()
    """handle, spans of delivery-ids, how many, settled, first tag, first payload's beginning."""
    TRANSFER_IN = auto()
    """handle, the `Transfer`, payload's beginning, payload's bytes."""
    DISPOSITIONS_IN = auto()
    """role, settled, state as text, spans, how many frames."""
    FLOW_IN = auto()
    """The `Flow`, its text if that is already made, else None."""
    OTHER_IN = auto()
    SENT = auto()
    TRANSFERS_OUT = auto()
    """handle, first delivery-id, how many, settled, beginning of the first frame."""
    TRANSFER_OUT = auto()
    """handle, delivery-id, settled, beginning of the frame, whether it is the first, the last."""


Record = tuple[Any, ...]


Mark = tuple[int, int, int, bool, int, str | None]
"""The state of a link that changes without frames, after a step of its session: deliveries that its queue may
still make and those that are not written (`QueueCredit.granted`, `waiting`); bytes that the socket of the
connection does not take, and whether transfers of the session wait for that; the limit of its credit, and why
it has this value if it is automatic (`sessions.auto_limit`).
"""


def spans_of(delivery_ids: Sequence[int]) -> tuple[Span, ...]:
    """Return delivery-ids as inclusive ranges."""
    first, last = delivery_ids[0], delivery_ids[-1]
    if len(delivery_ids) == 1:
        return ((first, first),)
    if last - first == len(delivery_ids) - 1 and list(range(first, last + 1)) == delivery_ids:
        return ((first, last),)
    return tuple(ranges(delivery_ids))


def joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Merge spans of one delivery each that follow each other; return others unchanged."""
    first, last = spans[0][0], spans[-1][1]
    if len(spans) > 1 and last - first == len(spans) - 1:
        ids = list(range(first, last + 1))
        if list(map(_FIRST, spans)) == ids == list(map(_LAST, spans)):
            return ((first, last),)
    return tuple(spans)
