"""The generator's frames: what of them is its own, byte by byte and as the broker's codec reads them."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp10.codec import decode
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Disposition,
    Error,
    SaslInit,
    Source,
    Target,
)
from amqp10broker.protocols.amqp10.types import Described, Symbol
from benchmarks import wire
from benchmarks.errors import WireError


def test_a_transfer_has_every_field_at_its_fixed_place() -> None:
    """Handle, delivery-id and tag lie where `blocks` rewrites them."""
    data = wire.frame(wire.transfer_performative(7, 0x01020304, settled=True) + b"\xff", channel=3)
    assert data.hex(" ") == (
        "00 00 00 1f 02 00 00 03 00 53 14 c0 11 06 52 07 70 01 02 03 04 a0 04 01 02 03 04 43 41 42 ff"
    )


def test_a_disposition_accepts_and_settles_a_range() -> None:
    """Role, first, last, settled and the outcome `accepted`."""
    found, _ = wire.decode_performative(wire.disposition_frame(3, receiver=True, first=1, last=9))
    assert found == Disposition(role=True, first=1, last=9, settled=True, state=Accepted())


def test_attach_names_the_queue_in_the_terminus_of_the_far_end() -> None:
    """The address is the target's when we send and the source's when we receive."""
    sending, _ = wire.decode_performative(
        wire.attach_frame(0, 1, name="n", receiver=False, address="q", presettled=True)
    )
    receiving, _ = wire.decode_performative(
        wire.attach_frame(0, 1, name="n", receiver=True, address="q", presettled=False, offset="first")
    )
    assert isinstance(sending, Attach)
    assert isinstance(receiving, Attach)
    assert (sending.role, sending.snd_settle_mode, sending.initial_delivery_count) == (False, 1, 0)
    assert (sending.source, sending.target) == (Source(), Target(address="q"))
    assert (receiving.role, receiving.snd_settle_mode, receiving.initial_delivery_count) == (True, 0, None)
    offset = {Symbol("offset"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")}
    assert (receiving.source, receiving.target) == (Source(address="q", filter=offset), Target())


def test_sasl_plain_carries_user_and_password_between_nuls() -> None:
    """The response is authzid NUL authcid NUL password (RFC 4616)."""
    found, _ = wire.decode_performative(wire.sasl_init("guest", "secret"))
    assert isinstance(found, SaslInit)
    assert (found.mechanism, found.initial_response) == ("PLAIN", b"\0guest\0secret")


def test_a_message_is_one_data_section_of_the_size_asked_for() -> None:
    """Twelve bytes take the short form, 300 the long one; a durable message has a header section first."""
    assert wire.data_message(b"some payload") == b"\x00\x53\x75\xa0\x0csome payload"
    assert wire.data_message(bytes(300))[:8] == b"\x00\x53\x75\xb0\x00\x00\x01\x2c"
    assert wire.data_message(b"x", durable=True) == b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xa0\x01x"


def test_a_message_with_all_sections_has_them_in_the_order_of_the_standard() -> None:
    """Header, properties, application-properties, data (part 3 §3.2)."""
    data = wire.data_message(b"body", durable=True, sections=True)
    position, found = 0, []
    while position < len(data):
        value, position = decode(data, position)
        found.append((value.descriptor, value.value))
    assert [descriptor for descriptor, _ in found] == [0x70, 0x73, 0x74, 0x75]
    assert found[2][1] == {"tenant": "blue", "attempt": 1, "urgent": False}
    assert found[3][1] == b"body"


def test_a_frame_that_cannot_be_read_is_an_error_of_the_run() -> None:
    """A benchmark that ends says why, whatever the broker sent."""
    with pytest.raises(WireError, match="a composite was to start at offset 8"):
        wire.decode_performative(bytes(8) + b"\xa0\x05abc")


def test_an_error_is_told_in_one_line() -> None:
    """Condition and description, as far as they are there."""
    told = [
        wire.describe_error(error)
        for error in (None, Error(condition=Symbol("c")), Error(condition=Symbol("c"), description="d"))
    ]
    assert told == ["no error given", "c", "c: d"]
