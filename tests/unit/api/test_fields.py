"""Bodies of requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from amqp10broker.api.fields import flag, integer, read_object, require
from amqp10broker.api.messages import RequestRefused


def reason(act: Callable[[], Any]) -> str:
    with pytest.raises(RequestRefused) as refused:
        act()
    assert refused.value.answer.status == 400
    body = json.loads(refused.value.answer.body)
    assert body["error"] == "bad_request"
    assert isinstance(body["reason"], str)
    return str(body["reason"])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="cut"),
        pytest.param(b"\xff", id="no UTF-8"),
        pytest.param(b'{"a":NaN}', id="NaN"),
        pytest.param(b'{"a":"\\ud800"}', id="half of a pair"),
        pytest.param(b'{"\\ud800":1}', id="half of a pair as a key"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="a number of 5000 digits"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    assert reason(lambda: read_object(body)) == "not_json"


def test_all_missing_keys_are_named() -> None:
    given = {"configure": ""}
    assert reason(lambda: require(given, "write", "configure", "read")) == (
        "[{key_missing,write},{key_missing,read}]"
    )
    require(given, "configure")


def test_flags_may_be_strings() -> None:
    given = {"a": True, "b": "false", "c": "yes", "d": 1, "e": None}
    assert flag(given, "a", False)
    assert not flag(given, "b", True)
    assert flag(given, "none", True)
    for key in "cde":
        assert key in reason(lambda key=key: flag(given, key, True))  # type: ignore[misc]


def test_integers_may_be_strings_of_digits() -> None:
    given = {"a": 5, "b": "-12", "c": True, "d": "1.5", "e": 1.5, "f": "9" * 5000}
    assert integer(given, "a", 0) == 5
    assert integer(given, "b", 0) == -12
    assert integer(given, "none", 7) == 7
    for key in "cdef":
        assert key in reason(lambda key=key: integer(given, key, 0))  # type: ignore[misc]
