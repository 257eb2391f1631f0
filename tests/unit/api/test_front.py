"""What stands before every endpoint: paths, logins, tags, origins, files of the page, WebSocket."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from amqp10broker import errors
from amqp10broker.api.front import (
    NOT_LOGGED_IN,
    AcceptedUpgrade,
    Cors,
    Credentials,
    Endpoint,
    Front,
    HttpRoute,
    RoutedRequest,
    Router,
    Tag,
    accept,
    asks_for_websocket,
    check_tag,
    credentials,
    too_large,
    wants_gzip,
)
from amqp10broker.api.front import takes as takes_types
from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused, refused

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


def visit(method: str, target: str, **headers: str) -> RoutedRequest:
    found = front().enter(request(method, target, **headers))
    assert isinstance(found, RoutedRequest)
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
    """Return the status of a change with these headers; 0 if it has found its endpoint."""
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
    """A browser sends the stored login along with a form that any page posts."""
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


def basic(text: bytes, scheme: str = "Basic") -> str:
    return f"{scheme} {b64encode(text).decode()}"


def test_a_client_without_login_is_asked_for_one() -> None:
    assert credentials(None) is NOT_LOGGED_IN
    assert NOT_LOGGED_IN.status == 401
    assert NOT_LOGGED_IN.headers == (("www-authenticate", 'Basic realm="RabbitMQ Management"'),)
    assert NOT_LOGGED_IN.body == b""


@pytest.mark.parametrize("header", ["Basic ", "Basic ***", basic(b"no colon"), "Basic YW5u=OmE="])
def test_a_login_that_cannot_be_read_is_a_bad_request(header: str) -> None:
    assert credentials(header) == HttpResponse(400)


def test_a_bearer_token_is_a_password_without_a_name() -> None:
    assert credentials("Bearer a.b.c") == Credentials(b"", b"a.b.c")
    assert "a.b.c" not in repr(credentials("bearer a.b.c"))


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        (Tag.MANAGEMENT, "MPOA"),
        (Tag.POLICYMAKER, "PA"),
        (Tag.MONITORING, "OA"),
        (Tag.ADMINISTRATOR, "A"),
    ],
)
def test_which_tag_suffices_for_which(wanted: Tag, may: str) -> None:
    tags = {"M": "management", "P": "policymaker", "O": "monitoring", "A": "administrator"}
    for letter, tag in tags.items():
        if letter in may:
            check_tag(wanted, {tag, "another"})
        else:
            with pytest.raises(RequestRefused) as refused:
                check_tag(wanted, {tag})
            assert refused.value.answer.status == 401


@pytest.mark.parametrize(
    ("wanted", "tags", "reason"),
    [
        (Tag.ADMINISTRATOR, (), "Not management user"),
        (Tag.MANAGEMENT, ("impersonator",), "Not management user"),
        (Tag.ADMINISTRATOR, ("monitoring",), "Not administrator user"),
        (Tag.MONITORING, ("policymaker",), "Not monitor user"),
        (Tag.POLICYMAKER, ("management",), "User not authorised to access object"),
    ],
)
def test_the_refusal_says_what_is_missing(wanted: Tag, tags: tuple[str, ...], reason: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_tag(wanted, tags)
    assert json.loads(refused.value.answer.body) == {"error": "not_authorised", "reason": reason}


TEXT = "queue 'q' in vhost '/': a sentence"


@pytest.mark.parametrize(
    ("kind", "status", "error", "reason"),
    [
        (errors.NotFound, 404, "not_found", TEXT),
        (errors.Unavailable, 503, "unavailable", TEXT),
        (errors.Inequivalent, 400, "bad_request", TEXT),
        (errors.InvalidArgument, 400, "bad_request", TEXT),
        (errors.InUse, 400, "bad_request", TEXT),
        (errors.ResourceLocked, 400, "bad_request", TEXT),
        (errors.LimitExceeded, 400, "bad_request", TEXT),
        (errors.BadRequest, 400, "bad_request", TEXT),
        (errors.NotSupported, 400, "bad_request", TEXT),
        (errors.AccessRefused, 401, "not_authorised", "Access refused."),
        (errors.PermissionDenied, 401, "not_authorised", "Access refused."),
        (errors.ReservedName, 401, "not_authorised", "Access refused."),
    ],
)
def test_a_refusal_has_its_status_and_its_sentence(
    kind: type[errors.RefusedError], status: int, error: str, reason: str
) -> None:
    """A user without permission gets no details."""
    answer = refused(kind("queue 'q'", TEXT)).answer
    assert answer.status == status
    assert json.loads(answer.body) == {"error": error, "reason": reason}


def route(pattern: str, *methods: str) -> HttpRoute:
    return HttpRoute(pattern, {method: Endpoint(Tag.MANAGEMENT, pattern) for method in methods})


QUEUE = route("/api/queues/{vhost}/{name}", "GET", "PUT", "DELETE")
DETAILED = route("/api/queues/detailed", "GET")
QUEUES = route("/api/queues/{vhost}", "GET")
USER = route("/api/connections/username/{user}", "GET")
CHANNELS = route("/api/connections/{name}/channels", "GET")
ROUTER = Router([QUEUES, QUEUE, DETAILED, CHANNELS, USER])


@pytest.mark.parametrize(
    ("segments", "expected", "values"),
    [
        (("api", "queues", "detailed"), DETAILED, {}),
        (("api", "queues", "/"), QUEUES, {"vhost": "/"}),
        (("api", "queues", "/", "q/1"), QUEUE, {"vhost": "/", "name": "q/1"}),
        (("api", "connections", "username", "channels"), USER, {"user": "channels"}),
        (("api", "connections", "c", "channels"), CHANNELS, {"name": "c"}),
    ],
)
def test_of_two_patterns_the_one_that_says_more_counts(
    segments: tuple[str, ...], expected: HttpRoute, values: dict[str, str]
) -> None:
    assert ROUTER.find(segments) == (expected, values)


def test_two_patterns_of_the_same_paths_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="mean the same paths"):
        Router([QUEUES, route("/api/queues/{other}", "GET")])


ANY = ("*",)
HEADERS = {
    "host": "server.example.com",
    "upgrade": "websocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
    "sec-websocket-protocol": "amqp",
}


def asked(
    origins: tuple[str, ...] = ANY, *, method: str = "GET", body: bytes = b"", **headers: Any
) -> AcceptedUpgrade:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    left = {name: value for name, value in {**HEADERS, **given}.items() if value is not None}
    return accept(HttpRequest(method, ("any", "path"), headers=left, body=body), origins)


def test_the_answer_is_that_of_the_standards_example() -> None:
    assert dict(asked().headers) == {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        "sec-websocket-protocol": "amqp",
    }


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [("amqp", "amqp"), ("binary, AMQPWSB10, amqp", "amqp"), ("AMQPWSB10", "AMQPWSB10"), ("a,amqp,b", "amqp")],
)
def test_amqp_is_chosen_among_what_the_client_speaks(protocols: str, chosen: str) -> None:
    assert dict(asked(sec_websocket_protocol=protocols).headers)["sec-websocket-protocol"] == chosen


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        ({"sec_websocket_protocol": None}, 400, "Sec-WebSocket-Protocol must list amqp"),
        ({"sec_websocket_protocol": "mqtt, binary"}, 400, "Sec-WebSocket-Protocol must list amqp"),
        ({"sec_websocket_key": None}, 400, "Sec-WebSocket-Key"),
        ({"sec_websocket_key": "dGhlIHNhbXBsZQ=="}, 400, "Sec-WebSocket-Key"),
        ({"sec_websocket_key": "é" * 24}, 400, "Sec-WebSocket-Key"),
        ({"sec_websocket_key": HEADERS["sec-websocket-key"] * 2}, 400, "Sec-WebSocket-Key"),
        ({"connection": None}, 400, "Connection must say Upgrade"),
        ({"connection": "keep-alive"}, 400, "Connection must say Upgrade"),
        ({"method": "POST"}, 400, "asked for with GET"),
        ({"body": b"x"}, 400, "without a body"),
        ({"sec_websocket_version": "8"}, 426, "Sec-WebSocket-Version must say 13"),
        ({"sec_websocket_version": None}, 426, "Sec-WebSocket-Version must say 13"),
    ],
)
def test_what_is_wrong_is_told(changed: dict[str, Any], status: int, says: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        asked(**changed)
    answer = refused.value.answer
    assert answer.status == status
    assert says in json.loads(answer.body)["reason"]
    assert (("sec-websocket-version", "13") in answer.headers) == (status == 426)


def test_origins_that_are_named_may_and_others_may_not() -> None:
    """A client that is not a browser sends no origin."""
    named = ("https://shop.example", "http://localhost:8000")
    for origin in (None, *named):
        assert not asked(named, origin=origin).foreign
    for origin in ("https://other.example", "null", "", "http://shop.example", "https://shop.example:8443"):
        with pytest.raises(RequestRefused) as refused:
            asked(named, origin=origin)
        assert refused.value.answer.status == 403


@pytest.mark.parametrize(
    ("origin", "foreign"),
    [
        (None, False),
        ("http://localhost", False),
        ("http://localhost:8080", False),
        ("http://127.0.0.1:15672", False),
        ("http://[::1]:15672", False),
        ("https://evil.example", True),
        ("http://localhost.evil.example", True),
        ("http://evil.example#localhost", True),
        ("http://localhost@evil.example", True),
        ("null", True),
        ("file://", True),
        ("http://[", True),
        ("", True),
    ],
)
def test_a_page_of_another_machine_is_foreign(origin: str | None, foreign: bool) -> None:
    """It runs in a browser on this machine but is no local client: the password of guest is public."""
    assert asked(origin=origin).foreign is foreign
    assert not asked(("*", origin or ""), origin=origin).foreign


@pytest.mark.parametrize(
    ("values", "version", "asks"),
    [
        ([b"websocket"], b"1.1", True),
        ([b"WebSocket"], b"1.1", True),
        ([b"h2c", b"websocket"], b"1.1", True),
        ([b"h2c, websocket"], b"1.1", True),
        ([b"h2c"], b"1.1", False),
        ([b"websockets"], b"1.1", False),
        ([], b"1.1", False),
        ([b"websocket"], b"1.0", False),
    ],
)
def test_who_asks(values: list[bytes], version: bytes, asks: bool) -> None:
    headers = [(b"host", b"h"), *((b"upgrade", value) for value in values)]
    assert asks_for_websocket(headers, version) is asks
