"""Conversion between the protocols: the rows of docs/conversion.md, one test each."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.message.amqp091 import delivery_count, make_head, split_head
from amqp10broker.message.amqp10 import MessageReader, decode_head, header_of
from amqp10broker.message.convert import body_start, read_properties, routing_headers, to_amqp091, to_amqp10
from amqp10broker.message.message import Message
from amqp10broker.message.traits import acquired, traits_of
from amqp10broker.protocols.amqp091 import codec as t091
from amqp10broker.protocols.amqp091.codec import decode_shortstr
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import array_of, encode
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.protocols.amqp10.types import Described, Map, Symbol, UByte, ULong
from amqp10broker.protocols.amqp10.types import Timestamp as Milliseconds

UUID_TEXT = "urn:uuid:550e8400-e29b-41d4-a716-446655440000"


def message091(body: bytes = b"body", **properties: Any) -> Message:
    return make_head("amq.topic", "a.b", encode_properties(BasicProperties(**properties))), body


def message10(
    *sections: bytes, header: Header | None = None, annotations: dict[Any, Any] | None = None
) -> Message:
    payload = header.encode() if header else b""
    if annotations:
        payload += encode(Described(ULong(0x72), {Symbol(key): value for key, value in annotations.items()}))
    payload += b"".join(sections)
    return MessageReader("amq.topic", "a.b", "guest", impersonator=True).read(payload)


def data(content: bytes) -> bytes:
    return encode(Described(ULong(0x75), content))


def application(values: dict[Any, Any] | Map) -> bytes:
    return encode(Described(ULong(0x74), values))


BODY = data(b"body")
FOOTER = encode(Described(ULong(0x78), {Symbol("x-f"): 1}))


def header_10(**properties: Any) -> Header:
    return header_of(to_amqp10(message091(**properties))[0])


def annotations_10(**properties: Any) -> dict[Any, Any]:
    annotations = decode_head(to_amqp10(message091(**properties))[0])[1]
    assert annotations.pop("x-exchange") == "amq.topic"
    assert annotations.pop("x-routing-key") == "a.b"
    return annotations


def sections_10(**properties: Any) -> tuple[Properties | None, dict[Any, Any] | Map]:
    bare = to_amqp10(message091(**properties))[1]
    return read_properties(bare[: body_start(bare)])


def properties_10(**properties: Any) -> Properties:
    found = sections_10(**properties)[0]
    assert found is not None
    return found


def application_10(headers: dict[str, Any]) -> dict[Any, Any]:
    found = sections_10(headers=headers)[1]
    assert isinstance(found, dict)
    return found


def properties_091(message: Message) -> BasicProperties:
    return decode_properties(split_head(to_amqp091(message)[0])[1])


def headers_091(message: Message) -> dict[str, Any]:
    return properties_091(message).headers or {}


def with_classes(value: Any) -> Any:
    """Return the value with the class of each part, since ours compare by value alone."""
    if isinstance(value, dict):
        return {(type(key), key): with_classes(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_classes(item) for item in value]
    return type(value), value


# The other encoding, and only then


def test_a_message_in_the_right_encoding_is_left_alone() -> None:
    """Conversion to the protocol a message has returns the very same object."""
    old, new = message091(), message10(BODY)
    assert to_amqp091(old) is old
    assert to_amqp10(new) is new


# 0-9-1 to 1.0, row by row


@pytest.mark.parametrize(("mode", "expected"), [(None, False), (1, False), (2, True)])
def test_delivery_mode_2_becomes_durable(mode: int | None, expected: bool) -> None:
    """delivery_mode 2 becomes header.durable = true, any other value false."""
    assert header_10(delivery_mode=mode).durable is expected
    assert traits_of(to_amqp10(message091(delivery_mode=mode))[0]).durable is expected


@pytest.mark.parametrize(
    ("expiration", "ttl"), [("0", 0), ("60000", 60_000), (None, None), ("315360000000", 2**32 - 1)]
)
def test_expiration_becomes_ttl(expiration: str | None, ttl: int | None) -> None:
    """The text becomes header.ttl, at most the maximum of a uint."""
    assert header_10(expiration=expiration).ttl == ttl


@pytest.mark.rabbitmq(
    "mc_unit_SUITE",
    "amqp_amqpl_amqp_message_id_uuid",
    "amqp_amqpl_amqp_uuid_correlation_id",
    "mc_util_uuid_to_urn_roundtrip",
)
@pytest.mark.parametrize("field", ["message_id", "correlation_id"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id-1", "id-1"),
        ("", ""),
        (UUID_TEXT, UUID(UUID_TEXT)),
        (UUID_TEXT.upper(), UUID_TEXT.upper()),
        ("urn:uuid:550e8400", "urn:uuid:550e8400"),
        ("12", "12"),
        ("a\udcff", b"a\xff"),
    ],
)
def test_ids_become_text_or_uuid(field: str, text: str, expected: Any) -> None:
    """message_id and correlation_id become utf8, urn:uuid: becomes uuid, other bytes become binary."""
    found = getattr(properties_10(**{field: text}), field)
    assert with_classes(found) == with_classes(expected)


@pytest.mark.parametrize(
    ("reply_to", "address"),
    [
        ("replies", "/queues/replies"),
        ("a b/c%", "/queues/a%20b%2Fc%25"),
        ("amq.rabbitmq.reply-to.g1h2.x==", "/queues/amq.rabbitmq.reply-to.g1h2.x%3D%3D"),
        ("amq.gen-abc_1", "/queues/amq.gen-abc_1"),
        ("/queues/replies", "/queues/replies"),
        ("/exchanges/x/k", "/exchanges/x/k"),
        ("", ""),
    ],
)
def test_reply_to_becomes_an_address(reply_to: str, address: str) -> None:
    """A queue's name becomes /queues/<percent-encoded>; an address stays."""
    assert properties_10(reply_to=reply_to).reply_to == address


