"""The columns of the source, any message as a row of them (`read_row`), and thousands as one Arrow batch.

==========================  ==============================================================================
`offset`                    annotation ``x-stream-offset``; null if there is none, and of queues
`enqueuedTime`              annotation ``x-opt-enqueued-time`` if it is an integer or a time, else property
                            creation-time, else null; null outside the years 1 to 9999 (`MS_MIN`)
`messageId`, `subject`      properties, as text (below); null if absent
`body`                      data: the bytes, several sections joined. amqp-value: a string or symbol as UTF-8,
                            a binary as it is, null as null; any other value in the AMQP 1.0 encoding
                            in which it came. amqp-sequence: that encoding, several sections one after the
                            other. No body section: null
`applicationProperties`     keys and values as text; null if the section is absent
==========================  ==============================================================================

As text: strings and symbols as they are; integers in decimal; booleans ``true`` and ``false``; floating point
numbers as Python prints them; timestamps as ``2026-01-31T12:00:00.000Z``; UUIDs with hyphens; binaries as
``0x`` and hexadecimal digits; null as null; anything else as ``0x`` and its AMQP 1.0 encoding.

Publishers repeat layouts (`learn`). One is applied to all messages of a batch at once with numpy: constant
bytes are compared, lengths and sizes followed, and every message must end where the layout ends, so that a
message that differs in more than its values does not match. Messages that match no layout are read by
`read_row`, which defines the result. This costs about 0.4 microseconds for a message of 100 bytes, against 12
one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqp10broker.client.message import section_at
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.codec import decode, encode, skip
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Properties,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Map, Timestamp
from amqp10broker.spark.errors import ColumnError, SparkSourceError, UnreadableMessage

_TYPES: Final[Mapping[str, str]] = {
    "stream": "string",
    "offset": "bigint",
    "enqueuedTime": "timestamp",
    "messageId": "string",
    "subject": "string",
    "body": "binary",
    "applicationProperties": "map<string,string>",
}
COLUMNS: Final = tuple(_TYPES)
"""Names of the columns. For a queue, `stream` is its name and `offset` is null."""

DDL: Final = ", ".join(
    # The session decides what the word timestamp means in a text: spark.sql.timestampType.
    f"{name} {'timestamp_ltz' if kind == 'timestamp' else kind}"
    for name, kind in _TYPES.items()
)


def check_schema(schema: Any) -> None:
    """Check the schema that a user gave: Spark uses any, and fails in a task if the rows differ. Raises
    `ColumnError` if it is not the schema of a source.
    """
    names = tuple(column.name for column in schema.fields)
    if names != COLUMNS:
        raise _not_ours(f"has the columns {', '.join(names)} instead of {', '.join(COLUMNS)}")
    for column in schema.fields:
        kind = column.dataType.simpleString()
        # A string with a collation is still a string.
        if kind.partition(" collate ")[0] != _TYPES[column.name]:
            raise _not_ours(f"has column {column.name} as {kind} instead of {_TYPES[column.name]}")
        if not column.nullable or not getattr(column.dataType, "valueContainsNull", True):
            raise _not_ours(f"does not let column {column.name} hold nulls")


def _not_ours(problem: str) -> ColumnError:
    return ColumnError(
        f"what was given by schema() {problem}; leave .schema() out, for a source has its own, and use "
        "select and cast on what it reads"
    )


@cache
def arrow_schema() -> pa.Schema:
    """Return the schema of Arrow batches; times are microseconds in UTC, as in Spark."""
    return pa.schema(
        [
            pa.field("stream", pa.string()),
            pa.field("offset", pa.int64()),
            pa.field("enqueuedTime", pa.timestamp("us", tz="UTC")),
            pa.field("messageId", pa.string()),
            pa.field("subject", pa.string()),
            pa.field("body", pa.binary()),
            pa.field("applicationProperties", pa.map_(pa.string(), pa.string())),
        ]
    )


X_STREAM_OFFSET: Final = "x-stream-offset"
X_ENQUEUED: Final = "x-opt-enqueued-time"
OFFSET_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Spark could store 292 000 years, but one row with a time outside Python's range makes `collect` fail for all
# rows. Python's years are 1 to 9999, in the zone of the process, and its `fromtimestamp` also computes the
# day before: so the first two days and the last one are excluded, wherever the process runs.
MS_MIN: Final = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
MS_MAX: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1) - 1


class MessageRow(NamedTuple):
    """A row without the stream's name; `enqueued_us` is microseconds since 1970."""

    offset: int | None
    enqueued_us: int | None
    message_id: str | None
    subject: str | None
    body: bytes | None
    application_properties: dict[str, str | None] | None


