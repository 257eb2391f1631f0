"""Encodes rows as AMQP 1.0 messages, one Arrow batch at a time.

A message of a sink has header, properties, application-properties and data sections (part 3, section 3.2).
Columns are encoded one after the other, and repeated values (a header, a subject, an address) once. In the
usual case, a body and a generated message-id, all messages of a batch share everything before the row number.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from amqp10broker.client.url import exchange_address
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.encoder import FALSE, NULL, TRUE, write_compound
from amqp10broker.spark.errors import ColumnError, NotDelivered, OptionError
from amqp10broker.spark.options import SinkOptions

if TYPE_CHECKING:
    from collections.abc import Mapping


# Places in the list of the properties section (part 3, section 3.2.4).
TO: Final = 2
MESSAGE_ID: Final = 0
_FIELDS: Final[Mapping[str, int]] = {
    "subject": 3,
    "replyTo": 4,
    "correlationId": 5,
    "contentType": 6,
    "contentEncoding": 7,
    "groupId": 10,
}
# Fields of type symbol: ASCII only.
SYMBOLS: Final = frozenset({6, 7})
_BODY: Final = "body"
_MESSAGE_ID: Final = "messageId"
_MAP: Final = "applicationProperties"
_EXCHANGE: Final = "exchange"
_ROUTING_KEY: Final = "routingKey"
_KNOWN: Final = (_BODY, _MESSAGE_ID, *_FIELDS, _MAP, _EXCHANGE, _ROUTING_KEY)
_WRITTEN: Final = {name.lower(): name for name in _KNOWN}
_SOURCE_ONLY: Final = frozenset({"stream", "offset", "enqueuedtime"})

# Types allowed for values of application properties, in Spark's notation.
MAP_VALUES: Final = frozenset(
    {"string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "binary"}
)


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """How rows become messages. Pickled into tasks.

    Attributes:
        body, message_id, application_properties, exchange, routing_key: numbers of columns; None if absent.
        fields: (place in the properties section, number of the column), ascending by place.
        address: of the link; None if each message has its own.
        to_default: the address for rows that name no exchange; None if they must name one.
    """

    body: int
    message_id: int | None
    application_properties: int | None
    map_value: str
    fields: tuple[tuple[int, int], ...]
    exchange: int | None
    routing_key: int | None
    address: str | None
    exchange_default: str | None
    routing_key_default: str
    to_default: str | None
    durable: bool


def plan(schema: Any, options: SinkOptions) -> SinkPlan:
    """Match the columns of a DataFrame with the parts of a message. Raises `ColumnError` if a column is
    unknown, missing, given twice, or of a wrong type, and `OptionError` if the messages have no destination.
    """
    places: dict[str, int] = {}
    types: dict[str, str] = {}
    for number, column in enumerate(schema.fields):
        name = _WRITTEN.get(column.name.lower())
        if name is None:
            raise ColumnError(_unknown(column.name))
        if name in places:
            raise ColumnError(f"column {name} is there twice; case does not matter: leave one of them out")
        places[name], types[name] = number, column.dataType.simpleString()
    if _BODY not in places:
        raise ColumnError(
            "there is no column body: name the one that holds the message, as in "
            'df.select(to_json(struct("*")).alias("body"))'
        )
    for name, kind in types.items():
        _check_type(name, kind)
    return SinkPlan(
        body=places[_BODY],
        message_id=places.get(_MESSAGE_ID),
        application_properties=places.get(_MAP),
        map_value=_map_value(types[_MAP]) if _MAP in types else "",
        fields=tuple(sorted((_FIELDS[name], place) for name, place in places.items() if name in _FIELDS)),
        exchange=places.get(_EXCHANGE),
        routing_key=places.get(_ROUTING_KEY),
        address=_link_address(options, places),
        exchange_default=options.exchange,
        routing_key_default=options.routing_key or "",
        to_default=_row_address(options),
        durable=options.durable,
    )


def _link_address(options: SinkOptions, places: Mapping[str, int]) -> str | None:
    if _ROUTING_KEY in places and _EXCHANGE not in places and options.exchange is None:
        raise OptionError(
            "exchange",
            "is missing",
            "the column routingKey belongs to an exchange: give one, as option or column",
        )
    if _EXCHANGE in places or _ROUTING_KEY in places:
        return None
    address = _row_address(options)
    if address is None:
        raise OptionError(
            "address",
            "is missing",
            'say where messages go: .option("address", "/queues/NAME"), the options exchange and routingKey, '
            "or columns exchange and routingKey",
        )
    return address


def _row_address(options: SinkOptions) -> str | None:
    if options.address is not None:
        return options.address
    if options.exchange is None:
        return None
    if not options.exchange and not options.routing_key:
        return None  # the default exchange takes the queue from each row's routing key
    return exchange_address(options.exchange, options.routing_key or "")


def _unknown(name: str) -> str:
    if name.lower() in _SOURCE_ONLY:
        return f"column {name} is what a source adds and no part of a message: use df.drop('{name}')"
    near = get_close_matches(name.lower(), list(_WRITTEN), n=1)
    advice = f"did you mean {_WRITTEN[near[0]]}?" if near else f"a message is made of: {', '.join(_KNOWN)}"
    return f"column {name} is no part of a message; {advice}"


def _check_type(name: str, kind: str) -> None:
    if name == _MAP:
        if _map_value(kind) not in MAP_VALUES:
            raise ColumnError(
                f"column {name} is {kind}; it must be a map<string, ...> whose values are one of: "
                f"{', '.join(sorted(MAP_VALUES))}"
            )
        return
    if _is_string(kind) or (name == _BODY and kind == "binary"):
        return
    if name == _BODY:
        raise ColumnError(
            f"column body is {kind}; it must be binary or string: cast it, or use to_json or to_avro first"
        )
    raise ColumnError(f"column {name} is {kind}; it must be string: cast it")


def _is_string(kind: str) -> bool:
    return kind.startswith(("string", "varchar", "char"))


def _map_value(kind: str) -> str:
    if not (kind.startswith("map<") and kind.endswith(">")):
        return ""
    key, _, value = kind[4:-1].partition(",")
    return ("string" if _is_string(value) else value) if _is_string(key) else ""


_HEADER: Final = {True: b"\x00\x53\x70\xc0\x02\x01\x41", False: b"\x00\x53\x70\xc0\x02\x01\x42"}
_PROPERTIES: Final = b"\x00\x53\x73"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_DATA8: Final = b"\x00\x53\x75\xa0%c%b"
_DATA32: Final = b"\x00\x53\x75\xb0"
_KNOWN_MAX: Final = 4096
Column = Sequence[bytes]


class Encoder:
    """Encodes the messages of one task. `rows` counts the rows encoded so far. `id_prefix`: of generated
    message-ids; the number of the row in its partition follows.
    """

    def __init__(self, plan: SinkPlan, id_prefix: str) -> None:
        self.rows = 0
        self._plan = plan
        self._prefix = id_prefix.encode()
        self._header = _HEADER[plan.durable]
        self._texts = {place: _Texts(0xA3 if place in SYMBOLS else 0xA1) for place, _ in plan.fields}
        self._addresses: dict[tuple[str | None, str | None], bytes] = {}
        self._keys = _Texts(0xA1)
        self._values = _value_encoder(plan.map_value)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the messages of a batch, in order. Raises `NotDelivered` if a row has no address, or has a
        text that AMQP does not allow: not UTF-8 (Spark casts any bytes to a string), or a symbol that is not
        ASCII.
        """
        plan = self._plan
        bodies = _data_sections(_bytes(batch.column(plan.body)))
        maps = self._maps(batch)
        simple = plan.message_id is None and plan.address is not None and not plan.fields
        heads = self._numbered_heads(len(bodies)) if simple else self._heads(batch)
        self.rows += len(bodies)
        if maps is None:
            return [head + body for head, body in zip(heads, bodies, strict=True)]
        return [head + some + body for head, some, body in zip(heads, maps, bodies, strict=True)]

    def _numbered_heads(self, count: int) -> list[bytes]:
        heads: list[bytes] = []
        row, end = self.rows, self.rows + count
        while row < end:
            digits = len(str(row))
            stop = min(end, 10**digits)
            length = len(self._prefix) + digits
            if length > 200:
                return [self._header + _properties([_text(0xA1, each)]) for each in self._ids(count)]
            learned = b"%b%b\xc0%c\x01\xa1%c%b" % (
                self._header,
                _PROPERTIES,
                length + 3,
                length,
                self._prefix,
            )
            heads += [b"%b%d" % (learned, number) for number in range(row, stop)]
            row = stop
        return heads

    def _heads(self, batch: pa.RecordBatch) -> list[bytes]:
        plan = self._plan
        columns: dict[int, Column] = {MESSAGE_ID: self._message_ids(batch)}
        if plan.address is None:
            columns[TO] = self._to(batch)
        for place, number in plan.fields:
            self._check_texts(batch, number, ascii_only=place in SYMBOLS)
            columns[place] = self._texts[place].encode_all(_bytes(batch.column(number)))
        fields: list[Any] = [
            columns.get(place) or repeat(NULL, batch.num_rows) for place in range(max(columns) + 1)
        ]
        header = self._header
        return [header + _properties(row) for row in zip(*fields, strict=True)]

    def _ids(self, count: int) -> Iterator[bytes]:
        return (b"%b%d" % (self._prefix, row) for row in range(self.rows, self.rows + count))

    def _message_ids(self, batch: pa.RecordBatch) -> Column:
        made_up = self._ids(batch.num_rows)
        if self._plan.message_id is None:
            return [_text(0xA1, each) for each in made_up]
        self._check_texts(batch, self._plan.message_id)
        given = _bytes(batch.column(self._plan.message_id))
        return [_text(0xA1, made if own is None else own) for own, made in zip(given, made_up, strict=True)]

    def _to(self, batch: pa.RecordBatch) -> Column:
        plan = self._plan
        for place in (plan.exchange, plan.routing_key):
            if place is not None:
                self._check_texts(batch, place)
        nothing: list[str | None] = [None] * batch.num_rows
        exchanges = nothing if plan.exchange is None else batch.column(plan.exchange).to_pylist()
        keys = nothing if plan.routing_key is None else batch.column(plan.routing_key).to_pylist()
        known = self._addresses
        found = []
        for number, pair in enumerate(zip(exchanges, keys, strict=True)):
            address = known.get(pair)
            if address is None:
                if len(known) >= _KNOWN_MAX:
                    known.clear()
                address = known[pair] = _text(0xA1, self._address(*pair, number).encode())
            found.append(address)
        return found

    def _address(self, exchange: str | None, key: str | None, number: int) -> str:
        plan = self._plan
        if exchange is None:
            exchange = plan.exchange_default
        if exchange is None or (not exchange and not (key or plan.routing_key_default)):
            if exchange is None and plan.to_default is not None:
                return plan.to_default
            what = (
                "names no exchange"
                if exchange is None
                else "goes to the default exchange without routing key"
            )
            raise NotDelivered(
                f"row {self.rows + number} of this partition {what}, and the options name no address: fill "
                "the columns exchange and routingKey, or give the option address, or exchange and routingKey"
            )
        return exchange_address(exchange, plan.routing_key_default if key is None else key)

    def _maps(self, batch: pa.RecordBatch) -> Column | None:
        place = self._plan.application_properties
        if place is None:
            return None
        column = batch.column(place)
        offsets = column.offsets.to_pylist()
        first, last = offsets[0], offsets[-1]
        name = batch.schema.names[place]
        key_column = column.keys.slice(first, last - first)
        item_column = column.items.slice(first, last - first)
        for what, texts in (("a key", key_column), ("a value", item_column)):
            if (fault := _no_utf8(texts)) is not None:
                # Empty rows begin where the next one does: the last that begins there contains the value.
                row = bisect_right(offsets, first + fault[0]) - 1
                raise self._no_text(row, f"{what} of column {name}", fault[1])
        keys = self._keys.encode_all(_bytes(key_column))
        values = self._values(item_column)
        pairs = [key + value for key, value in zip(keys, values, strict=True)]
        ends = zip(offsets, offsets[1:], column.is_valid().to_pylist(), strict=False)
        return [
            _APPLICATION_PROPERTIES
            + write_compound(0xC1, 0xD1, 2 * (end - start), b"".join(pairs[start - first : end - first]))
            if valid and start < end
            else b""
            for start, end, valid in ends
        ]

    def _check_texts(self, batch: pa.RecordBatch, place: int, *, ascii_only: bool = False) -> None:
        column, name = batch.column(place), batch.schema.names[place]
        fault = _no_utf8(column)
        if fault is not None:
            raise self._no_text(fault[0], f"column {name}", fault[1])
        if ascii_only and not pc.all(pc.string_is_ascii(column), min_count=0).as_py():
            number = pc.index(pc.string_is_ascii(column), False).as_py()
            raise NotDelivered(
                f"row {self.rows + number} of this partition has '{column[number].as_py()[:100]}' in column "
                f"{name}, which AMQP lets be ASCII only: mend the column"
            )

    def _no_text(self, number: int, where: str, why: str) -> NotDelivered:
        return NotDelivered(
            f"row {self.rows + number} of this partition has no text in {where}: {why}; make text of bytes "
            "by base64, hex or decode, since a cast to string leaves them as they are"
        )


