"""Storms of wrong passwords: others log in as if there were none, and what is too much hears so early."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from amqp10broker.auth import login as turns
from amqp10broker.auth.login import Peer, Slow
from amqp10broker.auth.passwords import Passwords
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Permission
from amqp10broker.protocols.amqp091.methods import ConnectionClose
from amqp10broker.protocols.amqp10.performatives import SaslCode, SaslOutcome
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.login import HELD_MAX
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import add_user, set_permission
from tests.support.rawframes import login, open_frame
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import connect091

_guesses = itertools.count()

RECORD = PasswordRecord(PasswordAlgorithm.ARGON2ID, "of no matter")


class Verifier:
    """Stands for argon2: says which password it verifies, and ends when the test says so.

    Attributes:
        done: names of the passwords verified, in order.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fault: Exception | None = None
        self._begun = 0
        self._may_end = trio.Semaphore(0)

    async def run(self, work: Callable[[], Any]) -> Any:
        self._begun += 1
        await self._may_end.acquire()
        if self.fault is not None:
            raise self.fault
        return work()

    def work(self, passwords: Passwords, name: str, password: bytes) -> Callable[[], bool]:
        def verify() -> bool:
            self.done.append(name)
            return password == b"right"

        return verify

    async def end(self, count: int) -> None:
        for _ in range(count):
            self._may_end.release()
            await settle_down()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(turns, "WAITING_PER_ADDRESS_MAX", 20)
    return 20


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch, verify_passwords_at_once: None) -> Verifier:
    """The test decides when passwords are verified, under a clock that may jump."""
    verifier = Verifier()
    monkeypatch.setattr("amqp10broker.runtime.connections.login.run_slow", verifier.run)
    monkeypatch.setattr(Passwords, "slow", lambda self, name, password: verifier.work(self, name, password))
    return verifier


@asynccontextmanager
async def broker_with(*names: str) -> AsyncIterator[Broker]:
    async with running_broker(handshake_timeout_ms=3_600_000) as broker:
        for name in names:
            add_user(broker.catalog, name, RECORD)
            set_permission(broker.catalog, name, "/", Permission())
        yield broker


async def storm(broker: Broker, count: int, *, name: str = "guess", protocol: int = 10) -> list[Any]:
    clients: list[Any] = []
    for _ in range(count):
        response = f"\0{name}\0{next(_guesses)}".encode()
        if protocol == 10:
            client = connect(broker, peer="storm")
            await client.send(login("PLAIN", response))
        else:
            client = connect091(broker, peer="storm")
            await client.start("PLAIN", response)
        clients.append(client)
    await settle_down()
    return clients


async def come_in(broker: Broker, name: str, *, peer: str | None = None) -> Client:
    client = connect(broker, peer=peer)
    await client.submit(login("PLAIN", f"\0{name}\0right".encode()), open_frame())
    return client


async def test_a_fleet_that_starts_anew_is_verified_once(verifier: Verifier) -> None:
    """From one address or many, one right password lets in all clients that wait with the same one."""
    async with broker_with("app") as broker:
        fleet = [await come_in(broker, "app", peer=f"host{number % 20}") for number in range(60)]
        await verifier.end(2)
        for client in fleet:
            assert (await client.until(SaslOutcome)).code == SaslCode.OK
        assert verifier.done == ["app", "app"]


async def test_too_many_of_one_address_are_refused_early(
    verifier: Verifier, places: int, log: LogRecorder
) -> None:
    """They get a temporary failure after the usual login delay, and one log entry."""
    async with broker_with() as broker:
        await storm(broker, places + 1)  # one runs
        refused = (await storm(broker, 3))[0]
        began = trio.current_time()
        assert (await refused.until(SaslOutcome)).code == SaslCode.SYS_TEMP
        assert trio.current_time() - began == pytest.approx(broker.config.auth_failure_delay_ms / 1000)
        assert await refused.rest() == []
        assert not verifier.done
        entries = [entry for entry in log.of("warning") if "refused unverified" in entry[0]]
        assert [fields["address"] for _, fields in entries] == ["storm"]
        await verifier.end(places + 1)
        assert [fields["refused"] for event, fields in log.of("info") if "again" in event] == [3]


