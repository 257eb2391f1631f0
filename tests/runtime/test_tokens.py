"""Tokens in place of passwords: what they allow on a connection, when they end, what another changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support import tokens
from tests.support.declaring import add_vhost, declare, set_permission
from tests.support.http_user import http_user
from tests.support.managing import request_message
from tests.support.rawframes import attach_receiver, begin, credit, frame, login, open_frame
from tests.support.tokens import SERVER, pem
from tests.support.trioclient import Client, connect, running_broker
from tests.support.trioclient091 import Client091, connect091

ALL = ("configure:*/*", "write:*/*", "read:*/*")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "key.pem"
    file.write_bytes(pem())
    return {
        "auth_backends": "oauth2,internal",
        "oauth2_resource_server_id": SERVER,
        "oauth2_signing_keys": f"k1={file}",
        "auth_failure_delay_ms": 0,
    }


@pytest.fixture
async def broker(settings: dict[str, Any]) -> AsyncIterator[Broker]:
    async with running_broker(**settings) as running:
        yield running


def token(broker: Broker, *scopes: str, **claims: Any) -> str:
    """Make a token by the broker's clock, which does not move during the work."""
    return tokens.token(*scopes, now_s=broker.clock.now_ms() / 1000, **claims)


async def client10(broker: Broker, secret: str, *, code: int = 0) -> Client:
    client = connect(broker)
    assert (await client.call(amqp10.SaslOutcome, login("PLAIN", b"\0\0" + secret.encode()))).code == code
    if code == 0:
        await client.call(amqp10.Open, open_frame(), begin())
    return client


async def client091(broker: Broker, secret: str) -> Client091:
    return await connect091(broker).open(user="", password=secret)


async def attach_management(client: Client) -> None:
    both: dict[str, Any] = {
        "name": "pair",
        "source": amqp10.Source(address="/management"),
        "target": amqp10.Target(address="/management"),
        "snd_settle_mode": 1,
        "properties": {Symbol("paired"): True},
    }
    await client.send(
        frame(0, amqp10.Attach(handle=10, role=False, initial_delivery_count=0, **both)),
        frame(0, amqp10.Attach(handle=11, role=True, **both)),
        credit(11, 10),
    )
    await client.take(amqp10.Attach, 2)


async def offer(client: Client, secret: str, number: int = 0) -> None:
    body = request_message("PUT", "/auth/tokens", secret.encode())
    transfer = amqp10.Transfer(handle=10, delivery_id=number, delivery_tag=b"%d" % number, settled=True)
    await client.send(frame(0, transfer, payload=body))


async def test_scopes_are_the_permissions_of_a_link(settings: dict[str, Any]) -> None:
    async with running_broker(**settings) as broker:
        declare(broker.catalog, "/", "mine")
        declare(broker.catalog, "/", "other")
        client = await client10(broker, token(broker, "read:%2F/mine", "write:%2F/amq.default"))
        await client.call(amqp10.Attach, attach_receiver(0, "/queues/mine"))
        text = (await client.call(amqp10.End, attach_receiver(1, "/queues/other"))).error.description
    assert text == "read access to queue 'other' in vhost '/' refused for user 'ann'"


async def test_scopes_are_the_permissions_of_a_channel(broker: Broker) -> None:
    declare(broker.catalog, "/", "mine")
    client = await client091(broker, token(broker, "read:%2F/mine"))
    await client.call(1, methods.BasicConsume(queue="mine"), methods.BasicConsumeOk)
    await client.send(1, methods.BasicConsume(queue="other"))
    assert (await client.expect(methods.ChannelClose)).reply_code == 403


async def test_a_virtual_host_that_no_scope_names_is_closed(broker: Broker) -> None:
    add_vhost(broker.catalog, "v")
    client = await client10(broker, token(broker, "read:v/q"))
    close = await client.until(amqp10.Close)
    assert "access to vhost '/' refused for user 'ann'" in close.error.description


