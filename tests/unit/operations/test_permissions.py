"""Who may manage what: a missing permission is raised, for it ends the session; nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import PermissionDenied
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.do("declare-queue", name="a")
    for name in ("x", "y"):
        broker.do("declare-exchange", name=name, type="topic")
    return broker


def refused(broker: Broker, user: str, method: str, to: str, body: object = None) -> str:
    before = (list(broker.vhost.queues), broker.vhost.topology.version)
    with pytest.raises(PermissionDenied) as raised:
        broker.request(method, to, body, user=user)
    assert (list(broker.vhost.queues), broker.vhost.topology.version) == before
    return raised.value.description


def declare(broker: Broker, user: str, exchange: Any = "y") -> tuple[str, Any]:
    return broker.request("PUT", "/queues/b", {"arguments": {"x-dead-letter-exchange": exchange}}, user=user)


@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "invalid_argument_type_rejected")
def test_a_dead_letter_exchange_of_another_type_is_a_bad_argument(broker: Broker) -> None:
    status, text = declare(broker, broker.user("u", configure="b"), 5)
    assert status == "409"
    assert "x-dead-letter-exchange" in text


@pytest.mark.rabbitmq("amqp_auth_SUITE", "list_bindings_exchange_destination")
@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "get_bindings_exchange_destination")
def test_reading_bindings_of_an_exchange_needs_both(broker: Broker) -> None:
    text = refused(broker, broker.user("u", read="x"), "GET", "/bindings?src=x&dste=y&key=k")
    assert text == "write access to exchange 'y' in vhost '/' refused for user 'u'"
    user = broker.user("v", write="y", read="x")
    assert broker.request("GET", "/bindings?src=x&dste=y&key=k", user=user) == ("200", [])
