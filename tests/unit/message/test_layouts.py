"""Which messages of a learned layout are taken without checking them thoroughly, and which are not.

That the two ways agree is the matter of the property tests beside this; here it is that the fast way is
taken at all, and how much is remembered.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.message.amqp10 import ALIKE_MAX, LAYOUTS_MAX, LENGTH_MAX, MessageLayouts, header_end
from amqp10broker.message.message import MessageReader
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, Timestamp, UInt, ULong

HEAD = b"head"
DURABLE = Header(durable=True).encode()


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def data(body: bytes = b"body") -> bytes:
    return section(0x75, body)


def value(body: Any) -> bytes:
    return section(0x77, body)


def application_properties(**given: Any) -> bytes:
    return section(0x74, given)


def learn(layouts: MessageLayouts, message: bytes, bare: int = 0) -> None:
    layouts.learn(message, header_end(message), bare, HEAD)


def known(learned: bytes, message: bytes, bare: int = 0) -> bool:
    """Whether a message is known when another one has been learned."""
    layouts = MessageLayouts()
    learn(layouts, learned, bare)
    layout = layouts.find(message, header_end(message))
    if layout is None:
        return False
    assert (layout.head, layout.bare) == (HEAD, bare)
    return True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Properties(message_id="id-1"), Properties(message_id="id-2")),
        (Properties(message_id="i" * 300), Properties(message_id="j" * 300)),
        (Properties(message_id=b"\x00\xff"), Properties(message_id=b"\xff\x00")),
        (Properties(message_id=ULong(1)), Properties(message_id=ULong(255))),
        (Properties(message_id=ULong(2**40)), Properties(message_id=ULong(2**64 - 1))),
        (Properties(message_id=UUID(int=0)), Properties(message_id=UUID(int=2**128 - 1))),
        (Properties(to="/queues/a", subject="a"), Properties(to="/queues/b", subject="b")),
        (Properties(content_type=Symbol("a/b")), Properties(content_type=Symbol("c/d"))),
        (Properties(creation_time=Timestamp(0)), Properties(creation_time=Timestamp(2**40))),
        (Properties(user_id=b"me", group_id="a"), Properties(user_id=b"me", group_id="b")),
        (Properties(group_sequence=UInt(1)), Properties(group_sequence=UInt(2))),
    ],
    ids=str,
)
def test_properties_may_have_other_contents(one: Properties, other: Properties) -> None:
    """Text, bytes and numbers of the same size make the same layout."""
    assert known(one.encode() + data(), other.encode() + data())


@pytest.mark.parametrize("start", [b"", DURABLE, b"\x00\x53\x70\x45", b"\x00\x53\x73\x45"], ids=bytes.hex)
def test_a_body_alone_has_a_shape(start: bytes) -> None:
    """Whatever stands before it; its first bytes may have any content, too."""
    bare = len(start) if start[2:3] == b"\x70" else 0
    for make in (data, value):
        assert known(start + make(b"abc"), start + make(b"xyz12"), bare)
        assert known(start + make(b""), start + make(b"xyz12"), bare)


def test_a_long_message_is_not_learned() -> None:
    """Big numbers cost what they are long; only the body may have any length."""
    room = LENGTH_MAX - len(Properties(message_id="a" * 300).encode()) - len(data(b""))
    fits = Properties(message_id="a" * (300 + room)).encode() + data()
    assert known(fits, fits)
    longer = Properties(message_id="a" * (301 + room)).encode() + data()
    assert not known(longer, longer)
    keys = {f"key-{n}": n for n in range(LENGTH_MAX)}
    assert not known(section(0x74, keys) + data(), section(0x74, keys) + data())


def sized(size: int, subject: int = 1) -> bytes:
    return Properties(message_id="a" * size, subject="b" * subject).encode() + data()


def test_who_never_repeats_a_shape_pays_for_learning_less_and_less() -> None:
    """The more was learned, the more messages go by before the next one is."""
    layouts = MessageLayouts()
    learned = []
    for number in range(120):
        before = len(layouts)
        learn(layouts, sized(number))
        if len(layouts) > before:
            learned.append(number)
    gaps = [after - first for first, after in pairwise(learned)]
    assert gaps[:3] == [1, 1, 1]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 5


def filled(messages: list[bytes]) -> MessageLayouts:
    """MessageLayouts that have been offered these until they were not of a mind to pause."""
    layouts = MessageLayouts()
    for message in messages:
        while layouts.find(message, 0) is None:
            learn(layouts, message)
    return layouts


def test_a_reader_remembers_a_bounded_number_of_shapes() -> None:
    """The ones learned last; a message that begins as one of these keeps it too."""
    messages = [sized(size) for size in range(LAYOUTS_MAX + 20)]
    layouts = filled(messages)
    assert len(layouts) == LAYOUTS_MAX
    found = [layouts.find(message, 0) is not None for message in messages]
    assert found == [False] * 20 + [True] * LAYOUTS_MAX


def test_few_shapes_begin_alike() -> None:
    """Of those, the one that was used last is tried first and forgotten last."""
    messages = [
        Properties(message_id="id-1").encode() + application_properties(a="a" * size) + data()
        for size in range(ALIKE_MAX + 1)
    ]
    layouts = filled(messages[:-1])
    assert len(layouts) == ALIKE_MAX
    assert layouts.find(messages[0], 0) is not None
    while layouts.find(messages[-1], 0) is None:
        learn(layouts, messages[-1])
    assert len(layouts) == ALIKE_MAX
    assert layouts.find(messages[0], 0) is not None
    assert layouts.find(messages[1], 0) is None


# --- through the reader ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bare",
    [
        Properties(message_id="id-1", to="/queues/q").encode() + data(),
        Properties(to="/queues/ä").encode() + data(),
        Properties(to=Symbol("/queues/q")).encode() + data(),
        Properties(to=7).encode() + data(),
        Properties(message_id="id-1").encode() + data(),
        data(),
        value(7),
    ],
    ids=["string", "not ASCII", "symbol", "number", "absent", "no properties", "no layout"],
)
def test_the_address_of_a_message_is_the_to_of_its_properties(bare: bytes) -> None:
    """Learned or not, and whatever its type: whether it will do is the publisher's matter."""
    reader = MessageReader("", "", "guest")
    _, properties = reader.read_with_properties(DURABLE + bare)
    expected = None if properties is None else properties.to
    for _ in range(3):
        found = reader.to_of(DURABLE + bare)
        assert found == expected
        assert type(found) is type(expected)


def test_a_learned_shape_says_where_each_messages_address_is() -> None:
    """Not what the address of the message was that it was learned from."""
    reader = MessageReader("", "", "guest")
    found = [reader.to_of(Properties(to=f"/queues/{name}").encode() + data()) for name in "abc"]
    assert found == ["/queues/a", "/queues/b", "/queues/c"]


def test_a_users_id_is_checked_in_every_message() -> None:
    """Another user-id of the same size does not pass for the one that was checked."""
    reader = MessageReader("", "q", "guest")
    for _ in range(3):
        reader.read(Properties(user_id=b"guest").encode() + data())
    with pytest.raises(AmqpLinkError, match="user_id property set to 'other' but authenticated user"):
        reader.read(Properties(user_id=b"other").encode() + data())
