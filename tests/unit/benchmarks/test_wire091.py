"""AMQP 0-9-1 frames of the generator, read by pamqp, which shares no code with it."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from pamqp import body, commands, frame, header

from amqp10broker.protocols.amqp091.framing import method_frame
from amqp10broker.protocols.amqp091.methods import ChannelClose, ConnectionClose, ConnectionTune
from benchmarks import wire091
from benchmarks.errors import WireError


def unmarshal(data: bytes) -> list[tuple[int, Any]]:
    """Read every frame with pamqp: channel and frame."""
    found = []
    while data:
        consumed, channel, one = frame.unmarshal(data)
        found.append((channel, one))
        data = data[consumed:]
    return found


def test_the_login_names_user_password_and_capabilities() -> None:
    """SASL PLAIN: an empty authorisation identity, the user, the password."""
    ((_, found),) = unmarshal(method_frame(0, wire091.start_ok("me", "secret")))
    assert isinstance(found, commands.Connection.StartOk)
    assert (found.mechanism, found.locale) == ("PLAIN", "en_US")
    assert found.response == "\0me\0secret"
    assert found.client_properties["capabilities"]["publisher_confirms"] is True


def test_a_content_is_cut_to_the_peers_frame_max() -> None:
    """frame-max counts the whole frame, its eight octets of head and end included."""
    payload = bytes(range(256)) * 4
    content = wire091.content(2, payload, wire091.PLAIN, frame_max=508)
    (_, head), *pieces = unmarshal(content)
    assert isinstance(head, header.ContentHeader)
    assert head.body_size == 1024
    assert all(isinstance(one, body.ContentBody) for _, one in pieces)
    assert [len(one.value) for _, one in pieces] == [500, 500, 24]
    assert b"".join(one.value for _, one in pieces) == payload


def test_an_empty_message_has_no_body_frame() -> None:
    """The content header alone says that there is nothing to come."""
    ((_, head),) = unmarshal(wire091.content(1, b"", wire091.PLAIN, frame_max=4096))
    assert head.body_size == 0


def test_properties_stand_in_the_order_of_their_flags() -> None:
    """All that a client library would add."""
    flags = wire091.properties(content_type="text/plain", durable=True, sections=True)
    ((_, head), _) = unmarshal(wire091.content(1, b"x", flags, frame_max=4096))
    found = head.properties
    assert (found.content_type, found.delivery_mode) == ("text/plain", 2)
    assert found.headers == {"tenant": "blue", "attempt": 1, "urgent": False}
    assert found.message_id == "3f1c2c1e-4c57-4c51-9a3c-0d2b0c6a7f10"
    assert found.timestamp == datetime.datetime.fromtimestamp(1_700_000_000, tz=datetime.UTC)


def test_a_method_that_cannot_be_read_is_an_error_of_the_run() -> None:
    """Unknown, or cut short: better no figure than one that rests on a frame not understood."""
    with pytest.raises(WireError, match="unknown method 99"):
        wire091.read_method(b"\x00\x3c\x00\x63")
    with pytest.raises(WireError, match="SYNTAX_ERROR"):
        wire091.read_method(ConnectionTune().encode()[:6])


def test_a_reason_names_code_text_and_method() -> None:
    """What a user must read when the broker refuses something."""
    refused = ChannelClose(404, "NOT_FOUND - no queue", 50, 10)
    assert wire091.reason(refused) == "404 NOT_FOUND - no queue (method 50.10)"
    assert wire091.reason(ConnectionClose(320, "CONNECTION_FORCED")) == "320 CONNECTION_FORCED"
