"""For how long transactions of AMQP 1.0 may be open, and what is shown of those that are."""

from __future__ import annotations

import trio

from amqp10broker.operations.snapshot import ConnectionView, TransactionView, document, view_of
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Detach,
    Discharge,
    End,
    Flow,
    TransactionalState,
)
from amqp10broker.protocols.amqp10.settling import ACCEPTED
from amqp10broker.runtime.broker import Broker
from tests.runtime.test_metrics import scraped, value
from tests.support.rawframes import disposition
from tests.support.transacting import CONTROL, Session, control, start, transacting
from tests.support.trioclient import queue_counts

TIMEOUT_S = 20
LIMIT = {"transaction_timeout_ms": TIMEOUT_S * 1000}


async def is_timed_out(session: Session) -> bool:
    """Return whether the control link was detached for the time-out; the session must go on."""
    got = [each.body for each in await session.client.idle()]
    detached = [each for each in got if isinstance(each, Detach)]
    for each in detached:
        assert each.handle == CONTROL
        assert each.error.condition == "amqp:transaction:timeout"
    assert not any(isinstance(each, End) for each in got)
    return bool(detached)


async def shown(broker: Broker) -> list[TransactionView]:
    """Return open transactions as front ends show them, also from another node."""
    views = [view_of(ConnectionView, document(view)) for view in await broker.connections.views()]
    return [each for view in views for session in view.sessions for each in session.transactions]


async def test_a_transaction_that_is_open_for_too_long_is_rolled_back() -> None:
    """Its control link ends, the session goes on: posts are discarded, consumed messages requeued."""
    async with transacting(**LIMIT) as (broker, session):
        await session.post(None, "one")
        (number,) = await session.consume("one", 1)
        txn_id = await session.declare()
        await session.post(txn_id, "two")
        await session.client.send(
            disposition(number, state=TransactionalState(txn_id=txn_id, outcome=Accepted()))
        )
        await trio.sleep(TIMEOUT_S - 1)
        assert not await is_timed_out(session)
        await trio.sleep(2)
        assert await is_timed_out(session)
        assert queue_counts(broker, "one") == (1, 0)
        assert queue_counts(broker, "two") == (0, 0)
        assert await shown(broker) == []
        await session.client.call(Flow, control(7))
        assert (await session.ask(Discharge(txn_id=txn_id), handle=7)).error.condition.endswith("unknown-id")


async def test_time_runs_from_the_first_that_is_done() -> None:
    """A client may declare the next transaction early and wait for work."""
    async with transacting(**LIMIT) as (broker, session):
        txn_id = await session.declare()
        await trio.sleep(10 * TIMEOUT_S)
        assert await session.post(txn_id, "one") == TransactionalState(txn_id=txn_id, outcome=ACCEPTED)
        await trio.sleep(TIMEOUT_S - 1)
        assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
        assert queue_counts(broker, "one") == (1, 0)
        await trio.sleep(10 * TIMEOUT_S)
        assert not await is_timed_out(session)


async def test_each_session_of_a_connection_has_the_time_of_its_own_transactions() -> None:
    """A later transaction ends later, also when the first was discharged meanwhile."""
    async with transacting(**LIMIT) as (broker, session):
        other = await start(broker)
        first = await session.declare()
        await session.post(first, "one")
        await trio.sleep(TIMEOUT_S / 2)
        await session.ask(Discharge(txn_id=first))
        for each in (session, other):
            await each.post(await each.declare(), "one")
        await trio.sleep(TIMEOUT_S - 1)
        assert not await is_timed_out(session)
        late = await other.declare()
        await other.post(late, "two")
        await trio.sleep(2)
        assert await is_timed_out(session)
        assert await is_timed_out(other)
        assert queue_counts(broker, "one") == (1, 0)
        assert queue_counts(broker, "two") == (0, 0)


async def test_without_a_limit_a_transaction_may_be_open_for_ever() -> None:
    async with transacting(transaction_timeout_ms=0) as (broker, session):
        txn_id = await session.declare()
        await session.post(txn_id, "one")
        await trio.sleep(900)
        assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
        assert queue_counts(broker, "one") == (1, 0)


async def test_open_transactions_are_shown_and_ends_are_counted() -> None:
    async with transacting(transaction_max_messages=2, **LIMIT) as (broker, session):
        await session.post(None, "two")
        (number,) = await session.consume("two", 1)
        for fail in (False, True, False):
            await session.ask(Discharge(txn_id=await session.declare(), fail=fail))
        txn_id = await session.declare()
        await session.post(txn_id, "one", b"four")
        await session.client.submit(
            disposition(number, state=TransactionalState(txn_id=txn_id, outcome=Accepted()), settled=False)
        )
        (view,) = await shown(broker)
        assert (view.id, view.link, view.messages, view.deliveries) == (txn_id.hex(), "control-0", 1, 1)
        assert view.bytes >= 4
        assert view.failed is None
        await trio.sleep(5)
        (view,) = await shown(broker)
        assert 5 <= view.age_s < 6
        await session.post(txn_id, "one")
        await session.post(txn_id, "one")
        (view,) = await shown(broker)
        assert "transaction_max_messages" in str(view.failed)
        assert value(await scraped(broker), "amqp10broker_transactions_open") == 1
        await trio.sleep(TIMEOUT_S)
        assert await is_timed_out(session)
        found = await scraped(broker)
        assert value(found, "amqp10broker_transactions_open") == 0
        counted = {
            end: value(found, "amqp10broker_transactions_total", protocol="amqp10", end=end)
            for end in ("committed", "rolled-back", "timed-out")
        }
        assert counted == {"committed": 2, "rolled-back": 1, "timed-out": 1}
