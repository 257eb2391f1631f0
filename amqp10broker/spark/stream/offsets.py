"""What Spark's checkpoint holds of a streaming query of a stream. Pure.

An offset is a JSON object. The stream's own name stands for the first offset that was not read, and keys
that begin with that name, so that none can be taken for another stream, say how the batch that ends there
was planned::

    {"orders": 3000, "orders.id": "5f1c29d0a8b34e67", "orders.start": 1000, "orders.pieces": 4}

Message-ids of the sink, and file names of other sinks, are made of a partition's number and of a row's number
in it. A batch that is repeated must therefore be cut as it was the first time, whatever machine, options and
retention say by then: so the cut is written down with the end of the batch, before any task of it runs.

The id is that of the stream's declaration, if the broker says one. In a stream that was deleted and declared
again, offsets mean other messages.
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
    """How the batch that ends at an offset was planned.

    Attributes:
        start: the first offset of the range that is cut.
        pieces: into so many it is cut.
        lost: so many offsets in front of `start` were to be read too, and were gone when it was planned.
    """

    start: int
    pieces: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in a stream between two batches.

    Attributes:
        next: the first offset that was not read.
        cut: of the batch that ends here. None for a place where a query begins, and for what was written by
            hand or by a version that did not know of cuts.
        initial: a query without checkpoint begins here. Spark asks for it again when it repeats the first
            batch, and by then it may be another one.
        declaration_id: of the stream; None if it was not known.
    """

    next: int
    cut: Cut | None = None
    initial: bool = False
    declaration_id: str | None = None

    def is_of_another(self, declaration_id: str | None) -> bool:
        """Whether it is known to be of another stream than that of this id."""
        return None not in (declaration_id, self.declaration_id) and declaration_id != self.declaration_id

    def written(self, stream: str) -> dict[str, Any]:
        """As Spark keeps it."""
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
    """Whether a JSON object has the keys of an offset of this stream, and no others."""
    more = {f"{stream}.{key}" for key in (_START, _LOST, _PIECES, _INITIAL, _ID)}
    return stream in written and written.keys() <= {stream, *more}


def read_offset(stream: str, written: Mapping[str, Any]) -> StreamOffset:
    """What an offset says.

    Args:
        stream: the option of this name.
        written: as Spark kept it.

    Raises:
        SparkSourceError: it is of another stream, or its values are none that were written here.
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
