"""URLs of brokers: what is read, and that nothing which is refused shows a piece of a password."""

from __future__ import annotations

import pytest

from amqp10broker.client.url import BrokerUrl, UrlError, exchange_address, parse_url

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
