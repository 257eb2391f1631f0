"""The walk over a message finds what decoding the whole message gives, however it is spelled."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.message import amqp091
from amqp10broker.message.convert import body_start, read_properties
from amqp10broker.message.filters.fields import ABSENT, PROPERTIES, FieldReader, MessageField, Section
from amqp10broker.message.filters.filters import MessageFilter
from amqp10broker.message.filters.sql_eval import compile_sql
from amqp10broker.message.filters.stream import BloomFilter, chunk_filter
from amqp10broker.message.message import MessageReader
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Described, Map, Symbol, Timestamp, ULong
from tests.support.strategies import scalars, symbols, typed

texts = st.text(max_size=12) | st.text(min_size=250, max_size=300)
keys = st.sampled_from(["a", "b", "key", "\u2603", "k" * 260])
ids = st.one_of(texts, st.binary(max_size=12), st.uuids(), st.integers(0, 2**64 - 1).map(ULong))
times = st.integers(-(2**63), 2**63 - 1).map(Timestamp)


compounds = st.lists(scalars, max_size=2) | st.builds(Described, symbols, scalars)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


properties = st.builds(
    Properties,
    message_id=maybe(ids),
    user_id=maybe(st.binary(max_size=300)),
    to=maybe(texts) | compounds,
    subject=maybe(texts),
    reply_to=maybe(texts),
    correlation_id=maybe(ids),
    content_type=maybe(symbols),
    content_encoding=maybe(symbols),
    absolute_expiry_time=maybe(times),
    creation_time=maybe(times),
    group_id=maybe(texts),
    group_sequence=maybe(st.integers(0, 2**32 - 1)),
    reply_to_group_id=maybe(texts),
)
pairs = st.lists(
    st.tuples(keys | st.sampled_from(["a", "key"]).map(Symbol) | scalars, scalars | compounds),
    max_size=5,
    unique_by=lambda pair: encode(pair[0]),
)

PREFIXES = {
    "properties": (b"\x00\x53\x73", "amqp:properties:list"),
    "application": (b"\x00\x53\x74", "amqp:application-properties:map"),
}


@st.composite
def spelled(draw: st.DrawFn, section: str, encoded: bytes) -> bytes:
    """A section with its descriptor as nearly everybody writes it, or in another way."""
    usual, name = PREFIXES[section]
    assert encoded.startswith(usual)
    other = [usual, usual, b"\x00\x80" + b"\0" * 7 + usual[2:], b"\x00" + encode(Symbol(name))]
    return draw(st.sampled_from(other)) + encoded[3:]


@st.composite
def bares(draw: st.DrawFn) -> bytes:
    bare = b""
    if draw(st.booleans()):
        bare += draw(spelled("properties", draw(properties).encode()))
    if draw(st.booleans()):
        bare += draw(spelled("application", encode(Described(ULong(0x74), Map(tuple(draw(pairs)))))))
    code = draw(st.sampled_from([0x75, 0x77]))
    return bare + encode(Described(ULong(code), b"body"))


fields = st.one_of(
    keys.map(lambda key: MessageField(Section.APPLICATION_PROPERTIES, key)),
    st.sampled_from(PROPERTIES).map(lambda name: MessageField(Section.PROPERTIES, name)),
    st.just(MessageField(Section.HEADER, "priority")),
)


@settings(max_examples=150, deadline=None)
@given(bares(), st.none() | st.integers(0, 255), st.lists(fields, unique=True, max_size=6), st.booleans())
def test_a_reader_finds_what_decoding_everything_finds(
    bare: bytes, priority: int | None, wanted: list[MessageField], uuid_as_binary: bool
) -> None:
    """Values with their types; what is not there is None, or ABSENT among application-properties."""
    message = MessageReader("", "q", "u", impersonator=True).read(Header(priority=priority).encode() + bare)
    decoded, application = read_properties(bare[: body_start(bare)])
    by_key = {key: value for key, value in application.items() if type(key) is str}
    expected: list[Any] = []
    for field in wanted:
        if field.section is Section.HEADER:
            value: Any = 4 if priority is None else priority
        elif field.section is Section.PROPERTIES:
            value = getattr(decoded, field.name.replace("-", "_"), None)
        else:
            value = by_key.get(field.name, ABSENT)
        expected.append(value.bytes if uuid_as_binary and isinstance(value, UUID) else value)
    found = FieldReader(wanted, absent=ABSENT, uuid_as_binary=uuid_as_binary).read(message)
    for field, one, other in zip(wanted, found, expected, strict=True):
        if other is ABSENT:
            assert one is ABSENT
        elif field.section is Section.APPLICATION_PROPERTIES or field.name in ("to", "reply-to"):
            assert typed(one) == typed(other)
        else:
            # A field's type is known, so a composite gives a plain int.
            assert one == other


@settings(max_examples=100, deadline=None)
@given(st.lists(bares(), min_size=1, max_size=4), st.data())
def test_what_is_remembered_of_messages_that_are_alike_is_true(
    alike: list[bytes], data: st.DataObject
) -> None:
    """However they are spelled, and beside messages of AMQP 0-9-1, whose content may be anything."""
    read = MessageReader("", "q", "u", impersonator=True).read
    old = amqp091.make_head("x", "k", encode_properties(BasicProperties(headers={"a": "1"})))
    kinds = [read(bare) for bare in alike] + [(old, alike[0]), (old, b"\x00\x53\x73\xc0")]
    messages = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=20))
    text = data.draw(st.sampled_from(["a IS NOT NULL", "a = '1'", "key > 0 OR b", "a = key"]))
    wanted = MessageFilter.of_sql(compile_sql(text))
    each = [bool(MessageFilter.of_sql(compile_sql(text)).matching([one], 0)) for one in messages]
    for _ in range(2):
        assert wanted.matching(messages, 0) == [place for place, passes in enumerate(each) if passes]


@settings(deadline=None)
@given(
    st.lists(st.none() | st.text(max_size=5), max_size=60),
    st.integers(16, 255),
    st.lists(st.text(max_size=5), max_size=3),
    st.booleans(),
)
def test_a_chunk_that_holds_a_wanted_message_is_always_read(
    values: list[str | None], size: int, wanted: list[str], match_unfiltered: bool
) -> None:
    chunk = chunk_filter(values, size)
    assert len(chunk) in (0, size)
    for value in values:
        if value is not None:
            assert BloomFilter((*wanted, value), match_unfiltered).may_match(chunk)
        else:
            assert BloomFilter(tuple(wanted), match_unfiltered=True).may_match(chunk)
