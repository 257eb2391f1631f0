"""Transactions of AMQP 1.0, as clients with raw frames see them of a whole broker in this program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_VALUE,
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    Flow,
    Header,
    Rejected,
    Source,
    TransactionalState,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.queues.commands import DELETE
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.queues.queue_task import QueueTask
from tests.support.declaring import declare
from tests.support.rawframes import (
    attach_receiver,
    attach_sender,
    body_of,
    credit,
    disposition,
    flow,
    frame,
    message,
    transfer,
)
from tests.support.transacting import CONTROL, Session, control, declare_queues, request, start, transacting
from tests.support.trioclient import connect, eventually, queue_counts, running_broker, settle_down
from tests.support.trioclient091 import connect091
from tests.support.trioclient091 import message as content


@pytest.fixture
async def session(broker: Broker) -> Session:
    await declare_queues(broker)
    return await start(broker)


async def test_control_link_is_answered_with_what_the_coordinator_can(broker: Broker) -> None:
    client = await connect(broker).open()
    attach = await client.call(Attach, control())
    assert isinstance(attach.target, Coordinator)
    assert attach.target.capabilities == (
        Symbol("amqp:local-transactions"),
        Symbol("amqp:multi-txns-per-ssn"),
    )
    assert (await client.until(Flow)).link_credit > 0


async def test_coordinator_as_a_receivers_target_makes_no_control_link(broker: Broker) -> None:
    """A coordinator is a target for the client's transfers; a receiver controls nothing."""
    await declare_queues(broker)
    client = await connect(broker).open()
    await client.send(attach_receiver(1, "one", target=Coordinator()), request(0, Declare(), handle=1))
    assert not any(isinstance(got.body, Disposition) for got in await client.idle())


async def test_300_transactions_on_one_link(session: Session) -> None:
    ids = set()
    for turn in range(300):
        ids.add(txn_id := await session.declare())
        assert await session.ask(Discharge(txn_id=txn_id, fail=bool(turn % 2))) == ACCEPTED
    assert len(ids) == 300
    assert {len(txn_id) for txn_id in ids} == {8}


async def test_an_unknown_id_posts_nothing_and_decides_nothing(broker: Broker) -> None:
    """A discharged transaction, or one of another session, is unknown: the link ends."""
    await declare_queues(broker)
    session, other = await start(broker), await start(broker)
    gone = await session.declare()
    await session.ask(Discharge(txn_id=gone))
    error = await session.refused(Discharge(txn_id=gone))
    assert error.condition == "amqp:transaction:unknown-id"
    for txn_id in (gone, await other.declare()):
        detach = await session.client.call(
            Detach, transfer(1, session.take_id(), b"m", state=TransactionalState(txn_id=txn_id))
        )
        assert detach.error.condition == "amqp:transaction:unknown-id"
        await session.client.send(frame(0, Detach(handle=1, closed=True)), attach_sender(1, "/queues/one"))
        await session.client.until(Flow)
    assert queue_counts(broker, "one") == (0, 0)


async def test_declare_and_discharge_and_nothing_else(session: Session) -> None:
    """Other requests are rejected; one that is settled, or in a transaction, ends the link."""
    state = (await session.client.call(Disposition, transfer(CONTROL, session.take_id(), b"what"))).state
    assert isinstance(state, Rejected)
    assert state.error.condition == "amqp:not-allowed"
    payload = encode(Described(ULong(AMQP_VALUE), Described(ULong(Declare.DESCRIPTOR), [b"x"])))
    await session.client.send(transfer(CONTROL, session.take_id(), payload, raw=True))
    state = (await session.client.until(Disposition)).state
    assert state.error.condition == "amqp:not-implemented"
    detach = await session.client.call(Detach, request(session.take_id(), Declare(), settled=True))
    assert detach.error.condition == "amqp:not-allowed"


async def test_limit_of_open_transactions() -> None:
    """One more is refused, and can be declared after a discharge."""
    async with transacting(transactions_max_per_connection=1) as (_, session):
        txn_id = await session.declare()
        error = await session.refused(Declare())
        assert error.condition == "amqp:resource-limit-exceeded"
        await session.ask(Discharge(txn_id=txn_id))
        await session.declare()


@pytest.mark.parametrize("limit", ["transaction_max_messages", "transaction_max_bytes"])
async def test_a_transaction_over_its_limits_can_only_be_rolled_back(limit: str) -> None:
    """The commit is rejected with the reason, and nothing was posted."""
    async with transacting(**{limit: 2}) as (broker, session):
        txn_id = await session.declare()
        for _ in range(3):
            await session.post(txn_id, "one")
        error = await session.refused(Discharge(txn_id=txn_id))
        assert error.condition == "amqp:transaction:rollback"
        assert limit in str(error.description)
        assert queue_counts(broker, "one") == (0, 0)


