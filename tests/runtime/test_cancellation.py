"""Cancellation at every checkpoint of reader, writer, session and queue: nothing leaks, nothing is lost.

A scenario is run again and again; the n-th time the task under test is about to take its n-th step,
it, or its whole connection, is cancelled just before. That covers each place at which a task can wait.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio

from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections import client_connection
from amqp10broker.runtime.connections.client_connection import ClientConnection
from amqp10broker.runtime.connections.connection10 import Connection10, SessionTask
from amqp10broker.runtime.connections.session_task import Writer
from amqp10broker.runtime.queues.queue_task import QueueTask
from tests.runtime.conftest import LogRecorder
from tests.support import rawframes as raw
from tests.support.cancelling import Killer, at_work, belongs_to, until_killed
from tests.support.trioclient import Client, connect, pipe_pair, queue_counts, running_broker, settle_down

BEFORE = 40
DURING = 20
STEPS_MAX = 200


ROLES = {"reader": "_run_reader", "writer": "serve_stream", "session": "_run_part", "queue": "queue q"}


async def act(victim: Client, confirmed: set[int], accepted: set[int]) -> None:
    """The victim publishes, consumes and settles some, in several writes, on two sessions."""
    try:
        await victim.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"), raw.credit(1, 10))
        await victim.submit(
            *[raw.transfer(0, number, b"%04d" % (BEFORE + number)) for number in range(DURING // 2)]
        )
        await victim.send(raw.begin(1), raw.attach_receiver(0, "q", channel=1), raw.credit(0, 5, channel=1))
        await victim.submit(
            *[raw.transfer(0, number, b"%04d" % (BEFORE + number)) for number in range(DURING // 2, DURING)]
        )
        await victim.send(*raw.pieces(0, DURING, b"%04d" % (BEFORE + DURING) + b"." * 2000, 500))
        while True:
            got = await victim.next_or_end()
            if got is None:
                return
            if type(got.body) is amqp10.Disposition and got.body.role:
                last = got.body.first if got.body.last is None else got.body.last
                confirmed.update(BEFORE + number for number in range(got.body.first, last + 1))
            if type(got.body) is amqp10.Transfer and got.channel == 0 and got.body.delivery_id % 3 == 0:
                accepted.add(int(raw.body_of(got.payload)[:4]))
                await victim.send(raw.disposition(got.body.delivery_id, state=amqp10.Accepted()))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def run_once(
    role: str, scope: str, at: int, monkeypatch: pytest.MonkeyPatch, log: LogRecorder, direct: bool
) -> bool:
    """Run once. Return whether the n-th step was reached."""
    confirmed: set[int] = set()
    accepted: set[int] = set()
    scopes: list[trio.CancelScope] = []
    async with running_broker() as broker:
        bystander = await connect(broker).open()
        await bystander.send(
            raw.attach_sender(0, "q"), raw.attach_sender(1, "other"), raw.attach_receiver(2, "other")
        )
        await bystander.send(
            *[raw.transfer(0, number, b"%04d" % number, settled=True) for number in range(BEFORE)]
        )
        await bystander.idle()
        assert queue_counts(broker, "q") == (BEFORE, 0)
        before = at_work(broker)
        pair = partial(pipe_pair, 600, direct=direct)
        victim = connect(broker, pair=pair)
        await victim.open(idle_time_out=60_000)
        connection: Connection10 = victim.task

        def own_tasks(task: trio.lowlevel.Task) -> bool:
            if ROLES[role] not in task.name:
                return False
            return role == "queue" or belongs_to(task, connection)

        def cancel() -> None:
            if scope == "connection":
                connection._outer.cancel_scope.cancel()
            elif scope == "reading":
                connection.reading.cancel()
            else:
                for each in scopes:
                    each.cancel()

        with monkeypatch.context() as patch:
            if scope == "own":
                wrap_with_scope(patch, role, connection, scopes)
            killer = Killer(at, own_tasks, cancel)
            await until_killed(killer, partial(act, victim, confirmed, accepted), victim, before)
        await check_messages(broker, bystander, confirmed, accepted)
    assert log.of("error") == []
    return killer.done


async def check_messages(broker: Broker, bystander: Client, confirmed: set[int], accepted: set[int]) -> None:
    """Each message is queued once, or accepted; no confirmed one is lost; the other client works."""
    assert queue_counts(broker, "q")[1] == 0, "messages are still with somebody"
    await bystander.send(raw.transfer(1, BEFORE, b"still here"), raw.credit(2, 1))
    kinds = [type(each.body) for each in await bystander.idle()]
    assert kinds.count(amqp10.Transfer) == 1
    assert kinds.count(amqp10.Disposition) == 1
    await bystander.send(raw.attach_receiver(9, "q"), raw.credit(9, 1_000))
    got: list[bytes] = []
    parts = b""
    for each in await bystander.idle():
        if type(each.body) is amqp10.Transfer:
            parts += each.payload
            if not each.body.more:
                got.append(raw.body_of(parts))
                parts = b""
    numbers = [int(body[:4]) for body in got]
    assert numbers == sorted(set(numbers)), "a message is there twice, or out of order"
    everything = set(range(BEFORE)) | confirmed
    missing = everything - set(numbers)
    # An accept that the client sent may or may not have reached the queue before the cancellation.
    assert missing <= accepted, f"lost: {sorted(missing - accepted)}"
    assert set(numbers) <= set(range(BEFORE + DURING + 1))


def wrap_with_scope(
    patch: pytest.MonkeyPatch, role: str, connection: Connection10, scopes: list[trio.CancelScope]
) -> None:
    """Put the test's cancel scope around the session tasks that start from now on."""
    original = SessionTask.run

    async def run(self: SessionTask) -> None:
        with trio.CancelScope() as scope:
            if self.output._writer is connection.writer:
                scopes.append(scope)
            await original(self)

    assert role == "session"
    patch.setattr(SessionTask, "run", run)


