"""What a client that follows paths may ask, and is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqp10broker.api.live import BODY_BYTES_MAX, Following, Latest, difference, refusal_of, refused_event
from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused


def read(query: str, interval_ms: int = 5000) -> Following:
    return Following.read(HttpRequest.read(b"GET", b"/api/live?" + query.encode(), []), interval_ms)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "give 1 to 8 paths"),
        ("&".join(["path=/overview"] * 9), "give 1 to 8 paths"),
        ("path=overview", "'overview' is no path below /api"),
        ("path=http://elsewhere/", "is no path below /api"),
        ("path=/overview&interval=99", "interval must be 100 to 600000"),
        ("path=/overview&interval=600001", "interval must be 100 to 600000"),
        ("path=/overview&interval=soon", "must be a whole number"),
        ("path=/%25FF", "not UTF-8"),
    ],
)
def test_what_cannot_be_followed_is_refused(query: str, reason: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        read(query)
    assert caught.value.answer.status == 400
    assert reason in json.loads(caught.value.answer.body)["reason"]


def told(text: str) -> tuple[str, Any]:
    name, data, *_ = text.split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def many(count: int) -> list[dict[str, Any]]:
    return [{"name": f"q{number}", "vhost": "/", "messages": number} for number in range(count)]


def test_the_first_value_is_told_whole_and_then_what_changes() -> None:
    latest = Latest()
    assert latest.heard(HttpResponse.of_json({"items": many(50), "page": 1}))
    first = latest.value
    assert told(latest.told(3, None, anything=False)) == ("whole", {"id": 3, "value": first})
    assert not latest.heard(HttpResponse.of_json({"page": 1, "items": many(50)}))
    after = {"items": [*many(49), {"name": "new", "vhost": "/", "messages": 7}], "page": 1}
    assert latest.heard(HttpResponse.of_json(after))
    name, data = told(latest.told(3, first, anything=True))
    assert name == "delta"
    assert data == {"id": 3, "change": difference(first, after)}
    assert data["change"]["members"].keys() == {"items"}
    assert data["change"]["members"]["items"]["order"][-1] == [after["items"][-1]]


def test_one_who_has_missed_some_values_hears_of_all_changes_at_once() -> None:
    latest = Latest()
    latest.heard(HttpResponse.of_json(many(50)))
    old = latest.value
    for messages in (100, 200):
        latest.heard(
            HttpResponse.of_json([{**each, "messages": messages} for each in many(2)] + many(50)[2:])
        )
    name, data = told(latest.told(0, old, anything=True))
    assert (name, data["change"]) == ("delta", difference(old, latest.value))
    assert len(data["change"]["rows"]) == 2


def test_a_difference_that_is_longer_than_the_whole_is_not_told() -> None:
    latest = Latest()
    latest.heard(HttpResponse.of_json(many(3)))
    old = latest.value
    latest.heard(HttpResponse.of_json([]))
    assert told(latest.told(0, old, anything=True))[0] == "whole"


def test_a_refusal_is_news_once_and_what_was_known_is_forgotten() -> None:
    refusal = RequestRefused(404, "not_found", "it is gone").answer
    latest = Latest()
    latest.heard(HttpResponse.of_json([1]))
    assert latest.heard(refusal)
    assert not latest.heard(refusal)
    assert latest.refusal is not None
    assert told(refused_event(1, latest.refusal)) == (
        "refused",
        {"id": 1, "status": 404, "error": "not_found", "reason": "it is gone"},
    )
    assert latest.heard(HttpResponse.of_json([1]))
    assert told(latest.told(1, None, anything=False))[0] == "whole"


def test_what_is_too_large_or_no_json_is_refused() -> None:
    large = refusal_of(HttpResponse.of_json("x" * BODY_BYTES_MAX))
    assert large is not None
    assert "follow a page of it" in large["reason"]
    other = refusal_of(HttpResponse(200, (("content-type", "text/plain"),), b"x"))
    assert other is not None
    assert "as JSON" in other["reason"]
    assert refusal_of(HttpResponse(405)) == {"status": 405, "error": "", "reason": "Method Not Allowed"}