async def test_presettled_posts_that_cannot_be_routed_forbid_the_commit() -> None:
    """The client got no outcome for them; an unsettled one is released, and the commit is done."""
    async with transacting("one") as (broker, session):
        address = "/exchanges/amq.direct/nowhere"
        await session.client.call(Flow, attach_sender(2, address))
        txn_id = await session.declare()
        await session.post(txn_id, "one")
        assert await session.post(txn_id, "two") == TransactionalState(txn_id=txn_id, outcome=RELEASED)
        assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
        txn_id = await session.declare()
        await session.post(txn_id, "one")
        await session.post(txn_id, "two", settled=True)
        await session.refused(Discharge(txn_id=txn_id))
        assert queue_counts(broker, "one") == (1, 0)


async def test_2000_posts_in_one_transaction_pass_a_credit_of_170(broker: Broker, session: Session) -> None:
    """Arrival renews credit and windows, as for plain transfers; the commit does not."""
    txn_id = await session.declare()
    for _ in range(20):
        ids = [session.take_id() for _ in range(100)]
        state = TransactionalState(txn_id=txn_id)
        await session.client.send(*[transfer(1, number, b"m", state=state) for number in ids])
        done = 0
        while done < 100:
            answer = await session.client.until(Disposition)
            done += (answer.first if answer.last is None else answer.last) - answer.first + 1
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "one") == (2_000, 0)


async def test_one_delivery_in_two_transactions_ends_the_second_ones_link(session: Session) -> None:
    """The second one's control link is detached with amqp:transaction:rollback; the first keeps the
    delivery.
    """
    await session.client.call(Flow, control(5))
    await session.post(None, "one")
    (number,) = await session.consume("one", 1)
    first = await session.declare()
    second = await session.ask(Declare(), handle=5)
    for txn_id in (first, second.txn_id):
        await session.decide(txn_id, number, settled=False)
    detach = await session.client.until(Detach)
    assert detach.handle == 5
    assert detach.error.condition == "amqp:transaction:rollback"
    assert await session.ask(Discharge(txn_id=first)) == ACCEPTED


@pytest.mark.parametrize("how", ["detach", "connection"])
async def test_the_end_of_a_control_link_rolls_back(broker: Broker, session: Session, how: str) -> None:
    """Posted messages are discarded; consumed ones are ready for other clients."""
    await session.post(None, "one")
    (number,) = await session.consume("one", 1)
    txn_id = await session.declare()
    await session.post(txn_id, "two")
    await session.decide(txn_id, number)
    await settle_down()
    if how == "detach":
        await session.client.submit(frame(0, Detach(handle=CONTROL, closed=True)))
    else:
        await session.client.vanish()
    await settle_down()
    assert queue_counts(broker, "one") == (1, 0)
    assert queue_counts(broker, "two") == (0, 0)


async def test_the_end_of_a_posting_link_changes_nothing(broker: Broker, session: Session) -> None:
    txn_id = await session.declare()
    await session.post(txn_id, "one")
    await session.client.send(frame(0, Detach(handle=1, closed=True)))
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "one") == (1, 0)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("queue", ["one", "two"])
async def test_a_consuming_link_may_go_before_the_discharge(queue: str, fail: bool, settled: bool) -> None:
    """Its decisions stay with the transaction; the link's other deliveries are requeued at once."""
    async with mixed() as (broker, session):
        for _ in range(4):
            await session.post(None, queue)
        decided, *_ = await session.consume(queue, 2)
        await session.client.send(credit(9, 1, delivery_count=2))
        txn_id = await session.declare()
        await session.post(txn_id, "one")
        state = TransactionalState(txn_id=txn_id, outcome=Accepted())
        await session.client.send(
            disposition(decided, state=state, settled=settled), frame(0, Detach(handle=9, closed=True))
        )
        await session.client.until(Detach)
        await settle_down()
        assert queue_counts(broker, queue) == (3, 1)
        assert await session.ask(Discharge(txn_id=txn_id, fail=fail)) == ACCEPTED
        await settle_down()
        posted = 0 if fail or queue == "two" else 1
        assert queue_counts(broker, queue) == ((4 if fail else 3) + posted, 0)


async def test_a_link_that_has_gone_waits_for_all_of_its_transactions(
    broker: Broker, session: Session
) -> None:
    """Two have decided on its deliveries: the end of the first does not affect those of the second."""
    for _ in range(2):
        await session.post(None, "one")
    ids = await session.consume("one", 2)
    transactions = [await session.declare() for _ in ids]
    for number, txn_id in zip(ids, transactions, strict=True):
        await session.decide(txn_id, number)
    await session.client.send(frame(0, Detach(handle=9, closed=True)))
    first, second = transactions
    assert await session.ask(Discharge(txn_id=first)) == ACCEPTED
    await settle_down()
    assert queue_counts(broker, "one") == (0, 1)
    assert await session.ask(Discharge(txn_id=second, fail=True)) == ACCEPTED
    await settle_down()
    assert queue_counts(broker, "one") == (1, 0)