def test_content_type_and_encoding_become_symbols() -> None:
    """content_type and content_encoding become symbols; a value that is not ASCII is left out."""
    found = properties_10(content_type="text/plain", content_encoding="gzip")
    assert with_classes([found.content_type, found.content_encoding]) == with_classes(
        [Symbol("text/plain"), Symbol("gzip")]
    )
    assert sections_10(content_type="é")[0] is None


@pytest.mark.parametrize(
    ("timestamp", "expected"), [(0, 0), (1_700_000_000, 1_700_000_000_000), (2**64 - 1, None)]
)
def test_timestamp_becomes_creation_time(timestamp: int, expected: int | None) -> None:
    """The unit changes from s to ms; a time beyond 64 bits of ms is left out."""
    found = properties_10(timestamp=timestamp, message_id="m")
    assert found.creation_time == expected


@pytest.mark.rabbitmq(
    "mc_unit_SUITE", "amqpl_table_x_header", "amqpl_table_x_header_array_of_tbls", "amqpl_x_headers"
)
def test_x_headers_become_annotations() -> None:
    """Headers x-* become message-annotations; tables become maps with symbol keys, arrays lists."""
    table = {"type": "apple", "count": t091.Int64(99), "é": None}
    found = annotations_10(headers={"x-fruit": table, "x-list": [table, True], "x-n": t091.Int8(1)})
    mapped = {Symbol("type"): "apple", Symbol("count"): t10.Long(99), "é": None}
    assert with_classes(found) == with_classes(
        {Symbol("x-fruit"): mapped, Symbol("x-list"): [mapped, True], Symbol("x-n"): t10.Byte(1)}
    )


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqpl_cc_amqp_bin_amqpl")
def test_cc_becomes_x_cc() -> None:
    """The header CC becomes x-cc, no application-property; it takes precedence over a header x-cc."""
    assert annotations_10(headers={"x-cc": "other", "CC": ["k1", "k2"]}) == {"x-cc": ["k1", "k2"]}
    assert sections_10(headers={"CC": ["k1"]}) == (None, {})