def read_row(payload: bytes, *, of_stream: bool = True) -> MessageRow:
    """Decode an encoded message.

    Args:
        of_stream: whether it came from a stream. A message of a queue has no offset; if it carries the
            annotation, it was copied from a stream, and the value was not checked.

    Raises:
        DecodeError: the bytes are not a message.
    """
    offset: int | None = None
    annotated_ms: int | None = None
    properties = Properties()
    application: dict[str, str | None] | None = None
    body: bytes | None = None
    body_code = 0
    pos = 0
    end = len(payload)
    while pos < end:
        code, start = section_at(payload, pos, end)
        if code == PROPERTIES:
            decoded, pos = decode_composite(payload, pos, end)
            assert isinstance(decoded, Properties)
            properties = decoded
        elif code == MESSAGE_ANNOTATIONS:
            annotations, pos = _map(payload, start, end)
            for key, value in annotations.items():
                if key == X_STREAM_OFFSET:
                    offset = _offset(value) if of_stream else None
                elif key == X_ENQUEUED:
                    # In queues and at other brokers the publisher sets it, and it was not checked.
                    annotated_ms = int(value) if isinstance(value, int) and type(value) is not bool else None
        elif code == APPLICATION_PROPERTIES:
            pairs, pos = _map(payload, start, end)
            application = {text_of(key) or "": text_of(value) for key, value in pairs.items()}
        elif code in (DATA, AMQP_VALUE, AMQP_SEQUENCE):
            if body_code and (code != body_code or code == AMQP_VALUE):
                raise DecodeError(f"a second body section, 0x{code:02x} after 0x{body_code:02x}")
            piece, pos = _body(code, payload, start, end)
            body = piece if not body_code or piece is None else (body or b"") + piece
            body_code = code
        else:
            pos = skip(payload, start, end)
    created_ms = properties.creation_time
    return MessageRow(
        offset,
        microseconds(created_ms if annotated_ms is None else annotated_ms),
        text_of(properties.message_id),
        properties.subject,
        body,
        application,
    )


def microseconds(ms: int | None) -> int | None:
    """Convert milliseconds to Spark's times; None outside `MS_MIN` to `MS_MAX`."""
    return None if ms is None or not MS_MIN <= ms <= MS_MAX else ms * 1000


