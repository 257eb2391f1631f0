"""The filter of a chunk, its form on disk, and what a consumer reads because of it."""

from __future__ import annotations

import pytest

from amqp10broker.message import amqp091
from amqp10broker.message.filters.stream import BloomFilter, chunk_filter, filter_value
from amqp10broker.protocols.amqp091.codec import encode_table
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.types import Symbol
from tests.support.filtering import message


def test_the_form_on_disk_never_changes() -> None:
    """Chunks are read by later versions: these bytes were written by the first one."""
    assert chunk_filter(["invoices"], 16).hex() == "10104208000000000021841042082184"
    assert chunk_filter(["a", "b", "c", None], 20).hex() == "902c01441260a4110612c0400b29b480004a18e2"


def test_a_chunk_without_filter_values_has_an_empty_filter() -> None:
    """It is for consumers that match unfiltered messages only."""
    assert chunk_filter([]) == chunk_filter([None, None]) == b""
    assert not BloomFilter(("a",)).may_match(b"")
    assert BloomFilter(("a",), match_unfiltered=True).may_match(b"")


def test_a_chunk_is_read_if_any_value_is_in_it() -> None:
    chunk = chunk_filter(["apple", "pear"])
    assert BloomFilter(("apple",)).may_match(chunk)
    assert BloomFilter(("plum", "pear")).may_match(chunk)
    assert not BloomFilter(("plum",)).may_match(chunk)
    assert not BloomFilter(()).may_match(chunk)


def test_match_unfiltered_reads_chunks_with_messages_without_a_value() -> None:
    """And does not read those in which all messages have other values."""
    mixed = chunk_filter(["apple", None])
    assert not BloomFilter(("plum",)).may_match(mixed)
    assert BloomFilter(("plum",), match_unfiltered=True).may_match(mixed)
    assert not BloomFilter(("plum",), match_unfiltered=True).may_match(chunk_filter(["apple"]))


@pytest.mark.parametrize(("values", "size", "most"), [(1, 16, 2), (8, 16, 60), (30, 16, 320), (100, 255, 10)])
def test_few_chunks_are_read_in_vain(values: int, size: int, most: int) -> None:
    """Of a thousand values that are not in the chunk; with one byte a value that is 1 in 50 at most."""
    chunk = chunk_filter((f"in-{index}" for index in range(values)), size)
    assert sum(BloomFilter((f"out-{index}",)).may_match(chunk) for index in range(1000)) <= most


def test_the_filter_value_is_an_annotation_of_amqp10() -> None:
    """A string: nothing else is a filter value."""
    assert filter_value(message(annotations={"x-stream-filter-value": "eu"})) == "eu"
    assert filter_value(message(annotations={"x-stream-filter-value": "eu" * 1000})) == "eu" * 1000
    assert filter_value(message(annotations={"x-stream-filter-value": Symbol("eu")})) is None
    assert filter_value(message(annotations={"x-stream-filter-value": 7})) is None
    assert filter_value(message(annotations={"x-other": "x-stream-filter-value"})) is None
    assert filter_value(message({"x-stream-filter-value": "eu"})) is None
    assert filter_value(message()) is None


def test_the_filter_value_is_a_header_of_amqp091() -> None:
    properties = encode_properties(BasicProperties(headers={"x-stream-filter-value": "eu"}))
    assert filter_value((amqp091.make_head("", "q", properties), b"body")) == "eu"
    assert filter_value((amqp091.make_head("", "q", encode_properties(BasicProperties())), b"body")) is None
    assert encode_table({"x-stream-filter-value": "eu"}) in properties
