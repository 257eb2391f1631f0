"""The language of SQL filters: words, expressions, patterns of LIKE."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from amqp10broker.message.filters import sql_parser
from amqp10broker.message.filters.fields import FilterError, MessageField, Section
from amqp10broker.message.filters.sql_eval import compile_like, longest_part


def name(text: str) -> sql_parser.Identifier:
    return sql_parser.Identifier(MessageField(Section.APPLICATION_PROPERTIES, text))


a, b, c, d = map(name, "wxyz")
one, two = sql_parser.Literal(1), sql_parser.Literal(2)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("w OR x AND y", sql_parser.Or((a, sql_parser.And((b, c))))),
        ("w AND x OR y", sql_parser.Or((sql_parser.And((a, b)), c))),
        ("w AND x AND y", sql_parser.And((a, b, c))),
        ("(w AND x) AND y", sql_parser.And((sql_parser.And((a, b)), c))),
        ("w AND (x AND y)", sql_parser.And((a, sql_parser.And((b, c))))),
        ("w OR x OR y", sql_parser.Or((a, b, c))),
        ("NOT w AND x", sql_parser.And((sql_parser.Not(a), b))),
        ("NOT (w AND x)", sql_parser.Not(sql_parser.And((a, b)))),
        ("NOT NOT w", sql_parser.Not(sql_parser.Not(a))),
        ("NOT w = x", sql_parser.Not(sql_parser.Comparison("=", a, b))),
        ("w AND NOT x", sql_parser.And((a, sql_parser.Not(b)))),
        (
            "w = x AND y <> z",
            sql_parser.And((sql_parser.Comparison("=", a, b), sql_parser.Comparison("<>", c, d))),
        ),
        ("w = (x AND y)", sql_parser.Comparison("=", a, sql_parser.And((b, c)))),
        ("(w = x) = y", sql_parser.Comparison("=", sql_parser.Comparison("=", a, b), c)),
        ("w + 1 < x", sql_parser.Comparison("<", sql_parser.Arithmetic("+", a, one), b)),
        ("w - x - y", sql_parser.Arithmetic("-", sql_parser.Arithmetic("-", a, b), c)),
        ("w - (x - y)", sql_parser.Arithmetic("-", a, sql_parser.Arithmetic("-", b, c))),
        ("w + x * y", sql_parser.Arithmetic("+", a, sql_parser.Arithmetic("*", b, c))),
        ("w * x + y", sql_parser.Arithmetic("+", sql_parser.Arithmetic("*", a, b), c)),
        ("w % x / y", sql_parser.Arithmetic("/", sql_parser.Arithmetic("%", a, b), c)),
        ("-w * x", sql_parser.Arithmetic("*", sql_parser.Unary("-", a), b)),
        ("w - -x", sql_parser.Arithmetic("-", a, sql_parser.Unary("-", b))),
        ("-(w + x)", sql_parser.Unary("-", sql_parser.Arithmetic("+", a, b))),
        ("-(-(w))", sql_parser.Unary("-", sql_parser.Unary("-", a))),
        ("+UTC()", sql_parser.Unary("+", sql_parser.Utc())),
        ("UTC ( ) > w", sql_parser.Comparison(">", sql_parser.Utc(), a)),
        ("w IS NULL", sql_parser.IsNull(a)),
        ("w IS NOT NULL", sql_parser.Not(sql_parser.IsNull(a))),
        ("NOT w IS NULL", sql_parser.Not(sql_parser.IsNull(a))),
        ("w LIKE 'x%'", sql_parser.Like(a, "x%", None)),
        ("w NOT LIKE 'x!%' ESCAPE '!'", sql_parser.Not(sql_parser.Like(a, "x!%", "!"))),
        ("w + x LIKE 'x'", sql_parser.Like(sql_parser.Arithmetic("+", a, b), "x", None)),
        ("w IN (1)", sql_parser.In(a, (one,))),
        (
            "w NOT IN (x + 1, (y), -2)",
            sql_parser.Not(
                sql_parser.In(a, (sql_parser.Arithmetic("+", b, one), c, sql_parser.Unary("-", two)))
            ),
        ),
        ("w IN (1, (x IN (2)))", sql_parser.In(a, (one, sql_parser.In(b, (two,))))),
        ("w IN (1) AND x", sql_parser.And((sql_parser.In(a, (one,)), b))),
        (
            "1 + 1 IN (2) OR w",
            sql_parser.Or((sql_parser.In(sql_parser.Arithmetic("+", one, one), (two,)), a)),
        ),
        ("(((w)))", a),
    ],
)
def test_what_binds_stronger_is_further_inside(text: str, tree: sql_parser.Expression) -> None:
    """The order is NOT, AND, OR; arithmetic goes from the left; a chain of AND is one node."""
    assert sql_parser.parse(text) == tree


@pytest.mark.parametrize(
    "text",
    [
        "NOT",
        "w AND",
        "w = x = y",
        "w < x < y",
        "w = x IN (1)",
        "w IN (1) IN (2)",
        "w IS NULL IS NULL",
        "w IS NULL + 1",
        "w LIKE 'a' LIKE 'b'",
        "w = NOT x",
        "w + NOT x",
        "- NOT w",
        "--1",
        "+-1",
        "- -1",
        "1 +",
        "w NOT = x",
        "w NOT NULL",
        "w NOT IS NULL",
        "w IS",
        "w IS NOT",
        "w IS TRUE",
        "(w) IS NULL",
        "1 IS NULL",
        "NULL",
        "w = NULL",
        "w LIKE",
        "w LIKE x",
        "w LIKE 0x48",
        "w LIKE 'a' ESCAPE ''",
        "w LIKE 'a' ESCAPE 'ab'",
        "w IN ()",
        "w IN (1",
        "w IN (1,)",
        "w IN (1, x = 2)",
        "w IN (x AND y)",
        "(w, x)",
        "w, x",
        "(w",
        "w)",
        "((w)",
        "(w))",
        "w()",
        "UTC(1)",
    ],
)
def test_anything_else_is_an_error_with_its_place(text: str) -> None:
    """Comparisons do not chain, signs do not repeat, NOT begins a condition, patterns are strings."""
    with pytest.raises(FilterError, match=r"\(at character \d+\)$"):
        sql_parser.parse(text)


@pytest.mark.parametrize("text", ["p.message-id", "p.Subject", "p.x", "properties.x", "p.[to]"])
def test_another_field_of_properties_is_an_error(text: str) -> None:
    """This includes a difference in case; a hyphen is a minus."""
    with pytest.raises(FilterError):
        sql_parser.parse(text)


@pytest.mark.parametrize(
    "section", ["d", "delivery_annotations", "m", "message_annotations", "f", "footer", "P"]
)
def test_other_sections_are_errors(section: str) -> None:
    """The specification allows them, but this broker does not."""
    with pytest.raises(FilterError, match=f"section '{section}' is none of"):
        sql_parser.parse(f"{section}.x")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 99 + "w" + ")" * 99,
        "NOT " * 199 + "w",
        "-(" * 66 + "w" + ")" * 66,
        "w + (" * 49 + "w" + ")" * 49,
        "1 IN ((" * 33 + "w" + "))" * 33,
    ],
)
def test_no_nesting_uses_up_the_stack(text: str) -> None:
    """Two hundred tokens are nested as deep as possible, with little stack left."""
    limit = sys.getrecursionlimit()
    depth = len(inspect.stack())
    sys.setrecursionlimit(depth + 30)
    try:
        sql_parser.parse(text)
    finally:
        sys.setrecursionlimit(limit)


def words(text: str) -> list[Any]:
    return [token.value for token in sql_parser.tokenize(text)[:-1]]


@pytest.mark.parametrize("space", [" ", "\t", "\f", "\n", "\r", " \r\n\t "])
def test_white_space_is_that_of_java(space: str) -> None:
    """It is space, tab, form feed, line feed and carriage return only."""
    assert words(f"{space}1{space}+{space}1{space}") == [1, "+", 1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("007", 7),
        ("9" * 4000, int("9" * 4000)),
        ("1.5", 1.5),
        ("1.50E3", 1500.0),
        ("1.5E+3", 1500.0),
        ("1.5E-3", 0.0015),
        ("0.0", 0.0),
        ("1.0E-999", 0.0),
        ("TRUE", True),
        ("FALSE", False),
        ("'it''s'", "it's"),
        ("''", ""),
        ("''''", "'"),
        ("'say \"hi\"'", 'say "hi"'),
        ('"say ""hi"""', 'say "hi"'),
        ('"it\'s"', "it's"),
        ("'\u2600 \t\n'", "\u2600 \t\n"),
        ("0x00FF", b"\x00\xff"),
    ],
)
def test_literals(text: str, value: Any) -> None:
    (found,) = words(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "section", "name"),
    [
        ("a", None, "a"),
        ("Ab_1", None, "Ab_1"),
        ("_x", None, "_x"),
        ("p.to", "p", "to"),
        ("properties.message_id", "properties", "message_id"),
        ("whatever.date", "whatever", "date"),
        ("[two words]", None, "two words"),
        ("[]", None, ""),
        ("[ ]", None, " "),
        ("[AND]", None, "AND"),
        ("[p.to]", None, "p.to"),
        ("[[[x]]]", None, "[x]"),
        ("[]]]", None, "]"),
        ("[]][[]", None, "]["),
        ("[\u2600]", None, "\u2600"),
    ],
)
def test_names(text: str, section: str | None, name: str) -> None:
    assert words(text) == [(section, name)]


