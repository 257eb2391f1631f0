"""AMQP 1.0: what a client does not finish, or sends though its windows are closed, is bounded in bytes."""

from __future__ import annotations

import pytest

from amqp10broker.auth.passwords import plain_record
from amqp10broker.metadata.users import Permission
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp091.content import END, content_header_frame, method_frame
from amqp10broker.protocols.amqp091.content import HEADER as FRAME_HEADER
from amqp10broker.protocols.amqp091.errors import ReplyCode
from amqp10broker.protocols.amqp091.methods import FRAME_BODY, BasicPublish, ConnectionClose
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.client_connection import READ_BYTES_MAX
from amqp10broker.runtime.connections.connection10 import EXCESS_BYTES_MAX
from tests.support import rawframes as raw
from tests.support.declaring import add_user, set_permission
from tests.support.trioclient import Client, connect, queue_counts, running_broker, settle_down
from tests.support.trioclient091 import connect091

KIB = 1024


async def logged_in(broker: Broker, user: str) -> Client:
    client = connect(broker)
    await client.call(amqp10.SaslOutcome, raw.login("PLAIN", f"\0{user}\0secret".encode()))
    await client.call(amqp10.Begin, raw.open_frame(), raw.begin())
    return client


async def begun(client: Client, count: int, size: int, *, channel: int = 0) -> None:
    for handle in range(count):
        await client.send(
            raw.attach_sender(handle, "q", channel=channel),
            raw.transfer(handle, handle, b"x" * size, channel=channel, more=True),
        )
    await settle_down()


async def test_deliveries_that_are_not_whole_are_bounded_over_all_sessions() -> None:
    """The session that would exceed the bound is ended with the reason; its share is free again."""
    async with running_broker(unfinished_bytes_max=100_000, max_message_size_bytes=20_000) as broker:
        client = await connect(broker).open(channels=2)
        await begun(client, 5, 10_000, channel=0)
        unfinished = client.task.unfinished
        held = unfinished.held_bytes
        assert 50_000 < held < 51_000
        await begun(client, 4, 10_000, channel=1)
        await client.submit(raw.transfer(3, 3, b"y" * 9_000, channel=1, more=True))
        assert 99_000 < unfinished.held_bytes <= 100_000
        await client.idle()
        last = raw.transfer(9, 9, b"x" * 10_000, channel=1, more=True)
        end = await client.call(amqp10.End, raw.attach_sender(9, "q", channel=1), last)
        assert end.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert "finish or abort some before you begin others" in end.error.description
        assert unfinished.held_bytes == held
        # The other session goes on, and what it finishes is whole.
        assert (await client.call(amqp10.Disposition, raw.transfer(0, 0, b"", raw=True))).first == 0
        assert queue_counts(broker, "q") == (1, 0)


@pytest.mark.parametrize("ending", ["finished", "aborted", "detached", "ended"])
async def test_what_is_not_unfinished_any_more_counts_no_more(broker: Broker, ending: str) -> None:
    """This holds for each way of ending a delivery."""
    client = await connect(broker).open()
    await begun(client, 1, 10_000)
    unfinished = client.task.unfinished
    assert unfinished.held_bytes > 10_000
    await client.submit(
        {
            "finished": raw.transfer(0, 0, b"", raw=True),
            "aborted": raw.transfer(0, 0, b"", raw=True, aborted=True),
            "detached": raw.frame(0, amqp10.Detach(handle=0, closed=True)),
            "ended": raw.frame(0, amqp10.End()),
        }[ending]
    )
    assert unfinished.held_bytes == 0


async def test_frames_without_payload_do_not_pile_up() -> None:
    """Each costs something to keep: a delivery of nothing but such frames is ended like a large one."""
    async with running_broker(unfinished_bytes_max=50_000, max_message_size_bytes=20_000) as broker:
        client = await connect(broker).open()
        await begun(client, 1, 10)
        empty = raw.transfer(0, 0, b"", raw=True, more=True)
        end = await client.call(amqp10.End, *[empty] * 2_000)
        assert end.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert client.task.unfinished.held_bytes == 0


async def test_one_message_of_the_largest_size_always_fits() -> None:
    """This holds for any bound on their total."""
    async with running_broker(unfinished_bytes_max=1, max_message_size_bytes=50_000) as broker:
        client = await connect(broker).open()
        await begun(client, 1, 20_000)
        rest = raw.transfer(0, 0, b"", raw=True)
        assert (await client.call(amqp10.Disposition, rest)).first == 0


async def test_what_comes_during_an_alarm_is_bounded_in_bytes(broker: Broker) -> None:
    """Of a window full of large frames the broker reads four megabytes and one read; the rest waits."""
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"))
    await client.idle()
    broker.resource_monitor.set_alarm("memory", on=True)
    assert (await client.until(amqp10.Flow)).incoming_window == 0
    before = client.task.bytes_received
    body = b"x" * 100 * KIB
    await client.submit(*[raw.transfer(0, number, body) for number in range(100)], raw.flow(echo=True))
    taken = client.task.bytes_received - before
    assert EXCESS_BYTES_MAX < taken < EXCESS_BYTES_MAX + READ_BYTES_MAX
    assert document(client.task.view())["state"] == "blocked"
    assert queue_counts(broker, "q")[0] == taken // len(raw.transfer(0, 0, body))
    # Others are not concerned.
    consumer = await connect(broker).open()
    await consumer.submit(raw.attach_receiver(0, "q"), raw.credit(0, 1))
    assert queue_counts(broker, "q")[1] == 1
    broker.resource_monitor.set_alarm("memory", on=False)
    await settle_down()
    assert document(client.task.view())["state"] == "opened"
    assert sum(queue_counts(broker, "q")) == 100


