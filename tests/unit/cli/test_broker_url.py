"""AMQP10BROKER_URL: what it says, what options say beside it, and that a password in it is not told."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from amqp10broker.cli import admin, connecting
from amqp10broker.cli.broker_url import from_environment
from amqp10broker.client.url import BrokerUrl
from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("amqp://h", ("h", 5672, False, None, None, None)),
        ("amqps://h", ("h", 5671, True, None, None, None)),
        ("amqp://u:p@h:7/v", ("h", 7, False, "u", "p", "v")),
        ("amqp://u%40x:p%2F%3A@[::1]:7/%2Fv", ("::1", 7, False, "u@x", "p/:", "/v")),
        ("amqp://:@127.0.0.1/", ("127.0.0.1", 5672, False, "", "", None)),
    ],
)
def test_its_parts(text: str, parts: tuple[Any, ...]) -> None:
    """Decoded; what it does not say is None, and the port follows from the scheme."""
    assert from_environment({URL_VARIABLE: text}) == BrokerUrl(*parts)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("h:5672", "is 'h:5672'; must be amqp://host:port"),
        ("http://u:secret@h", "does not begin so"),
        ("amqp://u:secret@", "names no host"),
        ("amqp://u:secret@h:x", "has something else than a number from 1 to 65535 as its port"),
        ("amqp://u:secret@h:99999", "has something else than a number from 1 to 65535 as its port"),
        ("amqp://u:sec/ret@h", "has an '@' behind its first '/'"),
        ("amqp://u:secret@h/v/w", "has more than one '/' behind its host"),
        ("amqp://u:secret@h/v?x=1", "has a query or fragment"),
    ],
)
def test_what_is_no_such_url_is_refused_without_its_password(text: str, problem: str) -> None:
    """See `client.url`, which refuses it: nothing is repeated that may be of a password."""
    with pytest.raises(ConfigError) as refused:
        from_environment({URL_VARIABLE: text})
    assert str(refused.value).startswith(f"variable AMQP10BROKER_URL {problem}")
    assert "sec" not in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({URL_VARIABLE: "amqp://localhost:7"}, admin.Place(7, None)),
        ({URL_VARIABLE: "amqp://[::1]:7", "AMQP10BROKER_PORT": "8"}, admin.Place(7, None)),
        ({URL_VARIABLE: "amqp://127.0.0.1:7", "AMQP10BROKER_ADMIN_SOCKET": "/s"}, admin.Place(5672, "/s")),
    ],
)
def test_commands_that_administrate_find_the_broker_by_its_port(
    environ: dict[str, str], place: admin.Place
) -> None:
    """On this machine; a socket that is named is nearer."""
    assert admin.place_of(None, None, environ) == place
    assert admin.place_of("9", None, environ) == admin.Place(9, None)


def login(monkeypatch: pytest.MonkeyPatch, url: str | None, **given: Any) -> tuple[Any, ...]:
    monkeypatch.delenv("AMQP10BROKER_PORT", raising=False)
    if url is None:
        monkeypatch.delenv(URL_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(URL_VARIABLE, url)
    options = {"host": None, "port": None, "user": None, "password": None, "vhost": None, **given}
    found = connecting.login_of(argparse.Namespace(**options))
    return (found.host, found.port, found.user, found.password, found.vhost, found.tls)


def test_an_option_counts_instead_of_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the URL is that of its user, and of nobody else."""
    url = "amqps://ann:pw@far:7/v"
    assert login(monkeypatch, None) == ("127.0.0.1", 5672, "guest", "guest", None, False)
    assert login(monkeypatch, url) == ("far", 7, "ann", "pw", "v", True)
    assert login(monkeypatch, url, port="9", vhost="w") == ("far", 9, "ann", "pw", "w", True)
    assert login(monkeypatch, url, user="bob") == ("far", 7, "bob", "guest", "v", True)
    assert login(monkeypatch, url, password="x") == ("far", 7, "ann", "x", "v", True)
    assert login(monkeypatch, "amqp://h", user="") == ("h", 5672, "", "guest", None, False)
