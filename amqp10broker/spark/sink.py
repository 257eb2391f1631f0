"""The sink: rows of a DataFrame become messages, at least once, each with its own message-id.

The message-id identifies the row: ``QUERY-BATCH-PARTITION-ROW`` of a streaming query, ``JOB-PARTITION-ROW``
of a batch query, so that duplicates can be recognized as long as the rows of a partition arrive in the same
order. The driver makes a writer and pickles it into the tasks, each of which has one connection. Columns of
an Arrow batch are encoded one after the other, and repeated values (a header, a subject, an address) once.
"""

from __future__ import annotations

import logging
import struct
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from amqp10broker.client.blocking import Client, Sender
from amqp10broker.client.core import WaitFor
from amqp10broker.client.errors import ClientError, LinkError, MessageTooLargeError, TimedOutError, place_of
from amqp10broker.client.links import Accepted, Outcome, Rejected, Released
from amqp10broker.client.options import exchange_address
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.encoder import FALSE, NULL, TRUE, write_compound
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.spark.connection import dial, may_pass, translated, with_retries
from amqp10broker.spark.errors import (
    BrokerUnreachable,
    ColumnError,
    NotDelivered,
    OptionError,
    QueueUnusable,
    RetryBudget,
    SparkSourceError,
)
from amqp10broker.spark.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
    code, layout = _NUMBERS[kind]
    pack = struct.Struct(layout).pack
    return lambda column: [NULL if value is None else pack(code, value) for value in column.to_pylist()]


_NUMBERS: Final = {
    "tinyint": (0x51, ">Bb"),
    "smallint": (0x61, ">Bh"),
    "int": (0x71, ">Bi"),
    "bigint": (0x81, ">Bq"),
    "float": (0x72, ">Bf"),
    "double": (0x82, ">Bd"),
}


# --- sending -------------------------------------------------------------------------------------

# Messages passed to the link at once; their outcomes are awaited and examined together.
PART_MAX: Final = 1000


@dataclass(slots=True)
class _RowBatch:
    first_row: int
    payloads: Sequence[bytes]
    keys: range


