"""The contents of Spark's checkpoint for a streaming query on a stream: a JSON object.

The key with the stream's name has the first offset that was not read; keys that begin with that name describe
how the batch that ends there was planned::

    {"orders": 3000, "orders.id": "5f1c29d0a8b34e67", "orders.start": 1000, "orders.pieces": 4}

A repeated batch must be cut as it was the first time, whatever the options and retention are by then, because
message-ids of the sink are made of the numbers of partition and row: so the cut is recorded before any task
runs. The id is that of the stream's declaration: in a stream that was declared again, offsets mean other
messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.spark.errors import SparkSourceError

_START: Final = "start"
_LOST: Final = "lost"
_PIECES: Final = "pieces"
_INITIAL: Final = "initial"
_ID: Final = "id"


@dataclass(frozen=True, slots=True)
class Cut:
    """How the batch that ends at an offset was planned. `lost`: number of offsets before `start` that should
    have been read, and no longer existed at planning.
    """

    start: int
    pieces: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in a stream between two batches.

    Attributes:
        cut: of the batch that ends here. None where a query begins, and for offsets written by hand.
        initial: a query without checkpoint begins here. Spark requests it again when it repeats the first
            batch, and it may differ by then.
    """

    next: int
    cut: Cut | None = None
    initial: bool = False
    declaration_id: str | None = None

    def is_of_another(self, declaration_id: str | None) -> bool:
        return None not in (declaration_id, self.declaration_id) and declaration_id != self.declaration_id

    def written(self, stream: str) -> dict[str, Any]:
        found: dict[str, Any] = {stream: self.next}
        if self.declaration_id is not None:
            found[f"{stream}.{_ID}"] = self.declaration_id
        if self.cut is not None:
            found[f"{stream}.{_START}"] = self.cut.start
            found[f"{stream}.{_PIECES}"] = self.cut.pieces
            if self.cut.lost:
                found[f"{stream}.{_LOST}"] = self.cut.lost
        if self.initial:
            found[f"{stream}.{_INITIAL}"] = True
        return found


def is_of(stream: str, written: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has exactly the keys of an offset of this stream."""
    more = {f"{stream}.{key}" for key in (_START, _LOST, _PIECES, _INITIAL, _ID)}
    return stream in written and written.keys() <= {stream, *more}


def read_offset(stream: str, written: Mapping[str, Any]) -> StreamOffset:
    """Parse an offset that Spark stored for this stream. Raises `SparkSourceError` if it belongs to another
    stream, or its values are invalid.
    """
    if not is_of(stream, written):
        raise SparkSourceError(
            f"the checkpoint belongs to {', '.join(map(repr, written))}, and the option stream is "
            f"'{stream}': use another checkpointLocation"
        )

    def number(key: str) -> int:
        value = written.get(key, 0)
        if type(value) is not int or value < 0:
            raise SparkSourceError(
                f"the checkpoint says {value!r} for '{key}', which must be a number from 0: restore the "
                "checkpoint, or begin anew with another checkpointLocation"
            )
        return value

    cut = None
    if f"{stream}.{_START}" in written:
        cut = Cut(*(number(f"{stream}.{key}") for key in (_START, _PIECES, _LOST)))
    declared = written.get(f"{stream}.{_ID}")
    return StreamOffset(
        number(stream),
        cut,
        initial=bool(written.get(f"{stream}.{_INITIAL}")),
        declaration_id=None if declared is None else str(declared),
    )
