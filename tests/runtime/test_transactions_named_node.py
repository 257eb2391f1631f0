"""Transactions over quorum queues of a node with a name, which is the only one of its cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from amqp10broker import Broker, Config
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.settling import ACCEPTED
from amqp10broker.sessions.amqp10.open import SOLE_CONNECTION
from tests.runtime.test_transactions import Looking
from tests.support.cluster_process import free_ports
from tests.support.rawframes import disposition, login, open_frame
from tests.support.transacting import Session, start
from tests.support.trioclient import connect, eventually, queue_counts
from tests.support.trioclient091 import connect091
from tests.support.trioclient091 import message as content

pytestmark = pytest.mark.real_clock

KINDS = {"one": "classic", "two": "quorum", "three": "quorum"}


@asynccontextmanager
async def named(tmp_path: Path) -> AsyncIterator[Broker]:
    secret = tmp_path / "secret"
    if not secret.exists():
        secret.write_text("a secret of some length\n")
        secret.chmod(0o600)
    config = Config(
        port=free_ports(1), data_dir=str(tmp_path / "a"), admin_socket="", node_name="a",
        cluster_secret_file=str(secret),
    )  # fmt: skip
    async with Broker(config) as broker:
        client = await connect091(broker).open()
        for name, kind in KINDS.items():
            declare = methods.QueueDeclare(name, durable=True, arguments={"x-queue-type": kind})
            await client.call(1, declare, methods.QueueDeclareOk)
        await client.vanish()
        yield broker


async def counts(broker: Broker, **expected: tuple[int, int]) -> None:
    await eventually(lambda: {name: queue_counts(broker, name) for name in expected} == expected)


async def test_a_quorum_queue_of_a_single_node_with_a_name_takes_part(tmp_path: Path) -> None:
    """A commit does posts and decisions, which survive a restart; a rollback does nothing."""
    async with named(tmp_path) as broker:
        session: Session = await start(broker)
        for _ in range(2):
            await session.post(None, "two")
        first, second = await session.consume("two", 2)
        for number, fail in ((first, True), (second, False)):
            txn_id = await session.declare()
            state = performatives.TransactionalState(txn_id=txn_id, outcome=performatives.Accepted())
            for queue in ("one", "two", "two"):
                posted = await session.post(txn_id, queue)
                assert posted.outcome == performatives.Accepted()
            await session.client.send(disposition(number, state=state, settled=False))
            assert await session.ask(performatives.Discharge(txn_id=txn_id, fail=fail)) == ACCEPTED
            if fail:
                assert queue_counts(broker, "one") == (0, 0)
                assert queue_counts(broker, "two") == (0, 2)
        await counts(broker, one=(1, 0), two=(2, 1))
        await session.client.vanish()
    async with named(tmp_path) as broker:
        await counts(broker, two=(3, 0))


async def test_a_commit_of_amqp_0_9_1_at_a_single_node_with_a_name_is_one_step(tmp_path: Path) -> None:
    seen: set[tuple[int, int, int]] = set()

    def look() -> None:
        seen.add((*queue_counts(broker, "two"), queue_counts(broker, "three")[0]))

    async with named(tmp_path) as broker:
        client = await connect091(broker).open()
        await client.call(1, methods.TxSelect(), methods.TxSelectOk)
        await client.send(1, content(1, "two"))
        await client.call(1, methods.TxCommit(), methods.TxCommitOk)
        await client.call(1, methods.BasicGet("two"), Content)
        instrument = Looking(look)
        trio.lowlevel.add_instrument(instrument)
        work = methods.BasicAck(1, False), content(1, "two"), content(1, "three"), content(1, "three")
        await client.send(1, *work)
        await client.call(1, methods.TxRollback(), methods.TxRollbackOk)
        await client.send(1, *work)
        await client.call(1, methods.TxCommit(), methods.TxCommitOk)
        await counts(broker, two=(1, 0), three=(2, 0))
        trio.lowlevel.remove_instrument(instrument)
        await client.vanish()
        assert seen == {(0, 1, 0), (1, 0, 2)}
    async with named(tmp_path) as broker:
        await counts(broker, two=(1, 0), three=(2, 0))


async def test_a_single_node_with_a_name_offers_sole_connection(tmp_path: Path) -> None:
    async with named(tmp_path) as broker:
        client = connect(broker)
        assert (await client.call(performatives.SaslOutcome, login())).code == 0
        await client.send(open_frame(desired_capabilities=(SOLE_CONNECTION,)))
        assert SOLE_CONNECTION in ((await client.expect(performatives.Open)).offered_capabilities or ())
        await client.vanish()