async def test_a_link_that_has_gone_gives_back_with_its_session(broker: Broker, session: Session) -> None:
    """The transaction is rolled back, and its deliveries are requeued."""
    await session.post(None, "one")
    (number,) = await session.consume("one", 1)
    txn_id = await session.declare()
    state = TransactionalState(txn_id=txn_id, outcome=Accepted())
    await session.client.submit(disposition(number, state=state), frame(0, Detach(handle=9, closed=True)))
    assert queue_counts(broker, "one") == (0, 1)
    await session.client.lose()
    assert queue_counts(broker, "one") == (1, 0)


async def test_a_queue_that_goes_before_the_commit_forbids_it(broker: Broker, session: Session) -> None:
    """Its announced outcome cannot be kept: nothing of the transaction is done."""
    txn_id = await session.declare()
    await session.post(txn_id, "one")
    await session.post(txn_id, "two")
    broker.catalog.vhosts["/"].lookup("two").handle.post(DELETE)
    error = await session.refused(Discharge(txn_id=txn_id))
    assert error.condition == "amqp:transaction:rollback"
    assert "'two'" in str(error.description)
    assert queue_counts(broker, "one") == (0, 0)


async def test_presettled_deliveries_cannot_be_retired(broker: Broker, session: Session) -> None:
    """They are over: a decision on one has no effect, and the commit is done without it."""
    await session.post(None, "one")
    settled = attach_receiver(9, "one", source=Source(address="/queues/one"), snd_settle_mode=1)
    number = (await session.client.call(Transfer, settled, credit(9, 1))).delivery_id
    txn_id = await session.declare()
    await session.client.send(disposition(number, state=TransactionalState(txn_id=txn_id, outcome=RELEASED)))
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "one") == (0, 0)


async def test_half_a_delivery_in_it_ends_the_control_link(session: Session) -> None:
    """A discharge while a delivery is incomplete gives amqp:transaction:rollback."""
    txn_id = await session.declare()
    state = TransactionalState(txn_id=txn_id)
    await session.client.send(transfer(1, session.take_id(), b"m", state=state, more=True))
    detach = await session.client.call(Detach, request(session.take_id(), Discharge(txn_id=txn_id)))
    assert (detach.handle, detach.error.condition) == (CONTROL, "amqp:transaction:rollback")


@asynccontextmanager
async def mixed(**settings: Any) -> AsyncIterator[tuple[Broker, Session]]:
    async with running_broker(**settings) as broker:
        declare(broker.catalog, "/", "one")
        declare(broker.catalog, "/", "two", arguments={"x-queue-type": "quorum"})
        await settle_down()
        yield broker, await start(broker)


async def test_a_full_quorum_queue_refuses_the_commit(broker: Broker) -> None:
    declare(broker.catalog, "/", "one")
    arguments = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
    declare(broker.catalog, "/", "two", arguments=arguments)
    await settle_down()
    session = await start(broker)
    txn_id = await session.declare()
    for queue in ("one", "two", "two"):
        await session.post(txn_id, queue)
    await session.refused(Discharge(txn_id=txn_id))
    await settle_down()
    assert queue_counts(broker, "one") == (0, 0)
    assert queue_counts(broker, "two") == (0, 0)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_delivery_that_its_queue_takes_back_forbids_the_commit(broker: Broker, gone: bool) -> None:
    """It was held too long (x-consumer-timeout), and another consumer has it by now."""
    declare(broker.catalog, "/", "one")
    arguments = {"x-queue-type": "quorum", "x-consumer-timeout": 60_000}
    declare(broker.catalog, "/", "two", arguments=arguments)
    await settle_down()
    session = await start(broker)
    for _ in range(2):
        await session.post(None, "two")
    first, second = await session.consume("two", 2)
    txn_id = await session.declare()
    await session.post(txn_id, "one")
    await session.decide(txn_id, first)
    if gone:
        await session.client.call(Detach, frame(0, Detach(handle=9, closed=True)))
    await trio.sleep(130)
    await session.client.idle()
    assert queue_counts(broker, "two") == (2, 0)
    if gone:
        assert isinstance(await session.ask(Discharge(txn_id=txn_id)), Rejected)
        assert queue_counts(broker, "one") == (0, 0)
        return
    # Of the other it has been told; it decides on it all the same.
    late = await session.declare()
    await session.decide(late, second)
    for each in (txn_id, late):
        error = await session.refused(Discharge(txn_id=each))
        assert error.condition == "amqp:transaction:rollback"
    await settle_down()
    assert queue_counts(broker, "one") == (0, 0)
    assert queue_counts(broker, "two") == (2, 0)
    await session.client.send(credit(9, 2, delivery_count=2))
    assert len(await session.client.take(Transfer, 2)) == 2


