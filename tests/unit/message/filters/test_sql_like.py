"""LIKE: patterns, and what they match."""

from __future__ import annotations

import pytest

from amqp10broker.message.filters.fields import FilterError
from amqp10broker.message.filters.sql_eval import compile_like, longest_part


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
    """A character is one of Unicode; everything else stands for itself."""
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
    """Of any, itself included; without ESCAPE there is no such character."""
    matches = compile_like(pattern, escape)
    assert [text for text in yes if not matches(text)] == []
    assert [text for text in no if matches(text)] == []
    assert not compile_like("!_", None)("_")


@pytest.mark.parametrize("pattern", ["!", "a!", "%!", "!!!"])
def test_a_pattern_does_not_end_with_the_escape_character(pattern: str) -> None:
    """There is nothing for it to escape."""
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
    """Not on a text either that is as like it as can be: this test ends."""
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
    """Without the characters that stand for others."""
    assert longest_part(pattern, escape) == part
