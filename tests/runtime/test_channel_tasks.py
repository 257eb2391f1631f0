"""Channel tasks of AMQP 0-9-1: cancelled anywhere, lost anyhow, loaded as much as may be.

A scenario is run again and again; the n-th time the task under test is about to take its n-th step, its
connection is cancelled just before: each place at which a task can wait is covered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from amqp10broker.metadata.catalog import CHANNELS
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content, method_frame
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections import client_connection
from amqp10broker.runtime.connections.connection091 import ConnectionTask091
from amqp10broker.runtime.connections.session_task import READS_MAX
from tests.support.cancelling import Killer, at_work, belongs_to, until_killed
from tests.support.trioclient import Brake, pipe_pair, queue_counts, running_broker, settle_down
from tests.support.trioclient091 import Client091, bodies, connect091, message, names

BEFORE = 40
DURING = 20
STEPS_MAX = 250
Q = methods.QueueDeclare("q", durable=True)
ROLES = {"reader": "_run_reader", "writer": "serve_stream", "channel": "_run_part", "queue": "queue q"}


async def act(victim: Client091, confirmed: set[int], acked: set[int]) -> None:
    """The victim publishes, consumes, gets, acknowledges some and closes a channel, on two channels."""
    try:
        await victim.send(
            1, methods.ConfirmSelect(), methods.BasicQos(prefetch_count=10), methods.BasicConsume("q", "c")
        )
        await victim.submit(1, *[message(1, "q", b"%04d" % (BEFORE + each)) for each in range(DURING // 2)])
        await victim.send(
            2, methods.BasicGet("q"), methods.BasicConsume("q", "d"), methods.QueueDeclare("q", passive=True)
        )
        await victim.submit(
            1, *[message(1, "q", b"%04d" % (BEFORE + each)) for each in range(DURING // 2, DURING)]
        )
        await victim.send(1, message(1, "q", b"%04d" % (BEFORE + DURING) + b"." * 2000))
        await victim.send(
            2, methods.ChannelClose(200), methods.ChannelOpen(), methods.BasicConsume("q", "e", no_ack=False)
        )
        while True:
            got = await victim.next_or_end()
            if got is None:
                return
            channel, what = got
            if channel == 1 and isinstance(what, methods.BasicAck):
                first = 1 if what.multiple else what.delivery_tag
                confirmed.update(BEFORE + each - 1 for each in range(first, what.delivery_tag + 1))
            if channel == 1 and isinstance(what, Content) and isinstance(what.method, methods.BasicDeliver):
                tag = what.method.delivery_tag
                if tag % 3 == 0:
                    acked.add(int(what.body[:4]))
                    await victim.send(1, methods.BasicAck(tag))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def filled(broker: Broker, count: int = BEFORE) -> Client091:
    client = await connect091(broker).open(channels=2)
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.submit(1, *[message(1, "q", b"%04d" % number) for number in range(count)])
    assert queue_counts(broker, "q") == (count, 0)
    return client


async def run_once(role: str, scope: str, at: int, log: Any, direct: bool) -> bool:
    """Run once. Return whether the n-th step was reached."""
    confirmed: set[int] = set()
    acked: set[int] = set()
    async with running_broker() as broker:
        bystander = await filled(broker)
        before = at_work(broker)
        victim = await connect091(broker, pair=partial(pipe_pair, 600, direct=direct)).open(
            channels=2, heartbeat=60
        )
        connection: ConnectionTask091 = victim.task

        def own(task: trio.lowlevel.Task) -> bool:
            return ROLES[role] in task.name and (role == "queue" or belongs_to(task, connection))

        def cancel() -> None:
            if scope == "connection":
                connection._outer.cancel_scope.cancel()
            else:
                connection.reading.cancel()

        killer = Killer(at, own, cancel)
        await until_killed(killer, partial(act, victim, confirmed, acked), victim, before)
        assert broker.catalog.usage.counts[CHANNELS]["guest"] == 2, "a channel is counted still"
        await check_messages(broker, bystander, confirmed, acked)
    assert log.of("error") == []
    return killer.done


async def check_messages(broker: Broker, bystander: Client091, confirmed: set[int], acked: set[int]) -> None:
    """Each message is queued once, or acknowledged; no confirmed one is lost; other clients work."""
    assert queue_counts(broker, "q")[1] == 0, "messages are still with somebody"
    await bystander.send(2, methods.BasicConsume("q", "all", no_ack=True))
    numbers = [int(body[:4]) for body in bodies(await bystander.idle())]
    assert numbers == sorted(set(numbers)), "a message is there twice, or out of order"
    missing = (set(range(BEFORE)) | confirmed) - set(numbers)
    # An ack that the client sent may or may not have reached the queue before the cancellation.
    assert missing <= acked, f"lost: {sorted(missing - acked)}"
    assert set(numbers) <= set(range(BEFORE + DURING + 1))


CASES = [
    ("reader", "connection"),
    ("reader", "reading"),
    ("writer", "connection"),
    ("channel", "connection"),
    ("channel", "reading"),
    ("queue", "connection"),
    ("queue", "reading"),
]


@pytest.mark.parametrize("direct", [False, True], ids=["stream", "socket"])
@pytest.mark.parametrize(("role", "scope"), CASES, ids=[f"{role}-{scope}" for role, scope in CASES])
async def test_cancellation_at_every_step_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch, log: Any, role: str, scope: str, direct: bool
) -> None:
    """After cancellation before any n-th step, messages are requeued, tasks end and other clients work. A
    channel and a queue are made to take all their steps themselves; with the reader they go on at once.
    """
    if role in ("channel", "queue"):
        monkeypatch.setattr(client_connection, "LITTLE_BYTES", -1)
    at = 0
    for at in range(1, STEPS_MAX):
        if not await run_once(role, scope, at, log, direct):
            break
    # A writer that may send directly is asked to do little.
    assert at > (1 if (role, direct) == ("writer", True) else 4), "too few steps to say anything"
    assert at < STEPS_MAX - 1


# --- lost connections --------------------------------------------------------------------------------


async def vanish_mid_frame(client: Client091) -> None:
    await client.send_bytes(method_frame(1, methods.BasicAck(5))[:-3])
    await client.vanish()


ENDS: dict[str, Callable[[Client091], Any]] = {
    "cancel and channel close": lambda client: client.send(
        1, methods.BasicCancel("c"), methods.ChannelClose(200)
    ),
    "channel close": lambda client: client.send(1, methods.ChannelClose(200)),
    "channel error": lambda client: client.send(1, methods.BasicAck(1_000)),
    "close": lambda client: client.send(0, methods.ConnectionClose(200)),
    "hard error": lambda client: client.send(1, methods.ChannelOpen()),
    "hard error elsewhere": lambda client: client.send(2, methods.ChannelOpen()),
    "half-close": lambda client: client.stream.send_eof(),
    "lost": lambda client: client.vanish(),
    "lost in the middle of a frame": vanish_mid_frame,
    "garbage": lambda client: client.send_bytes(b"\xff" * 20),
}


@pytest.mark.parametrize("end", list(ENDS))
async def test_unacked_deliveries_return_to_their_places(broker: Broker, end: str) -> None:
    """After any end all are ready again, once, in order, and marked redelivered."""
    backend = await filled(broker)
    client = await connect091(broker).open(channels=2)
    await client.send(1, methods.BasicQos(prefetch_count=20), methods.BasicConsume("q", "c"))
    assert names(await client.idle()).count("BasicDeliver") == 20
    await ENDS[end](client)
    await settle_down()
    await trio.sleep(3)
    assert queue_counts(broker, "q") == (BEFORE, 0)
    await backend.send(2, methods.BasicConsume("q", "all", no_ack=True))
    got = [each for _, each in await backend.idle() if isinstance(each, Content)]
    assert [int(each.body) for each in got] == list(range(BEFORE))
    assert [each.method.redelivered for each in got] == [True] * 20 + [False] * 20


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("end", ["lost", "close", "hard error elsewhere"])
async def test_what_was_not_written_returns_unmarked(end: str, no_ack: bool) -> None:
    """The client does not read, and messages that the socket did not take were never delivered."""
    async with running_broker(writer_buffer_bytes=1000) as broker:
        backend = await filled(broker)
        client = await connect091(broker, pair=partial(pipe_pair, 2_000)).open(channels=2)
        await client.submit(1, methods.BasicConsume("q", "c", no_ack=no_ack))
        channel = client.task.parts[1]
        written = BEFORE - channel.service.consuming.consumers["c"].unsent
        assert 0 < written < BEFORE
        await ENDS[end](client)
        await client.lose()
        await trio.sleep(5)
        assert client.task is None
        assert queue_counts(broker, "q") == (BEFORE - written if no_ack else BEFORE, 0)
        await backend.send(2, methods.BasicConsume("q", "all", no_ack=True))
        got = [each for _, each in await backend.idle() if isinstance(each, Content)]
        first = written if no_ack else 0
        assert [int(each.body) for each in got] == list(range(first, BEFORE))
        marks = [False] * (BEFORE - written) if no_ack else [True] * written + [False] * (BEFORE - written)
        assert [each.method.redelivered for each in got] == marks


# --- mailboxes ---------------------------------------------------------------------------------------


async def publish(client: Client091, count: int) -> None:
    await client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
    for _ in range(0, count, 100):
        await client.send(1, *[message(1, "q", b"x" * 100)] * 100)
    highest = 0
    while highest < count:
        highest = max(highest, (await client.expect(methods.BasicAck)).delivery_tag)


async def consume(client: Client091, left: list[int], done: Callable[[], None]) -> None:
    """Acknowledge one by one; the last message of all ends all."""
    await client.send(1, methods.BasicQos(prefetch_count=100), methods.BasicConsume("q", "c"))
    while True:
        _, got = await client.next()
        if isinstance(got, Content) and isinstance(got.method, methods.BasicDeliver):
            left[0] -= 1
            await client.send(1, methods.BasicAck(got.method.delivery_tag))
        if left[0] == 0:
            await settle_down()
            done()


async def test_load_keeps_every_mailbox_within_its_bound(broker: Broker) -> None:
    """Six publishers and three consumers use one queue: no mailbox exceeds its senders' bounds."""
    setup = await connect091(broker).open()
    await setup.call(1, Q, methods.QueueDeclareOk)
    publishers = [await connect091(broker, pair=partial(pipe_pair, 65_536)).open() for _ in range(6)]
    consumers = [await connect091(broker, pair=partial(pipe_pair, 65_536)).open() for _ in range(3)]
    channels = [each for client in (*publishers, *consumers) for each in client.task.parts.values()]
    left = [6 * 500]
    with trio.fail_after(300):
        async with trio.open_nursery() as outer:
            for client in publishers:
                outer.start_soon(publish, client, 500)
            async with trio.open_nursery() as inner:
                for client in consumers:
                    inner.start_soon(consume, client, left, inner.cancel_scope.cancel)
    await settle_down()
    assert queue_counts(broker, "q") == (0, 0)
    assert len(channels) == 9
    for channel in channels:
        # Reads, a wake-up of the writer, and the one queue's answers.
        assert channel.inbox.most <= READS_MAX + 1 + READS_MAX
    handle = broker.catalog.lookup_vhost("/").lookup("q").handle
    assert handle._mailbox.most <= len(channels) * (READS_MAX + 1)  # type: ignore[attr-defined]


