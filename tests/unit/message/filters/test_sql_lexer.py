"""The words of an SQL filter."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.message.filters.fields import FilterError
from amqp10broker.message.filters.sql_parser import CHARACTERS_MAX, TOKENS_MAX, tokenize


def words(text: str) -> list[Any]:
    return [token.value for token in tokenize(text)[:-1]]


@pytest.mark.parametrize("space", [" ", "\t", "\f", "\n", "\r", " \r\n\t "])
def test_white_space_is_that_of_java(space: str) -> None:
    """Space, tab, form feed, line feed and carriage return, and no other."""
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
    """Of the type that they are written in."""
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
    """Regular ones, those with a section, and delimited ones, in which a bracket is doubled."""
    assert words(text) == [(section, name)]


@pytest.mark.parametrize("text", ["[a", "[a[b]", "[a]b]", "[a\n]", "[\x7f]"])
def test_a_delimited_name_has_an_end_and_no_control_characters(text: str) -> None:
    """A single bracket in it is an error, too."""
    with pytest.raises(FilterError):
        tokenize(text)


@pytest.mark.parametrize(
    "word",
    [
        "and",
        "Or",
        "not",
        "like",
        "escape",
        "in",
        "is",
        "null",
        "true",
        "False",
        "utc",
        "date",
        "upper",
        "EXISTS",
    ],
)
def test_reserved_words_are_no_names(word: str) -> None:
    """In no case; the error says how to write the property."""
    with pytest.raises(FilterError, match=rf"reserved word; .*\[{word}\]"):
        tokenize(word)


@pytest.mark.parametrize(
    "text",
    ["application-properties.to", "message-annotations.x", "delivery-annotations.x", "message-properties.x"],
)
def test_a_hyphen_in_a_section_is_an_error(text: str) -> None:
    """It would be a subtraction, and never match."""
    with pytest.raises(FilterError, match="with an underscore"):
        tokenize(text)


@pytest.mark.parametrize(
    "text", ["!", "a ! b", "$a", "a$b", "@", "'abc", '"abc', "'a''", "a; b", "'\ud800'", "[\udcff]"]
)
def test_anything_else_is_an_error_with_its_place(text: str) -> None:
    """The place is counted from 1 in the message."""
    with pytest.raises(FilterError, match=r"\(at character \d+\)") as caught:
        tokenize(text)
    assert caught.value.position is not None
    assert f"(at character {caught.value.position + 1})" in str(caught.value)


def test_an_expression_has_at_most_4096_characters() -> None:
    assert len(words("'" + "\u2600" * (CHARACTERS_MAX - 2) + "'")) == 1
    with pytest.raises(FilterError, match="4097 characters long; 4096 are allowed"):
        tokenize("'" + "\u2600" * (CHARACTERS_MAX - 1) + "'")


def test_an_expression_has_at_most_200_tokens() -> None:
    assert len(words("+" * TOKENS_MAX)) == 200
    with pytest.raises(FilterError, match="201 tokens; 200 are allowed"):
        tokenize("+" * (TOKENS_MAX + 1))