async def test_who_sends_less_is_read_during_an_alarm(broker: Broker) -> None:
    """All but transfers are processed, as in RabbitMQ; each alarm has a count of its own."""
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"))
    body = b"x" * 100 * KIB
    number = 0
    for _ in range(3):
        await client.idle()
        broker.resource_monitor.set_alarm("disk", on=True)
        await client.send(*[raw.transfer(0, number + each, body) for each in range(30)])
        number += 30
        await client.call(amqp10.Begin, raw.begin(1))
        await client.call(amqp10.End, raw.frame(1, amqp10.End()))
        broker.resource_monitor.set_alarm("disk", on=False)
    assert queue_counts(broker, "q") == (90, 0)


async def test_deliveries_that_are_not_whole_are_bounded_over_all_connections_of_a_user() -> None:
    """Both protocols share half of the node's bound; the share of a lost connection is free again."""
    async with running_broker(unfinished_bytes_max_per_node=200_000, max_message_size_bytes=50_000) as broker:
        held = broker.unfinished.of("guest")
        clients = [await connect(broker).open() for _ in range(2)]
        for client in clients:
            await begun(client, 4, 10_000)
            await client.idle()
        assert 80_000 < held.held_bytes < 81_000
        greedy = await connect091(broker).open()
        head = method_frame(1, BasicPublish("", "q")) + content_header_frame(1, b"\0\0", 40_000)
        await greedy.send_bytes(head + FRAME_HEADER.pack(FRAME_BODY, 1, 30_000) + b"x" * 30_000 + END)
        closed = await greedy.until(ConnectionClose)
        assert closed.reply_code == ReplyCode.RESOURCE_ERROR
        assert "more than 100000 bytes for user 'guest' on this node" in closed.reply_text
        end = await clients[0].call(
            amqp10.End, raw.attach_sender(4, "q"), raw.transfer(4, 4, b"x" * 30_000, more=True)
        )
        assert "more than 100000 bytes for user 'guest' on this node" in end.error.description
        assert 40_000 < held.held_bytes < 41_000
        await clients[1].vanish()
        await settle_down()
        assert held.held_bytes == 0


async def test_deliveries_that_are_not_whole_are_bounded_over_all_users() -> None:
    """The third of three users gets the part two have left."""
    async with running_broker(unfinished_bytes_max_per_node=100_000, max_message_size_bytes=20_000) as broker:
        for name in "abc":
            add_user(broker.catalog, name, plain_record("secret"))
            set_permission(broker.catalog, name, "/", Permission())
        for name in "ab":
            await begun(await logged_in(broker, name), 4, 11_000)
        third = await logged_in(broker, "c")
        await begun(third, 1, 10_000)
        await third.idle()
        await third.send(raw.attach_sender(1, "q"), raw.transfer(1, 1, b"x" * 10_000, more=True))
        assert "more than 100000 bytes on this node" in (await third.until(amqp10.End)).error.description


@pytest.mark.parametrize("to", ["/queues/q", "q", "/exchanges/amq.topic/k", "/topics/t"])
async def test_a_delivery_that_the_user_may_not_send_is_refused_with_its_first_transfer(
    broker: Broker, to: str
) -> None:
    """On an anonymous terminus the address is known by then, and the rest need not be kept."""
    set_permission(broker.catalog, "guest", "/", Permission(".*", "^$", ".*"))
    client = await connect(broker).open()
    await client.call(amqp10.Flow, raw.attach_sender(0, "", target=amqp10.Target()))
    start = (
        amqp10.Header(durable=True).encode()
        + amqp10.Properties(to=to).encode()
        + raw.message(b"x" * 1_000_000)[:20_000]
    )
    end = await client.call(amqp10.End, raw.transfer(0, 0, start, raw=True, more=True))
    assert end.error.condition == Condition.UNAUTHORIZED_ACCESS
    assert client.task.unfinished.held_bytes == 0


@pytest.mark.parametrize(
    "start", [amqp10.Properties(to="/queues/none").encode(), amqp10.Properties().encode(), b"\0\x53"]
)
async def test_what_else_is_wrong_with_a_delivery_is_said_when_it_is_whole(
    broker: Broker, start: bytes
) -> None:
    """So is a delivery whose address is not known with its first transfer."""
    client = await connect(broker).open()
    await client.call(amqp10.Flow, raw.attach_sender(0, "", target=amqp10.Target()))
    await client.send(raw.transfer(0, 0, start, raw=True, more=True))
    assert await client.idle() == []
    await client.submit(raw.transfer(0, 0, b"", raw=True, aborted=True))
    assert client.task.unfinished.held_bytes == 0
