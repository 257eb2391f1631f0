"""Messages to and from bytes: every section, every kind of body, and bytes that are none."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp10broker.client.message import (
    BodyKind,
    Header,
    Message,
    Properties,
    data_message,
    decode_message,
)
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError
from amqp10broker.protocols.amqp10.sections import locate
from amqp10broker.protocols.amqp10.types import Symbol, Timestamp, UInt

FULL = Message(
    body=b"body",
    header=Header(durable=True, priority=5, ttl=1000),
    delivery_annotations={Symbol("x-route"): 1},
    message_annotations={Symbol("x-seen"): True},
    properties=Properties(
        message_id=UUID(int=7), to="/queues/q", subject="s", content_type=Symbol("text/plain")
    ),
    application_properties={"shop": "north", "items": UInt(3), "at": Timestamp(0)},
    footer={Symbol("x-crc"): b"\x00"},
    kind=BodyKind.DATA,
)


def test_all_sections_survive() -> None:
    assert decode_message(FULL.encode()) == FULL


def test_sections_are_in_the_order_that_a_broker_checks() -> None:
    found = locate(FULL.encode())
    assert found.properties == FULL.properties


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", BodyKind.DATA),
        (b"x" * 255, BodyKind.DATA),
        (b"x" * 70_000, BodyKind.DATA),
        ("text", BodyKind.VALUE),
        (None, BodyKind.VALUE),
        ({"a": [1, 2.5, None]}, BodyKind.VALUE),
        ([1, "two"], BodyKind.VALUE),
    ],
)
def test_the_body_decides_how_it_travels(body: Any, kind: BodyKind) -> None:
    got = decode_message(Message(body).encode())
    assert (got.body, got.kind) == (body, kind)


@pytest.mark.parametrize("properties", [None, Properties(message_id="m")])
def test_a_message_without_a_body_stays_one(properties: Properties | None) -> None:
    """Brokers and programs that send none are not given an empty one back."""
    message = Message(None, properties, kind=BodyKind.NONE)
    assert message.encode() == (b"" if properties is None else properties.encode())
    assert decode_message(message.encode()) == message
    with pytest.raises(EncodeError, match="kind NONE has no body"):
        Message(b"", kind=BodyKind.NONE).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"hello",
        data_message(b"cut off")[:-1],
        b"\x00\x53\x10\x45",  # an open performative
        b"\x00\x53\x75\xa1\x01a",  # data that is a string
        b"\x00\x53\x76\xa0\x00",  # a sequence that is binary
        b"\x00\x53\x74\x45\x00\x53\x75\xa0\x00",  # application-properties that are a list
    ],
)
def test_bytes_that_are_no_message(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_message(payload)
