"""What does a filter of a stream cost a message?

Nothing is sent: the broker's message room is called in this process, so there is no load and no floor. Ten
thousand messages with five properties, four application properties and a body of 100 bytes, which are all
different, are given to a filter in batches. The share that passes stands beside the cost, since messages
that lack a text that the filter asks for cost less.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.amqp10.codec import encode
from amqp10broker.amqp10.performatives import Header, Properties
from amqp10broker.amqp10.types import Described, Int, Long, Symbol, ULong
from amqp10broker.message.filters.filters import APPLICATION_PROPERTIES, PROPERTIES, SQL, Filters, from_amqp10
from amqp10broker.message.message import Message, MessageReader
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context
from benchmarks.results import Outcome, Row

_COLUMNS: Final = ("message_us", "passed_percent")
_MESSAGES: Final = 10_000
_BATCH: Final = 256
_NOW_MS: Final = 1_700_000_000_000

_SQL: Final = (
    "region = 'EU'",
    "region = 'nowhere'",
    "h.priority > 4",
    "amount > 500 OR weight * 2 >= 4.5",
    "region = 'EU' AND amount > 500 AND p.subject LIKE 'ord%'",
    "region IN ('EU', 'US') AND NOT active",
    "UTC() - p.creation_time < 5000",
)
_PROPERTY_FILTERS: Final[Mapping[str, Mapping[str, Mapping[Any, Any]]]] = {
    "properties: subject": {PROPERTIES: {Symbol("subject"): "order"}},
    "application-properties: amount": {APPLICATION_PROPERTIES: {"amount": Int(3)}},
    "both: subject, group-id, region": {
        PROPERTIES: {Symbol("subject"): "&p:ord", Symbol("group-id"): "g1"},
        APPLICATION_PROPERTIES: {"region": "EU"},
    },
}


def _messages() -> list[Message]:
    reader = MessageReader("", "q", "guest")
    return [reader.read(_payload(number)) for number in range(_MESSAGES)]


def _payload(number: int) -> bytes:
    properties = Properties(
        message_id=f"id-{number}",
        subject="order" if number % 2 else "invoice",
        content_type=Symbol("text/plain"),
        creation_time=_NOW_MS - number,
        group_id=f"g{number % 7}",
    )
    application = {
        "region": ("EU", "US", "AS")[number % 3],
        "amount": Long(number % 1000),
        "weight": number % 50 / 10,
        "active": number % 2 == 0,
    }
    return (
        Header(durable=True, priority=number % 10).encode()
        + properties.encode()
        + encode(Described(ULong(0x74), application))
        + encode(Described(ULong(0x75), b"x" * 100))
    )


def _filters() -> dict[str, Filters]:
    sets: dict[str, dict[Symbol, Described]] = {
        text: {Symbol("sql-filter"): Described(Symbol(SQL), text)} for text in _SQL
    }
    for name, maps in _PROPERTY_FILTERS.items():
        sets[name] = {Symbol(sort): Described(Symbol(sort), dict(fields)) for sort, fields in maps.items()}
    found: dict[str, Filters] = {}
    for name, filter_set in sets.items():
        read = from_amqp10(filter_set)
        if read.refused:
            raise MeasureError(f"the filter {name!r} is refused: {read.refused[0].reason}")
        found[name] = read.filters
    return found


def _pass(filters: Filters, batches: list[list[Message]]) -> int:
    return sum(len(filters.matching(batch, _NOW_MS)) for batch in batches)


def run(context: Context) -> Outcome:
    """Measure each filter."""
    messages = _messages()
    batches = [messages[start : start + _BATCH] for start in range(0, _MESSAGES, _BATCH)]
    samples: list[Row] = []
    for _ in range(context.repetitions):
        for name, filters in _filters().items():
            passed = _pass(filters, batches)
            done = 0
            began = time.process_time()
            while (taken := time.process_time() - began) < context.duration_s / 10:
                _pass(filters, batches)
                done += _MESSAGES
            message_us = taken / done * 1e6
            percent = passed / _MESSAGES * 100
            samples.append(
                {"case": name, "target": "broker", "message_us": message_us, "passed_percent": percent}
            )
            context.say(f"{name:60} {message_us:6.2f} µs a message, {percent:3.0f} % pass")
    return Outcome(_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark("filters", "What does a filter of a stream cost a message?", run)