class Sending:
    """The sending side of one task, a context manager. Nothing is connected before the first message.

    Methods raise NotDelivered if the broker did not accept a message, and SparkSourceError if it is away or
    refuses. `address`: of the link; None if each message has its own. `released`: number of messages that no
    queue took, where the option mandatory is false.
    """

    def __init__(self, options: SinkOptions, address: str | None) -> None:
        self.sent = 0
        self.released = 0
        self._options = options
        self._address = address
        self._client: Client | None = None
        self._sender: Sender | None = None
        self._under_way: deque[_RowBatch] = deque()
        self._rows = 0
        self._patience = RetryBudget(options.connection.retry_timeout_s)

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._client is not None:
            if kind is None:
                self._client.close()
            else:  # messages not sent so far must not be sent while closing
                self._client.abort()

    def connect(self) -> None:
        """Open connection and link now, to detect failures early."""
        self._retrying(lambda sender: None)

    def send(self, payloads: Sequence[bytes]) -> None:
        """Send encoded messages in order, and wait until there is room for more."""
        limit = self._options.max_in_flight
        size = min(PART_MAX, max(1, limit // 2))
        for start in range(0, len(payloads), size):
            part = payloads[start : start + size]
            self.settle_down_to(limit - len(part))
            self._under_way.append(_RowBatch(self._rows, part, range(0)))
            self._rows += len(part)
            self._retrying(self._hand_over_last)

    def settle_down_to(self, count: int) -> None:
        """Wait until at most so many messages have no outcome."""
        while self._in_flight() > max(count, 0):
            self._retrying(self._take_first)

    def _in_flight(self) -> int:
        return sum(len(part.payloads) for part in self._under_way)

    def _hand_over_last(self, sender: Sender) -> None:
        part = self._under_way[-1]
        if not part.keys:  # already sent on a new connection
            self._hand_over(part, sender)

    def _hand_over(self, part: _RowBatch, sender: Sender) -> None:
        try:
            part.keys = sender.end.send(part.payloads)
        except MessageTooLargeError as error:
            sizes = [len(payload) for payload in part.payloads]
            row = part.first_row + sizes.index(max(sizes))
            raise NotDelivered(f"row {row} of this partition: {error}") from error
        assert self._client is not None
        self._client.write_soon()

    def _take_first(self, sender: Sender) -> None:
        assert self._client is not None
        part, end = self._under_way[0], sender.end
        missing = None
        while end.waiting(part.keys):
            before, missing = missing, end.in_flight
            if missing == before:
                raise NotDelivered(
                    f"no outcome for {self._in_flight()} messages, and none came for "
                    f"{self._options.idle_timeout_s:g} s: the broker withholds credit because the queue is "
                    "overloaded or an alarm is on (`amqp10broker status` says which), or does not answer; "
                    "allow more with the option idleTimeout"
                )
            try:
                self._client.wait(
                    WaitFor(
                        lambda: not end.waiting(part.keys),
                        lambda: end.failure,
                        self._options.idle_timeout_s,
                        "outcomes",
                    )
                )
            except TimedOutError:
                pass  # as long as some arrive, others are awaited
        self._take(part, sender)

    def _take(self, part: _RowBatch, sender: Sender) -> None:
        outcomes = sender.end.take_outcomes(part.keys)
        self._under_way.popleft()
        self._patience.progress()
        accepted = sum(type(outcome) is Accepted for outcome in outcomes)
        self.sent += accepted
        if accepted < len(outcomes):
            self._look_at(part.first_row, outcomes)

    def _look_at(self, first_row: int, outcomes: Sequence[Outcome | None]) -> None:
        for row, outcome in enumerate(outcomes, first_row):
            match outcome:
                case Accepted():
                    continue
                case Released() if not self._options.mandatory:
                    self.released += 1
                case _:
                    raise NotDelivered(_not_delivered(row, outcome, self._address))

    def _retrying(self, work: _Work) -> None:
        while True:
            try:
                work(self._open())
                return
            except ClientError as error:
                self._lost(error)

    def _open(self) -> Sender:
        if self._sender is not None:
            return self._sender
        if self._client is not None:
            self._client.abort()
        connection = self._options.connection
        self._client = with_retries(
            connection, lambda: dial(connection, purpose="sink"), patience=self._patience
        )
        sender = self._client.sender(self._address)
        for part in self._under_way:
            part.keys = range(0)
        for part in self._under_way:
            self._hand_over(part, sender)
        self._sender = sender
        return sender

    def _lost(self, error: ClientError) -> None:
        if self._sender is not None:
            # Outcomes that arrived before the loss: their messages are not sent again.
            while (
                self._under_way and (keys := self._under_way[0].keys) and not self._sender.end.waiting(keys)
            ):
                self._take(self._under_way[0], self._sender)
        self._sender = None
        if not may_pass(error):
            raise self._permanent(error) from error
        if not self._patience.failed():
            raise BrokerUnreachable(str(translated(error, self._options.connection))) from error

    def _permanent(self, error: ClientError) -> SparkSourceError:
        connection = self._options.connection
        if isinstance(error, LinkError) and error.condition == Condition.NOT_FOUND:
            # The broker's own text: an address may name an exchange as well as a queue.
            return QueueUnusable(f"{place_of(connection.host, connection.port)}: {error}")
        return translated(error, connection, queue=self._address or "")


_Work = Callable[[Sender], None]


def _not_delivered(row: int, outcome: Outcome | None, address: str | None) -> str:
    where = "" if address is None else f" for {address}"
    match outcome:
        case Rejected(error=error) if error is not None:
            words = f": {error.description}" if error.description else ""
            return (
                f"the broker rejected row {row} of this partition{where} with {error.condition}{words}; mend "
                "the row or the queue, and start again"
            )
        case Rejected():
            return (
                f"the broker rejected row {row} of this partition{where} and gave no reason; a queue that is "
                "full with overflow reject-publish does that"
            )
        case Released():
            return (
                f"the broker released row {row} of this partition{where}: no queue takes it. Bind one, "
                "correct exchange and routing key, or let such rows go with the option mandatory=false"
            )
        case _:
            gave = type(outcome).__name__
            return f"the broker gave row {row} of this partition{where} back ({gave}); try again later"


# --- writers -------------------------------------------------------------------------------------

_LOG: Final = logging.getLogger("amqp10broker.spark")
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """The result of one task: numbers of messages."""

    accepted: int
    released: int


class SinkWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check columns and options, and that the broker allows sending.

        Raises:
            ColumnError: the DataFrame does not have the columns of messages.
            OptionError: the mode is overwrite, or the messages have no destination.
            SparkSourceError: the broker is away, or refuses user or address.
        """
        if overwrite:
            raise OptionError("mode", "is overwrite", 'a queue can only be added to: use mode("append")')
        self._options = options
        self._plan = plan(schema, options)
        # Made once, on the driver: a repeated task sends the same message-ids.
        self._job = uuid.uuid4().hex
        with Sending(options, self._plan.address) as sending:
            sending.connect()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        partition = _context().partitionId()
        return _send(self._options, self._plan, f"{self._job}-{partition}-", iterator)

    def commit(self, messages: Sequence[Sent | None]) -> None:
        _report(messages, "the job")

    def abort(self, messages: Sequence[Sent | None]) -> None:
        _report_abort(messages, "the job")


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query, created for each batch. Output mode complete sends all rows again."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        # The broker is not contacted, since each batch would have to wait for it.
        self._options = options
        self._plan = plan(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise SparkSourceError(
                f"Spark does not say which query and batch this task belongs to ({_QUERY}, {_BATCH}), and "
                "without them message-ids would not be the same when it is repeated: use pyspark 4.2 to 4.x"
            )
        return _send(self._options, self._plan, f"{query}-{batch}-{context.partitionId()}-", iterator)

    def commit(self, messages: Sequence[Sent | None], batchId: int) -> None:
        _report(messages, f"batch {batchId}")

    def abort(self, messages: Sequence[Sent | None], batchId: int) -> None:
        _report_abort(messages, f"batch {batchId}")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer's write runs in a task of Spark"
    return context


def _send(options: SinkOptions, columns: SinkPlan, id_prefix: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    encoder = Encoder(columns, id_prefix)
    with Sending(options, columns.address) as sending:
        for batch in batches:
            sending.send(encoder.encode(batch))
        sending.settle_down_to(0)
        return Sent(sending.sent, sending.released)


def _report(messages: Sequence[Sent | None], what: str) -> None:
    done = [message for message in messages if message is not None]
    released = sum(message.released for message in done)
    if released:
        _LOG.warning(
            "%d of %d messages of %s were released: no queue took them, and they are lost (mandatory=false)",
            released,
            released + sum(message.accepted for message in done),
            what,
        )


def _report_abort(messages: Sequence[Sent | None], what: str) -> None:
    done = [message for message in messages if message is not None]
    if accepted := sum(message.accepted for message in done):
        _LOG.warning(
            "%s failed, and %d messages of tasks that were done are in their queues: when it is repeated "
            "they come again, with the same message-ids if the job is the same",
            what,
            accepted,
        )
