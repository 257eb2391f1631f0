"""Messages as bytes, and what heads say of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.message.amqp091 import make_head as make_head091
from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import decode_batch, decode_some, encode_batch
from amqp10broker.message.traits import Traits, traits_of
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.performatives import Header

messages = st.lists(
    st.tuples(st.sampled_from([b"\x00a", b"\x00bb", b"\x91ccc"]) | st.binary(min_size=1), st.binary()),
    min_size=1,
)


@given(messages, st.data())
def test_some_messages_of_a_batch_are_decoded_alone(
    given: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    encoded = b"".join(encode_batch(given))
    places = data.draw(st.lists(st.integers(0, len(given) - 1)))
    assert decode_some(lambda at, length: encoded[at : at + length], places) == [given[at] for at in places]


@given(messages, st.data())
def test_a_batch_that_is_cut_off_is_refused(given: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    encoded = b"".join(encode_batch(given))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError, match="a batch of messages"):
        decode_batch(encoded[:cut])


@pytest.mark.parametrize(
    ("header", "traits"),
    [
        (None, Traits(False, None, None)),
        (Header(durable=True), Traits(True, None, None)),
        (Header(priority=9, ttl=500), Traits(False, 9, 500)),
    ],
)
def test_traits_of_amqp10(header: Header | None, traits: Traits) -> None:
    assert traits_of(make_head(header, None, "", "q")) == traits


@pytest.mark.parametrize(
    ("properties", "traits"),
    [
        (BasicProperties(), Traits(False, None, None)),
        (BasicProperties(delivery_mode=2, headers={"a": 1}), Traits(True, None, None)),
        (BasicProperties(delivery_mode=1, priority=5), Traits(False, 5, None)),
        (BasicProperties(delivery_mode=2, expiration="0"), Traits(True, None, 0)),
    ],
)
def test_traits_of_amqp091(properties: BasicProperties, traits: Traits) -> None:
    assert traits_of(make_head091("", "q", encode_properties(properties))) == traits
    long = make_head091(
        "x" * 255,
        "y" * 255,
        encode_properties(BasicProperties(message_id="z" * 255, headers={"h": "a" * 900})),
    )
    assert traits_of(long) == Traits(False, None, None)