def text_of(value: Any) -> str | None:
    """Return a value as text, by the rules in this module's docstring."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case Timestamp():
            try:
                moment = _EPOCH + timedelta(milliseconds=value)
            except OverflowError:
                return int.__repr__(value)  # beyond the year 9999
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case int():
            return int.__repr__(value)
        case float():
            return float.__repr__(value)
        case str():
            return str(value)
        case bytes():
            return "0x" + value.hex()
        case UUID():
            return str(value)
        case _:
            return "0x" + encode(value).hex()


def _body(code: int, payload: bytes, start: int, end: int) -> tuple[bytes | None, int]:
    value, pos = decode(payload, start, end)
    if code == DATA:
        if not isinstance(value, bytes):
            raise DecodeError(f"a data section holds a {type(value).__name__.lower()}")
        return value, pos
    if code == AMQP_SEQUENCE:
        if not isinstance(value, list):
            raise DecodeError(f"an amqp-sequence section holds a {type(value).__name__.lower()}")
        return payload[start:pos], pos
    if value is None:
        return None, pos
    if isinstance(value, bytes):
        return value, pos
    if isinstance(value, str) and payload[start] in _TEXTS:
        return value.encode(), pos
    return payload[start:pos], pos


def _map(payload: bytes, start: int, end: int) -> tuple[dict[Any, Any] | Map, int]:
    value, pos = decode(payload, start, end)
    if not isinstance(value, dict | Map):
        raise DecodeError(f"a section that must be a map holds a {type(value).__name__.lower()}")
    return value, pos


def _offset(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= OFFSET_MAX:
        raise DecodeError(f"annotation {X_STREAM_OFFSET} holds {value!r}, which is no offset")
    return int(value)


LAYOUT_BYTES_MAX: Final = 4096
FIXED_WIDTHS: Final = {0x50: 1, 0x60: 2, 0x70: 4, 0x80: 8, 0x90: 16}
_ZERO_WIDTH: Final = frozenset({0x40, 0x41, 0x42, 0x43, 0x44, 0x45})
_STRINGS: Final = frozenset({0xA1, 0xB1})
_SYMBOLS: Final = frozenset({0xA3, 0xB3})
_BINARIES: Final = frozenset({0xA0, 0xB0})
# A char is also a str in Python, and is not among them.
_TEXTS: Final = _STRINGS | _SYMBOLS
# Types of fixed width for which all bits are valid; boolean and char have invalid ones.
_ANY_BITS: Final = frozenset(
    {0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x60, 0x61, 0x70, 0x71, 0x72, 0x74, 0x80, 0x81, 0x82, 0x83}
    | {0x84, 0x94, 0x98}
)
_PROPERTY_NAMES: Final = {0: "message_id", 3: "subject", 9: "creation_time"}


class NoLayout(Exception):
    pass


@dataclass(slots=True)
class Value:
    """The position of a value that a row needs. `slot`: number of the capture with its content; None for a
    constant.
    """

    code: int
    slot: int | None = None
    text: str | None = None


@dataclass(slots=True)
class LayoutBlock:
    """Bytes at fixed distances from one another, up to a value that carries its own length.

    Attributes:
        pattern: one byte for each; those that vary are 0.
        mask: 255 where `pattern` must match, 0 where it varies.
        sizes: ``(compound, distance, width)`` of the size fields of lists and maps that begin here.
        ends: ``(compound, distance)`` where one must end.
        var: ``(slot or None, width of the length)`` of the value that ends the block; None at the message's
            end.
    """

    pattern: bytearray = field(default_factory=bytearray)
    mask: bytearray = field(default_factory=bytearray)
    fixed: list[tuple[int, int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    var: tuple[int | None, int] | None = None


@dataclass(slots=True)
class Layout:
    """A message without its values: pieces of constant bytes, values of fixed width, and values that carry
    their own length. A message that cannot be described so (two body sections, a compound value among the
    application properties) has none and is read alone.

    Attributes:
        utf8, ascii: slots that must contain text of that kind although no row has it.
        body: slot of the body, or its bytes, or None for null.
        application: keys and values; None if the section is absent.
    """

    blocks: list[LayoutBlock] = field(default_factory=lambda: [LayoutBlock()])
    slots: int = 0
    utf8: list[int] = field(default_factory=list)
    ascii: list[int] = field(default_factory=list)
    offset: Value | None = None
    annotated_time: Value | None = None
    creation_time: Value | None = None
    message_id: Value | None = None
    subject: Value | None = None
    body: int | bytes | None = None
    application: list[tuple[str, Value]] | None = None


def learn(payload: bytes, *, of_stream: bool = True) -> Layout | None:
    """Return the layout of a message that `read_row` accepts, or None if it has none."""
    learner = _Learner(payload, of_stream)
    try:
        learner.message()
    except NoLayout:
        return None
    return learner.layout


class _Learner:
    def __init__(self, payload: bytes, of_stream: bool) -> None:
        self.layout = Layout()
        self._of_stream = of_stream
        self._data = payload
        self._pos = 0
        self._block = self.layout.blocks[0]
        self._compounds = 0
        self._constant_bytes = 0

    # --- pieces -----------------------------------------------------------------------------------

    def _constant(self, stop: int) -> None:
        piece = self._data[self._pos : stop]
        self._constant_bytes += len(piece)
        if self._constant_bytes > LAYOUT_BYTES_MAX:
            raise NoLayout
        self._block.pattern += piece
        self._block.mask += b"\xff" * len(piece)
        self._pos = stop

    def _varying(self, width: int) -> int:
        # Returns the distance of these bytes in the block.
        at = len(self._block.pattern)
        self._block.pattern += bytes(width)
        self._block.mask += bytes(width)
        self._pos += width
        return at

    def _slot(self) -> int:
        self.layout.slots += 1
        return self.layout.slots - 1

    def _fixed(self, width: int, *, back: int = 0) -> int:
        slot = self._slot()
        at = self._varying(width)
        self._block.fixed.append((slot, at - back, width + back))
        return slot

    def _variable(self, code: int, *, wanted: bool) -> int | None:
        # A value with a length after its constructor.
        width = 4 if code & 0x10 else 1
        length = int.from_bytes(self._data[self._pos : self._pos + width], "big")
        slot = self._slot() if wanted else None
        self._varying(width)
        self._block.var = (slot, width)
        self._pos += length
        self._block = LayoutBlock()
        self.layout.blocks.append(self._block)
        return slot

    def _open(self, code: int) -> tuple[int, int]:
        # Returns the number of the compound and where it stops.
        width = 4 if code & 0x10 else 1
        size = int.from_bytes(self._data[self._pos : self._pos + width], "big")
        stop = self._pos + width + size
        number = self._compounds
        self._compounds += 1
        self._block.sizes.append((number, self._varying(width), width))
        self._constant(self._pos + width)  # the count
        return number, stop

    def _close(self, number: int) -> None:
        self._block.ends.append((number, len(self._block.pattern)))

    def _code(self) -> int:
        code = self._data[self._pos]
        self._constant(self._pos + 1)
        return code

    # --- values -----------------------------------------------------------------------------------

    def _skipped(self) -> None:
        # No row contains the value, but it must be valid.
        code = self._data[self._pos]
        if code in _ANY_BITS:
            self._code()
            self._varying(FIXED_WIDTHS[code & 0xF0])
        elif code in _BINARIES:
            self._variable(self._code(), wanted=False)
        elif code in _TEXTS:
            self._check(code, self._variable(self._code(), wanted=True))
        else:
            self._constant(skip(self._data, self._pos))

    def _check(self, code: int, slot: int | None) -> None:
        if code in _TEXTS:
            assert slot is not None
            (self.layout.utf8 if code in _STRINGS else self.layout.ascii).append(slot)

    def _wanted(self) -> Value:
        start = self._pos
        code = self._data[start]
        if code in _ZERO_WIDTH or code == 0x56:
            value, stop = decode(self._data, start)
            self._constant(stop)
            return Value(code, text=text_of(value))
        width = FIXED_WIDTHS.get(code & 0xF0)
        if width is not None:
            return Value(self._code(), slot=self._fixed(width))
        if code in _TEXTS or code in _BINARIES:
            return Value(self._code(), slot=self._variable(code, wanted=True))
        raise NoLayout

    def _integer(self, codes: frozenset[int]) -> Value | None:
        code = self._data[self._pos]
        if code == 0x40:
            self._code()
            return None
        if code not in codes:
            raise NoLayout
        return Value(self._code(), slot=self._fixed(FIXED_WIDTHS[code & 0xF0]))

    # --- sections ---------------------------------------------------------------------------------

    def message(self) -> None:
        data = self._data
        end = len(data)
        seen: set[int] = set()
        while self._pos < end:
            code, start = section_at(data, self._pos, end)
            if code in seen:
                raise NoLayout  # several body sections, or a rare section
            seen.add(code)
            self._constant(start)
            if code == MESSAGE_ANNOTATIONS:
                self._annotations()
            elif code == PROPERTIES:
                self._properties()
            elif code == APPLICATION_PROPERTIES:
                self._application_properties()
            elif code in (DATA, AMQP_SEQUENCE, AMQP_VALUE):
                self._body(code)
            else:
                self._constant(skip(data, self._pos, end))

    def _annotations(self) -> None:
        number, stop = self._open(self._code())
        while self._pos < stop:
            key, after = decode(self._data, self._pos)
            self._constant(after)
            if key == X_STREAM_OFFSET and self._of_stream:
                self.layout.offset = self._integer(frozenset({0x80, 0x53, 0x81, 0x55}))
            elif key == X_ENQUEUED:
                self.layout.annotated_time = self._integer(frozenset({0x83, 0x81}))
            else:
                self._skipped()
        self._close(number)

    def _properties(self) -> None:
        code = self._code()
        if code == 0x45:
            return
        number, stop = self._open(code)
        index = 0
        while self._pos < stop:
            match _PROPERTY_NAMES.get(index):
                case "message_id":
                    self.layout.message_id = self._wanted()
                case "subject":
                    self.layout.subject = self._wanted()
                case "creation_time":
                    self.layout.creation_time = self._integer(frozenset({0x83}))
                case _:
                    self._skipped()
            index += 1
        self._close(number)

    def _application_properties(self) -> None:
        number, stop = self._open(self._code())
        pairs: list[tuple[str, Value]] = []
        while self._pos < stop:
            key, after = decode(self._data, self._pos)
            self._constant(after)
            pairs.append((text_of(key) or "", self._wanted()))
        self._close(number)
        if len({key for key, _ in pairs}) < len(pairs):
            raise NoLayout
        self.layout.application = pairs

    def _body(self, section: int) -> None:
        data = self._data
        start = self._pos
        code = data[start]
        if section == AMQP_VALUE and code == 0x40:
            self._code()
        elif code in _BINARIES or (section == AMQP_VALUE and code in _TEXTS):
            slot = self.layout.body = self._variable(self._code(), wanted=True)
            self._check(code, slot)
        elif code in _ANY_BITS:
            self._code()
            self.layout.body = self._fixed(FIXED_WIDTHS[code & 0xF0], back=1)
        else:
            # A compound: its elements would have to be checked one by one.
            stop = skip(data, start)
            if stop - start > 1:
                raise NoLayout
            self.layout.body = data[start:stop]
            self._constant(stop)


# --- thousands of messages ----------------------------------------------------------------------

# With more layouts than this, messages do not repeat themselves.
LAYOUTS_MAX: Final = 16
_WORD: Final = 8
# Fewer messages are read one by one: the fixed cost of numpy equals that of about ten messages.
_ROWS_WORTH_IT: Final = 8
# Arrow counts the bytes of a string or binary column in a signed integer of 32 bits.
_BATCH_BYTES_MAX: Final = 2**31 - 1
_UNSIGNED: Final = {0x50: "u1", 0x52: "u1", 0x53: "u1", 0x60: ">u2", 0x70: ">u4", 0x80: ">u8"}
_SIGNED: Final = {0x51: "i1", 0x54: "i1", 0x55: "i1", 0x61: ">i2", 0x71: ">i4", 0x81: ">i8"}
_NOT_OF_THIS_KIND: Final = (DecodeError, pa.ArrowInvalid, UnicodeDecodeError)


class RowDecoder:
    """Decodes the messages of one stream or queue, and keeps the layouts that it has learned. `of_stream`:
    whether messages have offsets; those of a queue have none, whatever they carry.
    """

    def __init__(self, stream: str, *, of_stream: bool = True) -> None:
        self._stream = stream
        self._of_stream = of_stream
        self._layouts: list[CompiledLayout] = []

    def batch(self, payloads: Sequence[bytes]) -> pa.RecordBatch:
        """Return encoded messages as rows, in order. Raises `UnreadableMessage` if the bytes of one are not a
        message; the error contains its position, and `SparkSourceError` if together they exceed the size of
        an Arrow batch.
        """
        groups: list[tuple[Any, pa.RecordBatch]] = []
        left = np.arange(len(payloads))
        if len(left) < _ROWS_WORTH_IT:
            _check_fits(sum(map(len, payloads)) <= _BATCH_BYTES_MAX, len(payloads))
        else:
            sheet = Sheet(payloads)
            _check_fits(sheet.size <= _BATCH_BYTES_MAX, len(payloads))
            left = self._by_known_layouts(sheet, left, groups)
            for _ in range(LAYOUTS_MAX):
                if len(left) < _ROWS_WORTH_IT:
                    break
                left = self._by_a_new_layout(payloads, sheet, left, groups)
        if len(left):
            groups.append((left, self._one_by_one(payloads, left)))
        return _in_order(groups)

    def _by_a_new_layout(
        self, payloads: Sequence[bytes], sheet: Sheet, left: Any, groups: list[tuple[Any, pa.RecordBatch]]
    ) -> Any:
        layout = _learned(payloads[left[0]], self._of_stream)
        if layout is not None:
            rest = _try(layout, sheet, left, groups, self._stream)
            if len(rest) < len(left):
                self._layouts.insert(0, layout)
                del self._layouts[LAYOUTS_MAX:]
                return rest
        groups.append((left[:1], self._one_by_one(payloads, left[:1])))
        return left[1:]

    def _by_known_layouts(self, sheet: Sheet, left: Any, groups: list[tuple[Any, pa.RecordBatch]]) -> Any:
        for layout in tuple(self._layouts):
            if not len(left):
                break
            rest = _try(layout, sheet, left, groups, self._stream)
            if len(rest) < len(left) and self._layouts[0] is not layout:
                self._layouts.remove(layout)  # the ones in use come first
                self._layouts.insert(0, layout)
            left = rest
        return left

    def _one_by_one(self, payloads: Sequence[bytes], rows: Any) -> pa.RecordBatch:
        read: list[MessageRow] = []
        for number in rows:
            try:
                read.append(read_row(payloads[number], of_stream=self._of_stream))
            except DecodeError as error:
                raise UnreadableMessage(
                    f"message {number} of a batch of '{self._stream}' is no AMQP 1.0 message: {error}; mend "
                    "its publisher, and begin behind it or filter it out"
                ) from error
        columns: list[Any] = list(zip(*read, strict=True)) if read else [[] for _ in MessageRow._fields]
        maps = [None if each is None else list(each.items()) for each in columns[5]]
        schema = arrow_schema()
        values = [[self._stream] * len(read), *columns[:5], maps]
        return pa.RecordBatch.from_arrays(
            [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)], schema=schema
        )


class Sheet:
    """Messages side by side in one buffer."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.data = b"".join([*payloads, bytes(_WORD)])
        self.size = len(self.data) - _WORD
        self.array = np.frombuffer(self.data, np.uint8)
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
        self.stops = np.cumsum(lengths)
        self.starts = self.stops - lengths


