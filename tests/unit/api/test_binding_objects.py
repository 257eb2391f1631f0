"""What names a binding in paths."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from amqp10broker.api.endpoints.exchanges import location, properties_key
from amqp10broker.routing.exchange import Binding, Destination

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