async def test_too_many_are_refused_by_amqp_0_9_1_with_connection_forced(
    verifier: Verifier, places: int
) -> None:
    """320: "The client may retry at some later date"; 403 would say that the password is wrong."""
    async with broker_with() as broker:
        await storm(broker, places + 1)
        (refused,) = await storm(broker, 1, protocol=91)
        close = await refused.expect(ConnectionClose)
        assert close.reply_code == 320
        assert "try again later" in close.reply_text


async def test_clients_whose_time_is_up_leave_their_turns(verifier: Verifier) -> None:
    """The password of a lost client is not verified."""
    async with broker_with() as broker:
        await storm(broker, 50)
        await trio.sleep(3_601)
        assert len(broker.logins._turns) == 0
        await verifier.end(10)
        assert len(verifier.done) == 1


async def test_a_fault_in_a_verification_ends_its_connection_only(
    verifier: Verifier, log: LogRecorder
) -> None:
    """Its client gets a temporary failure; the next password is verified as usual."""
    async with broker_with("ann") as broker:
        (client,) = await storm(broker, 1)
        verifier.fault = MemoryError("no room for argon2")
        await verifier.end(1)
        assert (await client.until(SaslOutcome)).code == SaslCode.SYS_TEMP
        (error,) = log.of("error")
        assert error[0] == "a login was not verified by a fault in the broker"
        verifier.fault = None
        right = await come_in(broker, "ann")
        await verifier.end(1)
        assert (await right.until(SaslOutcome)).code == SaslCode.OK


@pytest.mark.real_clock
async def test_an_address_with_too_many_failed_logins_is_turned_away_for_a_while(
    monkeypatch: pytest.MonkeyPatch, log: LogRecorder
) -> None:
    """Its connections are closed when accepted, before a handshake costs anything; the log has one entry."""
    async with running_broker() as broker, trio.open_nursery() as nursery:
        host, port = broker.addresses[0]

        async def is_served() -> bool:
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(b"AMQP\x03\x01\x00\x00")
                try:
                    return bool(await stream.receive_some(1))
                except trio.BrokenResourceError:
                    return False

        for _ in range(HELD_MAX - 1):
            nursery.start_soon(broker.logins.hold, host, 3_600)
        await settle_down()
        assert await is_served()
        nursery.start_soon(broker.logins.hold, host, 3_600)
        await settle_down()
        assert not await is_served()
        assert not await is_served()
        assert broker.logins.refuses_logins_of(host)
        assert not broker.logins.refuses_logins_of("127.0.0.2")
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await settle_down()
            assert await is_served()
    assert [fields for event, fields in log.of("warning") if "too many failed" in event] == [
        {"address": host}
    ]


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN", "SCRAM-SHA-256"])
def test_every_mechanism_with_a_password_waits_under_its_name(mechanism: str) -> None:
    """This holds whether or not the user exists, so the order does not reveal it."""
    broker = Broker()
    add_user(broker.catalog, "ann", RECORD)
    for name in ("ann", "nobody"):
        encoded = name.encode()
        response = {
            "PLAIN": b"\0" + encoded + b"\0guess",
            "AMQPLAIN": b"\x05LOGINS\0\0\0" + bytes([len(name)]) + encoded + b"\x08PASSWORDS\0\0\0\x05guess",
            "SCRAM-SHA-256": b"n,,n=" + encoded + b",r=nonce",
        }[mechanism]
        step = broker.authenticator.begin(Peer(loopback=True)).start(mechanism, response)
        assert isinstance(step, Slow)
        assert step.name == name