@dataclass(slots=True, eq=False)
class Capture:
    """Values of one slot: `fixed` has their bytes row by row, or they extend from `starts` to `stops`."""

    fixed: Any = None
    starts: Any = None
    stops: Any = None

    def only(self, chosen: Any) -> Capture:
        if self.fixed is not None:
            return Capture(self.fixed[chosen])
        return Capture(None, self.starts[chosen], self.stops[chosen])

    def binaries(self, sheet: Sheet, kind: pa.DataType) -> pa.Array:
        """Return an Arrow array of binaries or strings; strings are not validated."""
        if self.fixed is not None:
            count, width = self.fixed.shape
            offsets = np.arange(count + 1, dtype=np.int32) * width
            content = np.ascontiguousarray(self.fixed)
            buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
            return pa.Array.from_buffers(kind, count, buffers)
        # The list holds the values and the bytes between them; every second one is taken. So Arrow copies
        # them without an object for each.
        count = len(self.starts)
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = self.starts
        offsets[1::2] = self.stops
        both = pa.Array.from_buffers(
            kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(sheet.data)]
        )
        return both.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))

    def numbers(self, kind: str) -> Any:
        """Return integers: those of 8 bytes in width as unsigned, all others as signed."""
        read = np.ascontiguousarray(self.fixed).view(kind)[:, 0]
        return read.astype(np.uint64 if kind == ">u8" else np.int64)


