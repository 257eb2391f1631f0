"""The filters of a consumer of a stream or a queue, and the matching of messages.

Three independent stages: the first and last offset, the chunks to read (`stream`), and the messages of these
to deliver: an SQL filter, a selector or property filters. In AMQP 1.0 they are entries of the source's
filter-set; an invalid, unknown or duplicate entry is not in place. In AMQP 0-9-1 they are arguments of
basic.consume. For a stream at another node they become an encoded filter-set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeGuard
from uuid import UUID

from amqp10broker.dataclass import dataclass
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import header_of
from amqp10broker.message.convert import body_start, read_properties, to_amqp10
from amqp10broker.message.filters import stream_filters
from amqp10broker.message.filters.fields import (
    DELIVERY_MODE,
    PRIORITY,
    PROPERTY_TYPES,
    REDELIVERED,
    FilterError,
    MessageField,
    Section,
    shown,
)
from amqp10broker.message.filters.sql_eval import SqlFilter, compile_selector, compile_sql, text_bytes
from amqp10broker.message.filters.sql_parser import KINDS, TEXT
from amqp10broker.message.filters.stream_filters import (
    AtTime,
    BloomFilter,
    Interval,
    Offset,
    OffsetSpec,
    OffsetWord,
)
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import READERS, WIDTHS_MIN, decode, encode, skip
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import (
    Array,
    Described,
    Map,
    Symbol,
    Timestamp,
    ULong,
)

# A filter is a map from a field's name to a value, of one section, with 1 to 16 entries; a message passes if
# every field matches. Reference values match as follows:
#
# =======================  ==================================================================================
# null                     in properties, anything; in application-properties, any value, if the key is there
# a string ``&p:abc``      a text that begins with ``abc``
# a string ``&s:abc``      a text that ends with ``abc``
# a string ``&&abc``       the text ``&abc``; any other string that begins with ``&`` is an error
# a string or a symbol     the same text, string or symbol
# a number                 the same number: integer 10 matches 10.0
# anything else            the same value of the same type
# =======================  ==================================================================================

ENTRIES_MAX: Final = 16


ABSENT: Final = object()
"""The marker of an absent value, where that differs from null."""


@dataclass(frozen=True, slots=True)
class FieldTest:
    passes: Callable[[Any], bool]
    """Takes the value in the message, or `ABSENT`."""
    required: bytes = b""
    """Bytes that the encoding of every passing value contains."""


_COMPOUND: Final = (list, dict, Map, Array, Described)
_kind = KINDS.get


def parse_properties(value: Any) -> dict[MessageField, FieldTest]:
    tests: dict[MessageField, FieldTest] = {}
    for key, reference in _entries(value).items():
        if type(key) is not Symbol or key not in PROPERTY_TYPES:
            raise FilterError(f"{shown(key)} is no field of properties; give its name as a symbol")
        allowed = PROPERTY_TYPES[key]
        if reference is not None and type(reference) not in allowed:
            names = " or ".join(kind.__name__ for kind in allowed)
            raise FilterError(f"{key} is of type {names}, not {type(reference).__name__}")
        tests[MessageField(Section.PROPERTIES, str(key))] = (
            _ANYTHING if reference is None else _test(reference)
        )
    return tests


def parse_application_properties(value: Any) -> dict[MessageField, FieldTest]:
    tests: dict[MessageField, FieldTest] = {}
    for key, reference in _entries(value).items():
        if type(key) is not str:
            raise FilterError(f"keys of application-properties are strings, not {shown(key)}")
        if isinstance(reference, _COMPOUND):
            raise FilterError(f"a {type(reference).__name__} cannot be compared with")
        test = _PRESENT if reference is None else _test(reference)
        tests[MessageField(Section.APPLICATION_PROPERTIES, key)] = test
    return tests


def _entries(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise FilterError(f"the value must be a map from names to values, not {shown(value)}")
    if not 1 <= len(value) <= ENTRIES_MAX:
        raise FilterError(f"the map has {len(value)} entries; 1 to {ENTRIES_MAX} are allowed")
    return value


_ANYTHING: Final = FieldTest(lambda value: True)
_PRESENT: Final = FieldTest(lambda value: value is not ABSENT)


def _test(reference: Any) -> FieldTest:
    if type(reference) is str and reference.startswith("&"):
        part = reference[3:]
        required = text_bytes(part)
        if reference.startswith("&p:"):
            return FieldTest(lambda value: _kind(type(value)) == TEXT and value.startswith(part), required)
        if reference.startswith("&s:"):
            return FieldTest(lambda value: _kind(type(value)) == TEXT and value.endswith(part), required)
        if not reference.startswith("&&"):
            raise FilterError(f"{shown(reference)} begins with neither '&p:', '&s:' nor '&&'")
        reference = reference[1:]
    kind = _kind(type(reference))
    if kind is None:
        exact = type(reference)
        return FieldTest(lambda value: type(value) is exact and bool(value == reference))
    required = text_bytes(reference) if isinstance(reference, str | bytes) else b""
    return FieldTest(lambda value: _kind(type(value)) == kind and bool(value == reference), required)


OFFSET_SPEC: Final = "rabbitmq:stream-offset-spec"
END_OFFSET: Final = "amqp10broker:stream-end-offset"
STREAM_FILTER: Final = "rabbitmq:stream-filter"
MATCH_UNFILTERED: Final = "rabbitmq:stream-match-unfiltered"
PROPERTIES: Final = "amqp:properties-filter"
APPLICATION_PROPERTIES: Final = "amqp:application-properties-filter"
SQL: Final = "amqp:sql-filter"
SELECTOR: Final = "apache.org:selector-filter:string"
SELECTOR_CODE: Final = 0x0000_468C_0000_0004
SQL_NAME: Final = "sql-filter"
"""The name that the SQL filter must have in the filter-set."""

_CODES: Final = {
    0x173: PROPERTIES,
    0x174: APPLICATION_PROPERTIES,
    0x120: SQL,
    SELECTOR_CODE: SELECTOR,
}
_DESCRIPTORS: Final = frozenset({OFFSET_SPEC, END_OFFSET, STREAM_FILTER, MATCH_UNFILTERED, *_CODES.values()})
_OF_STREAMS: Final = frozenset({OFFSET_SPEC, END_OFFSET, STREAM_FILTER, MATCH_UNFILTERED})
_OF_MESSAGES: Final = (
    frozenset({PROPERTIES, APPLICATION_PROPERTIES}),
    frozenset({SQL}),
    frozenset({SELECTOR}),
)
"""Three kinds of message filters, which exclude each other."""

PRIORITY_DEFAULT: Final = 4
"""The priority of a message without one (part 3, section 3.2.1)."""

HEADER: Final[Mapping[str, Callable[[Header], Any]]] = {
    PRIORITY: lambda header: PRIORITY_DEFAULT if header.priority is None else header.priority,
    DELIVERY_MODE: lambda header: "PERSISTENT" if header.durable else "NON_PERSISTENT",
    REDELIVERED: lambda header: False,  # streams do not redeliver messages
}
"""Fields of the header for selectors, by their names in JMS."""

_PROPERTY_PLACES: Final = {name: place for place, name in enumerate(PROPERTY_TYPES)}
_PROPERTIES_SECTION: Final = b"\x00\x53\x73"
_APPLICATION_SECTION: Final = b"\x00\x53\x74"
_BODY_SECTION: Final = b"\x00\x53"
_BODY_CODES: Final = frozenset((0x75, 0x76, 0x77))
_STRING8: Final = 0xA1
_STRING32: Final = 0xB1
_UUID: Final = 0x98

# How to skip a value: the width of its content, or below zero that of its size field.
_SIZE8: Final = -1
_SIZE32: Final = -4
_DESCRIBED: Final = -9
_STEPS: Final = [
    _DESCRIBED
    if code == 0 or width < 0
    else width
    if code < 0xA0
    else _SIZE8
    if code & 0x10 == 0
    else _SIZE32
    for code, width in enumerate(WIDTHS_MIN)
]

_number = int.from_bytes


_READERS_UUID_AS_BINARY: Final = [
    *READERS[:_UUID],
    lambda data, pos, end, depth: (data[pos : pos + 16], pos + 16),
    *READERS[_UUID + 1 :],
]


class FieldReader:
    """Reads certain fields of messages. `absent`: the marker for an absent application property; an absent
    field of the properties section is None, as a null one is.

    A filter reads few values of very many messages. So the reader scans the encoded sections and builds only
    the needed values. A message with an unusual encoding is decoded as a whole.
    """

    __slots__ = (
        "_application",
        "_blank",
        "_fields",
        "_header",
        "_properties",
        "_readers",
        "_uuid_as_binary",
        "_wanted",
        "of_application",
    )

    def __init__(
        self, fields: Sequence[MessageField], *, absent: Any = None, uuid_as_binary: bool = False
    ) -> None:
        self._fields = tuple(fields)
        self._blank: list[Any] = []
        self._header: list[tuple[int, Callable[[Header], Any]]] = []
        self._application: dict[bytes, int] = {}
        slots: dict[int, int] = {}
        for slot, field in enumerate(self._fields):
            self._blank.append(absent if field.section is Section.APPLICATION_PROPERTIES else None)
            if field.section is Section.HEADER:
                self._header.append((slot, HEADER[field.name]))
            elif field.section is Section.PROPERTIES:
                slots[_PROPERTY_PLACES[field.name]] = slot
            else:
                self._application[field.name.encode()] = slot
        assert len(set(self._fields)) == len(self._fields)
        self._wanted = len(self._application)
        self.of_application = 0 < self._wanted == len(self._fields)
        # The slot for each field up to the last wanted one; -1: skip the field.
        self._properties = [slots.get(index, -1) for index in range(max(slots) + 1)] if slots else []
        self._readers = _READERS_UUID_AS_BINARY if uuid_as_binary else READERS
        self._uuid_as_binary = uuid_as_binary

    def read(self, message: Message) -> list[Any]:
        """Return the values in the order of the fields; a message of AMQP 0-9-1 is converted first."""
        head, bare = message
        if head[0] == amqp091.MARK:
            head, bare = to_amqp10(message)
        values = self._blank[:]
        if self._header:
            header = header_of(head)
            for slot, value_of in self._header:
                values[slot] = value_of(header)
            if len(values) == len(self._header):
                return values
        pos = 0
        if bare.startswith(_PROPERTIES_SECTION):
            code = bare[3]
            if code == 0xC0:
                pos = 5 + bare[4]
                if self._properties:
                    self._read_properties(bare, 6, bare[5], values)
            elif code == 0xD0:
                pos = 8 + _number(bare[4:8], "big")
                if self._properties:
                    self._read_properties(bare, 12, _number(bare[8:12], "big"), values)
            else:
                pos = 4
        if bare.startswith(_APPLICATION_SECTION, pos):
            if self._wanted:
                self._read_application(bare, pos + 3, values)
        elif not (bare.startswith(_BODY_SECTION, pos) and bare[pos + 2] in _BODY_CODES):
            self._read_all(bare, values)
        return values

    def _read_properties(self, bare: bytes, pos: int, count: int, values: list[Any]) -> None:
        for slot in self._properties[:count]:
            code = bare[pos]
            if slot >= 0:
                values[slot], pos = self._readers[code](bare, pos + 1, len(bare), 1)
            elif (step := _STEPS[code]) >= 0:
                pos += 1 + step
            elif step == _SIZE8:
                pos += 2 + bare[pos + 1]
            elif step == _SIZE32:
                pos += 5 + _number(bare[pos + 1 : pos + 5], "big")
            else:
                pos = skip(bare, pos)

    def _read_application(self, bare: bytes, pos: int, values: list[Any]) -> None:
        if bare[pos] == 0xC1:
            left = bare[pos + 2] >> 1
            pos += 3
        else:
            left = _number(bare[pos + 5 : pos + 9], "big") >> 1
            pos += 9
        application = self._application
        wanted = self._wanted
        for _ in range(left):
            slot: int | None = None
            code = bare[pos]
            if code == _STRING8:
                start = pos + 2
                pos = start + bare[pos + 1]
                slot = application.get(bare[start:pos])
            elif code == _STRING32:
                start = pos + 5
                pos = start + _number(bare[pos + 1 : start], "big")
                slot = application.get(bare[start:pos])
            else:
                pos = skip(bare, pos)
            code = bare[pos]
            if slot is not None:
                values[slot], pos = self._readers[code](bare, pos + 1, len(bare), 1)
                wanted -= 1
                if not wanted:
                    return
            elif (step := _STEPS[code]) >= 0:
                pos += 1 + step
            elif step == _SIZE8:
                pos += 2 + bare[pos + 1]
            elif step == _SIZE32:
                pos += 5 + _number(bare[pos + 1 : pos + 5], "big")
            else:
                pos = skip(bare, pos)

    def _read_all(self, bare: bytes, values: list[Any]) -> None:
        properties, application = read_properties(bare[: body_start(bare)])
        found = {key: value for key, value in application.items() if type(key) is str}
        for slot, field in enumerate(self._fields):
            if field.section is Section.PROPERTIES:
                value = getattr(properties, field.name.replace("-", "_"), None)
            elif field.section is Section.APPLICATION_PROPERTIES:
                value = found.get(field.name, self._blank[slot])
            else:
                continue
            values[slot] = value.bytes if self._uuid_as_binary and isinstance(value, UUID) else value


SEARCHED_BYTES_MAX: Final = 2048
"""Longer messages are not searched for required bytes: the search would mostly cover the body."""

ALIKE_MAX: Final = 64
"""The most sets of application-properties with remembered results. When there are more, and each has occurred
less than four times on average, the filter stops remembering.
"""

_SHORT_PROPERTIES: Final = b"\x00\x53\x73\xc0"
_SHORT_APPLICATION: Final = b"\x00\x53\x74\xc1"


class MessageFilter:
    """A predicate on messages. Many messages have the same application-properties: a filter of these alone
    decides on them once. `entries`: those of the filter-set from which it was made; another node makes the
    same filter of them.
    """

    __slots__ = ("_alike", "_known", "_read", "_required", "_run", "_uses_time", "entries")

    def __init__(
        self,
        reader: FieldReader,
        run: Callable[[Sequence[Any]], Any],
        *,
        uses_time: bool = False,
        required: bytes = b"",
    ) -> None:
        """Create a filter. `uses_time`: `run` gets the time in ms after the values."""
        self.entries: Mapping[Symbol, Described] = {}
        self._read = reader.read
        self._run = run
        self._uses_time = uses_time
        self._required = required
        self._known: dict[bytes, bool] | None = {} if reader.of_application and not uses_time else None
        self._alike = 0  # messages that `_known` has decided on since it was empty

    @classmethod
    def of_sql(cls, sql: SqlFilter) -> MessageFilter:
        reader = FieldReader(sql.fields, uuid_as_binary=True)
        return cls(reader, sql.run, uses_time=sql.uses_time, required=sql.required)

    @classmethod
    def of_properties(cls, tests: Mapping[MessageField, FieldTest]) -> MessageFilter:
        reader = FieldReader(tuple(tests), absent=ABSENT)
        numbered = tuple((slot, test.passes) for slot, test in enumerate(tests.values()))

        def run(values: Sequence[Any]) -> bool:
            for slot, passes in numbered:  # noqa: SIM110, a generator costs 0.3 us a message
                if not passes(values[slot]):
                    return False
            return True

        return cls(reader, run, required=max((test.required for test in tests.values()), key=len))

    def matches(self, message: Message, now_ms: int) -> bool:
        return bool(self.matching((message,), now_ms))

    def matching(self, messages: Sequence[Message], now_ms: int) -> list[int]:
        """Return the positions of the messages that pass."""
        read, run, required = self._read, self._run, self._required
        if self._uses_time:
            return [place for place, message in enumerate(messages) if run((*read(message), now_ms)) is True]
        if self._known is not None:
            return self._matching_alike(messages, self._known)
        return [
            place
            for place, message in enumerate(messages)
            if (required in message[1] or len(message[1]) > SEARCHED_BYTES_MAX or message[0][0])
            and run(read(message)) is True
        ]

    def _matching_alike(self, messages: Sequence[Message], known: dict[bytes, bool]) -> list[int]:
        read, run, required = self._read, self._run, self._required
        found: list[int] = []
        decided = len(messages)
        for place, message in enumerate(messages):
            head, bare = message
            of_amqp10 = not head[0]
            if of_amqp10 and required not in bare and len(bare) <= SEARCHED_BYTES_MAX:
                continue
            at = 5 + bare[4] if of_amqp10 and bare.startswith(_SHORT_PROPERTIES) else 0
            if of_amqp10 and bare.startswith(_SHORT_APPLICATION, at):
                section = bare[at : at + 5 + bare[at + 4]]
                passes = known.get(section)
                if passes is None:
                    decided -= 1
                    passes = known[section] = run(read(message)) is True
            else:
                decided -= 1
                passes = run(read(message)) is True
            if passes:
                found.append(place)
        self._alike += decided
        if len(known) > ALIKE_MAX:
            self._known = {} if self._alike >= 4 * len(known) else None
            self._alike = 0
        return found


@dataclass(frozen=True, slots=True)
class Filters:
    offset: OffsetSpec | None = None
    """None means `OffsetWord.NEXT`."""
    bloom: BloomFilter | None = None
    messages: MessageFilter | None = None
    end: int | None = None
    """The first offset that the consumer does not want."""

    def matches(self, message: Message, now_ms: int) -> bool:
        return self.messages is None or self.messages.matches(message, now_ms)

    def matching(self, messages: Sequence[Message], now_ms: int) -> Sequence[int]:
        if self.messages is None:
            return range(len(messages))
        return self.messages.matching(messages, now_ms)


@dataclass(frozen=True, slots=True)
class RefusedFilter:
    name: str
    reason: str
    selects: bool
    """Whether it is a selector: JMS clients do not check whether theirs is in place."""


@dataclass(frozen=True, slots=True)
class FilterSet:
    filters: Filters
    in_place: dict[Symbol, Described]
    """The entries that are in place, for the reply."""
    refused: tuple[RefusedFilter, ...]


def from_amqp10(filter_set: Mapping[Any, Any] | Map | None, *, of_stream: bool = True) -> FilterSet:
    """Read the filter field of a source (part 3, section 3.5.8). Never raises. `of_stream`: False for any
    other queue, where only message filters can be in place.
    """
    parsed: dict[str, Any] = {}
    in_place: dict[Symbol, Described] = {}
    refused: list[RefusedFilter] = []
    for name, value in () if filter_set is None else filter_set.items():
        try:
            sort = _checked_sort(name, value, parsed, of_stream=of_stream)
            parsed[sort] = _PARSERS[sort](value.value)
            in_place[name] = value
        except FilterError as error:
            refused.append(RefusedFilter(str(name)[:100], str(error), is_selector(value)))
    messages: MessageFilter | None = None
    tests: dict[MessageField, FieldTest] = {}
    for sort, content in parsed.items():
        if sort in (SQL, SELECTOR):
            messages = MessageFilter.of_sql(content)
        elif sort in (PROPERTIES, APPLICATION_PROPERTIES):
            tests |= content
    if tests:
        messages = MessageFilter.of_properties(tests)
    if messages is not None:
        messages.entries = {
            name: value for name, value in in_place.items() if _sort(value.descriptor) not in _OF_STREAMS
        }
    values = parsed.get(STREAM_FILTER)
    bloom = None if values is None else BloomFilter(values, parsed.get(MATCH_UNFILTERED, False))
    filters = Filters(parsed.get(OFFSET_SPEC), bloom, messages, parsed.get(END_OFFSET))
    return FilterSet(filters, in_place, tuple(refused))


def is_selector(value: object) -> TypeGuard[Described]:
    return isinstance(value, Described) and value.descriptor in (SELECTOR, SELECTOR_CODE)


def _checked_sort(name: Any, value: Any, before: Collection[str], *, of_stream: bool) -> str:
    # Return which filter an entry is, if it may follow those before it.
    if not isinstance(name, Symbol):
        raise FilterError("the name of a filter is a symbol")
    if not isinstance(value, Described):
        raise FilterError("the value is not described; give it a descriptor that says which filter it is")
    sort = _sort(value.descriptor)
    if sort in before:
        raise FilterError(f"there is another {sort} before it")
    if sort in _OF_STREAMS:
        if not of_stream:
            raise FilterError("only a stream has it")
        return sort
    for way in _OF_MESSAGES:
        if sort not in way and not way.isdisjoint(before):
            raise FilterError(
                "SQL filter, selector and property filters exclude each other, and one is before it"
            )
    if sort == SQL and name != SQL_NAME:
        raise FilterError(f"an SQL filter must have the name {SQL_NAME}")
    return sort


def _sort(descriptor: Any) -> str:
    if isinstance(descriptor, ULong):
        name = _CODES.get(descriptor)
        if name is not None:
            return name
    elif isinstance(descriptor, Symbol) and descriptor in _DESCRIPTORS:
        return str(descriptor)
    raise FilterError(f"no filter has the descriptor {shown(descriptor)}")


def _text(content: Any) -> str:
    if type(content) is not str:
        raise FilterError("the value must be a string")
    return content


def _filter_values(content: Any) -> tuple[str, ...]:
    values = content if isinstance(content, list | Array) else (content,)
    # A consumer would miss messages if a value were left out, so one wrong value refuses all.
    if not len(values) or not all(type(value) is str for value in values):
        raise FilterError("the value must be a string or a list of strings")
    return tuple(dict.fromkeys(values))


def _boolean(content: Any) -> bool:
    if type(content) is not bool:
        raise FilterError("the value must be a boolean")
    return content


_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    OFFSET_SPEC: stream_filters.from_amqp10,
    END_OFFSET: stream_filters.end_from_amqp10,
    STREAM_FILTER: _filter_values,
    MATCH_UNFILTERED: _boolean,
    PROPERTIES: parse_properties,
    APPLICATION_PROPERTIES: parse_application_properties,
    SQL: lambda content: compile_sql(_text(content)),
    SELECTOR: lambda content: compile_selector(_text(content)),
}


_TIME_MAX_MS: Final = 2**63 - 1


def encode_wanted(filters: Filters) -> bytes:
    entries: dict[Symbol, Any] = {}
    if filters.offset is not None:
        _add(entries, OFFSET_SPEC, _offset(filters.offset))
    if filters.end is not None:
        _add(entries, END_OFFSET, ULong(filters.end))
    if filters.bloom is not None:
        _add(entries, STREAM_FILTER, list(filters.bloom.values))
        _add(entries, MATCH_UNFILTERED, filters.bloom.match_unfiltered)
    if filters.messages is not None:
        entries.update(filters.messages.entries)
    return encode(entries)


def decode_wanted(data: bytes) -> Filters:
    try:
        entries, end = decode(data)
    except DecodeError as error:
        raise FilterError(f"what a consumer asks of a stream cannot be read: {error}") from error
    if end != len(data) or not isinstance(entries, dict | Map):
        raise FilterError("what a consumer asks of a stream is no map")
    found = from_amqp10(entries)
    if found.refused:
        raise FilterError(found.refused[0].reason)
    return found.filters


def _add(entries: dict[Symbol, Any], sort: str, value: Any) -> None:
    entries[Symbol(sort)] = Described(Symbol(sort), value)


def _offset(spec: OffsetSpec) -> Any:
    match spec:
        case OffsetWord():
            return spec.value
        case Offset(offset):
            return ULong(offset)
        case AtTime(time_ms):
            return Timestamp(min(time_ms, _TIME_MAX_MS))
        case Interval(duration_ms):
            return f"{duration_ms // 1000}s"
