"""What a consumer of AMQP 0-9-1 asks of a stream."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import PreconditionFailed
from amqp10broker.message.filters.filters import Filters
from amqp10broker.message.filters.stream import AtTime, BloomFilter, First, Interval, Offset
from amqp10broker.protocols.amqp091.codec import ByteArray, Int32, Timestamp
from amqp10broker.sessions.amqp091.consuming import from_amqp091_arguments


def read(**arguments: Any) -> Filters:
    named = {"x-stream-" + name.replace("_", "-"): value for name, value in arguments.items()}
    return from_amqp091_arguments(named, stream="s", vhost="/")


def test_without_arguments_nothing_is_asked() -> None:
    """Arguments of others are not looked at."""
    assert read() == Filters()
    assert from_amqp091_arguments({"x-priority": 1, "offset": "?"}, stream="s", vhost="/") == Filters()


def test_an_offset() -> None:
    assert read(offset="first").offset == First()
    assert read(offset=Int32(7)).offset == Offset(7)
    assert read(offset=Timestamp(7)).offset == AtTime(7000)
    assert read(offset="10m").offset == Interval(600_000)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_invalid_arg")
@pytest.mark.parametrize("value", ["five", "", None, -1, True, 1.5])
def test_a_bad_offset_fails_as_in_rabbitmq(value: Any) -> None:
    """With its text; null is a bad one, too."""
    with pytest.raises(
        PreconditionFailed,
        match=r"^failed consuming from stream 's' in vhost '/': offset must be 'first',",
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
    ("arguments", "text"),
    [
        (
            {"filter": Int32(1)},
            f"invalid arg 'x-stream-filter' for queue 's' in vhost '/': {STRINGS}, not signedint",
        ),
        (
            {"filter": None},
            f"invalid arg 'x-stream-filter' for queue 's' in vhost '/': {STRINGS}, not void",
        ),
        (
            {"filter": ["a", ByteArray(b"b")]},
            f"invalid arg 'x-stream-filter' for queue 's' in vhost '/': {STRINGS}, not binary",
        ),
        (
            {"filter": []},
            "invalid arg 'x-stream-filter' for queue 's' in vhost '/': the array is empty; give a value",
        ),
        (
            {"filter": "a", "match_unfiltered": "true"},
            f"invalid arg 'x-stream-match-unfiltered' for queue 's' in vhost '/': {BOOLEAN}, not longstr",
        ),
    ],
)
def test_other_values_are_refused(arguments: dict[str, Any], text: str) -> None:
    """AMQP 0-9-1 has no reply that says what is in place, so nothing is left out silently."""
    with pytest.raises(PreconditionFailed) as caught:
        read(**arguments)
    assert caught.value.description == text
