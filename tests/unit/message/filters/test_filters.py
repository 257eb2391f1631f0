"""Filters of consumers: which are in place, and what passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.filters.fields import MessageField, Section
from amqp10broker.message.filters.filter_set import (
    ABSENT,
    ALIKE_MAX,
    APPLICATION_PROPERTIES,
    END_OFFSET,
    MATCH_UNFILTERED,
    OFFSET_SPEC,
    PROPERTIES,
    SEARCHED_BYTES_MAX,
    SELECTOR,
    SELECTOR_CODE,
    SQL,
    STREAM_FILTER,
    FieldReader,
    Filters,
    FilterSet,
    from_amqp10,
)
from amqp10broker.message.filters.stream_filters import BloomFilter, OffsetWord, chunk_filter
from amqp10broker.message.stream_heads import filter_value
from amqp10broker.protocols.amqp091.codec import encode_table
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.codec import array_of, decode, encode
from amqp10broker.protocols.amqp10.performatives import Properties
from amqp10broker.protocols.amqp10.types import Described, Map, Symbol, Timestamp, ULong
from tests.support.examples import tried
from tests.support.filtering import NOW_MS, described, message
from tests.support.strategies import scalars


def read(**filters: Any) -> FilterSet:
    """Read a filter-set by names, with hyphens for underscores, as it is on the wire."""
    named = {Symbol(name.replace("_", "-")): value for name, value in filters.items()}
    return from_amqp10(decode(encode(named))[0])


def in_place(**filters: Any) -> set[str]:
    return {str(name).replace("-", "_") for name in read(**filters).in_place}


SUBJECT = {Symbol("subject"): "s"}
TRUE = described(SQL, "TRUE")


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "multiple_sections")
def test_filters_of_all_sorts_are_in_place_together() -> None:
    given = {
        Symbol("a"): described(OFFSET_SPEC, "first"),
        Symbol("b"): described(STREAM_FILTER, ["x", "y", "x"]),
        Symbol("c"): described(MATCH_UNFILTERED, True),
        Symbol("d"): described(PROPERTIES, SUBJECT),
        Symbol("e"): described(APPLICATION_PROPERTIES, {"k": 1}),
        Symbol("f"): described(END_OFFSET, ULong(9)),
    }
    found = from_amqp10(given)
    assert found.in_place == given
    assert found.refused == ()
    assert found.filters.offset == OffsetWord.FIRST
    assert found.filters.end == 9
    assert found.filters.bloom == BloomFilter(("x", "y"), match_unfiltered=True)
    assert found.filters.matches(message({"k": 1}, subject="s"), NOW_MS)
    assert not found.filters.matches(message({"k": 1}, subject="t"), NOW_MS)
    assert not found.filters.matches(message({"k": 2}, subject="s"), NOW_MS)


@pytest.mark.parametrize("value", [["x"], array_of(["x"]), "x"])
def test_filter_values_are_a_string_or_a_list_of_them(value: Any) -> None:
    """An array is accepted like a list."""
    assert read(f=described(STREAM_FILTER, value)).filters.bloom == BloomFilter(("x",))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("first", "not described"),
        (None, "not described"),
        (described("unknown:filter", "x"), "no filter has the descriptor"),
        (described(SELECTOR, None), "must be a string"),
        (described(0x999, "x"), "no filter has the descriptor"),
        (Described("amqp:sql-filter", "TRUE"), "no filter has the descriptor"),
        (Described([1], "TRUE"), "no filter has the descriptor"),
        (described(OFFSET_SPEC, "never"), "neither 'first'"),
        (described(OFFSET_SPEC, -1), "not negative"),
        (described(END_OFFSET, -1), "must be an integer that is not negative"),
        (described(END_OFFSET, "last"), "must be an integer"),
        (described(END_OFFSET, True), "must be an integer"),
        (described(END_OFFSET, 1.5), "must be an integer"),
        (described(END_OFFSET, None), "end offset None must be"),
        (described(END_OFFSET, Timestamp(7)), "must be an integer"),
        (described(STREAM_FILTER, []), "a string or a list of strings"),
        (described(STREAM_FILTER, ["x", 1]), "a string or a list of strings"),
        (described(STREAM_FILTER, [Symbol("x")]), "a string or a list of strings"),
        (described(STREAM_FILTER, None), "a string or a list of strings"),
        (described(MATCH_UNFILTERED, 1), "must be a boolean"),
        (described(PROPERTIES, {}), "0 entries"),
        (described(PROPERTIES, {Symbol("group-id"): ULong(3)}), "group-id is of type str"),
        (described(APPLICATION_PROPERTIES, {Symbol("k"): 1}), "keys of application-properties are strings"),
        (described(SQL, "TRUE"), "must have the name sql-filter"),
    ],
)
def test_what_is_invalid_is_not_in_place(value: Any, reason: str) -> None:
    """Other filters are not affected; the reason is for the log."""
    found = read(bad=value, good=described(OFFSET_SPEC, "first"))
    assert set(found.in_place) == {"good"}
    assert found.filters == Filters(OffsetWord.FIRST)
    (refusal,) = found.refused
    assert refusal.name == "bad"
    assert reason in refusal.reason


@pytest.mark.rabbitmq("amqp_filter_sql_SUITE", "invalid_filter")
@pytest.mark.parametrize(
    "value",
    [
        described(SQL, "@#$%^&"),
        described(SQL, "FALSE FALSE"),
        described(SQL, "city LIKE '!' ESCAPE '!'"),
        described(SQL, "x" * 5000),
        described(SQL, Symbol("TRUE")),
        described(SQL, b"TRUE"),
        described(SQL, None),
        described("apache.org:invalid:string", "TRUE"),
        "TRUE",
    ],
    ids=["lexer", "parser", "pattern", "length", "symbol", "binary", "null", "descriptor", "undescribed"],
)
def test_an_invalid_sql_filter_is_not_in_place(value: Any) -> None:
    """All messages pass then: the client must look at the reply."""
    found = read(sql_filter=value)
    assert found.in_place == {}
    assert found.filters == Filters()
    assert len(found.refused) == 1


@pytest.mark.rabbitmq("amqp_filter_sql_SUITE", "invalid_filter")
def test_sql_and_property_filters_exclude_each_other() -> None:
    """The first valid one stays."""
    properties = described(PROPERTIES, SUBJECT)
    assert in_place(sql_filter=TRUE, p=properties, a=described(APPLICATION_PROPERTIES, {"k": 1})) == {
        "sql_filter"
    }
    assert in_place(p=properties, sql_filter=TRUE) == {"p"}
    assert in_place(sql_filter=described(SQL, "?"), p=properties) == {"p"}
    assert in_place(p=described(PROPERTIES, {}), sql_filter=TRUE) == {"sql_filter"}


@pytest.mark.parametrize("descriptor", [SELECTOR, SELECTOR_CODE])
def test_a_selector_is_in_place_under_any_name(descriptor: str | int) -> None:
    found = read(jms_selector=described(descriptor, "JMSPriority between 5 and 9"))
    assert set(found.in_place) == {"jms-selector"}
    assert found.filters.matches(message(priority=5), NOW_MS)
    assert not found.filters.matches(message(), NOW_MS)


def test_a_selector_that_is_refused_is_known_as_one() -> None:
    """Its client does not evaluate the reply."""
    (refused,) = read(s=described(SELECTOR, "n ==")).refused
    assert refused.selects
    assert refused.reason == "'=' cannot be here (at character 4)"
    assert not read(sql_filter=described(SQL, "?")).refused[0].selects


@pytest.mark.rabbitmq("amqp_filter_sql_SUITE", "sql_and_bloom_filter")
def test_sql_and_bloom_filter_go_together() -> None:
    """SQL selects messages, the Bloom filter selects chunks."""
    found = read(sql_filter=described(SQL, "h.priority > 4"), b=described(STREAM_FILTER, "v1"))
    assert set(found.in_place) == {"sql-filter", "b"}
    assert found.filters.bloom == BloomFilter(("v1",))
    assert found.filters.matches(message(priority=5), NOW_MS)
    assert not found.filters.matches(message(), NOW_MS)


@pytest.mark.parametrize(
    ("sort", "first", "second"),
    [
        (OFFSET_SPEC, "first", "last"),
        (STREAM_FILTER, "x", "y"),
        (MATCH_UNFILTERED, True, False),
        (PROPERTIES, SUBJECT, {Symbol("subject"): "t"}),
        (APPLICATION_PROPERTIES, {"k": 1}, {"k": 2}),
    ],
)
def test_there_is_one_filter_of_each_sort(sort: str, first: Any, second: Any) -> None:
    found = read(a=described(sort, first), b=described(sort, second))
    assert set(found.in_place) == {"a"}
    assert [refusal.reason for refusal in found.refused] == [f"there is another {sort} before it"]
    assert in_place(a=described(sort, None), b=described(sort, second)) == {"b"}


contents = st.one_of(
    scalars,
    st.lists(scalars, max_size=2),
    st.dictionaries(st.sampled_from(["subject", "to", "k"]).map(Symbol), scalars, max_size=2),
    st.dictionaries(st.sampled_from(["a", "b"]), scalars | st.lists(scalars, max_size=1), max_size=2),
)
sorts = [OFFSET_SPEC, STREAM_FILTER, MATCH_UNFILTERED, SQL, PROPERTIES, APPLICATION_PROPERTIES]
entries = contents | st.builds(Described, st.sampled_from(sorts).map(Symbol) | scalars, contents)


@settings(max_examples=tried(100), deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "sql-filter"]).map(Symbol), entries, max_size=3))
def test_any_filter_set_is_read(filter_set: dict[Any, Any]) -> None:
    found = from_amqp10(filter_set)
    assert len(found.in_place) + len(found.refused) == len(filter_set)
    assert all(filter_set[name] is value for name, value in found.in_place.items())
    for on in (message(), message({"k": 1}, subject="x", to="y")):
        assert isinstance(found.filters.matches(on, NOW_MS), bool)


def test_a_batch_gives_the_positions_of_what_passes() -> None:
    """The result equals that of single messages."""
    messages = [message({"n": index, "odd": index % 2 == 1}) for index in range(10)]
    for text in ("odd", "n > 6", "UTC() = 5 AND n < 2", "missing IS NULL", "FALSE"):
        filters = read(sql_filter=described(SQL, text)).filters
        found = list(filters.matching(messages, 5))
        assert found == [place for place, one in enumerate(messages) if filters.matches(one, 5)]
    assert list(read(sql_filter=described(SQL, "odd")).filters.matching(messages, 5)) == [1, 3, 5, 7, 9]
    properties = read(f=described(APPLICATION_PROPERTIES, {"odd": True}))
    assert list(properties.filters.matching(messages, 5)) == [1, 3, 5, 7, 9]


def test_messages_that_are_alike_are_decided_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache key is their application-properties; if too many differ, nothing is cached."""
    looked: list[Any] = []

    def counted(reader: FieldReader, one: Any) -> list[Any]:
        looked.append(one)
        return before(reader, one)

    before = FieldReader.read
    monkeypatch.setattr(FieldReader, "read", counted)

    def looks(text: str, *batches: list[Any]) -> list[int]:
        wanted, counts = read(sql_filter=described(SQL, text)).filters, []
        for batch in batches:
            looked.clear()
            wanted.matching(batch, NOW_MS)
            counts.append(len(looked))
        return counts

    few = [message({"n": index % 3}, message_id=f"{index}") for index in range(300)]
    assert looks("n > 0", few, few) == [3, 0]
    assert looks("n > 0 AND p.message_id <> ''", few, few) == [300, 300]
    many = [message({"n": index}) for index in range(ALIKE_MAX + 1)]
    assert looks("n > 0", many, many, many) == [ALIKE_MAX + 1] * 3
    assert looks("n > 0", many * 5, many * 5) == [ALIKE_MAX + 1] * 2, (
        "it begins anew as long as it is worth it"
    )
    assert looks("n > 0", many * 5, many, few) == [ALIKE_MAX + 1, ALIKE_MAX + 1, 300]