@pytest.mark.parametrize("text", ["[a", "[a[b]", "[a]b]", "[a\n]", "[\x7f]"])
def test_a_delimited_name_has_an_end_and_no_control_characters(text: str) -> None:
    with pytest.raises(FilterError):
        sql_parser.tokenize(text)


@pytest.mark.parametrize(
    "word",
    [
        *("and", "Or", "not", "like", "escape", "in", "is", "null", "true", "False"),
        *("utc", "date", "upper", "EXISTS"),
    ],
)
def test_reserved_words_are_no_names(word: str) -> None:
    """Their case is ignored; the error shows how to write the property."""
    with pytest.raises(FilterError, match=rf"reserved word; .*\[{word}\]"):
        sql_parser.tokenize(word)


@pytest.mark.parametrize(
    "text",
    ["application-properties.to", "message-annotations.x", "delivery-annotations.x", "message-properties.x"],
)
def test_a_hyphen_in_a_section_is_an_error(text: str) -> None:
    """It would be a subtraction, and never match."""
    with pytest.raises(FilterError, match="with an underscore"):
        sql_parser.tokenize(text)


@pytest.mark.parametrize(
    "text", ["!", "a ! b", "$a", "a$b", "@", "'abc", '"abc', "'a''", "a; b", "'\ud800'", "[\udcff]"]
)
def test_anything_else_is_an_error_with_its_place_words(text: str) -> None:
    """The message counts the place from 1."""
    with pytest.raises(FilterError, match=r"\(at character \d+\)") as caught:
        sql_parser.tokenize(text)
    assert f"(at character {caught.value.position + 1})" in str(caught.value)


