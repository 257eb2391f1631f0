"""The row of a message: its definition, any message decoded by it (`read_row`), and layouts for many.

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

`row_layouts` does the same for thousands of messages and must agree with this module.
"""

from __future__ import annotations

from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

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
    if isinstance(value, str) and payload[start] in _TEXT_CODES:
        return value.encode(), pos
    return payload[start:pos], pos


# Constructors of strings and symbols; a char is also a str in Python, and is not among them.
_TEXT_CODES: Final = frozenset({0xA1, 0xB1, 0xA3, 0xB3})


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
        # A value with a length behind its constructor.
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
        elif code in _STRINGS or code in _SYMBOLS:
            slot = self._variable(self._code(), wanted=True)
            assert slot is not None
            (self.layout.utf8 if code in _STRINGS else self.layout.ascii).append(slot)
        else:
            self._constant(skip(self._data, self._pos))

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
        if code in _STRINGS or code in _SYMBOLS or code in _BINARIES:
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
        elif code in _BINARIES or (section == AMQP_VALUE and code in _STRINGS):
            self.layout.body = self._variable(self._code(), wanted=True)
            if code in _STRINGS:
                assert self.layout.body is not None
                self.layout.utf8.append(self.layout.body)
        elif section == AMQP_VALUE and code in _SYMBOLS:
            slot = self.layout.body = self._variable(self._code(), wanted=True)
            assert slot is not None
            self.layout.ascii.append(slot)
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
