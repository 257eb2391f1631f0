"""Targets, headers and queries as the API reads them."""

from __future__ import annotations

import json

import pytest

from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused


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


def test_json_says_names_in_utf_8_and_has_no_infinity() -> None:
    assert HttpResponse.of_json({"name": "größe"}).body == '{"name":"größe"}'.encode()
    with pytest.raises(ValueError):
        HttpResponse.of_json(float("inf"))