@pytest.mark.parametrize("secret", ["guest", "a.b.c", "expired"])
async def test_what_is_no_good_token_is_a_wrong_password(
    settings: dict[str, Any], secret: str, log: LogRecorder
) -> None:
    """With tokens alone no password is accepted; and no token is in the log."""
    async with running_broker(**{**settings, "auth_backends": "oauth2"}) as broker:
        given = token(broker, *ALL, lasts_s=-1) if secret == "expired" else secret
        await client10(broker, given, code=1)
    assert any(event == "login failed" for event, _ in log.of("warning"))
    assert given not in repr(log.entries) or secret == "guest"


async def test_beside_tokens_passwords_count_where_they_shall(broker: Broker) -> None:
    assert await connect091(broker).open(user="guest", password="guest")
    assert await client091(broker, token(broker, *ALL))


async def test_a_token_is_no_password_where_none_is_taken() -> None:
    async with running_broker(auth_failure_delay_ms=0) as broker:
        await client10(broker, token(broker, *ALL), code=1)


async def test_the_connection_ends_with_its_token(broker: Broker) -> None:
    one, two = (
        await client10(broker, token(broker, *ALL, lasts_s=60)),
        await client091(broker, token(broker, *ALL, lasts_s=60)),
    )
    began = trio.current_time()
    error = (await one.until(amqp10.Close)).error
    assert (error.condition, error.description) == ("amqp:unauthorized-access", "credential expired")
    close = await two.expect(methods.ConnectionClose)
    assert (close.reply_code, "credential expired" in close.reply_text) == (320, True)
    assert 55 <= trio.current_time() - began <= 62


async def test_a_token_lasts_as_many_seconds_as_it_says_when_it_is_taken(broker: Broker) -> None:
    """Its end is in whole seconds; RabbitMQ's Java client relies on the fraction that was cut off."""
    await trio.sleep((1500 - broker.clock.now_ms() % 1000) / 1000)
    second = broker.clock.now_ms() // 1000
    client = await client10(broker, tokens.token(*ALL, now_s=second, exp=second + 3))
    await client.until(amqp10.Close)
    assert 500 <= broker.clock.now_ms() - 1000 * (second + 3) < 1000


async def test_another_token_keeps_a_connection_of_0_9_1(broker: Broker) -> None:
    declare(broker.catalog, "/", "q")
    client = await client091(broker, token(broker, *ALL, lasts_s=60))
    began = trio.current_time()
    await client.call(
        0,
        methods.ConnectionUpdateSecret(
            new_secret=token(broker, "read:%2F/q", lasts_s=100).encode(), reason="it ends"
        ),
        methods.ConnectionUpdateSecretOk,
    )
    await client.publish("", "q", b"")
    assert (await client.expect(methods.ChannelClose)).reply_code == 403, (
        "what it may is what the new one says"
    )
    close = await client.expect(methods.ConnectionClose)
    assert close.reply_code == 320
    assert trio.current_time() - began >= 95


@pytest.mark.parametrize("bad", ["of another", "expired", "junk"])
async def test_a_bad_token_closes_a_connection_of_0_9_1(broker: Broker, bad: str) -> None:
    secret = {
        "of another": token(broker, *ALL, user="bob"),
        "expired": token(broker, *ALL, lasts_s=-5),
        "junk": "junk",
    }[bad]
    client = await client091(broker, token(broker, *ALL))
    await client.send(0, methods.ConnectionUpdateSecret(new_secret=secret.encode(), reason=""))
    close = await client.expect(methods.ConnectionClose)
    assert close.reply_code == 530
    assert "token refused" in close.reply_text


