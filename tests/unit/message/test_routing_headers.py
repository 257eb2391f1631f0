"""What a headers exchange compares."""

from __future__ import annotations

from uuid import UUID

from amqp10broker.message.convert import routing_headers
from amqp10broker.message.message import MessageReader
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, UByte, ULong
from amqp10broker.protocols.amqp10.types import Timestamp as Milliseconds


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