def test_an_expression_has_at_most_4096_characters() -> None:
    assert len(words("'" + "\u2600" * (sql_parser.CHARACTERS_MAX - 2) + "'")) == 1
    with pytest.raises(FilterError, match="4097 characters long; 4096 are allowed"):
        sql_parser.tokenize("'" + "\u2600" * (sql_parser.CHARACTERS_MAX - 1) + "'")


def test_an_expression_has_at_most_200_tokens() -> None:
    assert len(words("+" * sql_parser.TOKENS_MAX)) == 200
    with pytest.raises(FilterError, match="201 tokens; 200 are allowed"):
        sql_parser.tokenize("+" * (sql_parser.TOKENS_MAX + 1))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("abc", ["abc"], ["", "ab", "abcd", "Abc", "xabc"]),
        ("", [""], ["a"]),
        ("%", ["", "a", "\n", "a%"], []),
        ("%%%", ["", "abc"], []),
        ("_", ["a", "\u2600", "\U0001f955", "\n", "%"], ["", "ab"]),
        ("___", ["abc"], ["ab", "abcd"]),
        ("a%", ["a", "ab", "a\nb"], ["", "ba"]),
        ("%a", ["a", "ba"], ["", "ab"]),
        ("%b%", ["b", "abc"], ["", "ac"]),
        ("a%a", ["aa", "aba", "a a a"], ["a", "ab", "ba"]),
        ("ab%ba", ["abba", "abxba"], ["aba", "ab", "ba"]),
        ("a_c", ["abc", "a_c"], ["ac", "abbc"]),
        ("%_%", ["a", "ab"], [""]),
        ("_%_", ["ab", "abc"], ["a", ""]),
        ("%a_c%e", ["abcde", "xxacce", "a1ca2ce"], ["abcd", "ace", "abce?"]),
        ("%aab%aab%", ["aaabaaab"], ["aaab", "aabab"]),
        ("%ab%ba%", ["abba", "xabxbax"], ["xxabaxx", "baxab"]),
        ("a%b%c", ["abc", "a1b2c", "abbcc"], ["acb", "ab", "bc"]),
        ("_a%a_", ["xaay", "xabcay"], ["xay", "aa"]),
        (".*[x](y)^$|\\?+{}#", [".*[x](y)^$|\\?+{}#"], ["..*"]),
        ("_.*", ["a.*"], ["abc"]),
    ],
)
def test_underscore_is_one_character_and_percent_any_number(
    pattern: str, yes: list[str], no: list[str]
) -> None:
    """A character is a Unicode character; all other characters match themselves."""
    matches = compile_like(pattern, None)
    assert [text for text in yes if not matches(text)] == []
    assert [text for text in no if matches(text)] == []


