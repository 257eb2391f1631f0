"""Regular expressions of users, and the bound of their search."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata import patterns
from tests.support.examples import tried


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        (".*", "orders", True),
        ("orders", "my-orders-2", True),
        ("^orders$", "my-orders", False),
        ("^orders", "orders.eu", True),
        ("", "orders", False),
        ("^$", "orders", False),
        ("", "", False),
        ("", "\n", False),
        ("^(amq\\.gen.*|amq\\.default)$", "amq.gen-xyz", True),
        ("^[[:alpha:]]+$", "orders", True),
        ("^[[:alpha:]]+$", "orders2", False),
        ("^[[:word:].]+$", "a_1.b", True),
        ("(?i)^ORDERS$", "orders", True),
        ("^(?!secret)", "secret.1", False),
        ("^(?!secret)", "public.1", True),
        ("orders\\z", "my-orders", True),
        ("orders\\z", "orders-2", False),
        ("^a++b$", "aaab", True),
    ],
)
def test_a_pattern_is_searched_for_anywhere(pattern: str, name: str, found: bool) -> None:
    """It is unanchored as in PCRE; the empty one matches no name."""
    assert patterns.matches(patterns.check_pattern(pattern, "p"), name) is found


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{2,1}", "(?<x", "[a&&b]"])
def test_what_cannot_be_read_is_refused(pattern: str) -> None:
    """This includes syntax that will change in Python."""
    with pytest.raises(InvalidArgument, match="^p: '.*' is not a regular expression: "):
        patterns.check_pattern(pattern, "p")


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("^([a-z]+\\.?)+$", "a" * 27, True),
        ("^([a-z]+\\.?)+$", "a" * 254 + "!", False),
        ("^(orders|events)\\.(.+)\\.(.+)$", "orders.eu.new", True),
        ("^(orders|events)\\.(.+)\\.(.+)$", "orders.eu", False),
        ("^(?!amq\\.)(.*)\\.(.*)$", "amq.gen.1", False),
        ("^([[:alpha:]]+\\.?)+\\z", "orders.eu", True),
    ],
)
def test_no_name_makes_a_search_long(pattern: str, name: str, found: bool) -> None:
    """Patterns with many ways through a name mean the same, and are searched for in bounded time."""
    patterns.check_bounded([pattern], "p")
    assert patterns.matches(patterns.check_pattern(pattern, "p"), name) is found


def test_what_might_take_for_ever_is_refused_when_it_is_set() -> None:
    """A pattern that was stored before matches no name."""
    hopeless = "^(.*)-(.*)-\\1$"
    assert patterns.check_pattern(hopeless, "p") == hopeless
    assert not patterns.matches(hopeless, "a-b-a")
    with pytest.raises(InvalidArgument, match=r"^p: .* could take for ever to search for: it has a back ref"):
        patterns.check_bounded(["a", hopeless], "p")


def test_a_pattern_has_4096_characters_at_most() -> None:
    """A longer one that was stored before stays and matches no name."""
    long = "a" * (patterns.PATTERN_CHARACTERS_MAX + 1)
    assert patterns.check_pattern(long, "p") == long
    assert not patterns.matches(long, "a" * 1000)
    assert patterns.matches(long[1000:], "b") is False
    with pytest.raises(InvalidArgument, match=r"^p: 'a{200}\.\.\.' could take for ever .* longer than 4096"):
        patterns.check_bounded([long], "p")


def test_a_pattern_that_is_none_any_more_finds_nothing() -> None:
    """A topic permission may become one when a user's name is put into a class."""
    assert not patterns.matches("[z-\\.]", "z")
    assert patterns.fault_of("[z-\\.]") is not None
    assert patterns.fault_of("^orders") is None


def test_nothing_is_found_in_a_name_of_more_than_1024_characters() -> None:
    """A subject of AMQP 1.0 can be as long as its message."""
    assert patterns.matches(".*", "a" * 1024)
    assert not patterns.matches(".*", "a" * 1025)


HOPELESS = [
    ("^([a-z]+\\.?)+$", "a" * 254 + "!"),
    ("(a*)*b", "a" * 255),
    ("^(a|a)*$", "a" * 254 + "b"),
    ("(x+x+)+y", "x" * 255),
    ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 255),
    (".*.*.*.*.*=", "=" * 0 + "a" * 255),
    ("^(?=(a+)+$)", "a" * 254 + "b"),
    ("(?:a?){40}a{40}$", "a" * 39),
    ("(?!(a|aa)+$)b", "a" * 255),
]
"""Patterns, each with a text for which `re` would try more ways than there is time."""


