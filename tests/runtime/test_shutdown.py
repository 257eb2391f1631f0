"""Stopping is an order: sessions give back, writers flush, close frames go out; a deadline bounds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from amqp10broker.protocols.amqp10.performatives import Attach, Close, Disposition, Transfer
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.sockets import CLOSE_WAIT_S
from tests.runtime.conftest import LogRecorder
from tests.support import rawframes as raw
from tests.support.declaring import declare
from tests.support.trioclient import connect, pipe_pair, queue_counts, quiet_config, settle_down

Start = Callable[..., Awaitable[tuple[Broker, Callable[[], Awaitable[float]]]]]


class Stoppable:
    """A broker in a task of its own, so that a test can stop it while other tasks act."""

    def __init__(self) -> None:
        self._stop = trio.Event()
        self._stopped = trio.Event()

    async def run(self, settings: dict[str, Any], *, task_status: trio.TaskStatus[Broker]) -> None:
        async with Broker(quiet_config(**settings)) as broker:
            task_status.started(broker)
            await self._stop.wait()
        self._stopped.set()

    async def stop(self) -> float:
        began = trio.current_time()
        self._stop.set()
        await self._stopped.wait()
        return trio.current_time() - began


@pytest.fixture
def start(nursery: trio.Nursery) -> Start:
    async def start_one(**settings: Any) -> tuple[Broker, Callable[[], Awaitable[float]]]:
        stoppable = Stoppable()
        broker = await nursery.start(stoppable.run, settings)
        return broker, stoppable.stop

    return start_one


async def test_idle_broker_stops_at_once(start: Start) -> None:
    """No client is connected: there is nothing to wait for."""
    assert await (await start())[1]() < 0.01


async def test_client_is_told_connection_forced_and_its_answer_ends_it(start: Start) -> None:
    """Close has amqp:connection:forced; the client's close lets the broker go on at once."""
    broker, stop = await start()
    client = await connect(broker).open()

    async def answer() -> None:
        close = await client.until(Close)
        assert close.error.condition == "amqp:connection:forced"
        await client.send(raw.frame(0, Close()))
        assert await client.rest() == []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await trio.sleep(1)
        assert await stop() < 0.1


async def test_client_that_never_answers_close_is_left_after_the_close_wait(start: Start) -> None:
    """The broker does not wait for a client longer than it waits for any close."""
    broker, stop = await start()
    client = await connect(broker).open()
    await settle_down()
    assert await stop() <= CLOSE_WAIT_S + 0.1
    assert type((await client.rest())[-1].body) is Close


async def test_client_that_never_reads_is_cut_off_at_the_deadline(start: Start) -> None:
    """shutdown_timeout bounds the whole stop, also when a session waits for its client to read."""
    broker, stop = await start(shutdown_timeout_ms=5_000)
    client = await connect(broker, pair=partial(pipe_pair, 65_536)).open()
    with trio.move_on_after(10):
        while True:
            await client.send(raw.flow(0, echo=True) * 1000)
    assert await stop() <= 5.1


@pytest.mark.parametrize("said", [b"", raw.SASL_HEADER, raw.login()], ids=["nothing", "header", "login"])
async def test_connection_in_its_handshake_does_not_hold_the_stop_up(start: Start, said: bytes) -> None:
    """Before open nothing needs an orderly end."""
    broker, stop = await start()
    client = connect(broker)
    await client.submit(said or b"")
    assert await stop() < 0.1


async def test_connection_accepted_at_the_last_moment_does_not_hold_the_stop_up() -> None:
    """A connection whose task has not run yet when the stop begins ends like the others."""
    began = trio.current_time()
    async with Broker(quiet_config()) as broker:
        connect(broker)
    assert trio.current_time() - began <= CLOSE_WAIT_S + 0.1


