"""What a program gives the client: messages, URLs, addresses."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp10broker.client.message import BodyKind, Header, Message, Properties, data_message, decode_message
from amqp10broker.client.options import BrokerUrl, ClientOptions, UrlError, exchange_address, parse_url
from amqp10broker.message.amqp10 import locate
from amqp10broker.protocols.amqp10.errors import DecodeError, EncodeError
from amqp10broker.protocols.amqp10.types import Symbol, Timestamp, UInt

FULL = Message(
    body=b"body",
    header=Header(durable=True, priority=5, ttl=1000),
    delivery_annotations={Symbol("x-route"): 1},
    message_annotations={Symbol("x-seen"): True},
    properties=Properties(
        message_id=UUID(int=7), to="/queues/q", subject="s", content_type=Symbol("text/plain")
    ),
    application_properties={"shop": "north", "items": UInt(3), "at": Timestamp(0)},
    footer={Symbol("x-crc"): b"\x00"},
    kind=BodyKind.DATA,
)


def test_all_sections_survive() -> None:
    assert decode_message(FULL.encode()) == FULL


def test_sections_are_in_the_order_that_a_broker_checks() -> None:
    found = locate(FULL.encode())
    assert found.properties == FULL.properties


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", BodyKind.DATA),
        (b"x" * 255, BodyKind.DATA),
        (b"x" * 70_000, BodyKind.DATA),
        ("text", BodyKind.VALUE),
        (None, BodyKind.VALUE),
        ({"a": [1, 2.5, None]}, BodyKind.VALUE),
        ([1, "two"], BodyKind.VALUE),
    ],
)
def test_the_body_decides_how_it_travels(body: Any, kind: BodyKind) -> None:
    got = decode_message(Message(body).encode())
    assert (got.body, got.kind) == (body, kind)


@pytest.mark.parametrize("properties", [None, Properties(message_id="m")])
def test_a_message_without_a_body_stays_one(properties: Properties | None) -> None:
    """A broker or program that sends no body does not get an empty one back."""
    message = Message(None, properties, kind=BodyKind.NONE)
    assert message.encode() == (b"" if properties is None else properties.encode())
    assert decode_message(message.encode()) == message
    with pytest.raises(EncodeError, match="kind NONE has no body"):
        Message(b"", kind=BodyKind.NONE).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"hello",
        data_message(b"cut off")[:-1],
        b"\x00\x53\x10\x45",  # an open performative
        b"\x00\x53\x75\xa1\x01a",  # data that is a string
        b"\x00\x53\x76\xa0\x00",  # a sequence that is binary
        b"\x00\x53\x74\x45\x00\x53\x75\xa0\x00",  # application-properties that are a list
    ],
)
def test_bytes_that_are_no_message(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_message(payload)


SECRET = "hunter2"


def refused(text: str) -> str:
    with pytest.raises(UrlError) as raised:
        parse_url(text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "host", "port", "vhost"),
    [
        ("amqp://Broker", "broker", 5672, None),
        (" amqp://localhost \n", "localhost", 5672, None),
        ("amqp://h:/", "h", 5672, None),
        ("amqps://h", "h", 5671, None),
        ("amqp://b\u00fccher.example:1", "b\u00fccher.example", 1, None),
        ("amqp://[::1]", "::1", 5672, None),
        ("amqp://[::1]:", "::1", 5672, None),
        ("amqp://[2001:DB8::1]:65535/v", "2001:DB8::1", 65535, "v"),
        ("amqp://[fe80::1%25Eth0]", "fe80::1%Eth0", 5672, None),
        ("amqp://h/a%40b%2F", "h", 5672, "a@b/"),
    ],
)
def test_where_the_broker_is(text: str, host: str, port: int, vhost: str | None) -> None:
    assert parse_url(text) == BrokerUrl(host, port, text.strip().startswith("amqps"), None, None, vhost)


@pytest.mark.parametrize(
    ("text", "username", "password"),
    [
        ("amqp://me:p%40s%2Fs%3A@h", "me", "p@s/s:"),
        ("amqp://me:p@ss:w@h", "me", "p@ss:w"),
        ("amqp://me:@h", "me", ""),
        ("amqp://me@h", "me", None),
        ("amqp://%C3%BC:100%@h", "\u00fc", "100%"),
    ],
)
def test_who_we_are(text: str, username: str, password: str | None) -> None:
    url = parse_url(text)
    assert (url.user, url.password, url.host) == (username, password, "h")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost:5672", "is 'localhost:5672'; must be amqp://host:port"),
        ("http://h", "is 'http://h'"),
        ("amqp:/h", "is 'amqp:/h'"),
        ("amqp://", "names no host"),
        ("amqp:///v", "names no host"),
        ("amqp://h:0", "a number from 1 to 65535 as its port"),
        ("amqp://h:65536", "a number from 1 to 65535 as its port"),
        ("amqp://h:-1", "a number from 1 to 65535 as its port"),
        ("amqp://h:\u0661", "a number from 1 to 65535 as its port"),
        ("amqp://h:" + "9" * 5000, "a number from 1 to 65535 as its port"),
        ("amqp://h/a/b", "the virtual host '/' is written %2F"),
        ("amqp://h1,h2", "names several addresses"),
        ("amqp://me:pw@h1:5672,h2:5672/v", "one address is wanted"),
        ("amqp://::1:5672", "an IPv6 address stands in brackets"),
        ("amqp://[::1", "malformed IPv6 address"),
        ("amqp://[h]:1", "malformed IPv6 address"),
        ("amqp://[::1]5672", "malformed IPv6 address"),
        ("amqp://a..b", "names the host 'a..b', and none can be called so"),
        ("amqp://" + "h" * 64, "and none can be called so"),
        ("amqp://my host", "names the host 'my host'"),
        ("amqp://h\tx", "another control character"),
        ("amqp://me:%FF@h", "percent-encoded bytes that are no UTF-8"),
        ("amqp://me%00:x@h", "has a character 0 in it"),
        ("amqp://me:\ud800@h", "a lone surrogate"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    told = refused(text)
    assert message in told
    assert len(told) < 400


@pytest.mark.parametrize(
    "text",
    [
        f"amqp://me:12/{SECRET}@h",
        f"amqp://me:{SECRET}/12@h/v",
        f"amqp://me:/{SECRET}@h",
        f"amqp://me:12/{SECRET}@x@h",
        f"amqp://me:12/x?{SECRET}@h",
        f"amqp://me:12#{SECRET}@h",
        f"amqp://me:{SECRET}?@h",
        f"amqp://me:{SECRET}",
        f"amqp://me:{SECRET}@",
        f"amqp://me:{SECRET}@h:{SECRET}",
        f"amqp://me:{SECRET}@[h",
        f"amqp://me:{SECRET}\n@h",
        f"amqp:me:{SECRET}@h",
        f"amqp:/me:p@{SECRET}",
        f"me:{SECRET}@h",
        f"amqp://me:{SECRET}@h1,me:{SECRET}@h2,h3",
    ],
)
def test_no_piece_of_a_password_is_shown(text: str) -> None:
    assert SECRET not in refused(text)


@pytest.mark.parametrize(
    ("exchange", "key", "address"),
    [
        ("e", "k", "/exchanges/e/k"),
        ("e", "", "/exchanges/e"),
        ("", "orders", "/queues/orders"),
        ("ü", "%", "/exchanges/%C3%BC/%25"),
    ],
)
def test_addresses_of_exchanges(exchange: str, key: str, address: str) -> None:
    assert exchange_address(exchange, key) == address


HALF = "\ud800"
UINT = 2**32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"container_id": HALF}, "container_id has half a character"),
        ({"container_id": 5}, "container_id is 5; give a text"),
        ({"hostname": HALF}, "hostname has half a character"),
        ({"frame_size_max_bytes": 511}, "frame_size_max_bytes is 511; give an integer from 512 to"),
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
    """The broker would detach the link for it."""
    with pytest.raises(EncodeError, match=f"a body of kind {kind.name} is made of .*: leave kind out"):
        Message(body, kind=kind).encode()


@pytest.mark.parametrize("descriptor", [b"\xc1\x01\x00", b"\xc0\x02\x01\x40", b"\x40", b"\x41", b"\xa1\x01x"])
def test_a_section_whose_descriptor_is_no_number(descriptor: bytes) -> None:
    with pytest.raises(DecodeError, match="unknown section"):
        decode_message(b"\x00" + descriptor + b"\x40")
