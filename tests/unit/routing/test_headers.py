"""Headers exchanges."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from amqp10broker.errors import InvalidArgument
from tests.support.topologies import Small


class Int8(int):
    """As a protocol's own integer."""


def matches(arguments: Mapping[str, object], headers: Mapping[str, object]) -> bool:
    """Bind one queue with arguments and route a message with headers."""
    small = Small("q")
    small.bind("amq.headers", "q", "ignored", arguments)
    return small.route("amq.headers", "key", headers=headers) == ("q",)


@pytest.mark.rabbitmq("exchanges_SUITE", "headers_exchange")
@pytest.mark.parametrize("mode", [{}, {"x-match": "all"}, {"x-match": b"all"}])
def test_all_is_the_default_and_wants_every_header(mode: dict[str, object]) -> None:
    """Without x-match, or with all, each argument must be met; further headers do not matter."""
    wanted = {"type": "car", "size": 4, **mode}
    assert matches(wanted, {"type": "car", "size": 4, "more": 1})
    assert not matches(wanted, {"type": "car"})
    assert not matches(wanted, {"type": "car", "size": 5})
    assert not matches(wanted, {})


@pytest.mark.parametrize(
    ("mode", "matched"), [("all", True), ("all-with-x", True), ("any", False), ("any-with-x", False)]
)
def test_nothing_to_compare(mode: str, matched: bool) -> None:
    """Without arguments all of none are met, but not any of none."""
    assert matches({"x-match": mode}, {"a": 1}) is matched
    assert matches({"x-match": mode}, {}) is matched


def test_x_keys_are_not_compared_in_all_and_any() -> None:
    """Arguments that begin with x- count only in the two modes that say so."""
    headers = {"x-a": "1", "b": "2"}
    assert matches({"x-match": "all", "x-a": "other", "b": "2"}, headers)
    assert not matches({"x-match": "all-with-x", "x-a": "other", "b": "2"}, headers)
    assert matches({"x-match": "all-with-x", "x-a": "1", "b": "2"}, headers)
    assert not matches({"x-match": "any", "x-a": "1", "b": "other"}, headers)
    assert matches({"x-match": "any-with-x", "x-a": "1", "b": "other"}, headers)
    assert not matches({"x-match": "any-with-x", "x-a": "other", "b": "other"}, headers)


@pytest.mark.parametrize("mode", ["all", "any"])
def test_void_asks_for_presence_only(mode: str) -> None:
    """A void argument is met by any value of that header, and not by its absence."""
    wanted = {"x-match": mode, "a": None}
    assert matches(wanted, {"a": 1})
    assert matches(wanted, {"a": None})
    assert not matches(wanted, {"b": 1})


@pytest.mark.parametrize(
    ("given", "matched"), [(1, True), (Int8(1), True), (1.0, False), (True, False), ("1", False)]
)
def test_types_must_match(given: object, matched: bool) -> None:
    """An integer argument is met by that integer of any width, and by nothing else that looks like it."""
    assert matches({"a": 1}, {"a": given}) is matched


def test_bad_x_match_value_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Small("q").bind("amq.match", "q", "", {"x-match": "bogus"})
    assert refusal.value.description == (
        "Invalid x-match field value 'bogus'; expected all, any, all-with-x, or any-with-x"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [(23, "signedint (value 23)"), (Int8(1), "byte (value 1)"), (True, "bool (value true)")],
)
def test_bad_x_match_type_is_refused(value: object, written: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Small("q").bind("amq.match", "q", "", {"x-match": value})
    assert refusal.value.description == f"Invalid x-match field type {written}; expected longstr"


def test_headers_are_not_asked_for_without_bindings() -> None:
    small = Small()

    def headers() -> Mapping[str, object]:
        raise AssertionError("asked")

    found = small.topology.lookup_exchange("amq.headers")
    assert small.topology.route(found, ("k",), headers) == ((), False)