async def test_a_stream_takes_part(broker: Broker) -> None:
    """Its messages appear with the commit, in its order, with the other queues' or not at all."""
    declare(broker.catalog, "/", "one")
    declare(broker.catalog, "/", "two", arguments={"x-queue-type": "stream"})
    await settle_down()
    session = await start(broker)
    reader = await connect(broker).open()
    await reader.send(attach_receiver(1, "/queues/two"), credit(1, 10))
    for fail in (True, False):
        txn_id = await session.declare()
        for body in (b"first", b"second"):
            await session.post(txn_id, "two", body)
        await session.post(txn_id, "one")
        await session.post(None, "two", b"plain")
        assert [body_of(got.payload) for got in await reader.take(Transfer, 1)] == [b"plain"]
        assert await session.ask(Discharge(txn_id=txn_id, fail=fail)) == ACCEPTED
    assert [body_of(got.payload) for got in await reader.take(Transfer, 2)] == [b"first", b"second"]
    assert queue_counts(broker, "one") == (1, 0)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", ["quorum", "stream"])
async def test_a_commit_waits_for_queues_that_were_declared_just_now(
    kind: str, kept: bool, tmp_path: Path
) -> None:
    """It waits until they lead and have their files; later commits of the link keep their order."""
    async with running_broker(data_dir=str(tmp_path / "data") if kept else None) as broker:
        declare(broker.catalog, "/", "one")
        await settle_down()
        session = await start(broker, "one")
        first, second = await session.declare(), await session.declare()
        await session.post(first, "one", b"first")
        await session.post(second, "one", b"second")
        declare(broker.catalog, "/", "two", arguments={"x-queue-type": kind})
        numbers = [session.take_id() for _ in range(3)]
        await session.client.send(
            attach_sender(2, "/queues/two")
            + transfer(2, numbers[0], b"first", state=TransactionalState(txn_id=first))
            + request(numbers[1], Discharge(txn_id=first))
            + request(numbers[2], Discharge(txn_id=second))
        )
        answers: dict[int, Any] = {}
        while len(answers) < 3:
            answer = await session.client.until(Disposition)
            for number in range(answer.first, (answer.first if answer.last is None else answer.last) + 1):
                answers[number] = answer.state
        assert answers[numbers[1]] == answers[numbers[2]] == ACCEPTED
        await session.client.send(attach_receiver(9, "/queues/one"), credit(9, 2))
        assert [body_of(got.payload) for got in await session.client.take(Transfer, 2)] == [
            b"first",
            b"second",
        ]
        await eventually(lambda: queue_counts(broker, "two")[0] == 1)


