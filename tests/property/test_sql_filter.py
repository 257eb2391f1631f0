"""Filters against naive models."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.convert import body_start, read_properties
from amqp10broker.message.filters import sql_parser
from amqp10broker.message.filters.fields import PROPERTIES, FilterError, MessageField, Section
from amqp10broker.message.filters.filter_set import ABSENT, FieldReader, MessageFilter
from amqp10broker.message.filters.sql_eval import SqlFilter, compile_expression, compile_like, compile_sql
from amqp10broker.message.filters.stream_filters import BloomFilter, chunk_filter
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from tests.support.examples import tried
from tests.support.filtering import NOW_MS, message
from tests.support.sql_reference import interpret, like, show
from tests.support.strategies import scalars, symbols, typed

# Few keys and few values, so that what is compared is often equal.
KEYS = ["a", "b", "two words", "]["]
texts = st.sampled_from(["", "a", "ab", "abc", "b%", "a_c", "\u2603"]) | st.text("ab_%", max_size=4)
whole = st.sampled_from([0, 1, 2, 3, 5, 10**400]) | st.integers(0, 20)
fractions = st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e308]) | st.floats(0, 1e300)
literals: st.SearchStrategy[sql_parser.Expression] = st.one_of(
    st.booleans(), whole, fractions, texts, st.sampled_from([b"\0", b"ab", b"\0" * 15 + b"\1"])
).map(sql_parser.Literal)
fields = st.one_of(
    st.sampled_from(KEYS).map(lambda key: MessageField(Section.APPLICATION_PROPERTIES, key)),
    st.sampled_from(PROPERTIES).map(lambda name: MessageField(Section.PROPERTIES, name)),
    st.just(MessageField(Section.HEADER, "priority")),
)
identifiers: st.SearchStrategy[Any] = fields.map(sql_parser.Identifier)
patterns = st.text("ab_%!", max_size=6)


def like_of(inner: sql_parser.Expression, pattern: str, escape: str | None) -> sql_parser.Expression:
    """Draw a pattern that does not end with the escape character."""
    if escape is not None:
        pattern = pattern.rstrip(escape)
    return sql_parser.Like(inner, pattern, escape)


def deeper(inner: st.SearchStrategy[sql_parser.Expression]) -> st.SearchStrategy[sql_parser.Expression]:
    return st.one_of(
        st.builds(sql_parser.Unary, st.sampled_from("+-"), inner),
        st.builds(sql_parser.Arithmetic, st.sampled_from("+-*/%"), inner, inner),
        st.builds(sql_parser.Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), inner, inner),
        st.builds(like_of, inner, patterns, st.none() | st.sampled_from("!a_%")),
        st.builds(sql_parser.In, inner, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(sql_parser.IsNull, identifiers),
        st.builds(sql_parser.Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda operands: sql_parser.And(tuple(operands))),
        st.lists(inner, min_size=2, max_size=3).map(lambda operands: sql_parser.Or(tuple(operands))),
    )


expressions: st.SearchStrategy[sql_parser.Expression] = st.recursive(
    literals | identifiers | st.just(sql_parser.Utc()), deeper, max_leaves=12
)

numbers = st.one_of(
    st.integers(-3, 5).map(t10.Long),
    st.integers(0, 5).map(t10.ULong),
    st.integers(-3, 5).map(t10.Int),
    st.sampled_from([NOW_MS, NOW_MS - 1]).map(t10.Timestamp),
    st.sampled_from([0.5, -1.0, 2.0]).map(t10.Float),
    st.sampled_from([0.0, 0.5, 1e308, math.inf, -math.inf, math.nan]),
)
values = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    texts,
    st.sampled_from(["a", "ab"]).map(t10.Symbol),
    st.sampled_from("ab").map(t10.Char),
    st.sampled_from([b"", b"ab"]),
    st.uuids(),
    st.just(t10.Decimal32(b"\0\0\0\1")),
)
ids = texts | st.integers(0, 5).map(t10.ULong) | st.sampled_from([b"ab"]) | st.uuids()
properties = st.fixed_dictionaries(
    {},
    optional={
        "message_id": ids,
        "user_id": st.sampled_from([b"", b"ab"]),
        "to": texts,
        "subject": texts,
        "correlation_id": ids,
        "content_type": st.sampled_from(["a", "ab"]).map(t10.Symbol),
        "creation_time": st.sampled_from([NOW_MS, 0]),
        "group_sequence": st.integers(0, 5),
        "reply_to_group_id": texts,
    },
)


def same(one: Any, other: Any) -> bool:
    """Values must be equal and of one type, as far as the language has types; NaN equals itself."""
    if one is None or other is None or isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


@settings(max_examples=tried(400), deadline=None)
@given(
    expressions,
    st.none() | st.dictionaries(st.sampled_from(KEYS), values),
    properties,
    st.none() | st.integers(0, 9),
)
def test_the_compiler_says_what_the_interpreter_says(
    expression: sql_parser.Expression,
    application: dict[str, Any] | None,
    given_properties: dict[str, Any],
    priority: int | None,
) -> None:
    """This holds for every expression and message; only True passes, after the search for bytes."""
    on = message(application, priority=priority, **given_properties)
    found: dict[MessageField, Any] = {
        MessageField(Section.HEADER, "priority"): 4 if priority is None else priority
    }
    for name, value in given_properties.items():
        found[MessageField(Section.PROPERTIES, name.replace("_", "-"))] = value
    for key, value in (application or {}).items():
        found[MessageField(Section.APPLICATION_PROPERTIES, key)] = value
    wanted = interpret(expression, found, NOW_MS)

    sql = compile_expression(expression)
    read = FieldReader(sql.fields, uuid_as_binary=True).read(on)
    actual = sql.run([*read, NOW_MS] if sql.uses_time else read)
    assert same(actual, getattr(wanted, "bytes", wanted))
    assert MessageFilter.of_sql(sql).matches(on, NOW_MS) == (wanted is True)


@settings(max_examples=tried(400), deadline=None)
@given(expressions)
def test_an_expression_that_is_printed_parses_to_itself(expression: sql_parser.Expression) -> None:
    """The text has no more parentheses than are needed."""
    text = show(expression)
    if size(expression) <= 30 and len(text) <= 4096:
        assert sql_parser.parse(text) == expression


def size(node: sql_parser.Expression) -> int:
    """Return the number of nodes of a tree; each makes at most six tokens."""
    return 1 + sum(map(size, sql_parser.children(node)))


WORDS = [
    *("AND", "OR", "NOT", "LIKE", "ESCAPE", "IN", "IS", "NULL", "TRUE", "FALSE", "UTC", "(", ")", ","),
    *("=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "'a'", '"%a_"', "'!'", "0x6162", "1"),
    *("2.5", "a", "b", "[two words]", "p.to", "h.priority", "a.b", "p.x", "'", "[", "0x1", "$", "\n"),
]
anything = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join),
    st.text(max_size=30),
    st.text("()'\"[]aNOT= .-0x1E", max_size=40),
)


def compiled(text: str) -> SqlFilter | FilterError:
    try:
        return compile_sql(text)
    except FilterError as error:
        return error


@settings(max_examples=tried(400), deadline=None)
@given(anything)
@example("(" * 100 + ")" * 100)
@example("NOT " * 300)
@example("[" * 4000)
@example("'" * 4095)
@example("1" * 4096)
@example("-" * sql_parser.TOKENS_MAX)
@example("0.1E" + "9" * 4000)
@example("\x00")
@example("\ud800")
def test_any_text_is_an_expression_or_the_one_error(text: str) -> None:
    """Any expression can be evaluated on any message."""
    sql = compiled(text)
    if isinstance(sql, FilterError):
        assert sql.reason
        assert sql.position is None or 0 <= sql.position <= len(text)
        return
    for on in (message(), message({"a": 1, "b": "ab", "two words": True}, priority=3, to="a")):
        assert isinstance(MessageFilter.of_sql(sql).matches(on, NOW_MS), bool)


@settings(max_examples=tried(400), deadline=None)
@given(
    st.text("ab_%!\u2603", max_size=12),
    st.none() | st.sampled_from("!a%_"),
    st.text("ab%_!\u2603\n", max_size=12),
)
def test_like_says_what_the_naive_table_says(pattern: str, escape: str | None, text: str) -> None:
    """This holds for every pattern; one that ends with its escape character is an error."""
    try:
        matches = compile_like(pattern, escape)
    except FilterError:
        assert escape is not None
        assert pattern.endswith(escape)
        return
    assert matches(text) == like(text, pattern, escape)


# The cases of RabbitMQ's suite of properties of LIKE.

_printable = st.characters(min_codepoint=32, max_codepoint=126)
lowercase = st.text("abcdefghijklmnopqrstuvwxyz", max_size=30)


def likes(pattern: str, text: str) -> Any:
    sql = compile_sql("k LIKE '" + pattern.replace("'", "''") + "'")
    return sql.run([text])


@pytest.mark.rabbitmq("amqp_filter_sql_prop_SUITE", "prop_like_result_is_valid")
@settings(deadline=None)
@given(st.text(st.sampled_from("%_") | _printable, max_size=40), lowercase)
def test_like_gives_a_truth_value(pattern: str, text: str) -> None:
    assert likes(pattern, text) in (True, False)


@pytest.mark.rabbitmq("amqp_filter_sql_prop_SUITE", "prop_like_multi_percent_non_matching")
@settings(deadline=None)
@given(st.integers(2, 100), st.sampled_from("ABCXYZ"), st.integers(1, 500))
def test_many_percents_before_a_character_that_is_not_there_do_not_match(
    count: int, character: str, length: int
) -> None:
    assert likes("%" * count + character, "a" * length) is False


@pytest.mark.rabbitmq("amqp_filter_sql_prop_SUITE", "prop_like_exact_pattern_matches_itself")
@settings(deadline=None)
@given(st.text(_printable.filter(lambda character: character not in "%_"), min_size=1))
def test_a_pattern_without_wildcards_matches_itself(text: str) -> None:
    """This includes special characters of regular expressions."""
    assert likes(text, text) is True


@pytest.mark.rabbitmq("amqp_filter_sql_prop_SUITE", "prop_like_percent_matches_any_string")
@settings(deadline=None)
@given(lowercase | st.text())
def test_percent_matches_any_string(text: str) -> None:
    assert likes("%", text) is True


texts_field = st.text(max_size=12) | st.text(min_size=250, max_size=300)
keys = st.sampled_from(["a", "b", "key", "\u2603", "k" * 260])
ids_field = st.one_of(
    texts_field, st.binary(max_size=12), st.uuids(), st.integers(0, 2**64 - 1).map(t10.ULong)
)
times = st.integers(-(2**63), 2**63 - 1).map(t10.Timestamp)


compounds = st.lists(scalars, max_size=2) | st.builds(t10.Described, symbols, scalars)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


properties_field = st.builds(
    Properties,
    message_id=maybe(ids_field),
    user_id=maybe(st.binary(max_size=300)),
    to=maybe(texts_field) | compounds,
    subject=maybe(texts_field),
    reply_to=maybe(texts_field),
    correlation_id=maybe(ids_field),
    content_type=maybe(symbols),
    content_encoding=maybe(symbols),
    absolute_expiry_time=maybe(times),
    creation_time=maybe(times),
    group_id=maybe(texts_field),
    group_sequence=maybe(st.integers(0, 2**32 - 1)),
    reply_to_group_id=maybe(texts_field),
)
pairs = st.lists(
    st.tuples(keys | st.sampled_from(["a", "key"]).map(t10.Symbol) | scalars, scalars | compounds),
    max_size=5,
    unique_by=lambda pair: encode(pair[0]),
)

PREFIXES = {
    "properties": (b"\x00\x53\x73", "amqp:properties:list"),
    "application": (b"\x00\x53\x74", "amqp:application-properties:map"),
}


@st.composite
def spelled(draw: st.DrawFn, section: str, encoded: bytes) -> bytes:
    """Draw a section with the descriptor's usual encoding or another one."""
    usual, name = PREFIXES[section]
    assert encoded.startswith(usual)
    other = [usual, usual, b"\x00\x80" + b"\0" * 7 + usual[2:], b"\x00" + encode(t10.Symbol(name))]
    return draw(st.sampled_from(other)) + encoded[3:]