class CompiledLayout:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._blocks = [(block, _words(block.pattern), _words(block.mask)) for block in layout.blocks]

    def find(self, sheet: Sheet, rows: Any) -> tuple[Any, Any, dict[int, Capture]] | None:
        """Return the rows that match, the other rows and the captured values, or None if no row matches."""
        base = sheet.starts[rows]
        good: Any = np.ones(len(rows), bool)
        captures: dict[int, Capture] = {}
        ends: dict[int, Any] = {}
        for block, pattern, mask in self._blocks:
            window = _windows(sheet, base, len(block.pattern))
            if window is None:
                return None
            words = window.view(np.uint64)
            # Word by word: numpy takes five times as long to reduce short rows.
            for number in range(len(pattern)):
                if mask[number]:
                    good &= (words[:, number] ^ pattern[number]) & mask[number] == 0
            if not good.any():
                return None
            base = self._follow(block, window, base, good, captures, ends)
        good &= base == sheet.stops[rows]
        if good.all():
            return rows, rows[:0], captures
        if not good.any():
            return None
        return rows[good], rows[~good], {slot: capture.only(good) for slot, capture in captures.items()}

    @staticmethod
    def _follow(
        block: LayoutBlock,
        window: Any,
        base: Any,
        good: Any,
        captures: dict[int, Capture],
        ends: dict[int, Any],
    ) -> Any:
        for number, at, width in block.sizes:
            ends[number] = base + (at + width) + _big_endian(window, at, width)
        for number, at in block.ends:
            good &= base + at == ends[number]
        for slot, at, width in block.fixed:
            captures[slot] = Capture(window[:, at : at + width])
        if block.var is None:
            return base + len(block.pattern)
        slot_or_none, width = block.var
        starts = base + len(block.pattern)
        stops = starts + _big_endian(window, len(block.pattern) - width, width)
        if slot_or_none is not None:
            captures[slot_or_none] = Capture(None, starts, stops)
        return stops

    def batch(self, sheet: Sheet, captures: dict[int, Capture], count: int, stream: str) -> pa.RecordBatch:
        """Return the rows of the messages that matched. Raises `ArrowInvalid` if a text is not UTF-8, and
        `DecodeError` if another value is not valid for its type.
        """
        layout = self.layout
        for slot in layout.utf8:
            captures[slot].binaries(sheet, pa.utf8()).validate(full=True)
        for slot in layout.ascii:
            _check_ascii(captures[slot].binaries(sheet, pa.utf8()))
        columns = [
            pa.repeat(pa.scalar(stream, pa.string()), count),
            _offsets(layout.offset, captures, count),
            self._times(captures, count),
            _texts(layout.message_id, sheet, captures, count),
            _texts(layout.subject, sheet, captures, count),
            self._bodies(sheet, captures, count),
            self._application(sheet, captures, count),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema())

    def _times(self, captures: dict[int, Capture], count: int) -> pa.Array:
        value = self.layout.annotated_time or self.layout.creation_time
        kind = arrow_schema().field("enqueuedTime").type
        if value is None:
            return pa.nulls(count, kind)
        ms = _integers(value, captures)
        far = (ms > MS_MAX) | (ms < MS_MIN)
        return pa.array(np.where(far, 0, ms) * 1000, pa.int64(), mask=far if far.any() else None).cast(kind)

    def _bodies(self, sheet: Sheet, captures: dict[int, Capture], count: int) -> pa.Array:
        body = self.layout.body
        if body is None:
            return pa.nulls(count, pa.binary())
        if isinstance(body, bytes):
            return pa.repeat(pa.scalar(body, pa.binary()), count)
        return captures[body].binaries(sheet, pa.binary())

    def _application(self, sheet: Sheet, captures: dict[int, Capture], count: int) -> pa.Array:
        pairs = self.layout.application
        kind = arrow_schema().field("applicationProperties").type
        if pairs is None:
            return pa.nulls(count, kind)
        many = len(pairs)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * many, pa.int32())
        if not pairs:
            empty = pa.array([], pa.string())
            return pa.MapArray.from_arrays(offsets, empty, empty).cast(kind)
        keys = pa.array([key for key, _ in pairs], pa.string())
        values = pa.concat_arrays([_texts(value, sheet, captures, count) for _, value in pairs])
        # Transpose from column order to row order.
        order = (np.arange(many) * count + np.arange(count)[:, None]).reshape(-1)
        repeated = keys.take(pa.array(np.tile(np.arange(many), count)))
        return pa.MapArray.from_arrays(offsets, repeated, values.take(pa.array(order)))


