"""What every request goes through and every answer carries."""

from __future__ import annotations

import json

import pytest

from amqp10broker.api.front import Cors, Endpoint, Front, HttpRoute, Router, Tag, Visit, too_large, wants_gzip
from amqp10broker.api.front import takes as takes_types
from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused

ROUTES = [
    HttpRoute(
        "/api/queues/{vhost}/{name}",
        {"GET": Endpoint(Tag.MANAGEMENT, "get"), "PUT": Endpoint(Tag.MANAGEMENT, "put")},
    ),
    HttpRoute("/api/users", {"GET": Endpoint(Tag.ADMINISTRATOR, "users")}),
    HttpRoute("/api/login", {"POST": Endpoint(None, "login", forms=("application/x-www-form-urlencoded",))}),
    HttpRoute("/api/queues", {"POST": Endpoint(Tag.MANAGEMENT, "post")}),
]
PAGE = "https://page.example"


def front(*origins: str) -> Front:
    return Front(Router(ROUTES), Cors(origins))


def request(method: str, target: str, **headers: str) -> HttpRequest:
    pairs = ((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    return HttpRequest.read(method.encode(), target.encode(), pairs)


def visit(method: str, target: str, **headers: str) -> Visit:
    found = front().enter(request(method, target, **headers))
    assert isinstance(found, Visit)
    return found


def answered(method: str, target: str, *origins: str, **headers: str) -> HttpResponse:
    found = front(*origins).enter(request(method, target, **headers))
    assert isinstance(found, HttpResponse)
    return found


def test_an_unknown_path_is_not_found_before_anybody_logs_in() -> None:
    answer = answered("GET", "/api/nothing")
    assert answer.status == 404
    assert json.loads(answer.body) == {"error": "Object Not Found", "reason": "Not Found"}


def test_a_method_that_the_path_lacks_is_told_which_there_are() -> None:
    answer = answered("DELETE", "/api/queues/%2F/q")
    assert (answer.status, answer.body) == (405, b"")
    assert dict(answer.headers)["allow"] == "HEAD, GET, PUT, OPTIONS"


def test_every_answer_carries_the_same_headers() -> None:
    found = visit("GET", "/api/users")
    left = front().leave(found.request, found.route, HttpResponse.of_json([]))
    for answer in (
        left,
        answered("GET", "/no"),
        answered("OPTIONS", "/api/users"),
        answered("PUT", "/api/users"),
    ):
        headers = dict(answer.headers)
        assert headers["cache-control"] == "no-cache"
        assert headers["vary"] == "accept, accept-encoding, origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"] == "script-src 'self'; object-src 'self'"
        assert not [name for name in headers if name.startswith("access-control")]
    assert dict(left.headers)["allow"] == "HEAD, GET, OPTIONS"
    assert dict(left.headers)["content-type"] == "application/json"


def changed(**headers: str) -> int:
    """The status of a change with these headers; 0 if it has found its endpoint."""
    asked = request("POST", "/api/queues", host="broker:15672", **headers)
    found = front("https://listed.example").enter(asked)
    return found.status if isinstance(found, HttpResponse) else 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 0),
        ({"content_type": "application/json"}, 0),
        ({"origin": "http://broker:15672"}, 0),
        ({"origin": "https://broker:15672", "sec_fetch_site": "same-origin"}, 0),
        ({"origin": "https://outside.example", "sec_fetch_site": "same-origin"}, 0),
        ({"origin": "https://listed.example", "sec_fetch_site": "cross-site"}, 0),
        ({"sec_fetch_site": "none"}, 0),
        ({"origin": PAGE}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://broker:8080"}, 403),
        ({"origin": "http://broker:15672", "sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"origin": PAGE, "content_type": "application/json"}, 403),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "text/plain; charset=utf-8"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
        ({"content_type": "multipart/form-data; boundary=x", "origin": PAGE}, 403),
    ],
)
def test_a_page_of_another_origin_changes_nothing(headers: dict[str, str], status: int) -> None:
    """A browser sends the login that it remembers along with what a form of any page posts."""
    assert changed(**headers) == status


def test_a_tag_that_is_missing_is_refused() -> None:
    front().admit(visit("GET", "/api/users"), {"administrator"})
    with pytest.raises(RequestRefused) as refused:
        front().admit(visit("GET", "/api/users"), {"management"})
    assert refused.value.answer.status == 401


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (None, True),
        ("*/*", True),
        ("application/json", True),
        ("text/html, application/*;q=0.5", True),
        ("Application/JSON; q=1.0", True),
        ("text/html", False),
        ("application/json;q=0, */*", False),
        ("application/json;q=nonsense", False),
        ("application/json;q=nan", False),
        ("", False),
    ],
)
def test_what_a_client_takes(accept: str | None, takes: bool) -> None:
    assert takes_types(accept) is takes


@pytest.mark.parametrize(
    ("encodings", "wants"),
    [("gzip", True), ("deflate, gzip;q=0.1", True), ("*", True), ("gzip;q=0, *", False), ("br", False)],
)
def test_a_body_is_compressed_for_a_client_that_takes_it(encodings: str, wants: bool) -> None:
    answer = HttpResponse.of_json(["x" * 400])
    assert wants_gzip(request("GET", "/", accept_encoding=encodings), answer) is wants
    assert not wants_gzip(request("GET", "/", accept_encoding=encodings), HttpResponse.of_json(["x"]))
    assert not wants_gzip(request("GET", "/"), answer)


def test_a_body_that_is_too_large_is_told_the_limit() -> None:
    answer = too_large(1000).answer
    assert answer.status == 400
    assert "size limit of 1000 bytes" in json.loads(answer.body)["reason"]


# --- other origins --------------------------------------------------------------------------------


def granted(answer: HttpResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith("access-control-")}


def test_a_listed_origin_may_read_every_answer_with_its_login() -> None:
    assert granted(answered("GET", "/api/nothing", PAGE, origin=PAGE)) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-credentials": "true",
    }
    found = visit("GET", "/api/users", origin=PAGE)
    assert granted(front(PAGE).leave(found.request, found.route, HttpResponse(200)))


@pytest.mark.parametrize("origin", ["https://other.example", "null", "*", ""])
@pytest.mark.parametrize("origins", [(PAGE,), (), (PAGE, "null")])
def test_other_origins_are_told_nothing(origin: str, origins: tuple[str, ...]) -> None:
    assert not granted(answered("GET", "/api/nothing", *origins, origin=origin))


def test_a_preflight_says_methods_headers_and_for_how_long() -> None:
    answer = answered(
        "OPTIONS", "/api/users", PAGE, origin=PAGE, access_control_request_headers="authorization"
    )
    assert granted(answer) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-credentials": "true",
        "access-control-allow-methods": "HEAD, GET, OPTIONS",
        "access-control-allow-headers": "authorization",
        "access-control-max-age": "1800",
    }
    assert not granted(answered("OPTIONS", "/api/users", PAGE))