@pytest.mark.parametrize(("pattern", "text"), HOPELESS)
def test_what_re_would_never_end_is_answered(pattern: str, text: str) -> None:
    """The test passes if it ends."""
    assert not patterns.BoundedSearch(patterns.parsed(pattern))(text)[0]
    assert patterns.extent(patterns.parsed(pattern))[0] > 1024


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc", 1),
        ("^orders\\.", 1),
        (".*", 257),
        ("^(a|b|cd)-[0-9]+$", 768),
        ("a{3,5}", 3),
        ("(?:ab){2,9}", 8),
        ("^(?!amq\\.).*", 257),
        ("(ab|ba|cd){2}", 9),
        ("^(.+)-\\1$", 256),
        ("(?>a+)b", 256),
        ("a*+b", 257),
        ("(a)?(?(1)b|c*)", 516),
    ],
)
def test_ways_of_patterns_that_are_quick(pattern: str, expected: int) -> None:
    """A repetition has as many ways as rounds; parts in sequence multiply theirs."""
    assert patterns.extent(patterns.parsed(pattern))[0] == expected


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("^(.*)-(.*)-\\1$", "a back reference"),
        ("(a)?.*.*(?(1)b|c)", "a condition on a group"),
        (".*.*a++", "a possessive repetition"),
        (".*.*(?>a|b)*", "an atomic group"),
        (".{1,600}.{1,600}", f"it is larger than {patterns.STATES_MAX} characters"),
        ("((a{1,30}){1,30}){1,30}", f"it is larger than {patterns.STATES_MAX} characters"),
    ],
)
def test_what_cannot_be_followed_is_said(pattern: str, what: str) -> None:
    """The error names the unsupported construct only; the pattern is a valid regular expression."""
    re.compile(pattern)
    with pytest.raises(patterns.Unbounded, match=re.escape(what)):
        patterns.BoundedSearch(patterns.parsed(pattern))


@pytest.mark.parametrize("pattern", ["(){400000000}.*.*x", "(?:(){60000}){60000}(?:a|)*x"])
def test_rounds_with_nothing_in_them_are_not_gone(pattern: str) -> None:
    """The test passes if it ends."""
    assert patterns.BoundedSearch(patterns.parsed(pattern))("aax")[0]
    assert patterns.steps(patterns.parsed(pattern)) > 1 << 20


@pytest.mark.parametrize(
    "pattern",
    ["(?:(?:a|a)){10}" + "[ab]" * 100 + "x", ".*" + "a" * 200 + "b", "(){400000000}x", "(?=a){4000000}b"],
)
def test_few_ways_with_much_on_each_are_many_steps(pattern: str) -> None:
    """`re` would take a hundredth of a second for a name, or for ever."""
    assert patterns.steps(patterns.parsed(pattern)) > 1 << 20


@pytest.mark.parametrize("pattern", ["^orders\\..*", "orders.*new", "^(a|b|cd)-[0-9]+$", "^(?!amq\\.).*"])
def test_patterns_as_people_write_them_are_few_steps(pattern: str) -> None:
    assert patterns.steps(patterns.parsed(pattern)) < 1 << 20


def test_a_search_is_given_up_after_so_many_steps() -> None:
    search = patterns.BoundedSearch(patterns.parsed("^([a-z]+\\.?)+$"))
    found, made = search("a" * 255)
    assert found
    assert search("a" * 255, made) == (True, made)
    with pytest.raises(patterns.TooManySteps):
        search("a" * 255, made // 2)


ATOMS = [
    "a", "b", "ab", ".", "[ab]", "[^a]", "\\w", "\\W", "\\s", "^", "$", "\\b", "\\B", "\\A", "\\Z",
    "(?m:^)", "(?m:$)", "(?s:.)", "(?=a)", "(?!b)", "(?<=a)", "(?<!ab)", "(?i:A)", "(?i:[a-b])", "(?!)",
    "(?a:\\w)", "é",
]  # fmt: skip
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}", "{2,}", "{0}"]


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joined = st.lists(inner, min_size=1, max_size=3).map("".join)
    either = st.lists(joined, min_size=2, max_size=3).map("|".join)
    return st.one_of(
        joined,
        either.map(lambda text: f"({text})"),
        either.map(lambda text: f"(?:{text})"),
        either.map(lambda text: f"(?={text})"),
        either.map(lambda text: f"(?!{text})"),
        either.map(lambda text: f"(?i:{text})"),
        st.tuples(either.map(lambda text: f"(?:{text})"), st.sampled_from(REPEATS)).map("".join),
    )


PATTERNS = st.recursive(st.sampled_from(ATOMS), _larger, max_leaves=8)


@settings(max_examples=tried(400), deadline=None)
@given(pattern=PATTERNS, texts=st.lists(st.text("abA\n é-", max_size=8), min_size=1, max_size=5))
def test_it_finds_what_re_finds(pattern: str, texts: list[str]) -> None:
    search = patterns.BoundedSearch(patterns.parsed(pattern))
    for text in texts:
        assert search(text)[0] is (re.search(pattern, text) is not None), (pattern, text)