def _try(
    layout: CompiledLayout, sheet: Sheet, rows: Any, groups: list[tuple[Any, pa.RecordBatch]], stream: str
) -> Any:
    found = layout.find(sheet, rows)
    if found is None:
        return rows
    mine, rest, captures = found
    try:
        groups.append((mine, layout.batch(sheet, captures, len(mine), stream)))
    except _NOT_OF_THIS_KIND:
        return rows  # invalid text or number: the messages are read one by one to find it
    return rest


def _learned(payload: bytes, of_stream: bool) -> CompiledLayout | None:
    try:
        read_row(payload, of_stream=of_stream)
    except DecodeError:
        return None  # its error is raised when it is read alone
    layout = learn(payload, of_stream=of_stream)
    return None if layout is None else CompiledLayout(layout)


def _words(octets: bytearray) -> Any:
    return np.frombuffer(bytes(octets) + bytes(-len(octets) % _WORD), np.uint64)


def _windows(sheet: Sheet, base: Any, width: int) -> Any:
    # Windows of `width` bytes, rounded up to whole words. One that would begin too near the end (a message of
    # another layout) gets other bytes; the check that the message ends within its bounds rejects it.
    last = sheet.size - width
    if last < 0:
        return None
    padded = width + -width % _WORD
    every = np.lib.stride_tricks.as_strided(sheet.array, (last + 1, padded), (1, 1), writeable=False)
    return every[np.minimum(base, last)]


