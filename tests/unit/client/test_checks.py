"""Arguments that no frame can carry: refused by the call that brings them, and the connection lives on."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.client.message import BodyKind, Message, decode_message
from amqp10broker.client.options import ClientOptions
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError

HALF = "\ud800"
UINT = 2**32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"container_id": HALF}, "container_id has half a character"),
        ({"container_id": 5}, "container_id is 5; give a text"),
        ({"hostname": HALF}, "hostname has half a character"),
        (
            {"frame_size_max_bytes": 511},
            "frame_size_max_bytes is 511; give an integer from 512 to",
        ),
        ({"frame_size_max_bytes": UINT}, "frame_size_max_bytes is 4294967296"),
        ({"channel_max": 65_536}, "channel_max is 65536"),
        ({"handle_max": -1}, "handle_max is -1"),
        ({"incoming_window": 0}, "incoming_window is 0; give an integer from 1"),
        ({"idle_timeout_ms": UINT}, "idle_timeout_ms is"),
        ({"properties": {"a": object()}}, "properties has 'a': <object"),
        ({"properties": {"ü": 1}}, "properties has 'ü': 1, which cannot be sent: a symbol is ASCII only"),
        ({"properties": {1: 2}}, "properties has 1: 2"),
        ({"properties": {"a": 2**70}}, "is no long"),
    ],
)
def test_what_a_connection_cannot_ask_for(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        ClientOptions(**{"container_id": "c", **given})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (5, BodyKind.DATA),
        ("text", BodyKind.DATA),
        (None, BodyKind.DATA),
        (b"x", BodyKind.SEQUENCE),
        (5, BodyKind.SEQUENCE),
    ],
)
def test_a_body_that_is_none_of_its_kind(body: Any, kind: BodyKind) -> None:
    """The broker would end the link for it."""
    with pytest.raises(EncodeError, match=f"a body of kind {kind.name} is made of .*: leave kind out"):
        Message(body, kind=kind).encode()


@pytest.mark.parametrize("descriptor", [b"\xc1\x01\x00", b"\xc0\x02\x01\x40", b"\x40", b"\x41", b"\xa1\x01x"])
def test_a_section_whose_descriptor_is_no_number(descriptor: bytes) -> None:
    """Also a list or a map, which cannot be looked up."""
    with pytest.raises(DecodeError, match="unknown section"):
        decode_message(b"\x00" + descriptor + b"\x40")
