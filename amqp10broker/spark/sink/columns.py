"""Matches the columns of a DataFrame with the parts of a message, before a job starts.

=========================  ===================  ============================================
column                     type                 in the message
=========================  ===================  ============================================
``body`` (required)        binary or string     the data section; null is an empty one
``messageId``              string               message-id; generated if null or absent
``subject``                string               subject
``replyTo``                string               reply-to
``correlationId``          string               correlation-id
``contentType``            string               content-type
``contentEncoding``        string               content-encoding
``groupId``                string               group-id
``applicationProperties``  map<string, ...>     application-properties
``exchange``               string               with ``routingKey``, the destination of the row
``routingKey``             string
=========================  ===================  ============================================

Nothing of pyspark or pyarrow is imported here: a schema is any object with fields that have a name and a
type.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from amqp10broker.client.url import exchange_address
from amqp10broker.dataclass import dataclass
from amqp10broker.spark.errors import ColumnError, OptionError
from amqp10broker.spark.options import SinkOptions

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
