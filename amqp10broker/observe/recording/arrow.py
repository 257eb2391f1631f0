"""Events and runs as Arrow columns, by `observe.flow_events.schema`.

Only this module imports pyarrow for them (the extra ``record``), and only when it is first used. Packed
events become columns by slices with a step of the standard library's `array`, which run in C, so that numpy
is not needed.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

from amqp10broker.observe.flow_events.schema import FIELDS, PACK, RUN_FIELDS, SCHEMA_VERSION, VERSION_KEY
from amqp10broker.observe.recording.errors import ArrowMissing, OtherVersion

METADATA: Final = {VERSION_KEY: str(SCHEMA_VERSION).encode()}

# The type that `struct` packs by each letter, before it is widened to the column's type.
_SMALLER: Final = {"q": "int64", "b": "int8", "I": "uint32", "H": "uint16"}


def load_arrow() -> Any:
    """Import and return pyarrow; raise ArrowMissing if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow


def load_parquet() -> Any:
    """Import and return pyarrow.parquet; raise ArrowMissing if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow.parquet


def event_schema() -> Any:
    pa = load_arrow()
    fields = [pa.field(field.name, pa.type_for_alias(field.parquet), nullable=False) for field in FIELDS]
    return pa.schema(fields, metadata=METADATA)


def run_schema() -> Any:
    pa = load_arrow()
    return pa.schema(
        [pa.field(name, pa.type_for_alias(kind)) for name, kind in RUN_FIELDS], metadata=METADATA
    )


def event_table(events: bytes | bytearray | memoryview) -> Any:
    """Return packed events as an Arrow table with `event_schema`. Raises `ValueError` if the length is not a
    multiple of the event size, and `ArrowMissing` if pyarrow is not installed.
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
    """Raise OtherVersion unless the metadata of a file's Arrow schema have this layout's version."""
    text = (metadata or {}).get(VERSION_KEY)
    found = int(text) if text is not None and text.isdigit() else None
    if found != SCHEMA_VERSION:
        raise OtherVersion(path, found, SCHEMA_VERSION)


def _column(view: memoryview, offset: int, code: str) -> array[int]:
    # The whole buffer is viewed as an array of the column's type, shifted so that the column is at a multiple
    # of its size, and every n-th value is taken. The size of an event (64 bytes) is a multiple of every
    # column's, which a test checks.
    values: array[int] = array(code)
    size = values.itemsize
    shift = offset % size
    values.frombytes(view[shift : len(view) - (size - shift) % size])
    picked = values[offset // size :: PACK.size // size]
    if sys.byteorder == "big":
        picked.byteswap()
    return picked