async def test_flood_of_methods_behind_a_slow_answer_is_bounded(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a queue has answered, the reader gives the channel READS_MAX reads and no more."""
    client = await connect091(broker, pair=partial(pipe_pair, 10_000_000)).open(channels=2)
    await client.call(1, Q, methods.QueueDeclareOk)
    brake = Brake(monkeypatch, broker, "q")
    await client.submit(1, methods.QueueDeclare("q", passive=True))
    for _ in range(READS_MAX + 10):
        await client.submit(1, *[methods.BasicGet("q")] * 300)
    channel = client.task.parts[1]
    assert channel.reads.outstanding == READS_MAX
    assert len(client.stream.outgoing.data) > 0, "the reader goes on reading"
    brake.release()
    got = await client.idle()
    assert names(got).count("BasicGetEmpty") == 300 * (READS_MAX + 10)
    assert channel.reads.outstanding == 0


async def test_channel_reopened_while_the_reader_waits_for_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel ends just when the reader waits for room: later frames are for the next channel."""
    client = await connect091(broker, pair=partial(pipe_pair, 10_000_000)).open(channels=2)
    await client.call(1, Q, methods.QueueDeclareOk)
    brake = Brake(monkeypatch, broker, "q")
    await client.submit(1, methods.QueueDeclare("q", passive=True))
    for _ in range(READS_MAX - 2):
        await client.submit(1, methods.BasicQos(prefetch_count=1))
    await client.submit(1, methods.ChannelClose(200))
    await client.submit(1, methods.ChannelOpen(), methods.QueueDeclare("r", durable=True))
    assert client.task.parts[1].reads.full
    brake.release()
    got = names(await client.idle())
    assert got[-3:] == ["ChannelCloseOk", "ChannelOpenOk", "QueueDeclareOk"]


async def test_consumer_that_does_not_read_leaves_messages_in_the_queue(broker: Broker) -> None:
    """The channel requests 200 beyond those written, whatever the size of the messages."""
    setup = await connect091(broker).open()
    await setup.call(1, Q, methods.QueueDeclareOk)
    await setup.submit(1, *[message(1, "q", b"x" * 10_000)] * 1000)
    client = await connect091(broker, pair=partial(pipe_pair, 20_000)).open()
    await client.submit(1, methods.BasicConsume("q", "c"))
    ready, unsettled = queue_counts(broker, "q")
    assert ready + unsettled == 1000
    assert unsettled <= 200 + 20
    assert client.task.writer.waiting_bytes <= 2 * broker.config.writer_buffer_bytes
    await client.expect(methods.BasicConsumeOk)
    assert len(bodies(await client.idle())) == 1000