CASES = [
    ("reader", "connection"),
    ("reader", "reading"),
    ("writer", "connection"),
    ("session", "connection"),
    ("session", "reading"),
    ("session", "own"),
    ("queue", "connection"),
    ("queue", "reading"),
]


@pytest.mark.parametrize("direct", [False, True], ids=["stream", "socket"])
@pytest.mark.parametrize(("role", "scope"), CASES, ids=[f"{role}-{scope}" for role, scope in CASES])
async def test_cancellation_at_every_step_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch, log: LogRecorder, role: str, scope: str, direct: bool
) -> None:
    """After cancellation before any n-th step, messages are requeued, tasks end and other clients work. A
    session and a queue are made to take all their steps themselves; with the reader they go on at once.
    """
    if role in ("session", "queue"):
        monkeypatch.setattr(client_connection, "LITTLE_BYTES", -1)
    for at in range(1, STEPS_MAX):
        if not await run_once(role, scope, at, monkeypatch, log, direct):
            break
    # A writer that may send directly is asked to do little.
    assert at > (1 if (role, direct) == ("writer", True) else 4), "too few steps to say anything"
    assert at < STEPS_MAX - 1


@pytest.mark.parametrize("settled", [False, True])
async def test_pre_settled_deliveries_survive_a_cancelled_queue_answer(
    monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    """The queue answers a session that is cancelled at each of its steps: no unsent message is lost."""
    monkeypatch.setattr(client_connection, "LITTLE_BYTES", -1)  # all steps are their own
    for at in range(1, 40):
        async with running_broker() as broker:
            publisher = await connect(broker).open()
            await publisher.send(raw.attach_sender(0, "q"))
            await publisher.idle()
            await publisher.submit(
                *[raw.transfer(0, number, b"%04d" % number, settled=True) for number in range(20)]
            )
            victim = await connect(broker).open()
            connection = victim.task
            mode = amqp10.SenderSettleMode.SETTLED if settled else amqp10.SenderSettleMode.UNSETTLED
            await settle_down()

            def cancel(connection: Connection10 = connection) -> None:
                connection._outer.cancel_scope.cancel()

            def chosen(task: trio.lowlevel.Task, connection: Connection10 = connection) -> bool:
                return "queue q" in task.name or ("_run_part" in task.name and belongs_to(task, connection))

            killer = Killer(at, chosen, cancel)
            trio.lowlevel.add_instrument(killer)
            try:
                await victim.submit(
                    raw.flow(0, incoming_window=0),
                    raw.attach_receiver(0, "q", snd_settle_mode=mode),
                    raw.credit(0, 7, incoming_window=0),
                )
                await victim.submit(raw.credit(0, 12, incoming_window=0))
            except trio.BrokenResourceError:
                assert killer.done
            trio.lowlevel.remove_instrument(killer)
            await victim.lose()
            assert queue_counts(broker, "q") == (20, 0), f"at step {at}"
            if not killer.done:
                break
    assert at > 3


async def test_cancelled_send_poisons_the_connection(broker: Broker) -> None:
    """A writer cancelled in the middle of a send ends its connection: no byte follows half a frame."""
    publisher = await connect(broker).open()
    await publisher.send(raw.attach_sender(0, "q"))
    await publisher.idle()
    await publisher.submit(*[raw.transfer(0, number, b"." * 1000, settled=True) for number in range(50)])
    client = await connect(broker, pair=partial(pipe_pair, 2_500)).open()
    await client.submit(raw.attach_receiver(0, "q"), raw.credit(0, 50))
    connection = client.task
    assert connection.writer.waiting_bytes > 0
    connection._outer.cancel_scope.cancel()
    await settle_down()
    got = [each for each in await client.rest() if type(each.body) not in (amqp10.Attach, amqp10.Transfer)]
    assert got == []
    assert connection.writer.broken
    assert client.task is None
    assert queue_counts(broker, "q") == (50, 0)


def test_roles_cover_the_tasks_of_a_connection() -> None:
    """The names used above must exist, since a renamed task would disable these tests."""
    assert hasattr(ClientConnection, "_run_reader")
    assert hasattr(ClientConnection, "_run_part")
    assert hasattr(Writer, "run")
    assert hasattr(QueueTask, "run")
