"""SCRAM-SHA-256 from the first byte of a connection on, with a client of each protocol."""

from __future__ import annotations

import pytest

from amqp10broker.auth.passwords import plain_record
from amqp10broker.metadata.users import PasswordRecord, Permission
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import add_user, set_permission
from tests.support.rawframes import frame, login, open_frame
from tests.support.scram_client import ScramClient
from tests.support.trioclient import Client, connect
from tests.support.trioclient091 import Client091, connect091

SCRAM = "SCRAM-SHA-256"
OK, AUTH = 0, 1


async def log_in(client: Client, scram: ScramClient, *, at_once: bool = True) -> performatives.SaslOutcome:
    """Run the exchange over AMQP 1.0; the outcome has the server's final message."""
    if at_once:
        await client.send(login(SCRAM, scram.first()))
        await client.expect(performatives.SaslMechanisms)
    else:
        await client.send(login(SCRAM))
        await client.expect(performatives.SaslMechanisms)
        assert (await client.expect(performatives.SaslChallenge)).challenge == b""
        await client.send(frame(0, performatives.SaslResponse(response=scram.first()), kind=1))
    challenge = await client.expect(performatives.SaslChallenge)
    await client.send(frame(0, performatives.SaslResponse(response=scram.final(challenge.challenge)), kind=1))
    outcome = await client.expect(performatives.SaslOutcome)
    if outcome.code == OK:
        scram.check(outcome.additional_data)
    return outcome


async def log_in091(client: Client091, scram: ScramClient) -> type:
    """Run the exchange over AMQP 0-9-1, with a challenge for the server's final message; return its end."""
    await client.start(SCRAM, scram.first())
    challenge = (await client.expect(methods.ConnectionSecure)).challenge
    await client.send(0, methods.ConnectionSecureOk(scram.final(challenge)))
    got = await client.next_or_end()
    if isinstance(got[1], methods.ConnectionSecure):
        scram.check(got[1].challenge)
        await client.send(0, methods.ConnectionSecureOk(b""))
        got = await client.next_or_end()
        assert got is not None
    client.waiting.appendleft(got)
    return type(got[1])


def add(broker: Broker, name: str, record: PasswordRecord | None) -> None:
    add_user(broker.catalog, name, record)
    set_permission(broker.catalog, name, "/", Permission())


@pytest.mark.parametrize("at_once", [True, False], ids=["initial response", "asked for it"])
@pytest.mark.parametrize(
    ("user", "password"), [("guest", "guest"), ("ann", "pencil"), ("a=b,c", "größe,="), ("made", "argon")]
)
async def test_amqp_1_0(broker: Broker, user: str, password: str, at_once: bool) -> None:
    """Passwords come from the configuration or from the broker; each side proves its knowledge."""
    for name, word in (("ann", "pencil"), ("a=b,c", "größe,=")):
        add(broker, name, plain_record(word))
    add(broker, "made", broker.passwords.make("argon"))
    client = connect(broker)
    outcome = await log_in(client, ScramClient(user, password), at_once=at_once)
    assert outcome.code == OK
    await client.send(open_frame())
    await client.expect(performatives.Open)
    assert client.task.user == user


async def test_amqp_0_9_1(broker: Broker) -> None:
    add(broker, "made", broker.passwords.make("argon"))
    client = connect091(broker)
    assert await log_in091(client, ScramClient("made", "argon")) is methods.ConnectionTune
    await client.tune()
    await client.call(0, methods.ConnectionOpen("/"), methods.ConnectionOpenOk)
    assert next(iter(broker.connections.values())).user == "made"
    await client.stream.aclose()