async def test_a_commit_that_waits_for_a_queue_ends_with_its_time_or_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transaction_timeout_ms or the end of its control link rolls it back; the queue gets nothing of it."""
    async with running_broker(transaction_timeout_ms=60_000) as broker:
        await declare_queues(broker)
        session = await start(broker)
        starting = broker.catalog.lookup_vhost("/").lookup("two").handle
        monkeypatch.setattr(type(starting), "starting", property(lambda task: task is starting))
        txn_id = await session.declare()
        await session.post(txn_id, "one")
        await session.post(txn_id, "two")
        await session.client.send(request(session.take_id(), Discharge(txn_id=txn_id)))
        assert await session.client.idle() == []
        number = session.take_id()
        await session.client.send(transfer(1, number, b"m", state=TransactionalState(txn_id=txn_id)))
        detach = await session.client.until(Detach)  # nothing more can be done in it
        assert detach.error.condition == "amqp:transaction:unknown-id"
        detach = await session.client.until(Detach)
        assert (detach.handle, detach.error.condition) == (CONTROL, "amqp:transaction:timeout")
        assert queue_counts(broker, "one") == queue_counts(broker, "two") == (0, 0)
        other = await start(broker)
        txn_id = await other.declare()
        await other.post(txn_id, "two")
        await other.client.send(request(other.take_id(), Discharge(txn_id=txn_id)))
        assert await other.client.idle() == []
        await other.client.call(Detach, frame(0, Detach(handle=CONTROL, closed=True)))
        monkeypatch.undo()
        await settle_down()
        assert queue_counts(broker, "two") == (0, 0)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_commit_of_amqp_0_9_1_waits_for_a_queue_that_was_declared_just_now(
    kept: bool, tmp_path: Path
) -> None:
    """Its work on several queues is one step, also in the first turns of one of them."""
    async with running_broker(data_dir=str(tmp_path / "data") if kept else None) as broker:
        declare(broker.catalog, "/", "one")
        await settle_down()
        client = await connect091(broker).open()
        await client.call(1, methods.TxSelect(), methods.TxSelectOk)
        declare(broker.catalog, "/", "two", arguments={"x-queue-type": "quorum"})
        task = broker.catalog.lookup_vhost("/").lookup("two").handle
        assert isinstance(task, QueueTask)
        waited = []
        task.awaiting.append(lambda: waited.append(queue_counts(broker, "one")))
        await client.send(1, content(1, "one"), content(1, "two"))
        await client.call(1, methods.TxCommit(), methods.TxCommitOk)
        assert waited == [(0, 0)]
        assert queue_counts(broker, "one") == queue_counts(broker, "two") == (1, 0)


async def test_a_commit_of_amqp_0_9_1_is_one_step_of_its_queues() -> None:
    """Publishes to two queues and an ack of one appear together or not at all."""
    seen: set[tuple[int, int, int]] = set()

    def look() -> None:
        seen.add((*queue_counts(broker, "one"), queue_counts(broker, "two")[0]))

    async with mixed() as (broker, session):
        await session.post(None, "one")
        client = await connect091(broker).open()
        await client.call(1, methods.TxSelect(), methods.TxSelectOk)
        await client.send(1, methods.BasicGet("one"))
        await client.idle()
        trio.lowlevel.add_instrument(Looking(look))
        await client.send(
            1, methods.BasicAck(1, False), content(1, "one"), content(1, "two"), content(1, "two")
        )
        await client.call(1, methods.TxRollback(), methods.TxRollbackOk)
        await client.send(
            1, methods.BasicAck(1, False), content(1, "one"), content(1, "two"), content(1, "two")
        )
        await client.call(1, methods.TxCommit(), methods.TxCommitOk)
        await settle_down()
        assert seen == {(0, 1, 0), (1, 0, 2)}


class Looking(trio.abc.Instrument):
    """Calls a function after each step of any task."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.look()


async def test_no_transactional_work_on_a_control_link(session: Session) -> None:
    txn_id = await session.declare()
    state = TransactionalState(txn_id=txn_id)
    detach = await session.client.call(Detach, request(session.take_id(), Declare(), state=state))
    assert (detach.handle, detach.error.condition) == (CONTROL, "amqp:not-allowed")


async def test_requests_of_several_frames_and_aborted_ones() -> None:
    """A declare may come in parts; an aborted one declares nothing and gets no answer."""
    async with transacting(transactions_max_per_connection=1) as (_, session):
        payload = b"\x00\x53" + bytes((AMQP_VALUE,)) + Declare().encode()
        aborted = session.take_id()
        await session.client.send(
            transfer(CONTROL, aborted, payload[:2], raw=True, more=True),
            transfer(CONTROL, aborted, b"", raw=True, aborted=True),
        )
        number = session.take_id()
        await session.client.send(
            transfer(CONTROL, number, payload[:4], raw=True, more=True),
            transfer(CONTROL, number, payload[4:], raw=True),
        )
        answer = await session.client.until(Disposition)
        assert (answer.first, type(answer.state)) == (number, Declared)


async def test_a_discharge_without_an_id_is_refused(session: Session) -> None:
    """txn-id is mandatory: without it there is a decode error, and the link goes on."""
    payload = b"\x00\x53" + bytes((AMQP_VALUE, 0x00, 0x53, Discharge.DESCRIPTOR, 0x45))
    await session.client.send(transfer(CONTROL, session.take_id(), payload, raw=True))
    state = (await session.client.until(Disposition)).state
    assert isinstance(state, Rejected)
    assert state.error.condition == "amqp:decode-error"
    await session.declare()


async def test_an_aborted_delivery_is_no_part_of_a_transaction(broker: Broker, session: Session) -> None:
    txn_id = await session.declare()
    state = TransactionalState(txn_id=txn_id)
    number = session.take_id()
    await session.client.send(
        transfer(1, number, b"m", state=state, more=True), transfer(1, number, b"", raw=True, aborted=True)
    )
    await session.post(txn_id, "two")
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "one") == (0, 0)
    assert queue_counts(broker, "two") == (1, 0)


async def test_length_limits_act_at_the_commit(broker: Broker) -> None:
    """Messages over the limit are dropped when the commit is done, and not when they are posted."""
    declare(broker.catalog, "/", "one", arguments={"x-max-length": 1})
    declare(broker.catalog, "/", "two")
    session = await start(broker)
    await session.post(None, "one", b"before")
    txn_id = await session.declare()
    for body in (b"first", b"last"):
        await session.post(txn_id, "one", body)
    other = await connect(broker).open()
    assert queue_counts(broker, "one") == (1, 0)
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "one") == (1, 0)
    await other.send(attach_receiver(1, "/queues/one"), credit(1, 10))
    assert [body_of(got.payload) for got in await other.take(Transfer, 1)] == [b"last"]


