"""Records of dead-lettering, in the form of both protocols: x-death of 0-9-1, x-opt-deaths of 1.0.

One record stands for one queue and one reason; the newest event comes first. Times are stored to the
millisecond beside an x-death, which has room for one time in seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.codec import Int64, Timestamp
from amqp10broker.protocols.amqp10.codec import array_of
from amqp10broker.protocols.amqp10.types import Array, Map, Symbol, UInt, ULong
from amqp10broker.protocols.amqp10.types import Timestamp as Milliseconds

X_DEATH: Final = "x-death"
REJECTED: Final = "rejected"
"""The reason for a client's rejection, which makes a cycle intended."""

_UINT_MAX: Final = 2**32 - 1
_INT64_MAX: Final = 2**63 - 1
_TIMES: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Death:
    queue: str
    reason: str
    count: int
    first_time_ms: int
    last_time_ms: int
    exchange: str
    """The exchange to which the message was published before it came into the queue."""
    routing_keys: tuple[str, ...]
    ttl_ms: int | None = None
    """The message's time to live, which dead-lettering removed."""

    def to_table(self) -> dict[str, Any]:
        """Return an item of x-death, which has one time: the first."""
        table: dict[str, Any] = {
            "count": Int64(self.count),
            "reason": self.reason,
            "queue": self.queue,
            "time": Timestamp(self.first_time_ms // 1000),
            "exchange": self.exchange,
            "routing-keys": list(self.routing_keys),
        }
        if self.ttl_ms is not None:
            table["original-expiration"] = str(self.ttl_ms)
        return table

    def to_map(self) -> dict[Any, Any]:
        fields: dict[Any, Any] = {}
        if self.ttl_ms is not None:
            fields[Symbol("ttl")] = UInt(min(self.ttl_ms, _UINT_MAX))
        fields[Symbol("queue")] = self.queue
        fields[Symbol("reason")] = Symbol(self.reason)
        fields[Symbol("count")] = ULong(self.count)
        fields[Symbol("first-time")] = Milliseconds(self.first_time_ms)
        fields[Symbol("last-time")] = Milliseconds(self.last_time_ms)
        fields[Symbol("exchange")] = self.exchange
        fields[Symbol("routing-keys")] = array_of(self.routing_keys) if self.routing_keys else Array(0xA1)
        return fields


def to_annotation(deaths: tuple[Death, ...]) -> Array:
    return array_of([death.to_map() for death in deaths])


def recorded(
    deaths: Sequence[Death],
    queue: str,
    reason: str,
    now_ms: int,
    exchange: str,
    routing_keys: tuple[str, ...],
    ttl_ms: int | None,
) -> tuple[Death, ...]:
    """Return the records with one more event, newest first. A repeated event of one queue and reason changes
    only count and last time, as in RabbitMQ.
    """
    others = tuple(each for each in deaths if (each.queue, each.reason) != (queue, reason))
    for each in deaths:
        if (each.queue, each.reason) == (queue, reason):
            return replace(each, count=each.count + 1, last_time_ms=now_ms), *others
    return Death(queue, reason, 1, now_ms, now_ms, exchange, routing_keys, ttl_ms), *others


def is_cycle(deaths: Sequence[Death], queue: str) -> bool:
    """Return whether a message died in a queue before, and no client has rejected it then or since."""
    for death in deaths:
        if death.reason == REJECTED:
            return False
        if death.queue == queue:
            return True
    return False


def times_of(deaths: Sequence[Death]) -> bytes:
    return b"".join([_TIMES.pack(death.first_time_ms, death.last_time_ms) for death in deaths])


def with_times(deaths: tuple[Death, ...], times: bytes) -> tuple[Death, ...]:
    if len(times) != len(deaths) * _TIMES.size:
        return deaths
    return tuple(
        replace(death, first_time_ms=first, last_time_ms=last)
        for death, (first, last) in zip(deaths, _TIMES.iter_unpack(times), strict=True)
    )


def from_header(value: Any) -> tuple[Death, ...]:
    return _all(_from_table, value) if type(value) is list else ()


def from_annotation(value: Any) -> tuple[Death, ...]:
    return (
        _all(_from_map, value)
        if type(value) in (list, Array) and not getattr(value, "descriptors", ())
        else ()
    )


def _all(read: Any, items: Any) -> tuple[Death, ...]:
    deaths = tuple(read(item) for item in items)
    return () if None in deaths else deaths


def _from_table(table: Any) -> Death | None:
    if type(table) is not dict:
        return None
    expiration = table.get("original-expiration")
    if expiration is not None and not (_is_text(expiration) and expiration.isdecimal()):
        return None
    time = table.get("time")
    if type(time) is not Timestamp or time * 1000 > _INT64_MAX:
        return None
    return _death(
        table,
        table.get("routing-keys"),
        time * 1000,
        time * 1000,
        None if expiration is None else int(expiration),
    )


def _from_map(fields: Any) -> Death | None:
    if type(fields) not in (dict, Map):
        return None
    first, last, ttl = fields.get("first-time"), fields.get("last-time"), fields.get("ttl")
    times = type(first) is Milliseconds and type(last) is Milliseconds and first >= 0 and last >= 0
    if not times or not (ttl is None or type(ttl) is UInt):
        return None
    keys = fields.get("routing-keys")
    if type(keys) is Array and not keys.descriptors:
        keys = list(keys)
    return _death(fields, keys, int(first), int(last), None if ttl is None else int(ttl))


def _death(fields: Any, keys: Any, first: int, last: int, ttl: int | None) -> Death | None:
    queue, reason, exchange = fields.get("queue"), fields.get("reason"), fields.get("exchange")
    count = fields.get("count")
    if not (_is_text(queue) and _is_text(reason) and reason.isascii() and _is_text(exchange)):
        return None
    if not isinstance(count, int) or type(count) is bool or not 0 <= count <= _INT64_MAX:
        return None
    if type(keys) is not list or not all(map(_is_text, keys)):
        return None
    return Death(str(queue), str(reason), int(count), first, last, str(exchange), tuple(map(str, keys)), ttl)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