@pytest.mark.rabbitmq("amqp_filter_prop_SUITE", "filter_few_messages_from_many")
@pytest.mark.rabbitmq("amqp_filter_sql_SUITE", "filter_few_messages_from_many")
def test_few_messages_are_found_among_many() -> None:
    rare = message({"k": "rare"}, group_id="my group ID")
    messages = [rare, *[message({"k": "common"}, group_id="another group")] * 1000, rare]
    for filters in (
        read(sql_filter=described(SQL, "p.group_id = 'my group ID'")),
        read(sql_filter=described(SQL, "k LIKE 'ra%'")),
        read(f=described(PROPERTIES, {Symbol("group-id"): "my group ID"})),
        read(f=described(APPLICATION_PROPERTIES, {"k": "&s:rare"})),
    ):
        assert list(filters.filters.matching(messages, NOW_MS)) == [0, 1001]


def test_a_long_message_is_read_even_if_the_beginning_does_not_have_the_wanted_text() -> None:
    """The byte search covers short messages only; in long ones, the fields are read."""
    filters = read(sql_filter=described(SQL, "z = 'wanted'")).filters
    padding = {f"k{index}": "x" * 100 for index in range(SEARCHED_BYTES_MAX // 100)}
    assert filters.matches(message(padding | {"z": "wanted"}), NOW_MS)
    assert not filters.matches(message(padding | {"z": "wante"}), NOW_MS)
    assert filters.matches(message({"z": "wanted"}, body=b"x" * 5000), NOW_MS)
    assert not filters.matches(message({"z": "other"}, body=b"wanted"), NOW_MS)


BODY = encode(Described(ULong(0x75), b"body"))
DESCRIPTORS = {
    "usual": b"\x00\x53\x74",
    "eight bytes": b"\x00\x80" + b"\0" * 7 + b"\x74",
    "symbol": b"\x00" + encode(Symbol("amqp:application-properties:map")),
}


@pytest.mark.parametrize("descriptor", DESCRIPTORS.values(), ids=list(DESCRIPTORS))
def test_a_key_is_a_string_however_the_section_is_spelled(descriptor: bytes) -> None:
    """A symbol with the same letters is another key, before or behind it."""
    pairs = ((Symbol("only"), 1), (Symbol("both"), 2), ("both", 3), ("null", None))
    message = MessageReader("", "q", "u").read(descriptor + encode(Map(pairs)) + BODY)
    wanted = [MessageField(Section.APPLICATION_PROPERTIES, name) for name in ("only", "both", "null", "none")]
    assert FieldReader(wanted, absent=ABSENT).read(message) == [ABSENT, 3, None, ABSENT]
    assert FieldReader(wanted).read(message) == [None, 3, None, None]


@pytest.mark.parametrize("sections", [b"", b"\x00\x53\x73\x45", b"\x00\x53\x78\xc1\x01\x00"])
def test_a_message_without_a_body_has_fields_as_any(sections: bytes) -> None:
    """Its fields are absent; sections before the body are read before it is found."""
    wanted = [MessageField(Section.PROPERTIES, "subject"), MessageField(Section.APPLICATION_PROPERTIES, "a")]
    reader, read = FieldReader(wanted, absent=ABSENT), MessageReader("", "q", "u").read
    assert reader.read(read(sections)) == [None, ABSENT]
    both = Properties(subject="s").encode() + encode(Described(ULong(0x74), {"a": True}))
    assert reader.read(read(both)) == ["s", True]


def test_without_fields_nothing_is_read() -> None:
    assert FieldReader([]).read(MessageReader("", "q", "u").read(BODY)) == []


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
    """Chunks in which all messages have other values are not read."""
    mixed = chunk_filter(["apple", None])
    assert not BloomFilter(("plum",)).may_match(mixed)
    assert BloomFilter(("plum",), match_unfiltered=True).may_match(mixed)
    assert not BloomFilter(("plum",), match_unfiltered=True).may_match(chunk_filter(["apple"]))


@pytest.mark.parametrize(("values", "size", "most"), [(1, 16, 2), (8, 16, 60), (30, 16, 320), (100, 255, 10)])
def test_few_chunks_are_read_in_vain(values: int, size: int, most: int) -> None:
    """Of a thousand absent values, with one byte per value, at most 1 in 50 reads the chunk."""
    chunk = chunk_filter((f"in-{index}" for index in range(values)), size)
    assert sum(BloomFilter((f"out-{index}",)).may_match(chunk) for index in range(1000)) <= most


def test_the_filter_value_is_an_annotation_of_amqp10() -> None:
    """Only a string is a filter value."""
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
