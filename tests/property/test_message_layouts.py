"""A reader that has learned layouts takes and refuses what one does that has seen nothing yet.

Each time the same message is given to both, and the result is compared, an error included: head, bare
message and address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amqp10broker.message.amqp10 import MessageLayout, MessageLayouts, MessageReader, header_end, layout_of
from amqp10broker.protocols.amqp10.errors import AmqpLinkError
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Symbol, Timestamp, ULong
from tests.support.engine import section
from tests.support.strategies import scalars, symbols, typed, values

USER = "guest"


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


texts = st.text(max_size=12) | st.text(st.characters(max_codepoint=127), max_size=12)
ids = st.one_of(
    texts,
    st.binary(max_size=12),
    st.uuids(),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(0, 300).map(ULong),
    st.text(min_size=250, max_size=300),
)
times = st.integers(-(2**63), 2**63 - 1).map(Timestamp)
headers = st.builds(
    lambda durable, priority, ttl: Header(durable=durable, priority=priority, ttl=ttl).encode(),
    maybe(st.booleans()),
    maybe(st.integers(0, 255)),
    maybe(st.integers(0, 2**32 - 1)),
)
annotations = st.dictionaries(texts.map(lambda name: Symbol("x-" + ascii(name))), values, max_size=2).map(
    lambda found: section(0x72, found)
)
properties = st.builds(
    Properties,
    message_id=maybe(ids),
    user_id=maybe(st.just(USER.encode())),
    to=maybe(texts) | scalars,
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
).map(Properties.encode)
application_properties = st.dictionaries(texts, scalars | values, max_size=4).map(
    lambda found: section(0x74, found)
)
contents = st.binary(max_size=20) | st.integers(250, 260).map(lambda size: b"\x00" * size)
bodies = st.one_of(
    contents.map(lambda body: section(0x75, body)),
    st.one_of(contents, texts, texts, st.integers(250, 260).map(lambda size: "ü" * size), values).map(
        lambda body: section(0x77, body)
    ),
    st.lists(contents, min_size=2, max_size=2).map(lambda found: b"".join(section(0x75, b) for b in found)),
    st.lists(values, max_size=2).map(lambda body: section(0x76, body)),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw well-formed messages, mostly of a form that can be learned."""
    absent = st.just(b"")
    parts: Sequence[st.SearchStrategy[bytes]] = (
        st.one_of(absent, st.just(b"\x00\x53\x70\x45"), headers),
        absent | annotations,
        st.one_of(properties, properties, absent),
        application_properties | absent,
        bodies,
    )
    return b"".join(draw(part) for part in parts)


def outcome(reader: MessageReader, payload: bytes) -> tuple[object, ...]:
    try:
        return reader.read(payload)
    except AmqpLinkError as error:
        return "refused", error.condition, error.description


def address(reader: MessageReader, payload: bytes) -> tuple[object, ...]:
    try:
        return ("address", typed(reader.to_of(payload)))
    except AmqpLinkError as error:
        return "refused", error.condition, error.description


def new_reader() -> MessageReader:
    return MessageReader("x", "k", USER)


def taught(learned: Sequence[bytes]) -> MessageReader:
    reader = new_reader()
    for payload in learned:
        reader.read(payload)
    return reader


def check(reader: MessageReader, payload: bytes) -> None:
    """Compare both results twice: the second read uses what the first one learned."""
    expected = outcome(new_reader(), payload)
    expected_address = address(new_reader(), payload)
    for _ in range(2):
        assert outcome(reader, payload) == expected
        assert address(reader, payload) == expected_address


def shape_for(payload: bytes) -> MessageLayout | None:
    message = new_reader().read(payload)
    return layout_of(payload, len(payload) - len(message[1]), message[0])


def of_shape(layout: MessageLayout, payload: bytes, noise: bytes, body: bytes) -> bytes:
    """Build a message of a layout, with noise in all bits that the layout leaves free."""
    length = layout.length
    width = length - layout.size_at
    number = int.from_bytes(payload[:length], "big")
    noisy = int.from_bytes((noise * (length // len(noise) + 1))[:length], "big")
    start = (number & layout.mask | noisy & ~layout.mask).to_bytes(length, "big")
    return start[: layout.size_at] + len(body).to_bytes(width, "big") + body


@settings(deadline=None)
@given(messages(), st.binary(min_size=1, max_size=64), contents | texts.map(str.encode))
def test_whatever_has_a_learned_shape_is_well_formed(payload: bytes, noise: bytes, body: bytes) -> None:
    """For any free bits, the thorough parser accepts the message too, with the same result."""
    layout = shape_for(payload)
    if layout is None:
        return
    if layout.size_at + 1 == layout.length:
        body = body[:255]
    message = of_shape(layout, payload, noise, body)
    check(taught([payload]), message)


@settings(deadline=None)
@given(messages(), st.binary(min_size=1, max_size=64))
def test_all_messages_of_a_shape_are_found(payload: bytes, noise: bytes) -> None:
    """A body may have any size, so the fast way is worth having."""
    layout = shape_for(payload)
    if layout is None:
        return
    message = of_shape(layout, payload, noise, b"another body")
    reader = taught([payload] * 2)
    plain = layout.bare == header_end(payload) and payload[layout.bare + 2] == 0x75
    found = reader._layouts.find(message, header_end(message))
    assert plain or found == layout


@settings(deadline=None)
@given(messages())
def test_no_bit_is_overlooked(payload: bytes) -> None:
    """Each bit is flipped: if the message still has the layout, the thorough parser accepts it too."""
    layouts = MessageLayouts()
    head, bare = new_reader().read(payload)
    layouts.learn(payload, header_end(payload), len(payload) - len(bare), head)
    for position in range(min(len(payload), 200)):
        for bit in range(8):
            changed = bytearray(payload)
            changed[position] ^= 1 << bit
            layout = layouts.find(bytes(changed), header_end(changed))
            if layout is not None:
                assert outcome(new_reader(), bytes(changed)) == (layout.head, bytes(changed[layout.bare :]))


@settings(deadline=None)
@given(messages(), st.data())
def test_a_message_that_was_tampered_with_is_not_mistaken(payload: bytes, data: st.DataObject) -> None:
    reader = taught([payload])
    positions = st.integers(0, len(payload) - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        changed = bytearray(payload)
        for _ in range(data.draw(st.integers(1, 3))):
            start, stop = sorted((data.draw(positions), data.draw(positions)))
            match data.draw(st.sampled_from(["set", "size", "cut", "insert", "remove", "swap"])):
                case "set":
                    changed[start:stop] = data.draw(st.binary(min_size=stop - start, max_size=stop - start))
                case "size":
                    changed[start : start + 1] = data.draw(st.integers(0, 255)).to_bytes(1, "big")
                case "cut":
                    del changed[stop:]
                case "insert":
                    changed[start:start] = data.draw(st.binary(max_size=8))
                case "remove":
                    del changed[start : start + 1]
                case _:
                    changed[start:stop] = changed[stop:start:-1]
        check(reader, bytes(changed))


@settings(deadline=None)
@given(st.lists(messages(), min_size=1, max_size=8), st.data())
def test_layouts_do_not_get_into_each_others_way(learned: list[bytes], data: st.DataObject) -> None:
    """A reader that has learned several gives each message its own head."""
    reader = taught(learned)
    for payload in data.draw(st.permutations(learned)):
        check(reader, payload)
    beginning = data.draw(st.sampled_from(learned))
    ending = data.draw(st.sampled_from(learned))
    cut = data.draw(st.integers(0, len(beginning)))
    check(reader, beginning[:cut] + ending[cut:])