async def test_another_token_keeps_a_connection_of_1_0(broker: Broker) -> None:
    """A link that the new token does not permit is detached; others outlive the old token."""
    for name in ("q", "other"):
        declare(broker.catalog, "/", name)
    client = await client10(broker, token(broker, *ALL, lasts_s=60))
    await client.send(attach_receiver(0, "/queues/q"), attach_receiver(1, "/queues/other"))
    await client.take(amqp10.Attach, 2)
    await client.send(credit(0, 10), credit(1, 10))
    await attach_management(client)
    began = trio.current_time()
    await offer(client, token(broker, "read:%2F/q", lasts_s=100))
    got: dict[type, Any] = {}
    while not {amqp10.Detach, amqp10.Transfer} <= got.keys():
        body = (await client.next()).body
        got[type(body)] = body
    detach = got[amqp10.Detach]
    assert (detach.handle, detach.error.condition) == (1, "amqp:unauthorized-access")
    assert (await client.until(amqp10.Close)).error.description == "credential expired"
    assert trio.current_time() - began >= 95


async def test_a_token_after_a_login_with_a_password_is_taken_and_changes_nothing(broker: Broker) -> None:
    """The answer is 204 for any token, as in RabbitMQ; links keep the permissions of the user."""
    declare(broker.catalog, "/", "q")
    client = await connect(broker).open()
    await client.call(amqp10.Attach, attach_receiver(0, "/queues/q"))
    await client.send(credit(0, 10))
    await attach_management(client)
    for number, secret in enumerate(("junk", token(broker, "read:v/nothing"))):
        await offer(client, secret, number)
        (got,) = await client.take(amqp10.Transfer, 1)
        assert b"204" in got.payload
    assert client.task.user == "guest"
    assert not {amqp10.Detach, amqp10.End, amqp10.Close} & {type(each.body) for each in await client.idle()}


async def test_a_token_after_a_login_with_a_password_has_permissions_asked_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another notice of the change, a consumer that may no longer read is detached."""
    declare(broker.catalog, "/", "q")
    client = await connect(broker).open()
    await client.call(amqp10.Attach, attach_receiver(0, "/queues/q"))
    await attach_management(client)
    monkeypatch.setattr(broker.catalog.users, "on_change", lambda: None)
    set_permission(broker.catalog, "guest", "/", Permission(read="^other$"))
    await offer(client, "junk")
    assert (await client.until(amqp10.Detach)).error.condition == "amqp:unauthorized-access"
    assert client.task.is_open


async def test_a_bad_token_closes_a_connection_of_1_0(broker: Broker) -> None:
    client = await client10(broker, token(broker, *ALL))
    await attach_management(client)
    await offer(client, token(broker, *ALL, user="bob"))
    error = (await client.until(amqp10.Close)).error
    assert error.condition == "amqp:unauthorized-access"
    assert error.description.startswith("token refused")


async def test_a_token_that_has_not_the_virtual_host_any_more_ends_the_connection(broker: Broker) -> None:
    client = await client091(broker, token(broker, *ALL))
    await client.send(
        0, methods.ConnectionUpdateSecret(new_secret=token(broker, "read:v/q").encode(), reason="")
    )
    close = await client.expect(methods.ConnectionClose)
    assert (close.reply_code, "access to vhost '/' refused" in close.reply_text) == (530, True)


async def test_a_bearer_token_is_a_login_of_the_http_api(settings: dict[str, Any]) -> None:
    async with running_broker(**settings) as broker, http_user(broker, "") as user:
        secret = token(broker, *ALL, "tag:monitoring")
        heard = await user.ask("GET", "/whoami", authorization=f"Bearer {secret}")
        assert heard.json["name"] == "ann"
        assert heard.json["tags"] == ["monitoring"]
        assert heard.json["is_internal_user"] is False
        without = await user.ask("GET", "/whoami", authorization=f"Bearer {token(broker, *ALL)}")
        assert (without.status, without.json["reason"]) == (401, "Not management user")
        wrong = await user.ask("GET", "/whoami", authorization="Bearer a.b.c")
        assert wrong.json == {"error": "not_authorized", "reason": "Not_Authorized"}
    async with running_broker(**settings) as broker, http_user(broker, f"ann:{secret}") as user:
        assert (await user.get("/whoami"))["name"] == "ann"
