"""Bindings over AMQP 1.0's management node: statuses, bodies and texts, and the path of one binding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.operations.bindings import PATH, location, parse_segment
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.managing import Broker

DEFAULT_EXCHANGE = "operation not permitted on the default exchange"


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    for name in ("q", "a queue/;="):
        broker.do("declare-queue", name=name)
    for name, kind in (("x", "direct"), ("h", "headers"), ("t", "topic")):
        broker.do("declare-exchange", name=name, type=kind)
    return broker


def body(source: str = "x", queue: str = "q", key: str = "", **rest: Any) -> dict[str, Any]:
    return {"source": source, "destination_queue": queue, "binding_key": key, "arguments": {}, **rest}


def test_binding_is_204_and_can_be_read(broker: Broker) -> None:
    """The map says where to delete it."""
    assert broker.request("POST", "/bindings", body(key="k")) == ("204", None)
    assert broker.request("GET", "/bindings?src=x&dstq=q&key=k") == (
        "200",
        [
            {
                "source": "x",
                "destination_queue": "q",
                "binding_key": "k",
                "arguments": {},
                "location": "/bindings/src=x;dstq=q;key=k;args=",
            }
        ],
    )


@pytest.mark.rabbitmq("bindings_SUITE", "list_with_multiple_arguments")
@pytest.mark.rabbitmq("management_SUITE", "queue_binding_args")
def test_bindings_differ_by_their_arguments(broker: Broker) -> None:
    """Each is listed with its own location, and deleted by it."""
    for number in (1, 2):
        arguments = {"x-match": "all", "number": number, "text": "ü", "flag": True, "list": [1, "a"]}
        assert broker.request("POST", "/bindings", body("h", arguments=arguments)) == ("204", None)
    _, found = broker.request("GET", "/bindings?src=h&dstq=q&key=")
    assert [each["arguments"]["number"] for each in found] == [1, 2]
    assert found[0]["arguments"] == {
        "x-match": "all",
        "number": 1,
        "text": "ü",
        "flag": True,
        "list": [1, "a"],
    }
    assert found[0]["location"] != found[1]["location"]
    assert broker.request("DELETE", found[0]["location"]) == ("204", None)
    _, left = broker.request("GET", "/bindings?src=h&dstq=q&key=")
    assert [each["arguments"]["number"] for each in left] == [2]


@pytest.mark.rabbitmq("management_SUITE", "bind_missing_queue")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (body("no"), "no exchange 'no' in vhost '/'"),
        (body(queue="no"), "no queue 'no' in vhost '/'"),
        ({"source": "x", "destination_exchange": "no"}, "no exchange 'no' in vhost '/'"),
    ],
)
def test_a_missing_end_is_400(broker: Broker, given: Any, text: str) -> None:
    assert broker.request("POST", "/bindings", given) == ("400", text)


@pytest.mark.rabbitmq("management_SUITE", "bind_destination_default_exchange", "bind_source_default_exchange")
@pytest.mark.parametrize(
    "given",
    [body(""), {"source": "x", "destination_exchange": ""}],
    ids=["source", "destination"],
)
def test_the_default_exchange_is_403(broker: Broker, given: Any) -> None:
    assert broker.request("POST", "/bindings", given) == ("403", DEFAULT_EXCHANGE)


@pytest.mark.rabbitmq("management_SUITE", "bind_destination_line_feed", "bind_source_line_feed")
@pytest.mark.parametrize("given", [body("a\nb"), body(queue="a\rb")])
def test_a_line_end_in_a_name_is_400(broker: Broker, given: Any) -> None:
    status, text = broker.request("POST", "/bindings", given)
    assert status == "400"
    assert text.endswith("line feed and carriage return characters not allowed")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"destination_queue": "q"}, "binding property 'source' is missing"),
        ({"source": "x"}, "give one of them, not none"),
        (body(destination_exchange="t"), "give one of them, not both"),
        (body(key=5), "bad binding property {'binding_key',5}"),
        (body(unknown=5), "bad binding property {'unknown',5}"),
        (None, "bad binding properties: the request has no body"),
    ],
)
def test_a_bad_property_is_400(broker: Broker, given: Any, part: str) -> None:
    status, text = broker.request("POST", "/bindings", given)
    assert status == "400"
    assert part in text


@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "get_bindings_missing_destination_rejected")
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("src=x&key=k", "missing 'dste' or 'dstq' in query: {'src': 'x', 'key': 'k'}"),
        ("dstq=q&key=k", "missing 'src' in query: {'dstq': 'q', 'key': 'k'}"),
        ("src=x&dstq=q&kay=k", "unknown 'kay' in query: known are src, dstq, dste, key"),
    ],
)
def test_a_bad_query_is_400(broker: Broker, query: str, text: str) -> None:
    assert broker.request("GET", f"/bindings?{query}") == ("400", text)


@pytest.mark.rabbitmq("management_SUITE", "unbind_bad_binding_path_segment")
@pytest.mark.parametrize(
    "segment",
    [
        "x",
        "src=x;dstq=q;key=k",
        "src=x;dst=q;key=k;args=",
        "dstq=q;src=x;key=k;args=",
        "src=%FF;dstq=q;key=;args=",
    ],
)
def test_a_bad_segment_is_400(broker: Broker, segment: str) -> None:
    status, text = broker.request("DELETE", PATH + segment)
    assert status == "400"
    assert text.startswith(f"bad binding path segment '{segment}'")


@pytest.mark.rabbitmq("management_SUITE", "queue_binding_args")
@given(
    st.text(), st.sampled_from(["queue", "exchange"]), st.text(), st.text(),
    st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=3),
)  # fmt: skip
def test_a_location_names_its_binding(
    source: str, kind: Any, name: str, key: str, arguments: dict[str, Any]
) -> None:
    binding = Binding(source, Destination(kind, name), key, arguments)
    path = location(binding)
    assert path.isascii()
    named = parse_segment(path.removeprefix(PATH))
    assert (named.source, named.destination, named.binding_key, named.arguments_hash) == (
        source,
        binding.destination,
        key,
        binding.arguments_hash,
    )