@pytest.mark.parametrize(
    ("pattern", "escape", "yes", "no"),
    [
        ("!_%", "!", ["_", "_x"], ["x", ""]),
        ("!%!!", "!", ["%!"], ["x!", "%"]),
        ("!a", "!", ["a"], ["!a"]),
        ("%%x", "%", ["%x"], ["xx"]),
        ("__x", "_", ["_x"], ["ax"]),
        ("\u2600%", "\u2600", ["%"], ["x"]),
        ("a\\_%", "\\", ["a_", "a_b"], ["ab"]),
    ],
)
def test_the_escape_character_takes_the_meaning_of_the_next_one(
    pattern: str, escape: str, yes: list[str], no: list[str]
) -> None:
    """It escapes any character, itself included; without ESCAPE there is none."""
    matches = compile_like(pattern, escape)
    assert [text for text in yes if not matches(text)] == []
    assert [text for text in no if matches(text)] == []
    assert not compile_like("!_", None)("_")


@pytest.mark.parametrize("pattern", ["!", "a!", "%!", "!!!"])
def test_a_pattern_does_not_end_with_the_escape_character(pattern: str) -> None:
    with pytest.raises(FilterError, match="ends with the escape character"):
        compile_like(pattern, "!")


@pytest.mark.parametrize("pattern", ["\n", "a\r", "%\x00", "_\x1f", "!\x7f"])
def test_a_pattern_has_no_control_characters(pattern: str) -> None:
    with pytest.raises(FilterError, match="control character"):
        compile_like(pattern, "!")


@pytest.mark.parametrize(
    "pattern",
    [
        "%" + "a" * 2000 + "_b%",
        "%" + "a_" * 1000 + "b%",
        "%a" * 2000 + "%b",
        "%a_" * 1300 + "%b%",
        "_%" * 2000 + "b",
        "%" + "_" * 4000 + "b%",
    ],
    ids=["literal", "holes", "segments", "many", "alternating", "underscores"],
)
def test_no_pattern_makes_the_search_explode(pattern: str) -> None:
    """The test ends even for a text that nearly matches."""
    assert not compile_like(pattern, None)("a" * 100_000)


def test_the_way_for_long_texts_finds_what_the_short_one_finds() -> None:
    matches = compile_like("%b_" + "a" * 60 + "_c%", None)
    noise = "ab" * 2000
    hit = "bx" + "a" * 60 + "yc"
    assert matches(hit)
    assert matches(noise + hit + noise)
    assert not matches(noise + hit[:-1] + noise)
    assert not matches(noise)


@pytest.mark.parametrize(
    ("pattern", "escape", "part"),
    [
        ("abc", None, "abc"),
        ("ab%abc%_", None, "abc"),
        ("ab_abc", None, "abc"),
        ("%_%", None, ""),
        ("", None, ""),
        ("a!%b%xy", "!", "a%b"),
    ],
)
def test_the_longest_part_is_in_every_match(pattern: str, escape: str | None, part: str) -> None:
    """The part excludes the wildcard characters."""
    assert longest_part(pattern, escape) == part
