"""Reading a message of AMQP 1.0 (beside what the conformance tests ask of it through a link)."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.message.amqp10 import HEAD_BYTES_MAX, decode_head, extra_keys
from amqp10broker.message.message import MessageReader, acquired, durable, header_of, is_amqp091
from amqp10broker.protocols.amqp10.codec import array_of, encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong

BODY = encode(Described(ULong(0x75), b"hello"))


def annotated(annotations: dict[str, Any]) -> bytes:
    described = Described(ULong(0x72), {Symbol(key): value for key, value in annotations.items()})
    return encode(described) + BODY


def read(payload: bytes, *, impersonator: bool = False) -> tuple[bytes, bytes]:
    return MessageReader("x", "k", "guest", impersonator).read(payload)


def test_exchange_and_routing_key_replace_the_publishers() -> None:
    """x-exchange and x-routing-key are the broker's to say, other annotations are kept."""
    message = read(annotated({"x-exchange": "lie", "x-other": 1}))
    assert decode_head(message[0])[1] == {"x-exchange": "x", "x-routing-key": "k", "x-other": 1}
    assert not is_amqp091(message)


@pytest.mark.parametrize("value", [["a", "b"], array_of(["a", "b"])], ids=["list", "array"])
def test_x_cc_adds_routing_keys(value: Any) -> None:
    """A list of strings; it stays in the message."""
    head, _ = read(annotated({"x-cc": value}))
    assert extra_keys(head) == ("a", "b")
    assert decode_head(head)[1]["x-cc"] == value


@pytest.mark.parametrize("value", ["a", None, 1, [1], ["a", b"b"], [Symbol("a")], {"a": "b"}], ids=repr)
def test_a_bad_x_cc_detaches_the_link(value: Any) -> None:
    """Anything else than a list of strings is an invalid field."""
    head, _ = read(annotated({"x-cc": value}))
    with pytest.raises(AmqpLinkError, match="bad value for 'x-cc' message-annotation: ") as caught:
        extra_keys(head)
    assert caught.value.condition == Condition.INVALID_FIELD


def test_only_an_impersonator_publishes_as_another() -> None:
    """A user-id must be the user's, unless the user has that tag."""
    payload = Properties(user_id=b"other").encode() + BODY
    with pytest.raises(AmqpLinkError, match="user_id property set to 'other' but authenticated user"):
        read(payload)
    assert read(payload, impersonator=True)[1] == payload


@pytest.mark.parametrize(("given", "expected"), [(None, False), (False, False), (True, True)])
def test_durable_is_what_the_header_says(given: bool | None, expected: bool) -> None:
    assert durable(read(Header(durable=given).encode() + BODY)) is expected


def test_the_first_acquirer_is_told_so_and_the_next_one_not() -> None:
    """A message that nobody had says first-acquirer and count 0; only failed deliveries count."""
    message = read(Header(first_acquirer=False, delivery_count=7).encode() + BODY)
    assert (header_of(message[0]).first_acquirer, header_of(message[0]).delivery_count) == (True, 0)
    again = acquired(message, failed=False)
    assert (header_of(again[0]).first_acquirer, header_of(again[0]).delivery_count) == (False, 0)
    failed = acquired(again, failed=True)
    assert (header_of(failed[0]).first_acquirer, header_of(failed[0]).delivery_count) == (False, 1)
    assert failed[1] is message[1]


def test_short_heads_are_remembered_and_long_ones_are_not() -> None:
    """Thousands of long ones would be a large memory, which lasts longer than the messages."""
    reader = MessageReader("x", "k", "guest")
    for size, remembered in ((10, True), (HEAD_BYTES_MAX, False)):
        payload = annotated({"x-a": "a" * size, "x-cc": ["b"]})
        head = reader.read(payload)[0]
        for one, other in (
            (head, reader.read(payload)[0]),
            (acquired((head, b""), failed=True)[0], acquired((head, b""), failed=True)[0]),
            (header_of(head), header_of(head)),
            (extra_keys(head), extra_keys(head)),
        ):
            assert one == other
            assert (one is other) is remembered