BOTH_WAYS = [
    ("text", "text"),
    (True, True),
    (False, False),
    (t091.Int8(-128), t10.Byte(-128)),
    (t091.UInt8(255), t10.UByte(255)),
    (t091.Int16(-(2**15)), t10.Short(-(2**15))),
    (t091.UInt16(2**16 - 1), t10.UShort(2**16 - 1)),
    (t091.Int32(-(2**31)), t10.Int(-(2**31))),
    (t091.UInt32(2**32 - 1), t10.UInt(2**32 - 1)),
    (t091.Int64(-(2**63)), t10.Long(-(2**63))),
    (t091.Float32(1.5), t10.Float(1.5)),
    (1.1, 1.1),
    (t091.Timestamp(1_700_000_000), t10.Timestamp(1_700_000_000_000)),
    (None, None),
]
SIMPLE = [
    *BOTH_WAYS,
    ("", ""),
    ("a" * 4096, "a" * 4096),
    ("a" * 4097, b"a" * 4097),
    ("é" * 2048, "é" * 2048),
    ("é" * 2049, "é".encode() * 2049),
    (b"\xff", b"\xff"),
    (t091.ByteArray(b"abc"), b"abc"),
    (Decimal("1.25"), t10.Decimal64(((398 - 2) << 53 | 125).to_bytes(8, "big"))),
    (Decimal("-3"), t10.Decimal64((1 << 63 | 398 << 53 | 3).to_bytes(8, "big"))),
]


@pytest.mark.rabbitmq("amqp_client_SUITE", "message_headers_conversion")
@pytest.mark.parametrize(("value", "expected"), SIMPLE, ids=lambda value: repr(value)[:24])
def test_other_headers_become_application_properties(value: Any, expected: Any) -> None:
    """Numbers keep their width; longstr becomes utf8 up to 4096 bytes, otherwise binary; s becomes ms."""
    assert with_classes(application_10({"k": value})) == with_classes({"k": expected})


@pytest.mark.parametrize("value", [[], ["a"], {}, {"a": 1}, t091.Timestamp(2**64 - 1)], ids=repr)
def test_headers_that_are_no_simple_values_are_dropped(value: Any) -> None:
    """Application-properties take no tables or arrays, nor a timestamp out of range."""
    assert application_10({"k": value, "kept": "v"}) == {"kept": "v"}


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_the_body_becomes_one_data_section(size: int) -> None:
    assert to_amqp10(message091(b"x" * size))[1] == data(b"x" * size)


DEATH_TABLE = {
    "count": t091.Int64(3),
    "reason": "expired",
    "queue": "q1",
    "time": t091.Timestamp(1_700_000_000),
    "exchange": "amq.topic",
    "routing-keys": ["k1", "k2"],
    "original-expiration": "500",
}
DEATH_MAP = {
    Symbol("ttl"): t10.UInt(500),
    Symbol("queue"): "q1",
    Symbol("reason"): Symbol("expired"),
    Symbol("count"): ULong(3),
    Symbol("first-time"): t10.Timestamp(1_700_000_000_000),
    Symbol("last-time"): t10.Timestamp(1_700_000_000_000),
    Symbol("exchange"): "amq.topic",
    Symbol("routing-keys"): array_of(["k1", "k2"]),
}


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqpl_death_records")
def test_x_death_becomes_x_opt_deaths() -> None:
    """An array of tables becomes an array of maps in the same order; first-acquirer is unaffected."""
    second = {**DEATH_TABLE, "queue": "q2", "reason": "rejected", "routing-keys": []}
    del second["original-expiration"]
    converted = to_amqp10(message091(headers={"x-death": [DEATH_TABLE, second]}))
    deaths = decode_head(converted[0])[1]["x-opt-deaths"]
    assert isinstance(deaths, t10.Array)
    assert with_classes(deaths.items[0]) == with_classes(DEATH_MAP)
    assert deaths.items[1]["queue"] == "q2"
    assert "ttl" not in deaths.items[1]
    assert len(deaths.items[1]["routing-keys"]) == 0
    assert header_of(converted[0]).first_acquirer is True