def _big_endian(window: Any, at: int, width: int) -> Any:
    if width == 1:
        return window[:, at].astype(np.int64)
    return np.ascontiguousarray(window[:, at : at + 4]).view(">u4")[:, 0].astype(np.int64)


def _integers(value: Value, captures: dict[int, Capture]) -> Any:
    assert value.slot is not None
    kind = ">i8" if value.code == 0x83 else _SIGNED.get(value.code) or _UNSIGNED[value.code]
    return captures[value.slot].numbers(kind)


def _offsets(value: Value | None, captures: dict[int, Capture], count: int) -> pa.Array:
    if value is None:
        return pa.nulls(count, pa.int64())
    numbers = _integers(value, captures)
    if ((numbers < 0) | (numbers > OFFSET_MAX)).any():
        raise DecodeError("an offset below 0 or beyond 64 bits with a sign")
    return pa.array(numbers.astype(np.int64))


def _check_ascii(texts: pa.Array) -> None:
    texts.validate(full=True)
    if not pc.all(pc.string_is_ascii(texts)).as_py():
        raise DecodeError("a symbol that is not ASCII")


def _texts(value: Value | None, sheet: Sheet, captures: dict[int, Capture], count: int) -> pa.Array:
    if value is None or (value.slot is None and value.text is None):
        return pa.nulls(count, pa.string())
    if value.slot is None:
        return pa.repeat(pa.scalar(value.text, pa.string()), count)
    capture = captures[value.slot]
    if value.code in _TEXTS:
        texts = capture.binaries(sheet, pa.utf8())
        if value.code in _SYMBOLS:
            _check_ascii(texts)
        else:
            texts.validate(full=True)
        return texts
    kind = _UNSIGNED.get(value.code) or _SIGNED.get(value.code)
    if kind is not None:
        return pa.array(capture.numbers(kind)).cast(pa.string())
    contents = capture.binaries(sheet, pa.binary()).to_pylist()
    if value.code in _BINARIES:
        return pa.array(["0x" + each.hex() for each in contents], pa.string())
    constructor = bytes((value.code,))
    return pa.array([text_of(decode(constructor + each)[0]) for each in contents], pa.string())


def _in_order(groups: list[tuple[Any, pa.RecordBatch]]) -> pa.RecordBatch:
    if not groups:
        return pa.RecordBatch.from_pylist([], schema=arrow_schema())
    if len(groups) == 1:
        return groups[0][1]
    places = np.concatenate([rows for rows, _ in groups])
    table = pa.Table.from_batches([batch for _, batch in groups]).combine_chunks()
    return _whole(table).take(pa.array(np.argsort(places, kind="stable")))


def _whole(table: pa.Table) -> pa.RecordBatch:
    # Arrow leaves a table in pieces whose texts are too long for the offsets of one batch.
    batches = table.to_batches()
    _check_fits(len(batches) == 1, table.num_rows)
    return batches[0]


def _check_fits(fits: bool, count: int) -> None:
    if not fits:
        raise SparkSourceError(
            f"{count} messages are together larger than the 2 GiB that an Arrow batch has room for: read "
            "fewer at a time (options arrowBatchSize, maxMessagesPerTrigger), or keep such messages "
            "elsewhere and send their names"
        )
