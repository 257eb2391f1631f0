"""Reading a published content of AMQP 0-9-1 into the head of a message."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import PreconditionFailed
from amqp10broker.message.amqp091 import delivery_count, make_head, read_content, split_head
from amqp10broker.message.message import acquired, durable, is_amqp091
from amqp10broker.protocols.amqp091.codec import Int32, encode_shortstr
from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties


def read(properties: BasicProperties, *, impersonator: bool = False) -> tuple[bytes, tuple[str, ...]]:
    return read_content(
        "amq.topic", "a.b", encode_properties(properties), user="guest", impersonator=impersonator
    )


def refused(properties: BasicProperties) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        read(properties)
    return caught.value.description


def test_the_head_can_be_sliced_for_a_delivery() -> None:
    """Exchange, routing key and properties lie in the head as a delivery writes them."""
    given = encode_properties(BasicProperties(content_type="t", delivery_mode=2, message_id="m"))
    head, extra = read_content("amq.topic", "a.b", given, user="guest", impersonator=False)
    assert head[:6] == b"\x91\x00\x00\x00\x00\x00"
    assert split_head(head) == (encode_shortstr("amq.topic") + encode_shortstr("a.b"), given, False)
    assert extra == ()
    assert is_amqp091((head, b""))


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqpl_defaults")
@pytest.mark.parametrize(("mode", "expected"), [(None, False), (1, False), (2, True)])
def test_delivery_mode_2_is_durable(mode: int | None, expected: bool) -> None:
    """Mode 2 is persistent; 1 and none are transient."""
    assert durable((read(BasicProperties(headers={"a": 1}, delivery_mode=mode))[0], b"")) is expected


def test_an_acquired_message_is_redelivered() -> None:
    """Redelivered is set by any return, the count grows by failed ones only, the rest stays."""
    message = (read(BasicProperties(message_id="m"))[0], b"body")
    back = acquired(message, failed=False)
    failed = acquired(acquired(back, failed=True), failed=True)
    assert split_head(back[0])[2] is True
    assert delivery_count(back[0]) == 0
    assert delivery_count(failed[0]) == 2
    assert failed[0][6:] == message[0][6:]
    assert failed[1] == b"body"
    assert failed[0] == make_head(
        "amq.topic", "a.b", split_head(message[0])[1], redelivered=True, delivery_count=2
    )


def test_cc_and_bcc_add_routing_keys_and_bcc_is_removed() -> None:
    """Keys of CC come first, then those of BCC, which no consumer sees."""
    head, extra = read(BasicProperties(content_type="t", headers={"CC": ["x"], "BCC": ["y", "z"], "n": 1}))
    assert extra == ("x", "y", "z")
    kept = decode_properties(split_head(head)[1])
    assert kept == BasicProperties(content_type="t", headers={"CC": ["x"], "n": Int32(1)})


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("key", "longstr"),
        (1, "int32"),
        ({}, "table"),
        (None, "void"),
        ([1], "of int32"),
        ([b"\xff"], "of longstr that is not UTF-8"),
    ],
)
def test_cc_of_another_type_is_refused(header: str, value: Any, kind: str) -> None:
    """CC and BCC must be arrays of long strings."""
    text = refused(BasicProperties(headers={header: value}))
    assert text == f"header '{header}' must be an array of longstr, not {kind}"


def test_the_user_id_must_be_the_user() -> None:
    """Another user-id is refused, except from an impersonator."""
    assert read(BasicProperties(user_id="guest"))[1] == ()
    other = BasicProperties(user_id="other")
    assert refused(other) == "user_id property set to 'other' but authenticated user was 'guest'"
    assert read(other, impersonator=True)[1] == ()


@pytest.mark.rabbitmq("quorum_queue_SUITE", "per_message_ttl_expiration_too_high")
@pytest.mark.parametrize("expiration", ["", "abc", " 1", "\u0661", "10 s", "1.5", '1"', "-5", "315360000001"])
def test_a_bad_expiration_is_refused_with_its_reason(expiration: str) -> None:
    """The text and what is allowed stand in the refusal."""
    assert refused(BasicProperties(expiration=expiration)) == (
        f"invalid expiration '{expiration}': must be milliseconds, an integer of 0 to 315360000000"
    )


FULL = encode_properties(
    BasicProperties("t", "e", {"a": 1}, 2, 3, "c", "r", "1000", "m", 5, "t", "guest", "a", "cl")
)


@pytest.mark.parametrize("cut", range(len(FULL)))
def test_properties_cut_off_are_a_syntax_error(cut: int) -> None:
    """Whatever byte they end at, also within a value that is otherwise only skipped or would be refused."""
    with pytest.raises(DecodeError):
        read_content("", "q", FULL[:cut], user="guest", impersonator=False)


@pytest.mark.parametrize("properties", [FULL + b"x", b"\x00\x02", b"\x00\x01\x80\x00", b"\x00\x01"])
def test_malformed_properties_are_a_syntax_error(properties: bytes) -> None:
    """Bytes left over and unknown flags, though nothing else in them is decoded."""
    with pytest.raises(DecodeError):
        read_content("", "q", properties, user="guest", impersonator=False)
