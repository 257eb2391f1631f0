"""Events and runs as Arrow columns, by `flowevents.schema`; the only place that imports pyarrow for them.

Packed events become columns by the standard library's `array`, whose slices with a step run in C, so
numpy is not needed; pyarrow alone is (the extra ``record``), and it is imported when first used.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

from amqp10broker.flowevents.schema import FIELDS, PACK, RUN_FIELDS, SCHEMA_VERSION, VERSION_KEY
from amqp10broker.recording.errors import ArrowMissing, OtherVersion

METADATA: Final = {VERSION_KEY: str(SCHEMA_VERSION).encode()}
"""Of every file's schema."""

_SMALLER: Final = {"q": "int64", "b": "int8", "I": "uint32", "H": "uint16"}
"""What `struct` packs by each letter, before it is widened to the column's type."""


def load_arrow() -> Any:
    """The module pyarrow.

    Raises:
        ArrowMissing: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow


def load_parquet() -> Any:
    """The module pyarrow.parquet.

    Raises:
        ArrowMissing: it is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow.parquet


def event_schema() -> Any:
    """The Arrow schema of a file of events, with the version in its metadata."""
    pa = load_arrow()
    fields = [pa.field(field.name, pa.type_for_alias(field.parquet), nullable=False) for field in FIELDS]
    return pa.schema(fields, metadata=METADATA)


def run_schema() -> Any:
    """The Arrow schema of a run's row, with the version in its metadata."""
    pa = load_arrow()
    return pa.schema(
        [pa.field(name, pa.type_for_alias(kind)) for name, kind in RUN_FIELDS], metadata=METADATA
    )


def event_table(events: bytes | bytearray | memoryview) -> Any:
    """Packed events as an Arrow table with `event_schema`.

    Args:
        events: whole events, one after another, as `schema.PACK` packs them.

    Raises:
        ValueError: it is not a whole number of events.
        ArrowMissing: pyarrow is not installed.
    """
    count, rest = divmod(len(events), PACK.size)
    if rest:
        raise ValueError(f"{len(events)} bytes are no whole number of events of {PACK.size} bytes")
    pa = load_arrow()
    view = memoryview(events).cast("B")
    columns = []
    offset = 0
    for field in FIELDS:
        column = _column(view, offset, field.code)
        buffer = pa.py_buffer(column)
        packed = pa.Array.from_buffers(pa.type_for_alias(_SMALLER[field.code]), count, [None, buffer])
        columns.append(packed.cast(pa.type_for_alias(field.parquet)))
        offset += column.itemsize
    return pa.Table.from_arrays(columns, schema=event_schema())


def check_version(metadata: dict[bytes, bytes] | None, path: str) -> None:
    """Refuse a file of another layout.

    Args:
        metadata: of the file's Arrow schema.
        path: named in the error.

    Raises:
        OtherVersion: it is not ours.
    """
    text = (metadata or {}).get(VERSION_KEY)
    found = int(text) if text is not None and text.isdigit() else None
    if found != SCHEMA_VERSION:
        raise OtherVersion(path, found, SCHEMA_VERSION)


def _column(view: memoryview, offset: int, code: str) -> array[int]:
    """The values at one offset of every event.

    The whole buffer is taken for an array of the column's type, moved so that the column stands at a
    multiple of its size, and every n-th value is picked. An event's size is a multiple of every
    column's (64 bytes), which a test holds fast.
    """
    values: array[int] = array(code)
    size = values.itemsize
    shift = offset % size
    values.frombytes(view[shift : len(view) - (size - shift) % size])
    picked = values[offset // size :: PACK.size // size]
    if sys.byteorder == "big":
        picked.byteswap()
    return picked
