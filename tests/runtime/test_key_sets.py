"""Keys of an authority, fetched from a real server by a real thread, while the clock stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import MockClock

from amqp10broker.auth.passwords import Passwords
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Permission
from amqp10broker.protocols.amqp10.performatives import Open, SaslCode, SaslOutcome
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections import key_sets
from tests.runtime.conftest import LogRecorder
from tests.support import tokens
from tests.support.certificates import Certificates, certificates
from tests.support.declaring import add_user, set_permission
from tests.support.http_user import http_user
from tests.support.key_server import KeyServer, key_server
from tests.support.rawframes import begin, login, open_frame
from tests.support.tokens import SERVER, key
from tests.support.trioclient import Client, connect, eventually, running_broker
from tests.support.trioclient091 import connect091
from tests.support.virtual_time import standing_still

__all__ = ["certificates"]

ALL = ("configure:*/*", "write:*/*", "read:*/*", "tag:monitoring")


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with key_server(key("RSA", "k1")) as server:
        yield server


@pytest.fixture
def settings(server: KeyServer, monkeypatch: pytest.MonkeyPatch, log: LogRecorder) -> dict[str, Any]:
    monkeypatch.setattr(key_sets, "_log", log)
    return {
        "auth_backends": "oauth2,internal",
        "oauth2_resource_server_id": SERVER,
        "oauth2_jwks_uri": server.uri,
        "auth_failure_delay_ms": 0,
    }


@asynccontextmanager
async def standing_broker(settings: dict[str, Any]) -> AsyncIterator[Broker]:
    """Run a broker whose clock moves when the test moves it."""
    async with running_broker(**settings) as broker:
        with standing_still():
            yield broker


def token(broker: Broker, kid: str = "k1", **claims: Any) -> str:
    """Make a token whose times follow the broker's clock."""
    now_s = broker.clock.now_ms() / 1000
    return tokens.token(*ALL, now_s=now_s, signed_by=key("RSA", kid), kid=kid, **claims)


async def sent(broker: Broker, secret: str, *, peer: str | None = None) -> Client:
    client = connect(broker, peer=peer)
    await client.send(login("PLAIN", b"\0\0" + secret.encode()))
    return client


async def outcome(broker: Broker, secret: str, *, peer: str | None = None) -> int:
    client = await sent(broker, secret, peer=peer)
    return int((await client.until(SaslOutcome)).code)


async def test_a_token_of_the_key_set_lets_in_by_every_door(
    server: KeyServer, settings: dict[str, Any]
) -> None:
    async with standing_broker(settings) as broker, http_user(broker, "") as user:
        heard = await user.ask("GET", "/whoami", authorization=f"Bearer {token(broker)}")
        assert (heard.status, heard.json["name"]) == (200, "ann")
    async with standing_broker(settings) as broker:
        client = await sent(broker, token(broker))
        assert (await client.until(SaslOutcome)).code == SaslCode.OK
        await client.call(Open, open_frame(), begin())
    async with standing_broker(settings) as broker:
        assert await connect091(broker).open(user="", password=token(broker))
    assert server.asked == 3


async def test_a_new_key_of_the_authority_counts_after_the_interval(
    autojump_clock: MockClock, server: KeyServer, settings: dict[str, Any]
) -> None:
    """Until then the keys are not fetched again, whatever the token's key; revoked keys stop counting."""
    async with standing_broker(settings) as broker:
        assert await outcome(broker, token(broker)) == SaslCode.OK
        server.sign_with(key("RSA", "k2"))
        assert await outcome(broker, token(broker, "k2")) == SaslCode.AUTH
        assert server.asked == 1
        autojump_clock.jump(11)
        assert await outcome(broker, token(broker, "k2")) == SaslCode.OK
        assert await outcome(broker, token(broker, "k1")) == SaslCode.AUTH
        assert server.asked == 2


async def test_who_comes_while_the_keys_are_fetched_waits_for_them(
    server: KeyServer, settings: dict[str, Any]
) -> None:
    """All clients, from any address, share one request."""
    server.held.clear()
    async with standing_broker(settings) as broker:
        clients = [await sent(broker, token(broker), peer=f"host{number}") for number in range(5)]
        await eventually(lambda: server.asked == 1, every_s=0)
        server.held.set()
        for client in clients:
            assert (await client.until(SaslOutcome)).code == SaslCode.OK
        assert server.asked == 1


