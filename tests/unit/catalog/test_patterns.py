"""Administrators' regular expressions mean what they mean to RabbitMQ."""

from __future__ import annotations

import pytest

from amqp10broker.catalog.patterns import check_pattern, matches
from amqp10broker.errors import InvalidArgument


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
