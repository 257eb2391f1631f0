"""Reading the fields that a filter looks at (beside what the property test asks of it)."""

from __future__ import annotations

import pytest

from amqp10broker.message.filters.fields import ABSENT, FieldReader, MessageField, Section
from amqp10broker.message.message import MessageReader
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Properties
from amqp10broker.protocols.amqp10.types import Described, Map, Symbol, ULong

BODY = encode(Described(ULong(0x75), b"body"))
DESCRIPTORS = {
    "usual": b"\x00\x53\x74",
    "eight bytes": b"\x00\x80" + b"\0" * 7 + b"\x74",
    "symbol": b"\x00" + encode(Symbol("amqp:application-properties:map")),
}


@pytest.mark.parametrize("descriptor", DESCRIPTORS.values(), ids=list(DESCRIPTORS))
def test_a_key_is_a_string_however_the_section_is_spelled(descriptor: bytes) -> None:
    """A symbol with the same letters is another key, before or behind it."""
    pairs = ((Symbol("only"), 1), (Symbol("both"), 2), ("both", 3), ("null", None))
    message = MessageReader("", "q", "u").read(descriptor + encode(Map(pairs)) + BODY)
    wanted = [MessageField(Section.APPLICATION_PROPERTIES, name) for name in ("only", "both", "null", "none")]
    assert FieldReader(wanted, absent=ABSENT).read(message) == [ABSENT, 3, None, ABSENT]
    assert FieldReader(wanted).read(message) == [None, 3, None, None]


@pytest.mark.parametrize("sections", [b"", b"\x00\x53\x73\x45", b"\x00\x53\x78\xc1\x01\x00"])
def test_a_message_without_a_body_has_fields_as_any(sections: bytes) -> None:
    """Absent ones here; what is there is read before the body is looked for."""
    wanted = [MessageField(Section.PROPERTIES, "subject"), MessageField(Section.APPLICATION_PROPERTIES, "a")]
    reader, read = FieldReader(wanted, absent=ABSENT), MessageReader("", "q", "u").read
    assert reader.read(read(sections)) == [None, ABSENT]
    both = Properties(subject="s").encode() + encode(Described(ULong(0x74), {"a": True}))
    assert reader.read(read(both)) == ["s", True]


def test_without_fields_nothing_is_read() -> None:
    assert FieldReader([]).read(MessageReader("", "q", "u").read(BODY)) == []
