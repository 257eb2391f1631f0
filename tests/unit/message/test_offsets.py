"""Messages of a stream: kept without their offset, delivered with it, in both protocols."""

from __future__ import annotations

import pytest

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import decode_head, make_head
from amqp10broker.message.convert import _head_to_amqp091, data_section, to_amqp091
from amqp10broker.message.message import Message
from amqp10broker.message.stream_heads import delivered, delivered_with_time, filter_values, kept
from amqp10broker.protocols.amqp091.codec import Int64
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Described, Long, Symbol, Timestamp, ULong

OFFSET = Symbol("x-stream-offset")
ENQUEUED = Symbol("x-opt-enqueued-time")
OFFSETS = [0, 1, 255, 2**32, 2**63 - 1]


def message(annotations: dict[Symbol, object] | None = None, header: Header | None = None) -> Message:
    return make_head(header, annotations, "x", "key"), data_section(b"body")


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_delivery_has_its_offset_as_an_annotation_and_all_else_as_published(offset: int) -> None:
    header = Header(durable=True, priority=7, ttl=5)
    published = message({Symbol("x-own"): "value"}, header)
    [(head, content)] = delivered(kept([published]), offset)
    was_header, was_annotations = decode_head(published[0])
    assert decode_head(head) == (was_header, was_annotations | {OFFSET: Long(offset)})
    assert type(decode_head(head)[1][OFFSET]) is Long  # as RabbitMQ: its client for Java casts to it
    assert content == published[1]


def test_an_offset_that_the_publisher_wrote_is_taken_out() -> None:
    [(head, _)] = delivered(kept([message({OFFSET: ULong(9), Symbol("x-a"): 1})]), 5)
    assert decode_head(head)[1][OFFSET] == 5
    assert head.count(b"x-stream-offset") == 1


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("time_ms", [0, 1, 1_700_000_000_123, 2**62])
@pytest.mark.parametrize("long", [False, True])
def test_a_delivery_may_have_its_time_as_well(offset: int, time_ms: int, long: bool) -> None:
    """The offset stays the last eight bytes, and no other byte is different."""
    header = Header(durable=True, priority=7, ttl=5)
    published = message({Symbol("x-own"): "value" * (1000 if long else 1)}, header)
    keep = kept([published])
    [(head, content)] = delivered_with_time(keep, [offset], time_ms)
    was_header, was_annotations = decode_head(delivered(keep, offset)[0][0])
    assert decode_head(head) == (was_header, was_annotations | {ENQUEUED: Timestamp(time_ms)})
    assert type(decode_head(head)[1][ENQUEUED]) is Timestamp
    assert list(decode_head(head)[1])[-1] == OFFSET
    assert content == published[1]


def test_a_time_that_the_publisher_wrote_is_replaced() -> None:
    """Consumers that request it get it; others get the publisher's."""
    for given in (Timestamp(9), "text", None):
        keep = kept([message({ENQUEUED: given, Symbol("x-a"): 1})])
        [(head, _)] = delivered_with_time(keep, [5], 77)
        assert decode_head(head)[1][ENQUEUED] == Timestamp(77)
        assert head.count(b"x-opt-enqueued-time") == 1
        assert decode_head(delivered(keep, 5)[0][0])[1][ENQUEUED] == given


def test_a_message_of_amqp_0_9_1_is_kept_in_the_encoding_of_amqp_1_0() -> None:
    properties = encode_properties(BasicProperties(delivery_mode=2, headers={"x-a": "b"}))
    [(head, content)] = delivered(kept([(amqp091.make_head("x", "key", properties), b"body")]), 3)
    header, annotations = decode_head(head)
    assert header.durable
    assert annotations == {
        Symbol("x-a"): "b", Symbol("x-exchange"): "x", Symbol("x-routing-key"): "key", OFFSET: 3
    }  # fmt: skip
    assert content == data_section(b"body")


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("long", [False, True])
def test_a_consumer_of_amqp_0_9_1_gets_the_offset_as_a_long(offset: int, long: bool) -> None:
    annotations = {Symbol("x-a"): "b" * (2000 if long else 1)}
    application = encode(Described(ULong(0x74), {"n": 1}))
    published = message(annotations)[0], application + data_section(b"body")
    [delivery] = delivered(kept([published]), offset)
    head, body = to_amqp091(delivery)
    assert body == b"body"
    assert head == _head_to_amqp091(delivery[0], application, False)
    value = decode_properties(amqp091.split_head(head)[1]).headers["x-stream-offset"]  # type: ignore[index]
    assert value == offset
    assert type(value) in (int, Int64)


def test_a_body_that_amqp_0_9_1_has_no_word_for_keeps_its_encoding_and_offset() -> None:
    body = encode(Described(ULong(0x77), "text"))
    [delivery] = delivered(kept([(message()[0], body)]), 12)
    head, content = to_amqp091(delivery)
    properties = decode_properties(amqp091.split_head(head)[1])
    assert (properties.type, properties.headers, content) == ("amqp-1.0", {"x-stream-offset": 12}, body)


def test_filter_values_are_those_of_all_messages() -> None:
    name = Symbol("x-stream-filter-value")
    messages = [message({name: "eu"}), message({name: "us"}), message({name: "eu"})]
    assert filter_values(kept(messages)) == {"eu", "us"}
    assert filter_values(kept([*messages, message()])) == {"eu", "us", None}
    assert filter_values(kept([message({name: ULong(1)})])) == {None}
    assert filter_values(kept([message({name: "eu", Symbol("x-long"): "y" * 5000})])) == {"eu"}