class _Texts:
    def __init__(self, code: int) -> None:
        self._code = code
        self._known: dict[bytes | None, bytes] = {None: NULL}

    def encode_all(self, values: Sequence[bytes | None]) -> list[bytes]:
        known = self._known
        found = []
        for value in values:
            encoded = known.get(value)
            if encoded is None:
                assert value is not None
                encoded = _text(self._code, value)
                if len(known) < _KNOWN_MAX:
                    known[value] = encoded
            found.append(encoded)
        return found


def _text(code: int, value: bytes) -> bytes:
    size = len(value)
    if size < 256:
        return b"%c%c%b" % (code, size, value)
    return b"%c%b%b" % (code + 0x10, size.to_bytes(4, "big"), value)


def _properties(fields: Sequence[bytes]) -> bytes:
    body = b"".join(fields)
    size = len(body) + 1
    if size < 256:
        return b"%b\xc0%c%c%b" % (_PROPERTIES, size, len(fields), body)
    return _PROPERTIES + write_compound(0xC0, 0xD0, len(fields), body)


def _data_sections(values: Sequence[bytes | None]) -> list[bytes]:
    return [
        _DATA8 % (len(value), value) if len(value) < 256 else _DATA32 + len(value).to_bytes(4, "big") + value
        for value in [each or b"" for each in values]
    ]


