"""What bodies of requests and answers hold: fields, lists in pages, rates, live values."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
import trio

from amqp10broker.api import calls
from amqp10broker.api import samples as module
from amqp10broker.api.calls import ListQuery
from amqp10broker.api.endpoints.exchanges import location, properties_key
from amqp10broker.api.live import BODY_BYTES_MAX, Following, Latest, difference, refusal_of, refused_event
from amqp10broker.api.messages import (
    HttpRequest,
    HttpResponse,
    RequestRefused,
    flag,
    integer,
    read_object,
    require,
)
from amqp10broker.api.samples import RateSamples, Series, Span, client_stats, queue_stats
from amqp10broker.errors import InvalidArgument
from amqp10broker.protocols.amqp10.types import Float
from amqp10broker.queues.queue_status import Consumption, QueueConsumption, QueueCounters, tally
from amqp10broker.routing.exchange import Binding, Destination

QUEUES: list[dict[str, Any]] = [
    {"name": "a.1", "messages": 3, "owner": {"name": "x", "port": 1}},
    {"name": "a.2", "messages": 10, "owner": {"name": "z", "port": 2}},
    {"name": "b.1", "messages": 2},
    {"name": "b.2", "messages": 7, "owner": {"name": "y", "port": 3}},
    {"name": "c", "messages": 1},
]


class _FrontEnd:
    pauses = 0

    async def pause(self) -> None:
        self.pauses += 1
        await trio.lowlevel.checkpoint()


def list_of(items: list[dict[str, Any]], query: dict[str, str], *, paged: bool = True) -> Any:
    call: Any = SimpleNamespace(request=SimpleNamespace(query=query), broker_api=_FrontEnd())
    return json.loads(trio.run(partial(calls.listed, call, items, paged=paged)).body)


def listed(paged: bool = True, **query: str) -> Any:
    return list_of(QUEUES, query, paged=paged)


def names(items: Any) -> list[str]:
    return [item["name"] for item in items]


def refusal(**query: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(RequestRefused) as refused:
        listed(**query)
    return refused.value.answer.status, json.loads(refused.value.answer.body)


def test_columns_are_kept_and_go_into_objects() -> None:
    assert listed(columns="name,owner.port")[:3] == [
        {"name": "a.1", "owner": {"port": 1}},
        {"name": "a.2", "owner": {"port": 2}},
        {"name": "b.1"},
    ]


def test_values_of_several_types_have_an_order() -> None:
    items = [{"v": "s"}, {"v": {"a": 1}}, {"v": True}, {"v": None}, {"v": 1.5}, {}]
    assert ListQuery(sort="v").shown(items) == [
        {},
        {"v": 1.5},
        {"v": None},
        {"v": True},
        {"v": {"a": 1}},
        {"v": "s"},
    ]


def test_a_page_says_how_much_there_is() -> None:
    page = listed(page="2", page_size="2")
    assert names(page.pop("items")) == ["b.1", "b.2"]
    assert page == {
        "filtered_count": 5,
        "item_count": 2,
        "page": 2,
        "page_count": 3,
        "page_size": 2,
        "total_count": 5,
    }


def test_a_name_may_be_a_regular_expression() -> None:
    assert names(listed(page="1", name="^a|c$", use_regex="true")["items"]) == ["a.1", "a.2", "c"]
    assert names(listed(page="1", name="^a|c$")["items"]) == []


@pytest.mark.parametrize("pattern", ["(", "[", "(a+)+$"])
def test_an_expression_that_cannot_be_searched_with_finds_nothing_or_what_it_means(pattern: str) -> None:
    hostile = [{"name": "a" * 200 + "!"}]
    page = list_of(hostile, {"page": "1", "name": pattern, "use_regex": "true"})
    assert page["items"] == []
    assert page["page_count"] == 0


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * 10_200,
        "(.*)-(.*)-\\1",
        "(?:a|){400000000}x",
        "(?i)" + "[\x00-\uffff]" * 300,
    ],
)
def test_an_expression_that_is_too_long_to_search_with_is_refused(pattern: str) -> None:
    """It is refused when it is compiled, so also if the list is empty."""
    with pytest.raises(InvalidArgument, match="^name: .* could take for ever to search for"):
        list_of([], {"page": "1", "name": pattern, "use_regex": "true"})


def test_an_expression_is_searched_for_in_so_many_steps_of_all_names() -> None:
    """If names take many steps each, fewer of them are searched, and other tasks run meanwhile."""
    hostile = [{"name": "a" * 254 + "!"} for _ in range(10_000)]
    query = {"page": "1", "name": "^([a-z]+\\.?)+$", "use_regex": "true"}
    with pytest.raises(InvalidArgument, match="takes too long to search for in so many names"):
        list_of(hostile, query)
    assert list_of(hostile[:1000], query)["items"] == []
    assert (
        list_of([{"name": f"queue.{at}"} for at in range(10_000)], {**query, "name": "ue.*9$"})["items"] != []
    )


def test_others_run_while_names_are_searched() -> None:
    broker_api, hostile = _FrontEnd(), [{"name": "a" * 254 + "!"} for _ in range(100)]
    listing = ListQuery.read({"page": "1", "name": "^([a-z]+\\.?)+$", "use_regex": "true"}, paged=True)
    trio.run(listing.found, hostile, broker_api.pause)
    assert broker_api.pauses >= 3


def test_a_page_behind_the_last_is_refused_and_an_empty_list_has_its_first() -> None:
    assert refusal(page="99", page_size="2") == (
        400,
        {"error": "page_out_of_range", "reason": "Page out of range, page: 99 page size: 2, len: 5"},
    )
    assert listed(page="1", name="nothing")["page_count"] == 0
    assert refusal(page="2", name="nothing")[1]["error"] == "page_out_of_range"


@pytest.mark.parametrize(("page", "size"), [("0", "2"), ("1", "0"), ("1", "501")])
def test_pages_that_cannot_be_are_refused(page: str, size: str) -> None:
    status, body = refusal(page=page, page_size=size)
    assert (status, body["error"]) == (400, "invalid_pagination_parameters")


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
        pytest.param(b'{"a":1e999}', id="a number beyond all floats"),
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


QUEUE = Destination("queue", "a/b")


@pytest.mark.parametrize(
    ("routing_key", "key"),
    [("", "~"), ("order.#", "order.%23"), ("a b/ü", "a+b%2F%C3%BC"), ("~", "%7E"), ("plain", "plain")],
)
def test_a_key_is_the_routing_key_form_encoded(routing_key: str, key: str) -> None:
    assert properties_key(Binding("e", QUEUE, routing_key)) == key


def test_a_location_is_the_key_encoded_once_more() -> None:
    assert location(Binding("e", QUEUE, "order.#")) == "a%2Fb/order.%2523"
    destination, key = map(unquote, location(Binding("e", QUEUE, "a ~", {"x": "ü"})).split("/"))
    assert (destination, key) == ("a/b", properties_key(Binding("e", QUEUE, "a ~", {"x": "ü"})))


def test_the_last_of_equal_parameters_counts_and_blank_ones_stay() -> None:
    assert HttpRequest.read(b"GET", b"/?page=1&name=&page=2&q=a+b", ()).query == {
        "page": "2",
        "name": "",
        "q": "a b",
    }


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(b"*", id="no path"),
        pytest.param(b"ftp://host/api", id="another scheme"),
        pytest.param(b"/api/queues/%FF", id="no UTF-8 in the path"),
        pytest.param(b"/api?name=%FF", id="no UTF-8 in the query"),
        pytest.param(b"/api?name=\xff", id="bytes in the query"),
        pytest.param(b"/api?" + b"&".join(b"a=1" for _ in range(101)), id="too many parameters"),
    ],
)
def test_a_target_that_cannot_be_read_is_refused(target: bytes) -> None:
    with pytest.raises(RequestRefused) as refused:
        HttpRequest.read(b"GET", target, ())
    assert refused.value.answer.status == 400
    assert json.loads(refused.value.answer.body)["error"] == "bad_request"


def test_a_refusal_has_an_error_and_a_reason_that_is_a_string() -> None:
    answer = RequestRefused(404, "not_found", "vhost_not_found").answer
    assert json.loads(answer.body) == {"error": "not_found", "reason": "vhost_not_found"}
    assert answer.headers == (("content-type", "application/json"),)


def test_json_says_names_in_utf_8() -> None:
    assert HttpResponse.of_json({"name": "größe"}).body == '{"name":"größe"}'.encode()


def test_json_shows_numbers_that_are_not_finite_as_texts() -> None:
    shown = HttpResponse.of_json(
        {"a": float("nan"), "b": [1.5, float("-inf")], "c": {"d": Float(float("inf"))}}
    )
    assert json.loads(shown.body) == {"a": "nan", "b": [1.5, "-inf"], "c": {"d": "inf"}}


def test_what_has_no_json_form_is_a_fault() -> None:
    with pytest.raises(TypeError):
        HttpResponse.of_json(b"bytes")


class Consumer:
    """One that got messages in every way."""

    def __init__(self) -> None:
        self.counters = Consumption()
        for number, name in enumerate(self.counters.names, 1):
            setattr(self.counters, name, number)

    def counted(self) -> Consumption:
        return self.counters


def test_what_was_published_and_what_was_delivered_are_groups() -> None:
    counters, consumption = QueueCounters(), QueueConsumption()
    counters.published = 3
    assert queue_stats(tally(counters, consumption)) == {"publish": 3}
    counters.published = 0
    consumption.join(Consumer().counted)
    assert queue_stats(tally(counters, consumption)) == {
        "deliver": 1,
        "deliver_no_ack": 2,
        "get": 3,
        "get_no_ack": 4,
        "redeliver": 5,
        "get_empty": 6,
        "ack": 7,
        "deliver_get": 1 + 2 + 3 + 4,
    }


def test_what_clients_published_was_confirmed_returned_or_dropped() -> None:
    assert client_stats({}) == {}
    assert client_stats({"published": 5, "confirmed": 2, "unroutable": 3, "returned": 1}) == {
        "publish": 5,
        "confirm": 2,
        "return_unroutable": 1,
        "drop_unroutable": 2,
    }
    assert client_stats({"got": 1})["deliver_get"] == 1
    assert client_stats({"got_nothing": 2})["get_empty"] == 2


INTERVAL_MS = 5_000


def looked(*looks: tuple[int, int]) -> Series:
    """Return the series of an object with a value x; a look is milliseconds and the value."""
    samples = RateSamples(INTERVAL_MS)
    for now_ms, value in looks:
        series = samples.look("key", now_ms, {"x": value})
    return series


def rate(*looks: tuple[int, int]) -> float:
    return float(looked(*looks).details("x", None)["rate"])


def test_a_rate_is_what_changed_between_two_looks() -> None:
    assert rate((0, 100)) == 0.0
    assert rate((0, 100), (5_000, 150)) == 10.0
    assert rate((0, 100), (5_000, 150), (35_000, 90)) == -2.0


def test_looks_within_an_interval_are_one() -> None:
    """A page that polls every second does not get an entry for every second."""
    assert rate((0, 0), (1_000, 50)) == 0.0
    assert rate((0, 0), (5_000, 50), (6_000, 1_000), (9_900, 2_000)) == 10.0


def test_a_history_has_the_samples_newest_first() -> None:
    series = looked(*((number * 5_000, number * 10) for number in range(5)))
    found = series.details("x", Span(10_000, 5_000))
    assert found == {
        "rate": 2.0,
        "samples": [
            {"sample": 40, "timestamp": 20_000},
            {"sample": 30, "timestamp": 15_000},
            {"sample": 20, "timestamp": 10_000},
        ],
        "avg": 30.0,
        "avg_rate": 2.0,
    }
    assert len(series.details("x", Span(3_600_000, 5_000))["samples"]) == 5
    assert looked((0, 7)).details("x", Span(60_000, 5_000)) == {
        "rate": 0.0,
        "samples": [{"sample": 7, "timestamp": 0}],
        "avg": 7.0,
        "avg_rate": 0.0,
    }


def test_objects_that_nobody_looks_at_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OBJECTS_MAX", 3)
    monkeypatch.setattr(module, "MANY", 2)
    samples = RateSamples(INTERVAL_MS)
    for now_ms in range(0, 5 * INTERVAL_MS, INTERVAL_MS):
        for key in "abcd":
            samples.look(key, now_ms, {"x": now_ms})
    assert set(samples._series) == {"b", "c", "d"}
    series = samples.look("d", 10 * INTERVAL_MS, {"x": 0})
    assert len(series._samples) == 2
    samples.forget()
    assert not samples._series


@pytest.mark.parametrize(
    ("query", "span"),
    [
        ({"lengths_age": "60", "lengths_incr": "5"}, Span(60_000, 5_000)),
        ({"lengths_age": "60"}, None),
        ({"lengths_age": "60", "lengths_incr": "0"}, None),
        ({"lengths_age": "x", "lengths_incr": "5"}, None),
        ({"msg_rates_age": "60", "msg_rates_incr": "5"}, None),
    ],
)
def test_a_history_is_asked_for_by_age_and_step(query: dict[str, str], span: Any) -> None:
    assert Span.read(query, "lengths") == span


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
    assert "follow a page of it" in large["reason"]
    other = refusal_of(HttpResponse(200, (("content-type", "text/plain"),), b"x"))
    assert "as JSON" in other["reason"]
    assert refusal_of(HttpResponse(405)) == {"status": 405, "error": "", "reason": "Method Not Allowed"}
