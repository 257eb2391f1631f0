"""SQL filters against an interpreter that follows the rules word by word, and against any text at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp10broker.message.filters.fields import PROPERTIES, FieldReader, FilterError, MessageField, Section
from amqp10broker.message.filters.filters import MessageFilter
from amqp10broker.message.filters.sql_eval import SqlFilter, compile_expression, compile_like, compile_sql
from amqp10broker.message.filters.sql_parser import (
    TOKENS_MAX,
    And,
    Arithmetic,
    Comparison,
    Expression,
    Identifier,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Unary,
    Utc,
    children,
    parse,
)
from amqp10broker.protocols.amqp10.types import Char, Decimal32, Float, Int, Long, Symbol, Timestamp, ULong
from tests.support.filtering import NOW_MS, message
from tests.support.sql_reference import interpret, like, show

# Few keys and few values, so that what is compared is often equal.
KEYS = ["a", "b", "two words", "]["]
texts = st.sampled_from(["", "a", "ab", "abc", "b%", "a_c", "\u2603"]) | st.text("ab_%", max_size=4)
whole = st.sampled_from([0, 1, 2, 3, 5, 10**400]) | st.integers(0, 20)
fractions = st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e308]) | st.floats(0, 1e300)
literals: st.SearchStrategy[Expression] = st.one_of(
    st.booleans(), whole, fractions, texts, st.sampled_from([b"\0", b"ab", b"\0" * 15 + b"\1"])
).map(Literal)
fields = st.one_of(
    st.sampled_from(KEYS).map(lambda key: MessageField(Section.APPLICATION_PROPERTIES, key)),
    st.sampled_from(PROPERTIES).map(lambda name: MessageField(Section.PROPERTIES, name)),
    st.just(MessageField(Section.HEADER, "priority")),
)
identifiers: st.SearchStrategy[Any] = fields.map(Identifier)
patterns = st.text("ab_%!", max_size=6)


def like_of(inner: Expression, pattern: str, escape: str | None) -> Expression:
    """A pattern that does not end with the escape character."""
    if escape is not None:
        pattern = pattern.rstrip(escape)
    return Like(inner, pattern, escape)


def deeper(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.builds(Unary, st.sampled_from("+-"), inner),
        st.builds(Arithmetic, st.sampled_from("+-*/%"), inner, inner),
        st.builds(Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), inner, inner),
        st.builds(like_of, inner, patterns, st.none() | st.sampled_from("!a_%")),
        st.builds(In, inner, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(IsNull, identifiers),
        st.builds(Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda operands: And(tuple(operands))),
        st.lists(inner, min_size=2, max_size=3).map(lambda operands: Or(tuple(operands))),
    )


expressions: st.SearchStrategy[Expression] = st.recursive(
    literals | identifiers | st.just(Utc()), deeper, max_leaves=12
)

numbers = st.one_of(
    st.integers(-3, 5).map(Long),
    st.integers(0, 5).map(ULong),
    st.integers(-3, 5).map(Int),
    st.sampled_from([NOW_MS, NOW_MS - 1]).map(Timestamp),
    st.sampled_from([0.5, -1.0, 2.0]).map(Float),
    st.sampled_from([0.0, 0.5, 1e308, math.inf, -math.inf, math.nan]),
)
values = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    texts,
    st.sampled_from(["a", "ab"]).map(Symbol),
    st.sampled_from("ab").map(Char),
    st.sampled_from([b"", b"ab"]),
    st.uuids(),
    st.just(Decimal32(b"\0\0\0\1")),
)
ids = texts | st.integers(0, 5).map(ULong) | st.sampled_from([b"ab"]) | st.uuids()
properties = st.fixed_dictionaries(
    {},
    optional={
        "message_id": ids,
        "user_id": st.sampled_from([b"", b"ab"]),
        "to": texts,
        "subject": texts,
        "correlation_id": ids,
        "content_type": st.sampled_from(["a", "ab"]).map(Symbol),
        "creation_time": st.sampled_from([NOW_MS, 0]),
        "group_sequence": st.integers(0, 5),
        "reply_to_group_id": texts,
    },
)


def same(one: Any, other: Any) -> bool:
    """Equal and of one type, as far as the language tells types apart; NaN equals itself."""
    if one is None or other is None or isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


@settings(max_examples=400, deadline=None)
@given(
    expressions,
    st.none() | st.dictionaries(st.sampled_from(KEYS), values),
    properties,
    st.none() | st.integers(0, 9),
)
def test_the_compiler_says_what_the_interpreter_says(
    expression: Expression,
    application: dict[str, Any] | None,
    given_properties: dict[str, Any],
    priority: int | None,
) -> None:
    """Of every expression and message; and only what is True passes, with the search for bytes before it."""
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


@settings(max_examples=400, deadline=None)
@given(expressions)
def test_an_expression_that_is_printed_parses_to_itself(expression: Expression) -> None:
    """With no more parentheses than are needed."""
    text = show(expression)
    if size(expression) <= 30 and len(text) <= 4096:
        assert parse(text) == expression


def size(node: Expression) -> int:
    """How many nodes a tree has; each makes at most six tokens."""
    return 1 + sum(map(size, children(node)))


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


@settings(max_examples=400, deadline=None)
@given(anything)
@example("(" * 100 + ")" * 100)
@example("NOT " * 300)
@example("[" * 4000)
@example("'" * 4095)
@example("1" * 4096)
@example("-" * TOKENS_MAX)
@example("0.1E" + "9" * 4000)
@example("\x00")
@example("\ud800")
def test_any_text_is_an_expression_or_the_one_error(text: str) -> None:
    """And an expression can be evaluated, whatever the message."""
    sql = compiled(text)
    if isinstance(sql, FilterError):
        assert sql.reason
        assert sql.position is None or 0 <= sql.position <= len(text)
        return
    for on in (message(), message({"a": 1, "b": "ab", "two words": True}, priority=3, to="a")):
        assert isinstance(MessageFilter.of_sql(sql).matches(on, NOW_MS), bool)


@settings(max_examples=400, deadline=None)
@given(
    st.text("ab_%!\u2603", max_size=12),
    st.none() | st.sampled_from("!a%_"),
    st.text("ab%_!\u2603\n", max_size=12),
)
def test_like_says_what_the_naive_table_says(pattern: str, escape: str | None, text: str) -> None:
    """Of every pattern; one that ends with its escape character is an error."""
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
    """Whatever regular expressions would make of it."""
    assert likes(text, text) is True


@pytest.mark.rabbitmq("amqp_filter_sql_prop_SUITE", "prop_like_percent_matches_any_string")
@settings(deadline=None)
@given(lowercase | st.text())
def test_percent_matches_any_string(text: str) -> None:
    assert likes("%", text) is True
