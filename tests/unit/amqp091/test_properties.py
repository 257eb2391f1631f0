"""The properties of a basic content."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic

from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.protocols.amqp091.properties import (
    BasicProperties,
    decode_properties,
    encode_properties,
    is_persistent,
)
from amqp10broker.protocols.serial import EncodeError

ALL = BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"a": "b"},
    delivery_mode=2,
    priority=9,
    correlation_id="corr",
    reply_to="replies",
    expiration="60000",
    message_id="id",
    timestamp=1_700_000_000,
    type="order",
    user_id="guest",
    app_id="app",
    cluster_id="cluster",
)


@pytest.mark.parametrize("cut", range(len(encode_properties(ALL))))
def test_properties_cut_off_are_refused(cut: int) -> None:
    """Whatever byte they end at too early."""
    with pytest.raises(DecodeError):
        decode_properties(encode_properties(ALL)[:cut])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x00\x00", "take 2 bytes, not the 3"),
        (b"\x00\x02", "unknown flag"),
        (b"\x00\x01\x80\x00", "unknown flags 0x8000 in word 2"),
        (b"\x00\x01", "cut off"),
        (b"\x20\x00\x00\x00\x00\x03\x01kz", "unknown field type"),
    ],
)
def test_malformed_properties_are_refused(data: bytes, text: str) -> None:
    """Bytes left over, flags that mean nothing, and headers that are no table."""
    with pytest.raises(DecodeError, match=text):
        decode_properties(data)


def test_a_second_flags_word_without_flags_is_read_over() -> None:
    """Bit 0 announces another word of flags, which may only be empty."""
    assert decode_properties(b"\x10\x01\x00\x01\x00\x00\x02") == BasicProperties(delivery_mode=2)


def test_a_text_that_is_not_utf8_travels_on_unchanged() -> None:
    """Clients put raw bytes in correlation-id; they come out as they went in."""
    data = b"\x04\x00\x03\xff\x00a"
    assert encode_properties(decode_properties(data)) == data


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(priority=256),
        BasicProperties(delivery_mode=-1),
        BasicProperties(timestamp=-1),
        BasicProperties(message_id="x" * 256),
        BasicProperties(headers={"a": range(1)}),
    ],
    ids=repr,
)
def test_properties_that_cannot_travel_are_refused(properties: BasicProperties) -> None:
    """Numbers out of range, long texts and headers without an encoding raise EncodeError."""
    with pytest.raises(EncodeError):
        encode_properties(properties)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (BasicProperties(), False),
        (BasicProperties(delivery_mode=1), False),
        (BasicProperties(delivery_mode=2), True),
        (ALL, True),
        (BasicProperties(content_type="a", content_encoding="b", headers={"k": 1}), False),
        (BasicProperties(headers={"k": 1}, delivery_mode=2), True),
    ],
)
def test_persistence_is_read_without_decoding(properties: BasicProperties, expected: bool) -> None:
    """The delivery mode is found behind content type, encoding and headers."""
    assert is_persistent(encode_properties(properties)) is expected


short = st.text(max_size=60)


@given(
    st.builds(
        BasicProperties,
        content_type=st.none() | short,
        delivery_mode=st.none() | st.integers(0, 255),
        priority=st.none() | st.integers(0, 255),
        correlation_id=st.none() | short,
        reply_to=st.none() | short,
        message_id=st.none() | short,
        timestamp=st.none() | st.integers(0, 2**64 - 1),
        type=st.none() | short,
        user_id=st.none() | short,
        app_id=st.none() | short,
    )
)
def test_any_properties_come_back(properties: BasicProperties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(st.binary(max_size=60))
def test_garbage_is_a_decode_error_or_properties(data: bytes) -> None:
    """No bytes make the reader raise anything but DecodeError."""
    try:
        decode_properties(data)
    except DecodeError:
        return
    assert len(data) >= 2


def test_pamqp_agrees() -> None:
    """An independent codec writes the same bytes, and reads ours."""
    theirs = Basic.Properties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"a": "b"},
        delivery_mode=2,
        priority=9,
        correlation_id="corr",
        reply_to="replies",
        expiration="60000",
        message_id="id",
        timestamp=datetime.datetime.fromtimestamp(1_700_000_000, tz=datetime.UTC),
        message_type="order",
        user_id="guest",
        app_id="app",
    )
    ours = dataclasses.replace(ALL, cluster_id=None)
    assert encode_properties(ours) == theirs.marshal()
    assert decode_properties(theirs.marshal()) == ours