async def test_a_state_without_an_outcome_binds_nothing(broker: Broker, session: Session) -> None:
    """It means that the delivery was received: after the commit the client still holds it."""
    await session.post(None, "one")
    (number,) = await session.consume("one", 1)
    txn_id = await session.declare()
    state = TransactionalState(txn_id=txn_id)
    await session.client.send(disposition(number, state=state, settled=False))
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "one") == (0, 1)


async def test_retirement_of_what_is_gone_succeeds(broker: Broker, session: Session) -> None:
    """The delivery's queue was purged, and then deleted."""
    await session.post(None, "one")
    (number,) = await session.consume("one", 1)
    txn_id = await session.declare()
    await session.post(txn_id, "two")
    await session.decide(txn_id, number)
    await settle_down()
    broker.catalog.vhosts["/"].lookup("one").handle.post(DELETE)
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "two") == (1, 0)


@pytest.mark.parametrize("queue", ["one", "two"])
async def test_time_to_live_runs_from_arrival(queue: str) -> None:
    """The wait for the commit counts; a message that has expired by then is not enqueued."""
    async with mixed() as (broker, session):
        consumer = await connect(broker).open()
        txn_id = await session.declare()
        for ttl in (60_000, 200_000, None):
            head = Header() if ttl is None else Header(ttl=ttl)
            await session.post(txn_id, queue, head.encode() + message(b"m"), raw=True)
        await trio.sleep(100)
        assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
        await consumer.send(attach_receiver(1, f"/queues/{queue}"), credit(1, 10))
        got = await consumer.take(Transfer, 2)
        first, second = (decode_composite(each.payload, 0)[0] for each in got)
        assert 99_000 <= first.ttl <= 100_000
        assert second.ttl is None
        await settle_down()
        assert queue_counts(broker, queue) == (0, 2)


async def test_answers_to_discharges_are_in_order(session: Session) -> None:
    """They follow the outcomes of the posts and earlier answers, whatever their content."""
    txn_ids = [await session.declare() for _ in range(2)]
    ids = [session.take_id() for _ in range(4)]
    post = transfer(1, ids[0], b"m", state=TransactionalState(txn_id=txn_ids[0]))
    bodies = [Discharge(txn_id=txn_ids[0]), Discharge(txn_id=b"none"), Discharge(txn_id=txn_ids[1])]
    requests = [request(number, body) for number, body in zip(ids[1:], bodies, strict=True)]
    await session.client.send(post, *requests)
    answers = [got.body for got in await session.client.take(Disposition, 4)]
    assert [answer.first for answer in answers] == ids
    assert [type(answer.state) for answer in answers] == [TransactionalState, Accepted, Rejected, Accepted]


@pytest.mark.parametrize("fail", [False, True])
async def test_a_publisher_that_settles_second(fail: bool) -> None:
    """The outcome in the transaction is unsettled; the client settles before or after the discharge."""
    async with transacting("one") as (broker, session):
        await session.client.call(Flow, attach_sender(2, "/queues/two", rcv_settle_mode=1))
        txn_id = await session.declare()
        numbers = [session.take_id() for _ in range(2)]
        for number in numbers:
            await session.client.send(transfer(2, number, b"m", state=TransactionalState(txn_id=txn_id)))
            answer = await session.client.until(Disposition)
            assert (answer.first, answer.settled) == (number, False)
            assert answer.state == TransactionalState(txn_id=txn_id, outcome=Accepted())
        settle = [frame(0, Disposition(role=False, first=number, settled=True)) for number in numbers]
        await session.client.send(settle[0])
        assert await session.ask(Discharge(txn_id=txn_id, fail=fail)) == ACCEPTED
        await session.client.send(settle[1])
        assert queue_counts(broker, "two") == ((0, 0) if fail else (2, 0))
        assert not any(isinstance(got.body, Detach) for got in await session.client.idle())


async def test_dead_letters_are_no_part_of_a_commit(broker: Broker) -> None:
    """The commit is answered although the dead letter has no target yet; it arrives later."""
    declare(broker.catalog, "/", "one")
    arguments = {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "three",
        "x-dead-letter-strategy": "at-least-once",
    }
    declare(broker.catalog, "/", "two", arguments=arguments)
    await settle_down()
    session = await start(broker)
    await session.post(None, "two")
    (number,) = await session.consume("two", 1)
    txn_id = await session.declare()
    await session.decide(txn_id, number, Rejected())
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    declare(broker.catalog, "/", "three")
    await trio.sleep(600)
    assert queue_counts(broker, "three") == (1, 0)