async def test_login_that_waits_for_its_failure_delay_does_not_hold_the_stop_up(start: Start) -> None:
    """The delay is for password guessers, not the operator."""
    broker, stop = await start(auth_failure_delay_ms=60_000)
    client = connect(broker)
    await client.submit(raw.login("PLAIN", b"\0guest\0no"))
    assert await stop() < 0.1


async def test_stop_gives_everything_back_and_confirms_what_was_taken(start: Start) -> None:
    """Unsettled deliveries are ready again; outcomes of published messages are sent before close."""
    broker, stop = await start()
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"))
    await client.take(Attach, 2)
    await client.send(*[raw.transfer(0, number, b"%d" % number) for number in range(10)], raw.credit(1, 4))
    await client.idle()
    assert queue_counts(broker, "q") == (6, 4)
    await client.submit(*[raw.transfer(0, 10 + number, b"%d" % number) for number in range(5)])
    await stop()
    assert queue_counts(broker, "q")[1] == 0
    got = await client.rest()
    assert type(got[-1].body) is Close
    answered = [each.body for each in got if type(each.body) is Disposition]
    assert (answered[-1].first, answered[-1].last) == (10, 14)
    assert sum(queue_counts(broker, "q")) == 15


async def test_new_connections_are_not_accepted_while_stopping(start: Start) -> None:
    broker, stop = await start()
    host, port = broker.addresses[0]
    await connect(broker).open()
    await settle_down()
    await stop()
    with pytest.raises(OSError, match="refused|connect"):
        await trio.open_tcp_stream(host, port)


async def test_ten_clients_of_all_kinds_stop_within_the_deadline_and_nothing_is_logged_as_a_fault(
    start: Start, log: LogRecorder
) -> None:
    broker, stop = await start(shutdown_timeout_ms=5_000)
    clients = [await connect(broker).open(channels=2) for _ in range(10)]
    for number, client in enumerate(clients):
        await client.send(
            raw.attach_sender(0, f"q{number}"), raw.attach_receiver(1, "shared"), raw.credit(1, 10)
        )
        await client.send(*[raw.transfer(0, each, b"x") for each in range(20)])
    await clients[0].stream.send_eof()
    await clients[1].vanish()
    await settle_down()
    assert await stop() <= 5.1
    assert not broker.connections
    assert log.of("error") == []


async def test_deadline_zero_stops_at_once(start: Start) -> None:
    broker, stop = await start(shutdown_timeout_ms=0)
    client = await connect(broker).open()
    await client.submit(raw.attach_receiver(0, "q"), raw.credit(0, 10))
    assert await stop() < 0.1


async def test_error_inside_the_block_stops_in_order_and_comes_out() -> None:
    class Mine(Exception):
        pass

    client = None
    with pytest.raises(BaseException) as caught:  # noqa: PT012 - the block is the subject
        async with Broker(quiet_config()) as broker:
            client = await connect(broker).open()
            await settle_down()
            raise Mine
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, Mine)
    assert type((await client.rest())[-1].body) is Close


async def test_transfers_already_made_are_flushed_before_close(start: Start) -> None:
    """Frames that the writer had before the stop reach a client that reads."""
    broker, stop = await start()
    client = await connect(broker, pair=partial(pipe_pair, 3_000)).open()
    await client.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"))
    await client.take(Attach, 2)
    await client.send(*[raw.transfer(0, number, b"." * 1000, settled=True) for number in range(40)])
    await client.submit(raw.credit(1, 40))
    counted = 0

    async def read() -> None:
        nonlocal counted
        while (got := await client.next_or_end()) is not None:
            counted += type(got.body) is Transfer
            if type(got.body) is Close:
                await client.send(raw.frame(0, Close()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await stop()
    assert counted == 40


@pytest.mark.real_clock
async def test_a_queue_that_is_declared_when_queues_have_ended_does_not_begin() -> None:
    """A node of a cluster receives declarations of other nodes until its very end."""
    async with Broker(quiet_config()) as broker:
        pass
    queue, created = declare(broker.catalog, "/", "late")
    assert created
    assert queue.handle.ready == 0
