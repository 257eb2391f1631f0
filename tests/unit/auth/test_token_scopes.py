"""Scopes of tokens: what they allow, and why some allow nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.auth.tokens import TokenGrants, Wildcard, read_scopes

VARIABLES = {"sub": "ann", "team": "a/b*"}


def grants(*scopes: str, prefix: str = "") -> TokenGrants:
    return TokenGrants("ann", read_scopes(scopes, prefix, VARIABLES), None)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("", "", True),
        ("", "a", False),
        ("a*", "a", True),
        ("a*", "abc", True),
        ("*c", "abc", True),
        ("a*c", "abc", True),
        ("a*c", "ac", True),
        ("a*a", "a", False),
        ("a*b*c", "axbxc", True),
        ("a*b*c", "acb", False),
        ("*ab*ab*", "ab", False),
        ("*ab*ab*", "xabab", True),
        ("%2F", "/", True),
        ("%2A", "*", True),
        ("%2A", "x", False),
        ("a**b", "ab", True),
        ("a.b", "axb", False),
    ],
)
def test_a_star_stands_for_any_text(pattern: str, text: str, matches: bool) -> None:
    assert Wildcard.read(pattern).matches(text) is matches


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=5).map("*".join), st.text("abc", max_size=12))
def test_a_wildcard_means_what_the_regular_expression_means(pattern: str, text: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert Wildcard.read(pattern).matches(text) is (re.fullmatch(expression, text) is not None)


def test_a_scope_allows_its_operation_on_its_names_in_its_virtual_host() -> None:
    ann = grants("read:v/q*", "write:v/x", "configure:*/own-*")
    assert ann.allows("read", "v", "q1")
    assert not ann.allows("write", "v", "q1")
    assert not ann.allows("read", "w", "q1")
    assert ann.allows("configure", "w", "own-1")
    assert not ann.allows("configure", "w", "other")


def test_a_key_may_name_the_virtual_host_and_claims() -> None:
    ann = grants("write:*/x/{vhost}.{sub}.*", "write:*/y/{team}")
    assert ann.allows_topic("write", "v", "x", "v.ann.1")
    assert not ann.allows_topic("write", "w", "x", "v.ann.1")
    assert not ann.allows_topic("write", "v", "x", "v.bob.1")
    assert ann.allows_topic("write", "v", "y", "a/b*")
    assert not ann.allows_topic("write", "v", "y", "a/bc"), "a star of a claim is a star"


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        ("other.read:v/q", "does not begin with 'rabbitmq.'"),
        ("rabbitmq.openid", "has no colon"),
        ("rabbitmq.delete:v/q", "'delete' is none of configure, write, read, tag"),
        ("rabbitmq.read:v", "two parts or three"),
        ("rabbitmq.read:v/q/k/more", "two parts or three"),
        ("rabbitmq.read:%FF/q", "not UTF-8"),
        ("rabbitmq.read:v/q/{nobody}", "no claim of the token, that is a text, is called 'nobody'"),
    ],
)
def test_a_scope_that_means_nothing_is_dropped_and_it_is_said_why(scope: str, why: str) -> None:
    granted = read_scopes([scope, "rabbitmq.read:v/q"], "rabbitmq.", VARIABLES)
    assert len(granted.scopes) == 1
    ((dropped, reason),) = granted.dropped
    assert dropped == scope
    assert why in reason


def test_another_token_counts_from_then_on_and_answers_are_stale() -> None:
    ann = grants("read:v/q")
    before = ann.changes.version
    ann.renew(TokenGrants("ann", read_scopes(["read:v/r"], "", {}), 5.0))
    assert ann.changes.version != before
    assert ann.allows("read", "v", "r")
    assert not ann.allows("read", "v", "q")
    assert ann.expires_at == 5.0
