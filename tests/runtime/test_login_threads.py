"""Slow logins: their work is done in threads, a few at a time, and nobody else waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from amqp10broker.auth.passwords import Passwords
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Permission
from amqp10broker.protocols.amqp091.methods import ConnectionClose, ConnectionTune
from amqp10broker.protocols.amqp10.performatives import Disposition, Flow, SaslOutcome, Transfer
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.login import VERIFICATIONS_MAX, run_slow
from tests.support.declaring import add_user, declare, set_password, set_permission
from tests.support.rawframes import attach_sender, frame, login, message
from tests.support.trioclient import connect, eventually, running_broker
from tests.support.trioclient091 import connect091

pytestmark = pytest.mark.real_clock

PATIENCE_S = 20.0


class SlowWork:
    """Stands for argon2: begins when its thread runs, ends when the test says so.

    Attributes:
        running: verifications that have begun and not ended.
        most: the most that ran at one time.
        threads: in which they ran.
    """

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.threads: set[threading.Thread] = set()
        self.result = True
        self._lock = threading.Lock()
        self._go = threading.Semaphore(0)

    def __call__(self) -> bool:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.threads.add(threading.current_thread())
        assert self._go.acquire(timeout=PATIENCE_S), "the test never let it end"
        with self._lock:
            self.running -= 1
        return self.result

    def end(self, count: int = 1) -> None:
        """Let this many verifications end, running ones and later ones."""
        self._go.release(count)

    async def until_running(self, count: int) -> None:
        await eventually(lambda: self.running == count)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, verify_passwords_at_once: None) -> SlowWork:
    """Every unknown password takes as long as the test decides, in real threads."""
    slow = SlowWork()

    def take_long(self: Passwords, name: str, password: bytes) -> Callable[[], Any]:
        return slow

    monkeypatch.setattr("amqp10broker.runtime.connections.login.run_slow", run_slow)
    monkeypatch.setattr(Passwords, "slow", take_long)
    monkeypatch.setattr(Passwords, "quick", lambda self, name, password: name == "guest")
    return slow


def add_users(broker: Any, count: int) -> list[bytes]:
    names = [f"user{number}" for number in range(count)]
    for name in names:
        add_user(broker.catalog, name, PasswordRecord(PasswordAlgorithm.ARGON2ID, "of no matter"))
        set_permission(broker.catalog, name, "/", Permission())
    return [f"\0{name}\0secret".encode() for name in names]


async def test_other_connections_go_on_while_a_password_is_verified(work: SlowWork) -> None:
    """Messages are published and confirmed, and other clients log in, while the verification runs."""
    async with running_broker() as broker:
        (response,) = add_users(broker, 1)
        declare(broker.catalog, "/", "q")
        busy = await connect(broker).open()
        await busy.call(Flow, attach_sender(0, "/queues/q"))
        waiting = connect(broker)
        await waiting.send(login("PLAIN", response))
        await work.until_running(1)
        with trio.fail_after(PATIENCE_S):
            for number in range(10):
                transfer = Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number)
                await busy.call(Disposition, frame(0, transfer, message(b"m")))
            newer = await connect(broker).open()
            older = await connect091(broker).open()
        assert work.running == 1
        work.end()
        assert (await waiting.until(SaslOutcome)).code == 0
        for client in (busy, newer, older):
            await client.stream.aclose()
    assert threading.current_thread() not in work.threads


async def test_a_few_passwords_are_verified_at_one_time(work: SlowWork) -> None:
    """A crowd of clients takes neither all processors nor all memory; each client gets its turn."""
    async with running_broker(auth_failure_delay_ms=0) as broker:
        responses = add_users(broker, VERIFICATIONS_MAX + 3)
        clients = [connect(broker) for _ in responses]
        for client, response in zip(clients, responses, strict=True):
            await client.send(login("PLAIN", response))
        await work.until_running(VERIFICATIONS_MAX)
        work.end(len(responses))
        for client in clients:
            assert (await client.until(SaslOutcome)).code == 0
    assert work.most == VERIFICATIONS_MAX


async def test_amqp_0_9_1_logs_in_by_the_same_threads(work: SlowWork) -> None:
    """connection.tune follows a right password, connection.close a wrong one."""
    async with running_broker(auth_failure_delay_ms=0) as broker:
        (response,) = add_users(broker, 1)
        for right in (True, False):
            work.result = right
            client = connect091(broker)
            await client.start("PLAIN", response)
            await work.until_running(1)
            work.end()
            await client.expect(ConnectionTune if right else ConnectionClose)
            await client.stream.aclose()


async def test_a_client_that_goes_while_its_password_is_verified(broker: Broker, work: SlowWork) -> None:
    (response,) = add_users(broker, 1)
    client = connect(broker)
    await client.send(login("PLAIN", response))
    await work.until_running(1)
    await client.vanish()
    work.end()
    await eventually(lambda: not broker.connections)


async def test_a_password_changed_while_it_is_verified_lets_nobody_in(work: SlowWork) -> None:
    """The old password was right when verification began, but no longer is."""
    async with running_broker(auth_failure_delay_ms=0) as broker:
        (response,) = add_users(broker, 1)
        client = connect(broker)
        await client.send(login("PLAIN", response))
        await work.until_running(1)
        set_password(
            broker.catalog, "user0", PasswordRecord(PasswordAlgorithm.ARGON2ID, "another of no matter")
        )
        work.end()
        assert (await client.until(SaslOutcome)).code == 1