async def test_a_kept_link_that_goes_refuses_the_commit(broker: Broker, session: Session) -> None:
    """Its deliveries are kept for resumption or requeued with it: the commit would be incomplete."""
    await session.post(None, "one")
    source = Source(address="/queues/one", expiry_policy=Symbol("never"), timeout=60)
    await session.client.send(attach_receiver(9, "one", source=source), credit(9, 1))
    number = (await session.client.until(Transfer)).delivery_id
    txn_id = await session.declare()
    await session.post(txn_id, "two")
    state = TransactionalState(txn_id=txn_id, outcome=Accepted())
    await session.client.submit(disposition(number, state=state), frame(0, Detach(handle=9, closed=True)))
    error = await session.refused(Discharge(txn_id=txn_id))
    assert "which was kept" in str(error.description)
    assert queue_counts(broker, "one") == (1, 0)
    assert queue_counts(broker, "two") == (0, 0)


async def test_an_alarm_holds_a_transaction_back(broker: Broker, session: Session) -> None:
    """It closes the window for the session's transfers; afterwards the transaction goes on."""
    txn_id = await session.declare()
    await session.post(txn_id, "one")
    broker.resource_monitor.set_alarm("memory", on=True)
    assert (await session.client.until(Flow)).incoming_window == 0
    broker.resource_monitor.set_alarm("memory", on=False)
    assert (await session.client.until(Flow)).incoming_window > 0
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED
    assert queue_counts(broker, "one") == (1, 0)


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("queue", ["one", "two"])
async def test_a_discharge_on_its_way_is_answered_during_an_alarm(
    queue: str, fail: bool, tmp_path: Path
) -> None:
    """Transfers sent before the client got the alarm are processed, which may free memory."""
    async with mixed(data_dir=str(tmp_path / "data")) as (broker, session):
        txn_id = await session.declare()
        await session.post(txn_id, queue)
        broker.resource_monitor.set_alarm("memory", on=True)
        await settle_down()
        assert await session.ask(Discharge(txn_id=txn_id, fail=fail)) == ACCEPTED
        await eventually(lambda: queue_counts(broker, queue) == (0 if fail else 1, 0))
        assert broker.alarms


def acquiring(txn_id: bytes | None, count: int, *, delivery_count: int = 0, **fields: Any) -> bytes:
    """Make a flow with credit and the acquiring transaction; None means none."""
    named = {Symbol("txn-id"): txn_id}
    return credit(9, count, delivery_count=delivery_count, properties=named, **fields)


async def attach_consumer(session: Session, queue: str, **fields: Any) -> None:
    source = Source(address=f"/queues/{queue}")
    await session.client.call(Attach, attach_receiver(9, queue, source=source, **fields))


@pytest.mark.parametrize("queue", ["one", "two"])
@pytest.mark.parametrize("fail", [False, True])
async def test_acquisition_within_a_transaction(queue: str, fail: bool) -> None:
    """Transfers name the transaction; a rollback gives back what is not settled, a commit leaves it."""
    async with mixed() as (broker, session):
        for body in (b"a", b"b", b"c", b"d"):
            await session.post(None, queue, body)
        txn_id = await session.declare()
        await attach_consumer(session, queue)
        await session.client.send(acquiring(txn_id, 3))
        got = await session.client.take(Transfer, 3)
        assert [each.body.state for each in got] == 3 * [TransactionalState(txn_id=txn_id)]
        ids = [each.body.delivery_id for each in got]
        state = TransactionalState(txn_id=txn_id, outcome=Accepted())
        await session.client.send(
            disposition(ids[0], state=state), disposition(ids[1], state=state, settled=False)
        )
        await session.client.send(request(session.take_id(), Discharge(txn_id=txn_id, fail=fail)))
        answers = [got.body for got in await session.client.take(Disposition, 2)]
        own = next(answer for answer in answers if not answer.role)
        assert (own.settled, own.state) == (True, RELEASED if fail else ACCEPTED)
        assert (own.first, own.last) == ((ids[1], ids[2]) if fail else (ids[1], None))
        await settle_down()
        assert queue_counts(broker, queue) == ((4, 0) if fail else (1, 1))
        # The credit that is left counts, outside of any transaction.
        await session.client.send(credit(9, 1, delivery_count=3))
        (more,) = await session.client.take(Transfer, 1)
        assert more.body.state is None
        assert body_of(more.payload) == (b"a" if fail else b"d")