@pytest.mark.parametrize(
    "value",
    [
        "text",
        ["text"],
        [{**DEATH_TABLE, "count": "3"}],
        [{**DEATH_TABLE, "time": 3}],
        [{**DEATH_TABLE, "queue": None}],
        [{**DEATH_TABLE, "routing-keys": "k"}],
        [{**DEATH_TABLE, "original-expiration": "soon"}],
    ],
)
def test_an_x_death_of_another_shape_is_an_annotation_like_any_other(value: Any) -> None:
    """A client may send anything under that name."""
    assert set(annotations_10(headers={"x-death": value})) == {"x-death"}


@pytest.mark.parametrize(
    ("redelivered", "count", "first"), [(False, 0, True), (True, 0, False), (True, 2, False)]
)
def test_the_delivery_state_is_carried_to_amqp10(redelivered: bool, count: int, first: bool) -> None:
    """A message is for its first acquirer if it is not redelivered and has count 0."""
    head = make_head("", "q", b"\x00\x00", redelivered=redelivered, delivery_count=count)
    header = header_of(to_amqp10((head, b""))[0])
    assert (header.first_acquirer, header.delivery_count) == (first, count)


# 1.0 to 0-9-1, row by row


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqpl_defaults")
@pytest.mark.parametrize(("given", "mode"), [(None, None), (False, None), (True, 2)])
def test_durable_becomes_a_delivery_mode(given: bool | None, mode: int | None) -> None:
    """header.durable becomes delivery_mode 2, or none, which means the same as 1."""
    message = message10(BODY, header=Header(durable=given))
    assert properties_091(message).delivery_mode == mode
    assert traits_of(to_amqp091(message)[0]).durable is (mode == 2)


def test_priority_and_ttl_become_priority_and_expiration() -> None:
    """header.priority and ttl become priority and expiration; absent ones stay absent."""
    found = properties_091(message10(BODY, header=Header(priority=7, ttl=60_000)))
    assert (found.priority, found.expiration) == (7, "60000")
    found = properties_091(message10(BODY))
    assert (found.priority, found.expiration) == (None, None)


@pytest.mark.rabbitmq(
    "mc_unit_SUITE",
    "amqp_amqpl",
    "amqp_amqpl_amqp_message_id_uuid",
    "amqp_amqpl_amqp_uuid_correlation_id",
    "amqp_amqpl_message_id_binary",
    "amqp_amqpl_message_id_large",
    "amqp_amqpl_message_id_ulong",
)
@pytest.mark.parametrize(
    ("field", "header"), [("message_id", "x-message-id"), ("correlation_id", "x-correlation-id")]
)
@pytest.mark.parametrize(
    ("value", "text", "in_header"),
    [
        ("id", "id", None),
        (UUID(UUID_TEXT), UUID_TEXT, None),
        (ULong(2**64 - 1), "18446744073709551615", None),
        (b"\x00\x01", None, t091.ByteArray(b"\x00\x01")),
        ("x" * 255, "x" * 255, None),
        ("x" * 256, None, "x" * 256),
        ("é" * 128, None, "é" * 128),
    ],
)
def test_ids_become_text_or_a_header(
    field: str, header: str, value: Any, text: str | None, in_header: Any
) -> None:
    """Text stays; uuid becomes urn:uuid:, ulong decimal; binary or over 255 bytes a header."""
    found = properties_091(message10(Properties(**{field: value}).encode(), BODY))
    assert getattr(found, field) == text
    expected = None if in_header is None else {header: in_header}
    assert with_classes(found.headers) == with_classes(expected)


@pytest.mark.parametrize(("time", "expected"), [(0, 0), (1_999, 1), (-1, None)])
def test_creation_time_becomes_a_timestamp(time: int, expected: int | None) -> None:
    """The unit changes from ms to s; there is no timestamp before 1970."""
    assert properties_091(message10(Properties(creation_time=time).encode(), BODY)).timestamp == expected


def test_content_type_encoding_and_user_id_become_text() -> None:
    given = Properties(content_type=Symbol("text/plain"), content_encoding=Symbol("gzip"), user_id=b"gu\xff")
    found = properties_091(message10(given.encode(), BODY))
    assert (found.content_type, found.content_encoding, found.user_id) == ("text/plain", "gzip", "gu\udcff")


