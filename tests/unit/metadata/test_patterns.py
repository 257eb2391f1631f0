"""Administrators' regular expressions mean what they mean to RabbitMQ."""

from __future__ import annotations

import pytest

from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata import patterns
from amqp10broker.metadata.patterns import check_bounded, check_pattern, fault_of, matches


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
    """Unanchored as PCRE is, and the empty one finds nothing."""
    assert matches(check_pattern(pattern, "p"), name) is found


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{2,1}", "(?<x", "[a&&b]"])
def test_what_cannot_be_read_is_refused(pattern: str) -> None:
    """Also what a later Python will read otherwise."""
    with pytest.raises(InvalidArgument, match="^p: '.*' is not a regular expression: "):
        check_pattern(pattern, "p")


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
    check_bounded([pattern], "p")
    assert matches(check_pattern(pattern, "p"), name) is found


def test_what_might_take_for_ever_is_refused_when_it_is_set() -> None:
    """And finds nothing where it stands from before."""
    hopeless = "^(.*)-(.*)-\\1$"
    assert check_pattern(hopeless, "p") == hopeless
    assert not matches(hopeless, "a-b-a")
    with pytest.raises(InvalidArgument, match=r"^p: .* could take for ever to search for: it has a back ref"):
        check_bounded(["a", hopeless], "p")


def test_a_pattern_has_4096_characters_at_most() -> None:
    """A longer one from before stays and finds nothing."""
    long = "a" * (patterns.PATTERN_CHARACTERS_MAX + 1)
    assert check_pattern(long, "p") == long
    assert not matches(long, "a" * 1000)
    assert matches(long[1000:], "b") is False
    with pytest.raises(InvalidArgument, match=r"^p: 'a{200}\.\.\.' could take for ever .* longer than 4096"):
        check_bounded([long], "p")


def test_a_pattern_that_is_none_any_more_finds_nothing() -> None:
    """As a topic permission with a user's name in a class may become."""
    assert not matches("[z-\\.]", "z")
    assert fault_of("[z-\\.]") is not None
    assert fault_of("^orders") is None


def test_nothing_is_found_in_a_name_of_more_than_1024_characters() -> None:
    """A subject of AMQP 1.0 can be as long as its message."""
    assert matches(".*", "a" * 1024)
    assert not matches(".*", "a" * 1025)
