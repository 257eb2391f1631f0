"""Offsets and filters as a consumer of either protocol asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import PreconditionFailed
from amqp10broker.message.filters.fields import FilterError
from amqp10broker.message.filters.filter_set import Filters
from amqp10broker.message.filters.stream_filters import (
    AtTime,
    BloomFilter,
    Interval,
    Offset,
    OffsetSpec,
    OffsetWord,
    from_amqp091,
    from_amqp10,
)
from amqp10broker.protocols.amqp091 import codec as t091
from amqp10broker.protocols.amqp091.codec import ByteArray, Int32, Timestamp
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.routing.exchange import type_name
from amqp10broker.sessions.amqp091.consuming import from_amqp091_arguments


def read(**arguments: Any) -> Filters:
    named = {"x-stream-" + name.replace("_", "-"): value for name, value in arguments.items()}
    return from_amqp091_arguments(named, stream="s", vhost="/")


def test_without_arguments_nothing_is_asked() -> None:
    """Arguments for other features are not read."""
    assert read() == Filters()
    assert from_amqp091_arguments({"x-priority": 1, "offset": "?"}, stream="s", vhost="/") == Filters()


def test_an_offset() -> None:
    assert read(offset="first").offset == OffsetWord.FIRST
    assert read(offset=Int32(7)).offset == Offset(7)
    assert read(offset=Timestamp(7)).offset == AtTime(7000)
    assert read(offset="10m").offset == Interval(600_000)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_invalid_arg")
@pytest.mark.parametrize("value", ["five", "", None, -1, True, 1.5])
def test_a_bad_offset_fails_as_in_rabbitmq(value: Any) -> None:
    """The error has its text; null is bad as well."""
    with pytest.raises(
        PreconditionFailed, match=r"^failed consuming from stream 's' in vhost '/': offset must be 'first',"
    ):
        read(offset=value)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "filter_spec")
def test_filter_values_are_a_string_or_an_array_of_them() -> None:
    assert read(filter="a").bloom == BloomFilter(("a",))
    assert read(filter=["a", "b", "a"]).bloom == BloomFilter(("a", "b"))
    assert read(filter=["a"], match_unfiltered=False).bloom == BloomFilter(("a",))
    assert read(filter=["a"], match_unfiltered=True).bloom == BloomFilter(("a",), match_unfiltered=True)


BOOLEAN = "must be true or false"
STRINGS = "must be a string or an array of strings"


@pytest.mark.parametrize(
    ("arguments", "name", "text"),
    [
        ({"filter": Int32(1)}, "filter", f"{STRINGS}, not signedint"),
        ({"filter": None}, "filter", f"{STRINGS}, not void"),
        ({"filter": ["a", ByteArray(b"b")]}, "filter", f"{STRINGS}, not binary"),
        ({"filter": []}, "filter", "the array is empty; give a value"),
        ({"filter": "a", "match_unfiltered": "true"}, "match-unfiltered", f"{BOOLEAN}, not longstr"),
    ],
)
def test_other_values_are_refused(arguments: dict[str, Any], name: str, text: str) -> None:
    """AMQP 0-9-1 has no reply that lists the filters in place, so none is silently left out."""
    with pytest.raises(PreconditionFailed) as caught:
        read(**arguments)
    assert caught.value.description == f"invalid arg 'x-stream-{name}' for queue 's' in vhost '/': {text}"


DAY_MS = 86_400_000
TEXTS = [
    ("first", OffsetWord.FIRST),
    ("last", OffsetWord.LAST),
    ("next", OffsetWord.NEXT),
    ("5s", Interval(5_000)),
    ("10m", Interval(600_000)),
    ("2h", Interval(7_200_000)),
    ("3D", Interval(3 * DAY_MS)),
    ("1M", Interval(30 * DAY_MS)),
    ("1Y", Interval(365 * DAY_MS)),
    ("0s", Interval(0)),
    ("007D", Interval(7 * DAY_MS)),
]
BAD_TEXTS = [
    *("", "First", "five", "5", "-5m", "5 m", "m", "5w", "5mm", "1.5h", "5m\n", "\u0665m"),
    *("9" * 19 + "s", "9" * 10_000 + "s"),
]


@pytest.mark.parametrize(("text", "spec"), TEXTS)
def test_words_and_intervals_are_texts_of_both_protocols(text: str, spec: OffsetSpec) -> None:
    """They are a string or a symbol in AMQP 1.0, a long string in AMQP 0-9-1."""
    assert from_amqp10(text) == from_amqp10(t10.Symbol(text)) == from_amqp091(text, type_name) == spec


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_any_other_text_is_refused(text: str) -> None:
    """Other texts contain no offset, and there are only six units."""
    with pytest.raises(FilterError, match="neither 'first', 'last', 'next' nor an interval"):
        from_amqp10(text)
    with pytest.raises(FilterError, match="^offset must be 'first', 'last', 'next', an interval"):
        from_amqp091(text, type_name)


@pytest.mark.parametrize(
    "kind", [int, t10.UByte, t10.UShort, t10.UInt, t10.ULong, t10.Byte, t10.Short, t10.Int, t10.Long]
)
def test_an_integer_of_amqp10_is_an_offset(kind: Any) -> None:
    assert from_amqp10(kind(0)) == Offset(0)
    assert from_amqp10(kind(100)) == Offset(100)


@pytest.mark.parametrize(
    "kind", [int, t091.Int8, t091.UInt8, t091.Int16, t091.UInt16, t091.Int32, t091.UInt32, t091.Int64]
)
def test_an_integer_of_amqp091_is_an_offset(kind: Any) -> None:
    assert from_amqp091(kind(0), type_name) == Offset(0)
    assert from_amqp091(kind(100), type_name) == Offset(100)


def test_a_timestamp_is_milliseconds_in_amqp10_and_seconds_in_amqp091() -> None:
    assert from_amqp10(t10.Timestamp(1_700_000_000_123)) == AtTime(1_700_000_000_123)
    assert from_amqp10(t10.Timestamp(-1)) == AtTime(-1)
    assert from_amqp091(t091.Timestamp(1_700_000_000), type_name) == AtTime(1_700_000_000_000)


@pytest.mark.parametrize(
    "value",
    [-1, t10.Long(-1), True, 1.0, t10.Float(1.0), None, b"first", ["first"], {}, t10.Char("n")],
    ids=repr,
)
def test_other_values_of_amqp10_are_refused(value: Any) -> None:
    with pytest.raises(FilterError, match="must be a string, a symbol, a timestamp or an integer"):
        from_amqp10(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("five", "'five'"),
        (b"\xff", "longstr"),
        (t091.ByteArray(b"x"), "binary"),
        (t091.Int32(-5), "-5"),
        (True, "bool"),
        (1.5, "double"),
        (None, "void"),
        ([t091.Int32(1)], "array"),
        ({}, "table"),
    ],
    ids=repr,
)
def test_other_values_of_amqp091_are_refused_with_what_is_allowed(value: Any, shown: str) -> None:
    """The error lists the allowed words and types, and the value, or its type if that is wrong."""
    with pytest.raises(FilterError) as caught:
        from_amqp091(value, type_name)
    assert caught.value.reason == (
        "offset must be 'first', 'last', 'next', an interval such as '10m' (Y, M, D, h, m, s), "
        f"a timestamp or an integer that is not negative, not {shown}"
    )
