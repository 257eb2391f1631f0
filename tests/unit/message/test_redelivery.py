"""What a quorum queue writes into the head of a message that it delivers again."""

from __future__ import annotations

import pytest

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import decode_head, make_head
from amqp10broker.message.convert import to_amqp091, to_amqp10
from amqp10broker.message.dead_lettering import delivery_time_ms, redelivered
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp091.codec import Int64
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Long, Symbol, Timestamp, UInt, ULong


def test_counts_are_annotations_of_amqp_10() -> None:
    given = make_head(Header(durable=True, ttl=UInt(9)), {Symbol("x-mine"): "y"}, "e", "k")
    head, content = redelivered((given, b"body"), 3, 2)
    header, annotations = decode_head(head)
    assert (header.durable, header.ttl, header.first_acquirer, header.delivery_count) == (True, 9, False, 2)
    assert annotations["x-acquired-count"] == Long(3)
    assert annotations["x-delivery-count"] == Long(2)
    # RabbitMQ's client for Java casts to long.
    assert {type(annotations[key]) for key in ("x-acquired-count", "x-delivery-count")} == {Long}
    assert (annotations["x-mine"], annotations["x-exchange"]) == ("y", "e")
    assert content == b"body"


def message091(headers: dict[str, object] | None) -> Message:
    properties = BasicProperties(headers=headers, delivery_mode=2)
    return amqp091.make_head("e", "k", encode_properties(properties)), b"body"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_count")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "consume_redelivery_count")
def test_counts_are_headers_of_amqp_091() -> None:
    """Both are there on each redelivery, x-delivery-count also when it is 0."""
    head, content = redelivered(message091({"mine": "y"}), 3, 0)
    names, given, again = amqp091.split_head(head)
    properties = decode_properties(given)
    assert properties.headers == {"mine": "y", "x-acquired-count": 3, "x-delivery-count": 0}
    assert type(properties.headers["x-acquired-count"]) is Int64
    assert (again, amqp091.delivery_count(head), properties.delivery_mode) == (True, 0, 2)
    assert names == b"\x01e\x01k"
    assert content == b"body"


def test_a_message_without_headers_gets_some() -> None:
    head, _ = redelivered(message091(None), 1, 1)
    assert decode_properties(amqp091.split_head(head)[1]).headers == {
        "x-acquired-count": 1,
        "x-delivery-count": 1,
    }
    assert amqp091.delivery_count(head) == 1


def test_merged_annotations_reach_either_protocol() -> None:
    annotations = encode({Symbol("x-why"): "busy"})
    head091, _ = redelivered(message091(None), 1, 0, annotations)
    headers = decode_properties(amqp091.split_head(head091)[1]).headers
    assert headers is not None
    assert headers["x-why"] == "busy"
    head10, _ = redelivered((make_head(None, None, "", "q"), b""), 1, 0, annotations)
    assert decode_head(head10)[1]["x-why"] == "busy"


def test_an_annotation_that_has_no_encoding_as_a_header_is_left_out() -> None:
    annotations = encode({Symbol("x-" + "y" * 300): 1, Symbol("x-ok"): 1})
    headers = decode_properties(
        amqp091.split_head(redelivered(message091({"a": 1}), 1, 0, annotations)[0])[1]
    )
    assert headers.headers is not None
    assert set(headers.headers) == {"a", "x-ok", "x-acquired-count", "x-delivery-count"}


def test_counts_survive_the_change_of_protocol() -> None:
    annotations = decode_head(to_amqp10(redelivered(message091(None), 2, 1))[0])[1]
    assert (annotations["x-acquired-count"], annotations["x-delivery-count"]) == (2, 1)
    back = to_amqp091(redelivered((make_head(None, None, "", "q"), b"\x00\x53\x75\xa0\x00"), 2, 1))
    headers = decode_properties(amqp091.split_head(back[0])[1]).headers
    assert headers is not None
    assert (headers["x-acquired-count"], headers["x-delivery-count"]) == (2, 1)


@pytest.mark.parametrize("as_type", [Timestamp, Long, ULong, UInt])
def test_the_delivery_time_is_a_number_of_any_type(as_type: type[int]) -> None:
    assert delivery_time_ms(encode({Symbol("x-opt-delivery-time"): as_type(77)})) == 77


def test_a_delivery_time_beyond_all_timestamps_is_the_last_of_them() -> None:
    assert delivery_time_ms(encode({Symbol("x-opt-delivery-time"): ULong(2**64 - 1)})) == 2**63 - 1


@pytest.mark.parametrize("value", ["soon", True, None, 1.5])
def test_a_delivery_time_that_is_no_number_is_none(value: object) -> None:
    assert delivery_time_ms(encode({Symbol("x-opt-delivery-time"): value})) is None


def test_what_only_the_broker_knows_is_not_overwritten() -> None:
    """Where a message was published to, its records of dead-lettering, and the hidden keys of BCC stay."""
    forged = encode({Symbol("x-opt-deaths"): 1, Symbol("x-death"): 1, Symbol("x-exchange"): "other"})
    annotations = decode_head(redelivered((make_head(None, None, "e", "q"), b""), 1, 0, forged)[0])[1]
    assert annotations["x-exchange"] == "e"
    assert "x-opt-deaths" not in annotations
    keys = b"hidden"
    head = amqp091.join_head(
        b"\x01e\x01k", encode_properties(BasicProperties()), hidden_keys=keys, death_times=bytes(16)
    )
    again, _ = redelivered((head, b""), 1, 1, forged)
    assert amqp091.hidden_keys_of(again) == keys
    assert amqp091.death_times(again) == bytes(16)
    assert decode_properties(amqp091.split_head(again)[1]).headers == {
        "x-acquired-count": 1,
        "x-delivery-count": 1,
    }
