"""Requests and responses as messages: identifiers, URIs, methods, tokens, and what is malformed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp10broker.metadata.plan import Decided
from amqp10broker.operations.amqp_node import STATUSES, handle_request, read_request, status_of, to_plain
from amqp10broker.operations.bindings import parse_uri, percent_decoded
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import array_of, encode
from amqp10broker.protocols.amqp10.errors import DecodeError
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.queues.commands import RequestRef
from tests.support.managing import Broker, read_response, request_message


@pytest.fixture
def broker() -> Broker:
    return Broker()


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message_id",
    [
        t10.ULong(0),
        t10.ULong(2**64 - 1),
        UUID(int=7),
        b"\x00\xff",
        "text",
        "",
        t10.Byte(-1),
        t10.Short(-300),
        t10.Int(7),
        t10.Long(-(2**63)),
    ],
    ids=repr,
)
def test_the_response_is_correlated_by_the_requests_id(broker: Broker, message_id: Any) -> None:
    assert broker.request("GET", "/queues/q", message_id=message_id)[0] == "404"


def test_sections_around_the_body_do_not_matter(broker: Broker) -> None:
    """Header, annotations, application-properties and footer are skipped."""
    payload = (
        Header(durable=True).encode()
        + encode(t10.Described(t10.ULong(0x71), {t10.Symbol("x"): 1}))
        + encode(t10.Described(t10.ULong(0x72), {t10.Symbol("x"): 1}))
        + Properties(message_id="id", to="/queues/q", subject="PUT").encode()
        + encode(t10.Described(t10.ULong(0x74), {"http:request": "1.1"}))
        + encode(t10.Described(t10.Symbol("amqp:amqp-value:*"), {"durable": False}))
        + encode(t10.Described(t10.ULong(0x78), {t10.Symbol("x"): 1}))
    )
    request = read_request(payload)
    assert (request.method, request.to, request.message_id, request.body) == (
        "PUT",
        "/queues/q",
        "id",
        {"durable": False},
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"hello",
        encode("text"),
        encode(t10.Described(t10.ULong(0x99), [])),
        encode(t10.Described(t10.ULong(0x75), "text")),
        encode(t10.Described(t10.ULong(0x73), [UUID(int=1), 5])),
        encode(t10.Described(t10.ULong(0x73), "text")),
        encode(t10.Described([], "text")),
    ],
)
def test_what_is_no_message_cannot_be_answered(broker: Broker, payload: bytes) -> None:
    with pytest.raises(DecodeError):
        broker.finish(handle_request(broker.caller(), payload))


# --- paths and methods ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "to", ["/", "/queue/q", "/queues", "/queues/q/more", "/exchanges", "/bindings/a/b", "/auth"]
)
def test_an_unknown_path_is_404(broker: Broker, to: str) -> None:
    status, text = broker.request("GET", to)
    assert status == "404"
    assert text.startswith(f"unknown path '{to}': known are /queues/:queue, ")


@pytest.mark.parametrize(
    ("method", "to", "methods"),
    [
        ("POST", "/queues/q", "GET, PUT, DELETE"),
        ("GET", "/queues/q/messages", "DELETE"),
        ("GET", "/exchanges/x", "PUT, DELETE"),
        ("PUT", "/bindings", "GET, POST"),
        ("POST", "/bindings/b", "DELETE"),
        ("get", "/queues/q", "GET, PUT, DELETE"),
        (None, "/queues/q", "GET, PUT, DELETE"),
    ],
)
def test_another_method_is_405(broker: Broker, method: Any, to: str, methods: str) -> None:
    status, text = broker.request(method, to)
    assert status == "405"
    assert text == f"method '{method or ''}' not allowed for '{to}': use {methods}"


@pytest.mark.rabbitmq("management_SUITE", "bad_uri")
@pytest.mark.parametrize(
    ("to", "part"),
    [
        ("/queues/👎", "'👎' at character 8 must be percent-encoded"),
        ("/queues/a b", "' ' at character 9 must be percent-encoded"),
        ("/queues/%4", "'%' at character 8 must be percent-encoded"),
        ("/queues/a#b", "'#' at character 9 must be percent-encoded"),
        ("queues/q", "it does not begin with '/'"),
        ("", "it does not begin with '/'"),
        ("/bindings?src", "'src' in the query is not name=value"),
        ("/bindings?src=a&src=b", "'src' stands in the query twice"),
        ("/bindings?src=%FF", "not UTF-8"),
    ],
)
def test_a_bad_uri_is_400(broker: Broker, to: str, part: str) -> None:
    status, text = broker.request("GET", to)
    assert status == "400"
    assert text.startswith(f"failed to normalize URI '{to}': ")
    assert part in text


def test_a_plus_sign_is_a_space_in_a_query_only() -> None:
    """RabbitMQ also reads queries as forms write them; paths follow RFC 3986."""
    assert percent_decoded("a+b%2B%20c") == "a+b+ c"
    assert parse_uri("/bindings?key=a+b%2Bc").query == {"key": "a b+c"}


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_handed_on(broker: Broker) -> None:
    """The connection decides about it; the response to a valid one is 204."""
    offered: list[tuple[bytes, RequestRef]] = []
    caller = broker.caller(offer_token=lambda *each: offered.append(each))
    steps = handle_request(caller, request_message("PUT", "/auth/tokens", b"token"))
    wait = next(steps)
    assert offered == [(b"token", wait.ref)]
    with pytest.raises(StopIteration) as done:
        steps.send(Decided(wait.ref))
    assert read_response(done.value.value)[0].subject == "204"
    assert broker.request("PUT", "/auth/tokens", b"token") == ("204", None)


def test_a_token_of_another_type_is_400(broker: Broker) -> None:
    status, text = broker.request("PUT", "/auth/tokens", "token")
    assert (status, text) == ("400", "the body of PUT /auth/tokens must be the token as binary")


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (t10.UByte(5), 5),
        (t10.Int(-5), -5),
        (t10.Symbol("a"), "a"),
        (array_of([t10.Symbol("a"), t10.Symbol("b")]), ["a", "b"]),
        ([t10.UInt(1), [None, True]], [1, [None, True]]),
        ({t10.Symbol("k"): {"x": b"1"}}, {"k": {"x": b"1"}}),
        (t10.Map((("a", 1), (t10.Symbol("b"), 2))), {"a": 1, "b": 2}),
        (1.5, 1.5),
    ],
    ids=repr,
)
def test_values_become_plain(given: object, plain: object) -> None:
    got = to_plain(given)
    assert got == plain
    assert type(got) is type(plain)


def test_arguments_too_deep_for_a_response_are_500(broker: Broker) -> None:
    """A request may nest them as deep as AMQP 1.0 allows; a listing adds levels."""
    value: Any = 1
    for _ in range(61):
        value = [value]
    broker.do("declare-queue", name="q")
    body = {"source": "amq.headers", "destination_queue": "q", "arguments": {"deep": value}}
    assert broker.request("POST", "/bindings", body)[0] == "204"
    status, text = broker.request("GET", "/bindings?src=amq.headers&dstq=q&key=")
    assert status == "500"
    assert text.startswith("done, but the result cannot be told")


def test_every_refusal_has_a_status() -> None:
    """The nearest class in the table counts, also for a subclass that is not in it."""
    for cls, status in STATUSES.items():
        assert status_of(cls("it", "text")) == status

        class Nearer(cls):  # type: ignore[misc, valid-type]
            pass

        assert status_of(Nearer("it", "text")) == status
