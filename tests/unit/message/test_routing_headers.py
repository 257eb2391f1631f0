"""What a headers exchange compares."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from amqp10broker.message.amqp091 import make_head
from amqp10broker.message.message import MessageReader
from amqp10broker.message.routing_headers import routing_headers
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp091.types import ByteArray, Float32, Int8, Timestamp
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, UByte, ULong
from amqp10broker.protocols.amqp10.types import Timestamp as Milliseconds


def test_headers_of_amqp091_are_plain_values_of_their_kind() -> None:
    """Widths are gone, kinds stay apart: a number is no text, a boolean no number."""
    given = {
        "n": Int8(1),
        "f": Float32(0.5),
        "b": True,
        "s": "1",
        "x": ByteArray(b"1"),
        "v": None,
        "t": Timestamp(1000),
        "d": Decimal("1.5"),
        "x-fruit": {"type": "apple"},
        "a": [Int8(1)],
    }
    head = make_head("", "q", encode_properties(BasicProperties(content_type="t", headers=given)))
    found = routing_headers((head, b""))
    assert found == {
        "n": 1,
        "f": 0.5,
        "b": True,
        "s": "1",
        "x": b"1",
        "v": None,
        "t": 1000,
        "d": Decimal("1.5"),
        "x-fruit": {"type": "apple"},
        "a": [1],
    }
    assert [type(found[key]) for key in "nfbsxt"] == [int, float, bool, str, bytes, int]


def test_application_properties_and_annotations_of_amqp10_are_headers() -> None:
    """An annotation goes before an application-property; the broker's own two are not compared."""
    payload = (
        encode(Described(ULong(0x72), {Symbol("x-a"): Symbol("sym"), Symbol("x-l"): [UByte(1)]}))
        + Properties(subject="s").encode()
        + encode(
            Described(
                ULong(0x74),
                {
                    "n": UByte(1),
                    "b": False,
                    "t": Milliseconds(1_000_000),
                    "u": UUID(int=1),
                    "bin": b"1",
                    "x-a": 5,
                    "list": [1],
                    1: "no text",
                },
            )
        )
        + encode(Described(ULong(0x77), "body"))
    )
    found = routing_headers(MessageReader("ex", "key", "u").read(payload))
    assert found == {
        "n": 1,
        "b": False,
        "t": 1000,
        "u": "urn:uuid:00000000-0000-0000-0000-000000000001",
        "bin": b"1",
        "x-a": "sym",
        "x-l": [1],
    }
    assert [type(found[key]) for key in ("n", "b", "t", "bin", "x-a")] == [int, bool, int, bytes, str]