@pytest.mark.parametrize(
    ("address", "reply_to"),
    [
        ("/queues/replies", "replies"),
        ("/queues/a%20b%2Fc", "a b/c"),
        ("/queues/amq.rabbitmq.reply-to.g1h2.x%3D%3D", "amq.rabbitmq.reply-to.g1h2.x=="),
        ("/exchanges/x/k", "/exchanges/x/k"),
        ("/queues/a/b", "/queues/a/b"),
        ("/queues/%ff", "/queues/%ff"),
        ("/queues/", "/queues/"),
        ("elsewhere", "elsewhere"),
        ("r" * 256, None),
    ],
)
def test_the_address_of_a_queue_becomes_its_name(address: str, reply_to: str | None) -> None:
    """reply-to /queues/<percent-encoded> becomes the queue's name; another address stays as it is."""
    assert properties_091(message10(Properties(reply_to=address).encode(), BODY)).reply_to == reply_to


BACK = [
    *((value, expected) for expected, value in BOTH_WAYS),
    ("a" * 5000, "a" * 5000),
    (Symbol("sym"), "sym"),
    (t10.Char("é"), "é"),
    (b"bin", t091.ByteArray(b"bin")),
    (ULong(2**63 - 1), t091.Int64(2**63 - 1)),
    (t10.Timestamp(1_999), t091.Timestamp(1)),
    (UUID(UUID_TEXT), UUID_TEXT),
    (t10.Decimal64((1 << 63 | (398 - 2) << 53 | 125).to_bytes(8, "big")), Decimal("-1.25")),
    (t10.Decimal32(((101 + 3) << 23 | 5).to_bytes(4, "big")), Decimal(5000)),
    (t10.Decimal32((0b11 << 29 | 101 << 21 | 1).to_bytes(4, "big")), Decimal(0x800001)),
    (t10.Decimal128((6176 << 113 | 7).to_bytes(16, "big")), Decimal(7)),
    (t10.Decimal64((1 << 63 | 398 << 53 | 2**31).to_bytes(8, "big")), Decimal(-(2**31))),
]


@pytest.mark.rabbitmq("amqp_client_SUITE", "message_headers_conversion")
@pytest.mark.rabbitmq("mc_unit_SUITE", "amqp_amqpl")
@pytest.mark.parametrize(("value", "expected"), BACK, ids=lambda value: repr(value)[:24])
def test_application_properties_become_headers(value: Any, expected: Any) -> None:
    """Each simple type has a field type of the same width; uuid becomes urn:uuid:, ms becomes s."""
    found = headers_091(message10(application({"k": value}), BODY))
    assert with_classes(found) == with_classes({"k": expected})


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqp_amqpl_unsupported_values_not_converted")
@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"a": 1},
        array_of(["a"]),
        Described(Symbol("d"), "v"),
        ULong(2**63),
        t10.Timestamp(-1),
        t10.Decimal64((0b11111 << 58).to_bytes(8, "big")),
        t10.Decimal64((398 << 53 | 2**31).to_bytes(8, "big")),
        t10.Decimal128(bytes(15) + b"\x01"),
        t10.Decimal32((191 << 23 | 1).to_bytes(4, "big")),
    ],
    ids=repr,
)
def test_unsupported_values_are_not_converted(value: Any) -> None:
    """Lists, maps, arrays, described values, and numbers that no field type holds are dropped."""
    assert headers_091(message10(application({"k": value, "kept": "v"}), BODY)) == {"kept": "v"}


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqp_x_headers")
def test_annotations_become_headers() -> None:
    """x-* become headers; lists and arrays become arrays, maps become tables."""
    found = headers_091(
        message10(
            BODY,
            annotations={
                "x-s": Symbol("sym"),
                "x-list": [t10.UByte(1), {Symbol("a"): "b", 5: "no name"}, ULong(2**63)],
                "x-array": array_of([t10.Int(1), t10.Int(300)]),
                "x-described": Described(Symbol("d"), 1),
            },
        )
    )
    expected = {
        "x-s": "sym",
        "x-list": [t091.UInt8(1), {"a": "b"}],
        "x-array": [t091.Int32(1), t091.Int32(300)],
    }
    assert with_classes(found) == with_classes(expected)