@st.composite
def bares(draw: st.DrawFn) -> bytes:
    bare = b""
    if draw(st.booleans()):
        bare += draw(spelled("properties", draw(properties_field).encode()))
    if draw(st.booleans()):
        bare += draw(
            spelled("application", encode(t10.Described(t10.ULong(0x74), t10.Map(tuple(draw(pairs))))))
        )
    code = draw(st.sampled_from([0x75, 0x77]))
    return bare + encode(t10.Described(t10.ULong(code), b"body"))


fields_field = st.one_of(
    keys.map(lambda key: MessageField(Section.APPLICATION_PROPERTIES, key)),
    st.sampled_from(PROPERTIES).map(lambda name: MessageField(Section.PROPERTIES, name)),
    st.just(MessageField(Section.HEADER, "priority")),
)


@settings(max_examples=tried(150), deadline=None)
@given(
    bares(), st.none() | st.integers(0, 255), st.lists(fields_field, unique=True, max_size=6), st.booleans()
)
def test_a_reader_finds_what_decoding_everything_finds(
    bare: bytes, priority: int | None, wanted: list[MessageField], uuid_as_binary: bool
) -> None:
    """Values have their types; an absent one is None, or ABSENT among application-properties."""
    message = MessageReader("", "q", "u", impersonator=True).read(Header(priority=priority).encode() + bare)
    decoded, application = read_properties(bare[: body_start(bare)])
    by_key = {key: value for key, value in application.items() if type(key) is str}
    expected: list[Any] = []
    for field in wanted:
        if field.section is Section.HEADER:
            value: Any = 4 if priority is None else priority
        elif field.section is Section.PROPERTIES:
            value = getattr(decoded, field.name.replace("-", "_"), None)
        else:
            value = by_key.get(field.name, ABSENT)
        expected.append(value.bytes if uuid_as_binary and isinstance(value, UUID) else value)
    found = FieldReader(wanted, absent=ABSENT, uuid_as_binary=uuid_as_binary).read(message)
    for field, one, other in zip(wanted, found, expected, strict=True):
        if other is ABSENT:
            assert one is ABSENT
        elif field.section is Section.APPLICATION_PROPERTIES or field.name in ("to", "reply-to"):
            assert typed(one) == typed(other)
        else:
            # A field's type is known, so a composite gives a plain int.
            assert one == other


