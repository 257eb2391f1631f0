"""What `status` counts of clients, exchanges and queues, over both protocols; what is gone stays counted."""

from __future__ import annotations

from typing import Any

import trio

from amqp10broker.protocols.amqp091.framing import content_frames
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Detach,
    End,
    Rejected,
    Released,
    Target,
)
from amqp10broker.runtime.broker import Broker
from tests.support import rawframes as raw
from tests.support.declaring import declare, delete_user
from tests.support.trioclient import connect, running_broker, settle_down
from tests.support.trioclient091 import Client091, connect091, message


def counted(thing: dict[str, Any]) -> dict[str, int]:
    """The counters that are not 0."""
    return {name: count for name, count in thing["counters"].items() if count}


def only_connection(broker: Broker) -> dict[str, Any]:
    (connection,) = broker.status()["connections"]
    return dict(connection)


def queue(broker: Broker, name: str) -> dict[str, Any]:
    return next(dict(each) for each in broker.status()["queues"] if each["name"] == name)


def totals(broker: Broker) -> dict[str, dict[str, dict[str, int]]]:
    return {
        of: {
            name: {key: count for key, count in counters.items() if count} for name, counters in each.items()
        }
        for of, each in broker.status()["totals"].items()
        if of != "queues"
    }


def exchange(broker: Broker, name: str) -> dict[str, int]:
    return next(counted(each) for each in broker.status()["exchanges"] if each["name"] == name)


async def test_what_ended_connections_did_stays_counted_by_protocol_virtual_host_and_user(
    autojump_clock: object,
) -> None:
    """Beside what those do that are there; a user who is deleted is left out, the protocol's sum is not."""
    async with running_broker() as broker:
        declare(broker.catalog, "/", "q", durable=True)
        gone = await connect(broker).open()
        await gone.send(raw.attach_sender(0, "/queues/q"))
        await gone.until(Attach)
        await gone.send(raw.transfer(0, 0, b"x"), raw.transfer(0, 1, b"x"))
        await settle_down()
        await gone.vanish()
        there = await connect091(broker).open()
        await there.send(1, message(1, "q", b"x"))
        await settle_down()
        assert totals(broker) == {
            "protocols": {"AMQP 1.0": {"published": 2, "confirmed": 2}, "AMQP 0-9-1": {"published": 1}},
            "vhosts": {"/": {"published": 3, "confirmed": 2}},
            "users": {"guest": {"published": 3, "confirmed": 2}},
        }
        await there.vanish()
        await settle_down()
        delete_user(broker.catalog, "guest")
        assert totals(broker)["users"] == {}
        assert totals(broker)["protocols"]["AMQP 0-9-1"] == {"published": 1}


# --- AMQP 1.0 -------------------------------------------------------------------------------------


async def test_a_publishers_link(autojump_clock: object) -> None:
    """Taken, refused by a full queue; the queue and the default exchange count likewise."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        owner = await connect091(broker).open()
        limited = QueueDeclare(
            "q", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
        )
        await owner.call(1, limited, QueueDeclareOk)
        await client.send(raw.attach_sender(0, "/queues/q"))
        await client.until(Attach)
        await client.send(*(raw.transfer(0, number, b"x") for number in range(5)))
        await settle_down()
        status = next(each for each in broker.status()["connections"] if each["id"] == 1)
        (session,) = status["sessions"]
        (link,) = session["links"]
        expected = {"published": 5, "confirmed": 2, "rejected": 3}
        assert counted(link) == counted(session) == counted(status) == expected
        assert link["counters"]["delivered"] is None
        assert counted(queue(broker, "q")) == {"published": 2, "rejected": 3}
        assert queue(broker, "q")["full"] is True
        assert exchange(broker, "") == {"published": 5}


async def test_messages_without_a_queue(autojump_clock: object) -> None:
    """To an exchange to which nothing is bound, and over the anonymous terminus."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(
            raw.attach_sender(0, "/exchanges/amq.direct/none"),
            raw.attach_sender(1, "", target=Target(address=None)),
        )
        await client.take(Attach, 2)
        await client.send(raw.transfer(0, 0, b"x"), raw.transfer(0, 1, b"x", settled=True))
        await client.send(raw.transfer(1, 2, b"x"))  # names no address
        await settle_down()
        fixed, anonymous = only_connection(broker)["sessions"][0]["links"]
        assert counted(fixed) == {"published": 2, "unroutable": 2}
        assert counted(anonymous) == {"rejected": 1}
        assert exchange(broker, "amq.direct") == {"published": 2, "unroutable": 2}