def test_the_brokers_annotations_are_no_headers() -> None:
    """x-basic-*, x-routing-key, x-exchange and x-death are left out; x-basic-type is the type."""
    message = message10(BODY, annotations={"x-basic-type": "order", "x-basic-other": "o", "x-death": "d"})
    assert properties_091(message) == BasicProperties(type="order")
    names = split_head(to_amqp091(message)[0])[0]
    exchange, pos = decode_shortstr(names, 0)
    assert (exchange, decode_shortstr(names, pos)[0]) == ("amq.topic", "a.b")


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqpl_cc_amqp_bin_amqpl")
def test_x_cc_becomes_cc() -> None:
    assert headers_091(message10(BODY, annotations={"x-cc": ["k1", "k2"]})) == {"CC": ["k1", "k2"]}


def test_x_opt_deaths_becomes_x_death() -> None:
    """An array of maps becomes an array of tables with the first time, in seconds."""
    later = {**DEATH_MAP, Symbol("last-time"): t10.Timestamp(1_800_000_000_000)}
    message = message10(BODY, annotations={"x-opt-deaths": array_of([later])})
    assert with_classes(headers_091(message)) == with_classes({"x-death": [DEATH_TABLE]})


@pytest.mark.parametrize(
    "value", ["text", ["text"], [{**DEATH_MAP, Symbol("ttl"): "500"}], [{Symbol("queue"): "q"}]]
)
def test_an_x_opt_deaths_of_another_shape_is_a_header_like_any_other(value: Any) -> None:
    """A client may send anything under that name."""
    assert set(headers_091(message10(BODY, annotations={"x-opt-deaths": value}))) == {"x-opt-deaths"}


def test_a_value_too_deep_for_tables_is_dropped() -> None:
    """AMQP 1.0 nests deeper than our limit for tables; values within the limit stay."""
    deep: Any = "v"
    for _ in range(50):
        deep = [deep]
    found = headers_091(message10(BODY, annotations={"x-deep": deep, "x-flat": "v"}))
    depth = 0
    value = found["x-deep"]
    while value:
        depth, value = depth + 1, value[0]
    assert depth == t091.DEPTH_MAX - 2
    assert found["x-flat"] == "v"


@pytest.mark.rabbitmq("amqp_client_SUITE", "amqp_quorum_queue_amqpl", "amqp_stream_amqpl")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "roundtrip_to_amqp_091")
@pytest.mark.rabbitmq("mc_unit_SUITE", "amqp_to_amqpl_data_body")
@pytest.mark.parametrize(
    ("sections", "body"),
    [
        ([b""], b""),
        ([b"one"], b"one"),
        ([b"x" * 300], b"x" * 300),
        ([b"one", b"", b"two"], b"onetwo"),
    ],
)
def test_data_sections_become_the_body(sections: list[bytes], body: bytes) -> None:
    """A single section is the body, several are concatenated; neither has a type."""
    message = message10(*map(data, sections))
    assert to_amqp091(message)[1] == body
    assert properties_091(message).type is None


@pytest.mark.rabbitmq("binary_parser_SUITE", "server_mode_symbolic_body_descriptors")
def test_sections_with_long_descriptors_are_found() -> None:
    """A descriptor may be a ulong of eight bytes or a symbol."""
    properties = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73" + encode(["id"])
    body = b"\x00" + encode(Symbol("amqp:data:binary")) + encode(b"body")
    message = message10(properties, body)
    assert to_amqp091(message)[1] == b"body"
    assert properties_091(message).message_id == "id"


ENCODED = [
    encode(Described(ULong(0x77), "text")),
    encode(Described(ULong(0x77), None)),
    encode(Described(ULong(0x77), {"a": [1, 2]})) + encode(Described(ULong(0x78), {Symbol("x-h"): 1})),
    encode(Described(ULong(0x76), [1, "two"])) + encode(Described(ULong(0x76), [3])),
]


@pytest.mark.parametrize("body", ENCODED)
def test_other_bodies_travel_encoded(body: bytes) -> None:
    """amqp-value and amqp-sequence are the body with the type amqp-1.0, and come back unchanged."""
    message = message10(Properties(message_id="m").encode(), body)
    converted = to_amqp091(message)
    assert converted[1] == body
    assert properties_091(message).type == "amqp-1.0"
    back = to_amqp10(converted)
    assert back[1] == message[1]
    assert "x-basic-type" not in decode_head(back[0])[1]


