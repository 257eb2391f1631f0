"""Conversion of any message that a client may send: it never raises, and what both sides can say comes back.

proton decodes what is converted to AMQP 1.0, pamqp what is converted to AMQP 0-9-1.
"""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import proton
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp.commands import Basic

from amqp10broker.errors import PreconditionFailed
from amqp10broker.message.amqp091 import read_content, split_head
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.convert import routing_headers, to_amqp091, to_amqp10
from amqp10broker.message.message import Message
from amqp10broker.message.traits import acquired, traits_of
from amqp10broker.protocols.amqp091 import codec as t091
from amqp10broker.protocols.amqp091.codec import encode_table
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from tests.support.strategies import values

# --- what a client of 0-9-1 may send -------------------------------------------------------------

short = st.text(max_size=40)
# Values of which the counterpart converts back to the very same.
exact_091 = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=20),
    st.integers(-128, 127).map(t091.Int8),
    st.integers(0, 255).map(t091.UInt8),
    st.integers(-(2**15), 2**15 - 1).map(t091.Int16),
    st.integers(0, 2**16 - 1).map(t091.UInt16),
    st.integers(-(2**31), 2**31 - 1).map(t091.Int32),
    st.integers(0, 2**32 - 1).map(t091.UInt32),
    st.integers(-(2**63), 2**63 - 1).map(t091.Int64),
    st.floats(width=32, allow_nan=False).map(t091.Float32),
    st.floats(allow_nan=False),
    st.binary(max_size=20).map(t091.ByteArray),
    st.integers(0, 2**40).map(t091.Timestamp),
    st.builds(
        lambda number, scale: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale)),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 255),
    ),
)
nested_091 = st.recursive(
    exact_091,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=6,
)
names = short.filter(lambda name: not name.startswith("x-") and name not in ("CC", "BCC"))
x_names = st.from_regex(r"x-[a-z]{1,10}", fullmatch=True).filter(
    lambda name: name not in ("x-death", "x-cc", "x-exchange")
)
exact_headers = st.builds(
    lambda plain, annotated: {**plain, **annotated},
    st.dictionaries(names, exact_091, max_size=4),
    st.dictionaries(x_names, nested_091, max_size=3),
)
ascii_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
exact_properties = st.builds(
    BasicProperties,
    content_type=st.none() | ascii_text,
    content_encoding=st.none() | ascii_text,
    headers=exact_headers.map(lambda headers: headers or None),
    delivery_mode=st.sampled_from((None, 2)),  # 1 becomes none, which says the same
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | short | st.uuids().map(lambda uuid: f"urn:uuid:{uuid}"),
    reply_to=st.none() | short.filter(lambda text: not text.startswith("/")),
    expiration=st.none() | st.integers(0, 2**32 - 1).map(str),
    message_id=st.none() | short | st.uuids().map(lambda uuid: f"urn:uuid:{uuid}"),
    timestamp=st.none() | st.integers(0, 2**50),
    type=st.none() | short.filter(lambda text: text != "amqp-1.0"),
    user_id=st.none() | short,
    app_id=st.none() | short,
)


def published091(properties: bytes, body: bytes) -> Message:
    return read_content("x", "k", properties, user="u", impersonator=True)[0], body


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqpl_amqp_bin_amqpl")
@given(exact_properties, st.binary(max_size=300))
def test_amqp091_to_amqp10_and_back_is_the_same(properties: BasicProperties, body: bytes) -> None:
    """All that AMQP 1.0 can express comes back byte for byte, except for the order of the headers."""
    message = published091(encode_properties(properties), body)
    head, back = to_amqp091(to_amqp10(message))
    assert back == body
    given_names, _, given_redelivered = split_head(message[0])
    found_names, found, redelivered = split_head(head)
    assert (found_names, redelivered) == (given_names, given_redelivered)
    decoded = decode_properties(found)
    assert decoded == properties
    if properties.headers:
        ordered = {name: decoded.headers[name] for name in properties.headers}
        assert encode_table(ordered) == encode_table(properties.headers)


@given(exact_properties, st.binary(max_size=300))
def test_both_encodings_route_alike_where_they_say_the_same(properties: BasicProperties, body: bytes) -> None:
    """A headers exchange sees the same values in a message and in its conversion."""
    message = published091(encode_properties(properties), body)
    converted = routing_headers(to_amqp10(message))
    converted.pop("x-basic-type", None)
    assert converted == routing_headers(message)
    assert traits_of(to_amqp10(message)[0]).durable is traits_of(message[0]).durable


def uuid_of(text: str) -> UUID | None:
    """Return the UUID that a text names; Hypothesis also draws a bare ``urn:uuid:``, found in our code."""
    try:
        return UUID(text) if text.startswith("urn:uuid:") else None
    except ValueError:
        return None


@given(exact_properties, st.binary(max_size=300))
@example(BasicProperties(delivery_mode=1, message_id="urn:uuid:"), b"")
def test_proton_reads_what_becomes_of_amqp091(properties: BasicProperties, body: bytes) -> None:
    """An independent implementation finds the fields where the mapping tables put them."""
    properties.headers = dict.fromkeys(properties.headers or {}, "v")
    head, bare = to_amqp10(published091(encode_properties(properties), body))
    found = proton.Message()
    found.decode(head + bare)
    assert found.durable is (properties.delivery_mode == 2)
    if properties.priority is not None:
        assert found.priority == properties.priority
    assert bytes(found.body) == body
    if properties.expiration is not None:
        assert round(found.ttl * 1000) == int(properties.expiration)
    if properties.message_id is not None:
        assert found.id in (properties.message_id, uuid_of(properties.message_id))
    if properties.content_type:
        assert found.content_type == properties.content_type
    if properties.app_id:
        # proton hands this field out as a C string, which ends at a NUL.
        assert found.group_id == properties.app_id.partition("\0")[0]
    assert found.annotations["x-exchange"] == "x"
    plain = {name for name in properties.headers if not name.startswith("x-")}
    assert set(found.properties or {}) == plain


