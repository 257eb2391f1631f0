"""Messages in the words of AMQP 0-9-1, as JSON can have them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from amqp10broker.errors import BadRequest
from amqp10broker.message.amqp091 import make_head
from amqp10broker.message.convert import encoded_properties, plain_message
from amqp10broker.protocols.amqp091.codec import ByteArray, Timestamp, UInt8
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties


def shown(headers: dict[str, Any]) -> Any:
    properties = encode_properties(BasicProperties(headers=headers))
    return plain_message((make_head("e", "k", properties), b"x")).properties["headers"]


def test_all_values_of_headers_have_json() -> None:
    pairs: dict[str, tuple[Any, Any]] = {
        "number": (UInt8(3), 3),
        "time": (Timestamp(7), 7),
        "binary": (ByteArray(b"\xff"), "\ufffd"),
        "text": (b"\xfe", "\ufffd"),
        "amount": (Decimal("1.5"), "1.5"),
        "nothing": (None, None),
        "endless": (float("inf"), "inf"),
        "nested": ([{"x": ByteArray(b"y")}, True, 1.5], [{"x": "y"}, True, 1.5]),
    }
    found = shown({name: value for name, (value, _) in pairs.items()})
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        name: plain for name, (_, plain) in pairs.items()
    }


def test_a_message_says_where_it_came_from_and_only_what_it_has() -> None:
    given = encoded_properties({"type": "t", "priority": 0, "odd": "unknown"})
    plain = plain_message((make_head("e", "k", given, redelivered=True), b"x"))
    assert (plain.exchange, plain.routing_key, plain.redelivered, plain.body) == ("e", "k", True, b"x")
    assert plain.properties == {"type": "t", "priority": 0}


@pytest.mark.parametrize(
    "given", [{"type": "x" * 256}, {"priority": -1}, {"timestamp": 2**64}, {"headers": {"x": 2**64}}]
)
def test_what_cannot_be_encoded_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="a property cannot be encoded"):
        encoded_properties(given)
