"""Exchanges over AMQP 1.0's management node: statuses, bodies and texts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


def declared(broker: Broker, name: str = "x", **body: Any) -> None:
    assert broker.request("PUT", f"/exchanges/{name}", body) == ("204", None)


@pytest.mark.rabbitmq("management_SUITE", "exchange_defaults")
def test_a_new_exchange_has_the_defaults(broker: Broker) -> None:
    declared(broker)
    exchange = broker.vhost.topology.lookup_exchange("x")
    assert (exchange.type, exchange.durable, exchange.auto_delete, exchange.internal) == (
        "direct",
        True,
        False,
        False,
    )


def test_properties_are_those_asked_for(broker: Broker) -> None:
    declared(
        broker,
        type="fanout",
        durable=False,
        auto_delete=True,
        internal=True,
        arguments={"alternate-exchange": "amq.fanout"},
    )
    exchange = broker.vhost.topology.lookup_exchange("x")
    assert (exchange.type, exchange.durable, exchange.auto_delete, exchange.internal, exchange.alternate) == (
        "fanout",
        False,
        True,
        True,
        "amq.fanout",
    )


@pytest.mark.rabbitmq("management_SUITE", "declare_exchange_inequivalent_fields")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"type": "fanout"}, "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but"),
        (
            {"durable": False},
            "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but",
        ),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete' for exchange 'x' in vhost '/'"),
        ({"internal": True}, "inequivalent arg 'internal' for exchange 'x' in vhost '/'"),
    ],
)
def test_declaring_differently_is_409(broker: Broker, body: Any, text: str) -> None:
    declared(broker)
    status, got = broker.request("PUT", "/exchanges/x", body)
    assert status == "409"
    assert got.startswith(text)


@pytest.mark.rabbitmq("management_SUITE", "bad_exchange_type")
def test_an_unknown_type_is_400(broker: Broker) -> None:
    assert broker.request("PUT", "/exchanges/x", {"type": "👎"}) == ("400", "unknown exchange type '👎'")


@pytest.mark.rabbitmq("management_SUITE", "bad_exchange_property")
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"unknown": 1}, "bad exchange property {'unknown',1}"),
        ({"type": 5}, "bad exchange property {'type',5}: it must be a string"),
        (None, "bad exchange properties: the request has no body"),
    ],
)
def test_a_bad_property_is_400(broker: Broker, body: Any, part: str) -> None:
    status, text = broker.request("PUT", "/exchanges/x", body)
    assert status == "400"
    assert part in text


@pytest.mark.rabbitmq("management_SUITE", "declare_default_exchange", "delete_default_exchange")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_the_default_exchange_is_403(broker: Broker, method: str) -> None:
    text = "operation not permitted on the default exchange"
    assert broker.request(method, "/exchanges/", {}) == ("403", text)


@pytest.mark.rabbitmq("management_SUITE", "declare_exchange_amq_prefix", "delete_exchange_amq_prefix")
@pytest.mark.parametrize(("method", "name"), [("PUT", "amq.x"), ("DELETE", "amq.x"), ("DELETE", "amq.topic")])
def test_a_reserved_name_is_403(broker: Broker, method: str, name: str) -> None:
    text = f"exchange '{name}' in vhost '/' starts with reserved prefix 'amq.'"
    assert broker.request(method, f"/exchanges/{name}", {}) == ("403", text)


@pytest.mark.rabbitmq("management_SUITE", "declare_exchange_line_feed", "delete_exchange_carriage_return")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("end", ["%0A", "%0D"])
def test_a_line_end_in_a_name_is_400(broker: Broker, method: str, end: str) -> None:
    status, text = broker.request(method, f"/exchanges/a{end}b", {})
    assert status == "400"
    assert text.endswith("line feed and carriage return characters not allowed")
