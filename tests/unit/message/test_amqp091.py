"""Messages of both protocols as they are published, kept and delivered."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.client.message import Message as Made
from amqp10broker.errors import PreconditionFailed
from amqp10broker.message import amqp091
from amqp10broker.message.amqp091 import delivery_count, make_head, read_content, split_head
from amqp10broker.message.amqp10 import (
    ALIKE_MAX,
    HEAD_BYTES_MAX,
    LAYOUTS_MAX,
    LENGTH_MAX,
    MessageLayouts,
    MessageReader,
    decode_head,
    extra_keys,
    header_end,
    header_of,
)
from amqp10broker.message.message import Message
from amqp10broker.message.tracing import LOOKED_THROUGH_BYTES, destination, ids, is_amqp091, trace_fields
from amqp10broker.message.traits import acquired
from amqp10broker.protocols.amqp091.codec import Int32, encode_shortstr
from amqp10broker.protocols.amqp091.errors import DecodeError
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.protocols.amqp10.codec import array_of, encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Described, Symbol, Timestamp, UInt, ULong
from tests.support.engine import section


def read(properties: BasicProperties) -> tuple[bytes, tuple[str, ...]]:
    return read_content("amq.topic", "a.b", encode_properties(properties), user="guest", impersonator=False)


def refused(properties: BasicProperties) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        read(properties)
    return caught.value.description


def test_the_head_can_be_sliced_for_a_delivery() -> None:
    """Exchange, routing key and properties are stored as a delivery writes them."""
    given = encode_properties(BasicProperties(content_type="t", delivery_mode=2, message_id="m"))
    head, extra = read_content("amq.topic", "a.b", given, user="guest", impersonator=False)
    assert head[:6] == b"\x91\x00\x00\x00\x00\x00"
    assert split_head(head) == (encode_shortstr("amq.topic") + encode_shortstr("a.b"), given, False)
    assert extra == ()
    assert is_amqp091((head, b""))


def test_an_acquired_message_is_redelivered() -> None:
    """Any return sets redelivered, failed ones alone increase the count, the rest stays."""
    message = (read(BasicProperties(message_id="m"))[0], b"body")
    back = acquired(message, failed=False)
    failed = acquired(acquired(back, failed=True), failed=True)
    assert split_head(back[0])[2] is True
    assert delivery_count(back[0]) == 0
    assert delivery_count(failed[0]) == 2
    assert failed[0][6:] == message[0][6:]
    assert failed[1] == b"body"
    assert failed[0] == make_head(
        "amq.topic", "a.b", split_head(message[0])[1], redelivered=True, delivery_count=2
    )


def test_cc_and_bcc_add_routing_keys_and_bcc_is_removed() -> None:
    """Keys of CC come first, then those of BCC, which no consumer gets."""
    head, extra = read(BasicProperties(content_type="t", headers={"CC": ["x"], "BCC": ["y", "z"], "n": 1}))
    assert extra == ("x", "y", "z")
    kept = decode_properties(split_head(head)[1])
    assert kept == BasicProperties(content_type="t", headers={"CC": ["x"], "n": Int32(1)})


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("key", "longstr"),
        (1, "int32"),
        ({}, "table"),
        (None, "void"),
        ([1], "of int32"),
        ([b"\xff"], "of longstr that is not UTF-8"),
    ],
)
def test_cc_of_another_type_is_refused(header: str, value: Any, kind: str) -> None:
    """CC and BCC must be arrays of long strings."""
    text = refused(BasicProperties(headers={header: value}))
    assert text == f"header '{header}' must be an array of longstr, not {kind}"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "per_message_ttl_expiration_too_high")
@pytest.mark.parametrize("expiration", ["", "abc", " 1", "\u0661", "10 s", "1.5", '1"', "-5", "315360000001"])
def test_a_bad_expiration_is_refused_with_its_reason(expiration: str) -> None:
    assert refused(BasicProperties(expiration=expiration)) == (
        f"invalid expiration '{expiration}': must be milliseconds, an integer of 0 to 315360000000"
    )


FULL = encode_properties(
    BasicProperties("t", "e", {"a": 1}, 2, 3, "c", "r", "1000", "m", 5, "t", "guest", "a", "cl")
)


@pytest.mark.parametrize("cut", range(len(FULL)))
def test_properties_cut_off_are_a_syntax_error(cut: int) -> None:
    """They may end at any byte, also within a value that is otherwise skipped or refused."""
    with pytest.raises(DecodeError):
        read_content("", "q", FULL[:cut], user="guest", impersonator=False)


@pytest.mark.parametrize("properties", [FULL + b"x", b"\x00\x02", b"\x00\x01\x80\x00", b"\x00\x01"])
def test_malformed_properties_are_a_syntax_error(properties: bytes) -> None:
    """Surplus bytes and unknown flags are malformed, though no other field is decoded."""
    with pytest.raises(DecodeError):
        read_content("", "q", properties, user="guest", impersonator=False)


BODY = encode(Described(ULong(0x75), b"hello"))


def annotated(annotations: dict[str, Any]) -> bytes:
    described = Described(ULong(0x72), {Symbol(key): value for key, value in annotations.items()})
    return encode(described) + BODY


def read_10(payload: bytes) -> tuple[bytes, bytes]:
    return MessageReader("x", "k", "guest").read(payload)


def test_exchange_and_routing_key_replace_the_publishers() -> None:
    """The broker sets x-exchange and x-routing-key; other annotations are kept."""
    message = read_10(annotated({"x-exchange": "lie", "x-other": 1}))
    assert decode_head(message[0])[1] == {"x-exchange": "x", "x-routing-key": "k", "x-other": 1}
    assert not is_amqp091(message)


@pytest.mark.parametrize("value", [["a", "b"], array_of(["a", "b"])], ids=["list", "array"])
def test_x_cc_adds_routing_keys(value: Any) -> None:
    """It is a list of strings and stays in the message."""
    head, _ = read_10(annotated({"x-cc": value}))
    assert extra_keys(head) == ("a", "b")
    assert decode_head(head)[1]["x-cc"] == value


@pytest.mark.parametrize("value", ["a", None, 1, [1], ["a", b"b"], [Symbol("a")], {"a": "b"}], ids=repr)
def test_a_bad_x_cc_detaches_the_link(value: Any) -> None:
    """Any value but a list of strings is an invalid field."""
    head, _ = read_10(annotated({"x-cc": value}))
    with pytest.raises(AmqpLinkError, match="bad value for 'x-cc' message-annotation: ") as caught:
        extra_keys(head)
    assert caught.value.condition == Condition.INVALID_FIELD


def test_the_first_acquirer_is_told_so_and_the_next_one_not() -> None:
    """A fresh message has first-acquirer and count 0; only failed deliveries count."""
    message = read_10(Header(first_acquirer=False, delivery_count=7).encode() + BODY)
    assert (header_of(message[0]).first_acquirer, header_of(message[0]).delivery_count) == (True, 0)
    again = acquired(message, failed=False)
    assert (header_of(again[0]).first_acquirer, header_of(again[0]).delivery_count) == (False, 0)
    failed = acquired(again, failed=True)
    assert (header_of(failed[0]).first_acquirer, header_of(failed[0]).delivery_count) == (False, 1)
    assert failed[1] is message[1]


def test_short_heads_are_remembered_and_long_ones_are_not() -> None:
    """Thousands of long heads would fill much memory for longer than the messages exist."""
    reader = MessageReader("x", "k", "guest")
    for size, remembered in ((10, True), (HEAD_BYTES_MAX, False)):
        payload = annotated({"x-a": "a" * size, "x-cc": ["b"]})
        head = reader.read(payload)[0]
        for one, other in (
            (head, reader.read(payload)[0]),
            (acquired((head, b""), failed=True)[0], acquired((head, b""), failed=True)[0]),
            (header_of(head), header_of(head)),
            (extra_keys(head), extra_keys(head)),
        ):
            assert one == other
            assert (one is other) is remembered


HEAD = b"head"
DURABLE = Header(durable=True).encode()


def data(body: bytes = b"body") -> bytes:
    return section(0x75, body)


def value(body: Any) -> bytes:
    return section(0x77, body)


def application_properties(**given: Any) -> bytes:
    return section(0x74, given)


def learn(layouts: MessageLayouts, message: bytes, bare: int = 0) -> None:
    layouts.learn(message, header_end(message), bare, HEAD)


def known(learned: bytes, message: bytes, bare: int = 0) -> bool:
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


def test_a_long_message_is_not_learned() -> None:
    """Large numbers cost as much memory as their bytes; only the body may have any length."""
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
    """The more shapes were learned, the more messages pass before the next one is learned."""
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
    """Return MessageLayouts that were offered these until each was learned."""
    layouts = MessageLayouts()
    for message in messages:
        while layouts.find(message, 0) is None:
            learn(layouts, message)
    return layouts


def test_a_reader_remembers_a_bounded_number_of_shapes() -> None:
    """It keeps the last ones; a message that begins as one of these keeps it too."""
    messages = [sized(size) for size in range(LAYOUTS_MAX + 20)]
    layouts = filled(messages)
    assert len(layouts) == LAYOUTS_MAX
    found = [layouts.find(message, 0) is not None for message in messages]
    assert found == [False] * 20 + [True] * LAYOUTS_MAX


def test_few_shapes_begin_alike() -> None:
    """The shape that was used last is tried first and forgotten last."""
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
    """This holds for any shape and any type: the publisher validates it."""
    reader = MessageReader("", "", "guest")
    _, properties = reader.read_with_properties(DURABLE + bare)
    expected = None if properties is None else properties.to
    for _ in range(3):
        found = reader.to_of(DURABLE + bare)
        assert found == expected
        assert type(found) is type(expected)


def test_a_learned_shape_says_where_each_messages_address_is() -> None:
    """It does not give the address of the message from which it was learned."""
    reader = MessageReader("", "", "guest")
    found = [reader.to_of(Properties(to=f"/queues/{name}").encode() + data()) for name in "abc"]
    assert found == ["/queues/a", "/queues/b", "/queues/c"]


def test_a_users_id_is_checked_in_every_message() -> None:
    """Another user-id of the same size is not accepted for the one that was checked."""
    reader = MessageReader("", "q", "guest")
    for _ in range(3):
        reader.read(Properties(user_id=b"guest").encode() + data())
    with pytest.raises(AmqpLinkError, match="user_id property set to 'other' but authenticated user"):
        reader.read(Properties(user_id=b"other").encode() + data())


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BOTH_FIELDS = {"traceparent": PARENT, "tracestate": "a=1"}


def amqp10(**sections: Any) -> Message:
    return MessageReader("x", "k", "guest", False).read(Made(b"body", **sections).encode())


def amqp091_(headers: dict[str, Any] | None = None, **properties: Any) -> Message:
    encoded = encode_properties(BasicProperties(headers=headers, **properties))
    return amqp091.make_head("x", "k", encoded), b"body traceparent"


def traced(**properties: Any) -> Message:
    return amqp10(application_properties=properties)


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (traced(traceparent=PARENT), {"traceparent": PARENT}),
        (traced(**BOTH_FIELDS, b=2), BOTH_FIELDS),
        (traced(traceparent=f"{PARENT[:-1]}0"), None),
        (traced(traceparent=f"{PARENT[:-1]}3"), {"traceparent": f"{PARENT[:-1]}3"}),
        (amqp091_({"traceparent": f"{PARENT[:-1]}2"}), None),
        (traced(tracestate="a=1"), {}),
        (traced(traceparent=7), {}),
        (amqp10(), {}),
        (traced(a="x" * LOOKED_THROUGH_BYTES, traceparent=PARENT), {}),
        (amqp091_(BOTH_FIELDS), BOTH_FIELDS),
        (amqp091_({"x": "y"}), {}),
        (amqp091_(), {}),
    ],
)
def test_the_fields_are_read_where_they_may_stand(message: Message, fields: dict[str, str] | None) -> None:
    """They may be in application-properties and headers, never in a body."""
    assert trace_fields(message) == fields


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (amqp10(), (None, None)),
        (amqp10(properties=Properties(message_id="m", correlation_id=7)), ("m", "7")),
        (amqp10(properties=Properties(message_id=b"\xff\x00")), ("ff00", None)),
        (amqp091_(message_id="m", correlation_id="c"), ("m", "c")),
        (amqp091_(), (None, None)),
    ],
)
def test_ids_are_texts(message: Message, found: tuple[str | None, str | None]) -> None:
    assert ids(message) == found


@pytest.mark.parametrize("message", [amqp10(), amqp091_()])
def test_the_destination_is_what_was_published_to(message: Message) -> None:
    assert destination(message) == ("x", "k")