async def test_passwords_are_verified_while_an_authority_is_slow(
    autojump_clock: MockClock,
    server: KeyServer,
    settings: dict[str, Any],
    log: LogRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens wait as long as a fetch may last; a later response of the server is dropped."""
    record = PasswordRecord(PasswordAlgorithm.ARGON2ID, "of no matter")
    monkeypatch.setattr(Passwords, "slow", lambda self, name, password: lambda: password == b"right")
    server.held.clear()
    async with standing_broker(settings) as broker:
        add_user(broker.catalog, "bob", record)
        set_permission(broker.catalog, "bob", "/", Permission())
        clients = [await sent(broker, token(broker), peer=f"host{number}") for number in range(5)]
        await eventually(lambda: server.asked == 1, every_s=0)
        assert await connect091(broker).open(user="bob", password="right")
        autojump_clock.jump(key_sets.FETCH_TIMEOUT_S)
        for client in clients:
            assert (await client.until(SaslOutcome)).code == SaslCode.AUTH
        assert ("the authority's keys cannot be had", "it took longer than 5 s") in reasons(log)
        server.held.set()
        autojump_clock.jump(11)
        assert await outcome(broker, token(broker)) == SaslCode.OK


async def test_an_authority_that_is_gone_refuses_tokens_until_it_is_back(
    autojump_clock: MockClock, server: KeyServer, settings: dict[str, Any], log: LogRecorder
) -> None:
    server.stop()
    async with standing_broker(settings) as broker:
        assert await outcome(broker, token(broker)) == SaslCode.AUTH
        assert await connect091(broker).open(user="guest", password="guest")
        server.start()
        assert await outcome(broker, token(broker)) == SaslCode.AUTH
        autojump_clock.jump(11)
        assert await outcome(broker, token(broker)) == SaslCode.OK
    assert ("the authority's keys cannot be had", "[Errno 111] Connection refused") in reasons(log)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Sorry\r\n\r\n",
        b"\xff\xfe nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 500_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (key_sets.KEY_SET_BYTES_MAX + 1),
        b'HTTP/1.1 200 OK\r\n\r\n{"keys": {}}',
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
)
async def test_an_authority_that_answers_nonsense_refuses_tokens(
    server: KeyServer, settings: dict[str, Any], log: LogRecorder, answer: bytes
) -> None:
    server.answer = answer
    async with standing_broker(settings) as broker:
        for _ in range(3):
            assert await outcome(broker, token(broker)) == SaslCode.AUTH
    assert [event for event, _ in reasons(log)].count("the authority's keys cannot be had") == 1
    assert log.of("error") == []


def test_a_server_that_dribbles_is_given_up(server: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is in time, all of them are too late: the thread ends, so that a new fetch can start."""
    server.answer = b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 500_000
    times = iter((0.0, key_sets.FETCH_TIMEOUT_S, key_sets.FETCH_TIMEOUT_S + 0.1))
    monkeypatch.setattr(key_sets, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert key_sets.fetch_key_set(server.uri, None) == "it took longer than 5 s"


async def test_a_fault_in_a_login_is_told_once_however_many_come(
    autojump_clock: MockClock, settings: dict[str, Any], log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets a temporary failure; a client without a password must not be able to fill the log."""

    def fail(uri: str, ca_file: str | None) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(key_sets, "fetch_key_set", fail)
    async with standing_broker(settings) as broker, http_user(broker, "") as user:
        for _ in range(3):
            assert await outcome(broker, token(broker)) == SaslCode.SYS_TEMP
        heard = await user.ask("GET", "/whoami", authorization=f"Bearer {token(broker)}")
        assert (heard.status, heard.json["error"]) == (503, "unavailable")
        assert [event for event, _ in log.of("error")] == [
            "a login was not verified by a fault in the broker"
        ]
        autojump_clock.jump(61)
        assert await outcome(broker, token(broker)) == SaslCode.SYS_TEMP
        assert len(log.of("error")) == 2


def reasons(log: LogRecorder) -> list[tuple[str, Any]]:
    return [(event, fields.get("reason")) for event, fields in log.of("warning")]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_redirect_to_a_place_without_tls_is_not_followed(
    server: KeyServer, certificates: Certificates, scheme: str
) -> None:
    """Otherwise an attacker between the broker and that place could insert a key."""
    port = int(server.uri.rpartition(":")[2].removesuffix("/keys"))
    with key_server(tls=(certificates.server, certificates.server_key)) as authority:
        asked = server if scheme == "http" else authority
        there = f"http://127.0.0.2:{port}/keys" if scheme == "http" else server.uri
        asked.answer = f"HTTP/1.1 302 Found\r\nlocation: {there}\r\n\r\n".encode()
        assert key_sets.fetch_key_set(asked.uri, certificates.ca) == (
            f"it redirects to {there}, without TLS: give the address that has the keys"
        )


def test_a_redirect_to_a_place_with_tls_is_followed(server: KeyServer, certificates: Certificates) -> None:
    with key_server(key("RSA", "k2"), tls=(certificates.server, certificates.server_key)) as authority:
        server.answer = f"HTTP/1.1 302 Found\r\nlocation: {authority.uri}\r\n\r\n".encode()
        assert [each["kid"] for each in key_sets.fetch_key_set(server.uri, certificates.ca)["keys"]] == ["k2"]