@settings(max_examples=tried(100), deadline=None)
@given(st.lists(bares(), min_size=1, max_size=4), st.data())
def test_what_is_remembered_of_messages_that_are_alike_is_true(
    alike: list[bytes], data: st.DataObject
) -> None:
    """This holds for any spelling, and beside AMQP 0-9-1 messages, whose content may be anything."""
    read = MessageReader("", "q", "u", impersonator=True).read
    old = amqp091.make_head("x", "k", encode_properties(BasicProperties(headers={"a": "1"})))
    kinds = [read(bare) for bare in alike] + [(old, alike[0]), (old, b"\x00\x53\x73\xc0")]
    messages = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=20))
    text = data.draw(st.sampled_from(["a IS NOT NULL", "a = '1'", "key > 0 OR b", "a = key"]))
    wanted = MessageFilter.of_sql(compile_sql(text))
    each = [bool(MessageFilter.of_sql(compile_sql(text)).matching([one], 0)) for one in messages]
    for _ in range(2):
        assert wanted.matching(messages, 0) == [place for place, passes in enumerate(each) if passes]


@settings(deadline=None)
@given(
    st.lists(st.none() | st.text(max_size=5), max_size=60),
    st.integers(16, 255),
    st.lists(st.text(max_size=5), max_size=3),
    st.booleans(),
)
def test_a_chunk_that_holds_a_wanted_message_is_always_read(
    values: list[str | None], size: int, wanted: list[str], match_unfiltered: bool
) -> None:
    chunk = chunk_filter(values, size)
    assert len(chunk) in (0, size)
    for value in values:
        if value is not None:
            assert BloomFilter((*wanted, value), match_unfiltered).may_match(chunk)
        else:
            assert BloomFilter(tuple(wanted), match_unfiltered=True).may_match(chunk)
