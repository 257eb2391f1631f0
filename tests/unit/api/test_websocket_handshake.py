"""Who may open a WebSocket, and what the others are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqp10broker.api.front import AcceptedUpgrade, accept, asks_for_websocket
from amqp10broker.api.messages import HttpRequest, RequestRefused

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
    """A client that is no browser names none."""
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
    """It runs in a browser on this machine, and is no client of it: the password of guest is known to all."""
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