async def test_flows_say_in_which_transaction_a_link_acquires(broker: Broker, session: Session) -> None:
    """No properties leave it, null ends it, another id changes it; the discharge clears it."""
    for _ in range(6):
        await session.post(None, "one")
    first, second = await session.declare(), await session.declare()
    await attach_consumer(session, "one")
    flows = [acquiring(first, 1), credit(9, 1, delivery_count=1), acquiring(None, 1, delivery_count=2)]
    flows += [acquiring(second, 1, delivery_count=3), acquiring(first, 1, delivery_count=4)]
    states = []
    for each in flows:
        states.append((await session.client.call(Transfer, each)).state)
    ours, others = TransactionalState(txn_id=first), TransactionalState(txn_id=second)
    assert states == [ours, ours, None, others, ours]
    assert await session.ask(Discharge(txn_id=second)) == ACCEPTED
    await session.client.send(request(session.take_id(), Discharge(txn_id=first, fail=True)))
    answers = [got.body for got in await session.client.take(Disposition, 3)]
    assert [answer.state for answer in answers if answer.role] == [ACCEPTED]
    assert [(each.first, each.last) for each in answers if not each.role] == [(0, 1), (4, None)]
    await settle_down()
    assert queue_counts(broker, "one") == (4, 2)
    assert (await session.client.call(Transfer, credit(9, 1, delivery_count=5))).state is None


@pytest.mark.parametrize("why", ["settled", "browse", "kept", "stream", "unknown", "no id"])
async def test_links_that_cannot_acquire_in_a_transaction(broker: Broker, why: str) -> None:
    """They end with an error, nothing is delivered, and the session and the transaction go on."""
    kind = "stream" if why == "stream" else "classic"
    declare(broker.catalog, "/", "one", arguments={"x-queue-type": kind})
    declare(broker.catalog, "/", "two")
    await settle_down()
    session = await start(broker)
    await session.post(None, "one")
    fields: dict[str, Any] = {}
    if why == "browse":
        fields["distribution_mode"] = Symbol("copy")
    if why == "kept":
        fields |= {"expiry_policy": Symbol("never"), "timeout": 60}
    source = Source(address="/queues/one", **fields)
    mode = {"snd_settle_mode": 1} if why == "settled" else {}
    await session.client.call(Attach, attach_receiver(9, "one", source=source, **mode))
    txn_id: Any = await session.declare()
    named = {"unknown": b"none", "no id": "text"}.get(why, txn_id)
    await session.client.send(acquiring(named, 1))
    got = await session.client.idle()
    assert not any(isinstance(each.body, Transfer) for each in got)
    detach = next(each.body for each in got if isinstance(each.body, Detach))
    conditions = {"unknown": "amqp:transaction:unknown-id", "no id": "amqp:invalid-field"}
    assert detach.error.condition == conditions.get(why, "amqp:not-implemented")
    assert await session.ask(Discharge(txn_id=txn_id)) == ACCEPTED


async def test_what_is_acquired_in_one_transaction_is_not_decided_on_in_another(
    broker: Broker, session: Session
) -> None:
    """The second one's control link ends, as it does when two decide on one delivery."""
    await session.client.call(Flow, control(5))
    await session.post(None, "one")
    first = await session.declare()
    second = (await session.ask(Declare(), handle=5)).txn_id
    await attach_consumer(session, "one")
    number = (await session.client.call(Transfer, acquiring(first, 1))).delivery_id
    state = TransactionalState(txn_id=second, outcome=Accepted())
    detach = await session.client.call(Detach, disposition(number, state=state))
    assert (detach.handle, detach.error.condition) == (5, "amqp:transaction:rollback")
    assert await session.ask(Discharge(txn_id=first)) == ACCEPTED
    assert queue_counts(broker, "one") == (0, 1)


@pytest.mark.parametrize("way", ["window", "detach"])
async def test_a_delivery_sent_in_part_is_aborted_before_the_rollback_is_answered(
    broker: Broker, way: str
) -> None:
    """The client closes its window amid a delivery: the answer waits for room or for the link's end."""
    await declare_queues(broker)
    session = await start(broker, max_frame_size=1024)
    await session.post(None, "one", b"x" * 3_000)
    txn_id = await session.declare()
    await attach_consumer(session, "one")
    first = await session.client.call(Transfer, acquiring(txn_id, 1, incoming_window=1))
    assert (first.more, first.state) == (True, TransactionalState(txn_id=txn_id))
    number = session.take_id()
    await session.client.send(request(number, Discharge(txn_id=txn_id, fail=True)))
    assert not any(isinstance(each.body, Disposition) for each in await session.client.idle())
    assert queue_counts(broker, "one") == (1, 0)
    if way == "detach":
        await session.client.send(frame(0, Detach(handle=9, closed=True)))
    else:
        last = await session.client.call(Transfer, flow(next_incoming_id=1))
        assert (last.aborted, last.more, last.delivery_id) == (True, False, first.delivery_id)
    answer = await session.client.until(Disposition)
    assert (answer.role, answer.first, answer.state) == (True, number, ACCEPTED)
    await settle_down()
    assert queue_counts(broker, "one") == (1, 0)