@pytest.mark.parametrize(
    "value", [t10.Byte(-1), t10.Short(300), t10.Int(-70_000), t10.Long(123), t10.Long(-(2**63))]
)
@pytest.mark.parametrize("field", ["message_id", "correlation_id"])
def test_an_id_that_is_a_signed_integer_is_its_digits_to_amqp091(field: str, value: int) -> None:
    """AMQP 1.0 has ulong only; an id that is not converted stays as it came."""
    message = message10(Properties(**{field: value}).encode(), BODY)
    assert getattr(properties_091(message), field) == str(int(value))
    properties, _ = read_properties(message[1][: body_start(message[1])])
    assert type(getattr(properties, field)) is type(value)


@pytest.mark.parametrize("footer", [b"", FOOTER])
@pytest.mark.parametrize("prefix", [b"", Properties(message_id="m").encode()])
def test_a_message_without_a_body_is_an_empty_one_to_amqp091(prefix: bytes, footer: bytes) -> None:
    """AMQP 0-9-1 has no other form for an empty data section."""
    head, body = to_amqp091(MessageReader("", "q", "u").read(prefix + footer))
    assert body == b""
    properties = decode_properties(split_head(head)[1])
    assert (properties.type, properties.message_id) == (None, "m" if prefix else None)


@pytest.mark.rabbitmq("mc_unit_SUITE", "amqp_to_amqpl_data_body")
def test_several_data_sections_are_an_encoded_body_too() -> None:
    """A client of 0-9-1 may send any body under that type."""
    sections = data(b"a") + data(b"b")
    assert to_amqp10(message091(sections, type="amqp-1.0"))[1] == sections


@pytest.mark.parametrize(
    "body", [b"", FOOTER, b"text", BODY[:-1], BODY + b"x", Properties(message_id="m").encode() + BODY]
)
def test_a_body_that_only_claims_to_be_encoded_is_data(body: bytes) -> None:
    """The type amqp-1.0 on any other body stays an annotation, and comes back."""
    converted = to_amqp10(message091(body, type="amqp-1.0"))
    assert converted[1] == data(body)
    assert decode_head(converted[0])[1]["x-basic-type"] == "amqp-1.0"
    back = to_amqp091(converted)
    assert back[1] == body
    assert decode_properties(split_head(back[0])[1]).type == "amqp-1.0"


def test_the_delivery_state_is_carried_to_amqp091() -> None:
    """A message without first-acquirer is redelivered; its count is that of failed deliveries."""
    fresh = message10(BODY)
    assert split_head(to_amqp091(fresh)[0])[2] is False
    failed = to_amqp091(acquired(fresh, failed=True))
    assert split_head(failed[0])[2] is True
    assert delivery_count(failed[0]) == 1


def test_application_properties_and_annotations_of_amqp10_are_headers() -> None:
    """An annotation takes precedence over an application-property; the broker's own two are ignored."""
    payload = (
        encode(Described(ULong(0x72), {Symbol("x-a"): Symbol("sym"), Symbol("x-l"): [UByte(1)]}))
        + Properties(subject="s").encode()
        + encode(
            Described(
                ULong(0x74),
                {
                    "n": UByte(1),
                    "b": False,
                    "t": Milliseconds(1_000_000),
                    "u": UUID(int=1),
                    "bin": b"1",
                    "x-a": 5,
                    "list": [1],
                    1: "no text",
                },
            )
        )
        + encode(Described(ULong(0x77), "body"))
    )
    found = routing_headers(MessageReader("ex", "key", "u").read(payload))
    assert found == {
        "n": 1,
        "b": False,
        "t": 1000,
        "u": "urn:uuid:00000000-0000-0000-0000-000000000001",
        "bin": b"1",
        "x-a": "sym",
        "x-l": [1],
    }
    assert [type(found[key]) for key in ("n", "b", "t", "bin", "x-a")] == [int, bool, int, bytes, str]