async def test_a_consumers_link(autojump_clock: object) -> None:
    """Delivered, and each kind of decision."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"))
        await client.take(Attach, 2)
        await client.send(*(raw.transfer(0, number, b"x", settled=True) for number in range(4)))
        await client.send(raw.credit(1, 4))
        await settle_down()
        await client.send(
            raw.disposition(0, 1, state=Accepted()),
            raw.disposition(2, state=Rejected()),
            raw.disposition(3, state=Released()),
        )
        await settle_down()
        links = only_connection(broker)["sessions"][0]["links"]
        assert [counted(link) for link in links] == [
            {"published": 4},
            {"delivered": 4, "acknowledged": 2, "discarded": 1, "requeued": 1},
        ]
        assert counted(queue(broker, "q")) == {
            "published": 4,
            "delivered": 4,
            "acknowledged": 2,
            "discarded": 1,
            "requeued": 1,
        }


async def test_a_consumer_that_gets_everything_settled(autojump_clock: object) -> None:
    """It is another way of delivering."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q", snd_settle_mode=1))
        await client.take(Attach, 2)
        await client.send(raw.transfer(0, 0, b"x", settled=True), raw.credit(1, 4))
        await settle_down()
        link = only_connection(broker)["sessions"][0]["links"][1]
        assert counted(link) == {"delivered_settled": 1}


async def test_links_and_sessions_that_are_gone_stay_counted(autojump_clock: object) -> None:
    """By the session, and then by the connection: their numbers only grow."""
    async with running_broker() as broker:
        client = await connect(broker).open(channels=2)
        await client.send(raw.attach_sender(0, "q"))
        await client.until(Attach)
        await client.send(*(raw.transfer(0, number, b"x", settled=True) for number in range(3)))
        await client.send(raw.frame(0, Detach(handle=0, closed=True)))
        await client.until(Detach)
        session = only_connection(broker)["sessions"][0]
        assert session["links"] == []
        assert counted(session) == {"published": 3}
        await client.send(raw.frame(0, End()))
        await client.until(End)
        await settle_down()
        status = only_connection(broker)
        assert len(status["sessions"]) == 1
        assert counted(status) == {"published": 3}