any_091 = st.recursive(
    exact_091 | st.integers(0, 2**64 - 1).map(t091.Timestamp) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=6,
)
SPECIAL = ("CC", "BCC", "x-death", "x-cc", "x-basic-type", "x-opt-deaths", "x-é")
any_headers = st.dictionaries(
    short
    | x_names
    | st.sampled_from(["CC", "BCC", "x-death", "x-cc", "x-basic-type", "x-opt-deaths", "x-é"]),
    any_091,
    max_size=5,
)
any_bytes_text = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


any_properties = st.builds(
    BasicProperties,
    content_type=st.none() | any_bytes_text,
    content_encoding=st.none() | any_bytes_text,
    headers=st.none() | any_headers,
    delivery_mode=st.none() | st.integers(0, 255),
    correlation_id=st.none() | any_bytes_text,
    reply_to=st.none() | any_bytes_text,
    expiration=st.none() | st.integers(-2, 2**40).map(str),
    message_id=st.none() | any_bytes_text,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | st.just("amqp-1.0") | any_bytes_text,
    user_id=st.none() | any_bytes_text,
    app_id=st.none() | any_bytes_text,
    cluster_id=st.none() | any_bytes_text,
)


@given(any_properties, st.binary(max_size=60) | st.just(encode(Described(ULong(0x77), "v"))))
def test_no_accepted_message_of_amqp091_fails_to_convert(properties: BasicProperties, body: bytes) -> None:
    """A publish that passes the checks becomes a message that AMQP 1.0 accepts, and converts back."""
    try:
        message = published091(encode_properties(properties), body)
    except PreconditionFailed:
        return
    converted = to_amqp10(acquired(message, failed=True))
    MessageReader("x", "k", "u", impersonator=True).read(b"".join(converted))
    again = to_amqp091(converted)
    assert again[1] == body
    decode_properties(split_head(again[0])[1])


# --- what a client of 1.0 may send ---------------------------------------------------------------

message_ids = st.none() | st.text(max_size=300) | st.uuids() | st.binary(max_size=20)
payloads = st.builds(
    lambda header, annotations, properties, application, body: (
        header.encode()
        + encode(Described(ULong(0x72), annotations))
        + properties.encode()
        + encode(Described(ULong(0x74), application))
        + body
    ),
    st.builds(
        Header,
        durable=st.none() | st.booleans(),
        priority=st.none() | st.integers(0, 255),
        ttl=st.none() | st.integers(0, 2**32 - 1),
    ),
    st.dictionaries(
        st.one_of(x_names, st.sampled_from(["x-death", "x-cc", "x-opt-deaths", "x-basic-type"])).map(Symbol),
        values,
        max_size=4,
    ),
    st.builds(
        Properties,
        message_id=message_ids,
        correlation_id=message_ids | st.integers(0, 2**64 - 1).map(ULong),
        user_id=st.none() | st.binary(max_size=300),
        reply_to=st.none() | st.text(max_size=20) | st.text(max_size=9).map("/queues/".__add__),
        group_id=st.none() | st.text(max_size=300),
        creation_time=st.none() | st.integers(-(2**63), 2**63 - 1),
        content_type=st.none() | ascii_text.map(Symbol),
    ),
    st.dictionaries(st.text(max_size=200) | st.integers(0, 9).map(t10.UInt), values, max_size=4),
    st.one_of(
        st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
            lambda parts: b"".join(encode(Described(ULong(0x75), part)) for part in parts)
        ),
        values.map(lambda value: encode(Described(ULong(0x77), value))),
    ),
)


@given(payloads)
def test_no_accepted_message_of_amqp10_fails_to_convert(payload: bytes) -> None:
    """Any message that a link accepts gets properties that an independent codec can read."""
    message = MessageReader("x", "k", "u", impersonator=True).read(payload)
    head, _ = to_amqp091(acquired(message, failed=False))
    _, properties, redelivered = split_head(head)
    ours = decode_properties(properties)
    assert redelivered
    assert encode_properties(ours) == properties
    routing_headers(message)
    if ours.headers is None and ours.timestamp is None and ours.user_id is None:
        theirs = Basic.Properties()
        theirs.unmarshal(int.from_bytes(properties[:2], "big"), properties[2:])
        assert theirs.delivery_mode == ours.delivery_mode
        assert theirs.message_id == ours.message_id
        assert theirs.app_id == ours.app_id


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqp_amqpl_amqp_bodies")
@given(payloads)
def test_bodies_survive_amqp10_to_amqp091_and_back(payload: bytes) -> None:
    """Data sections keep their concatenated content; any other body comes back byte for byte."""
    message = MessageReader("x", "k", "u", impersonator=True).read(payload)
    there = to_amqp091(message)
    again = to_amqp091(to_amqp10(there))
    assert again[1] == there[1]