def _no_utf8(column: pa.Array) -> tuple[int, str] | None:
    # Returns the first value that is not UTF-8 and the fault in it, or None.
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for number, value in enumerate(_bytes(column)):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                return number, f"byte {error.start} is 0x{error.object[error.start]:02x}, which is no UTF-8"
    return None


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _value_encoder(kind: str) -> Callable[[pa.Array], list[bytes]]:
    if kind in ("string", "binary", ""):
        texts = _Texts(0xA0 if kind == "binary" else 0xA1)
        return lambda column: texts.encode_all(_bytes(column))
    if kind == "boolean":
        booleans: Mapping[Any, bytes] = {None: NULL, True: TRUE, False: FALSE}
        return lambda column: [booleans[value] for value in column.to_pylist()]
    pack = struct.Struct(_LAYOUTS[kind]).pack
    code = _CODES[kind]
    return lambda column: [NULL if value is None else pack(code, value) for value in column.to_pylist()]


_CODES: Final = {
    "tinyint": 0x51,
    "smallint": 0x61,
    "int": 0x71,
    "bigint": 0x81,
    "float": 0x72,
    "double": 0x82,
}
_LAYOUTS: Final = {
    "tinyint": ">Bb",
    "smallint": ">Bh",
    "int": ">Bi",
    "bigint": ">Bq",
    "float": ">Bf",
    "double": ">Bd",
}
