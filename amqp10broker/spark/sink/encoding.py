"""Encodes rows as AMQP 1.0 messages, one Arrow batch at a time.

A message of a sink has header, properties, application-properties and data sections (part 3, section 3.2).
Columns are encoded one after the other, and repeated values (a header, a subject, an address) once. In the
usual case, a body and a generated message-id, all messages of a batch share everything before the row number.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from amqp10broker.client.url import exchange_address
from amqp10broker.protocols.amqp10.encoder import FALSE, NULL, TRUE, write_compound
from amqp10broker.spark.errors import NotDelivered
from amqp10broker.spark.sink.columns import MESSAGE_ID, SYMBOLS, TO, SinkPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

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