async def test_a_session_never_falls_out_of_the_sum_while_it_ends(autojump_clock: object) -> None:
    """Looked at between all steps, the connection's number never goes back."""
    async with running_broker() as broker:
        client = await connect(broker).open()
        await client.send(raw.attach_sender(0, "q"))
        await client.until(Attach)
        await client.send(raw.transfer(0, 0, b"x", settled=True))
        await settle_down()
        seen: list[int] = []

        class Watch(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                seen.extend(each.counted().published for each in broker.connections.values())

        watch = Watch()
        trio.lowlevel.add_instrument(watch)
        await client.send(raw.frame(0, End()))
        await client.until(End)
        await settle_down()
        trio.lowlevel.remove_instrument(watch)
        assert seen
        assert set(seen) == {1}


# --- AMQP 0-9-1 -----------------------------------------------------------------------------------


def mandatory(key: str) -> bytes:
    """A publish that wants to hear when there is no queue."""
    publish = BasicPublish("", key, mandatory=True)
    return content_frames(1, publish, encode_properties(BasicProperties()), b"x", 131_072)


def channel_of(broker: Broker) -> dict[str, Any]:
    return dict(only_connection(broker)["channels"][0])


async def declared(broker: Broker, **arguments: Any) -> Client091:
    client = await connect091(broker).open()
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    await client.call(1, QueueDeclare("q", durable=True, arguments=table), QueueDeclareOk)
    return client


async def test_a_channel_that_publishes(autojump_clock: object) -> None:
    """Confirmed, nacked by a full queue, without a queue, returned."""
    async with running_broker() as broker:
        client = await declared(broker, max_length=2, overflow="reject-publish")
        await client.call(1, ConfirmSelect(), ConfirmSelectOk)
        await client.send(1, *(message(1, "q", b"x") for _ in range(3)))
        await client.send(1, message(1, "none", b"x"), mandatory("none"))
        await settle_down()
        expected = {"published": 5, "confirmed": 4, "rejected": 1, "unroutable": 2, "returned": 1}
        assert counted(channel_of(broker)) == counted(only_connection(broker)) == expected
        assert counted(queue(broker, "q")) == {"published": 2, "rejected": 1}
        assert exchange(broker, "") == {"published": 5, "unroutable": 2, "returned": 1}


async def test_a_channel_that_consumes(autojump_clock: object) -> None:
    """By consumer and by get, with and without acknowledgement."""
    async with running_broker() as broker:
        client = await declared(broker)
        await client.send(1, *(message(1, "q", b"x") for _ in range(6)))
        await settle_down()
        await client.send(1, BasicGet("q"), BasicGet("q", no_ack=True))
        await client.send(1, BasicConsume("q", "a"))
        await client.until(BasicConsumeOk)
        await settle_down()
        await client.send(1, BasicAck(1), BasicAck(4, multiple=True), BasicNack(5, False, False))
        await settle_down()
        channel = channel_of(broker)
        assert counted(channel) == {
            "published": 6,
            "got": 1,
            "got_settled": 1,
            "delivered": 4,
            "acknowledged": 3,
            "discarded": 1,
        }
        other = await connect091(broker).open()
        await other.call(1, BasicConsume("q", "b", no_ack=True), BasicConsumeOk)
        await client.send(1, BasicNack(6, False, True))
        await settle_down()
        one, two = (counted(each) for each in broker.status()["connections"])
        assert one["requeued"] == 1
        assert one["delivered"] + two.get("delivered_settled", 0) == 5


async def test_a_transaction_counts_when_it_is_committed(autojump_clock: object) -> None:
    """What is rolled back was never published."""
    async with running_broker() as broker:
        client = await declared(broker)
        await client.call(1, TxSelect(), TxSelectOk)
        await client.send(1, message(1, "q", b"x"))
        await client.call(1, TxRollback(), TxRollbackOk)
        assert counted(channel_of(broker)) == {}
        await client.send(1, message(1, "q", b"x"))
        await client.call(1, TxCommit(), TxCommitOk)
        assert counted(channel_of(broker)) == {"published": 1}
        assert exchange(broker, "") == {"published": 1}


async def test_channels_that_are_gone_stay_counted(autojump_clock: object) -> None:
    """Also when another one of the same number follows."""
    async with running_broker() as broker:
        client = await declared(broker)
        for _ in range(3):
            await client.send(1, message(1, "q", b"x"))
            await client.call(1, QueueDeclare("none", passive=True), ChannelClose)
            await client.send(1, ChannelCloseOk())
            await client.call(1, ChannelOpen(), ChannelOpenOk)
        await settle_down()
        assert counted(only_connection(broker)) == {"published": 3}


async def test_dead_letters_that_reach_no_queue(autojump_clock: object) -> None:
    """The dead-letter exchange is there, and nothing is bound to it: somebody has to see that."""
    async with running_broker() as broker:
        client = await declared(broker, max_length=1, dead_letter_exchange="dlx")
        await client.call(1, ExchangeDeclare("dlx", "fanout"), ExchangeDeclareOk)
        await client.send(1, *(message(1, "q", b"x") for _ in range(4)))
        await settle_down()
        assert queue(broker, "q")["dead_lettered"] == {"maxlen": 3}
        assert counted(queue(broker, "q")) == {"published": 4, "dropped": 3, "dead_lettered": 3}
        assert exchange(broker, "dlx") == {"published": 3, "unroutable": 3}
