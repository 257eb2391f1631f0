"""Columns, order, pages and names of lists."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from amqp10broker.api import calls
from amqp10broker.api.calls import ListQuery
from amqp10broker.api.messages import RequestRefused
from amqp10broker.errors import InvalidArgument

QUEUES: list[dict[str, Any]] = [
    {"name": "a.1", "messages": 3, "owner": {"name": "x", "port": 1}},
    {"name": "a.2", "messages": 10, "owner": {"name": "z", "port": 2}},
    {"name": "b.1", "messages": 2},
    {"name": "b.2", "messages": 7, "owner": {"name": "y", "port": 3}},
    {"name": "c", "messages": 1},
]


class _Door:
    pauses = 0

    async def pause(self) -> None:
        self.pauses += 1
        await trio.lowlevel.checkpoint()


def list_of(items: list[dict[str, Any]], query: dict[str, str], *, paged: bool = True) -> Any:
    call: Any = SimpleNamespace(request=SimpleNamespace(query=query), broker_api=_Door())
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
    """Also if the list is empty: it is refused as it is compiled."""
    with pytest.raises(InvalidArgument, match="^name: .* could take for ever to search for"):
        list_of([], {"page": "1", "name": pattern, "use_regex": "true"})


def test_an_expression_is_searched_for_in_so_many_steps_of_all_names() -> None:
    """Of names that take many steps each fewer are looked at than of others, and others run meanwhile."""
    hostile = [{"name": "a" * 254 + "!"} for _ in range(10_000)]
    query = {"page": "1", "name": "^([a-z]+\\.?)+$", "use_regex": "true"}
    with pytest.raises(InvalidArgument, match="takes too long to search for in so many names"):
        list_of(hostile, query)
    assert list_of(hostile[:1000], query)["items"] == []
    assert (
        list_of([{"name": f"queue.{at}"} for at in range(10_000)], {**query, "name": "ue.*9$"})["items"] != []
    )


def test_others_run_while_names_are_searched() -> None:
    broker_api, hostile = _Door(), [{"name": "a" * 254 + "!"} for _ in range(100)]
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
