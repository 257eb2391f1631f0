"""One action after the other: exactly these counters move, and everywhere where they are.

What a client does or gets moves by as much for the link or channel, the session, the connection, the
protocol, the virtual host and the user; what becomes of messages, for the queue and its virtual host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest
import trio

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import content_frames
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.runtime.broker import Broker
from tests.support import rawframes as raw
from tests.support.declaring import declare, delete_user
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import Client091, connect091, message

Moved = Mapping[str, int]
NONE: Final[Mapping[str, Any]] = MappingProxyType({})
DLX = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
REFUSES = {"x-max-length": 1, "x-overflow": "reject-publish"}


def added(counters: Iterable[Mapping[str, int | None]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counters:
        total.update({name: count or 0 for name, count in each.items()})
    return total


def levels(broker: Broker) -> dict[str, Counter[str]]:
    """The sum of all counters there are of links, of sessions, ..."""
    status = broker.status()
    connections, totals = status["connections"], status["totals"]
    sessions = [session for connection in connections for session in connection["sessions"]]
    channels = [channel for connection in connections for channel in connection["channels"]]
    links = [link for session in sessions for link in session["links"]]
    return {
        "links and channels": added(each["counters"] for each in links + channels),
        "sessions and channels": added(each["counters"] for each in sessions + channels),
        "connections": added(each["counters"] for each in connections),
        **{of: added(totals[of].values()) for of in ("protocols", "vhosts", "users")},
        "queues": added(each["counters"] for each in status["queues"]),
        "queues of virtual hosts": added(totals["queues"].values()),
        "exchanges": added(each["counters"] for each in status["exchanges"]),
    }


class Scene:
    """A broker with a queue q; a client with a session, one with two channels, the second with confirms."""

    def __init__(self, broker: Broker, old: Client091, new: Client) -> None:
        self.broker = broker
        self.old = old
        self.new = new

    async def publish(
        self, *, channel: int = 1, key: str = "q", mandatory: bool = False, **fields: Any
    ) -> None:
        properties = encode_properties(BasicProperties(**fields))
        publish = methods.BasicPublish("", key, mandatory=mandatory)
        await self.old.send(channel, content_frames(channel, publish, properties, b"x", 131_072))

    async def consume(self, *, no_ack: bool = False) -> None:
        await self.old.send(1, methods.BasicQos(prefetch_count=10))
        await self.old.until(methods.BasicQosOk)
        await self.old.send(1, methods.BasicConsume("q", "c", no_ack=no_ack))
        await self.old.until(methods.BasicConsumeOk)

    async def attach(self, *frames: bytes) -> None:
        await self.new.send(*frames)
        await self.new.take(amqp10.Attach, len(frames))

    async def receive(self, **fields: Any) -> None:
        """A link of AMQP 1.0 with credit for 10."""
        await self.attach(raw.attach_receiver(1, "/queues/q", **fields))
        await self.new.send(raw.credit(1, 10))


async def later(scene: Scene) -> None:
    await trio.sleep(1)


async def nothing(scene: Scene) -> None:
    """No preparation."""


def old(*parts: Any) -> Callable[[Scene], Awaitable[None]]:
    return lambda scene: scene.old.send(1, *parts)


def new(*frames: bytes) -> Callable[[Scene], Awaitable[None]]:
    return lambda scene: scene.new.send(*frames)


def all_of(*steps: Callable[[Scene], Awaitable[None]]) -> Callable[[Scene], Awaitable[None]]:
    async def run(scene: Scene) -> None:
        for step in steps:
            await step(scene)
            await settle_down()

    return run


publish = Scene.publish
consume = Scene.consume
receive = Scene.receive
attach_sender = all_of(lambda scene: scene.attach(raw.attach_sender(0, "/queues/q")))


class Case(NamedTuple):
    """What is done, and what moves: of the queue what moves of the client, if nothing else is said."""

    name: str
    before: Callable[[Scene], Awaitable[None]]
    action: Callable[[Scene], Awaitable[None]]
    client: Moved = NONE
    queue: Moved | None = None
    exchange: Moved = NONE
    arguments: Mapping[str, Any] = NONE


SENT = {"published": 1}
CASES = (
    Case("0-9-1 publish", nothing, publish, SENT, SENT, SENT),
    Case(
        "0-9-1 publish, confirmed",
        nothing,
        lambda scene: scene.publish(channel=2),
        {"published": 1, "confirmed": 1},
        SENT,
        SENT,
    ),
    Case(
        "0-9-1 publish, refused",
        publish,
        lambda scene: scene.publish(channel=2),
        {"published": 1, "rejected": 1},
        {"rejected": 1},
        SENT,
        REFUSES,
    ),
    Case(
        "0-9-1 publish, no queue",
        nothing,
        lambda scene: scene.publish(key="none"),
        {"published": 1, "unroutable": 1},
        {},
        {"published": 1, "unroutable": 1},
    ),
    Case(
        "0-9-1 publish, returned",
        nothing,
        lambda scene: scene.publish(key="none", mandatory=True),
        {"published": 1, "unroutable": 1, "returned": 1},
        {},
        {"published": 1, "unroutable": 1, "returned": 1},
    ),
    Case(
        "0-9-1 publish, the oldest is dropped",
        publish,
        publish,
        SENT,
        {"published": 1, "dropped": 1},
        SENT,
        {"x-max-length": 1},
    ),
    Case("a message expires", lambda scene: scene.publish(expiration="50"), later, queue={"expired": 1}),
    Case(
        "a message expires, and is dead-lettered",
        lambda scene: scene.publish(expiration="50"),
        later,
        queue={"expired": 1, "dead_lettered": 1, "published": 1},
        exchange=SENT,
        arguments=DLX,
    ),
    *(
        Case(
            f"0-9-1 consume{', no-ack' if no_ack else ''}",
            all_of(publish, publish),
            lambda scene, no_ack=no_ack: scene.consume(no_ack=no_ack),
            {mode: 2},
        )
        for no_ack, mode in ((False, "delivered"), (True, "delivered_settled"))
    ),
    *(
        Case(
            f"0-9-1 get{', no-ack' if no_ack else ''}",
            publish,
            old(methods.BasicGet("q", no_ack=no_ack), methods.BasicGet("q", no_ack=no_ack)),
            {mode: 1, "got_nothing": 1},
        )
        for no_ack, mode in ((False, "got"), (True, "got_settled"))
    ),
    Case(
        "0-9-1 ack",
        all_of(publish, publish, consume),
        old(methods.BasicAck(2, multiple=True)),
        {"acknowledged": 2},
    ),
    Case(
        "0-9-1 ack of what was got",
        all_of(publish, old(methods.BasicGet("q"))),
        old(methods.BasicAck(1)),
        {"acknowledged": 1},
    ),
    Case(
        "0-9-1 nack, requeued",
        all_of(publish, publish, consume),
        old(methods.BasicNack(1, False, True)),
        {"requeued": 1, "delivered": 1, "redelivered": 1},
    ),
    Case(
        "0-9-1 recover",
        all_of(publish, publish, consume),
        old(methods.BasicRecover(True)),
        {"requeued": 2, "delivered": 2, "redelivered": 2},
    ),
    Case(
        "0-9-1 get of what was returned",
        all_of(publish, old(methods.BasicGet("q")), old(methods.BasicReject(1, True))),
        old(methods.BasicGet("q", no_ack=True)),
        {"got_settled": 1, "redelivered": 1},
    ),
    Case("0-9-1 reject", all_of(publish, consume), old(methods.BasicReject(1, False)), {"discarded": 1}),
    Case(
        "0-9-1 reject, dead-lettered",
        all_of(publish, consume),
        old(methods.BasicReject(1, False)),
        {"discarded": 1},
        {"discarded": 1, "dead_lettered": 1, "published": 1},
        SENT,
        DLX,
    ),
    Case(
        "a quorum queue's limit of deliveries",
        all_of(publish, consume, old(methods.BasicReject(1, True))),
        old(methods.BasicReject(2, True)),
        {"requeued": 1},
        {"requeued": 1, "delivery_limit": 1},
        arguments={"x-queue-type": "quorum", "x-delivery-limit": 1},
    ),
    Case(
        "a quorum queue delivers again",
        all_of(publish, publish, consume),
        old(methods.BasicReject(1, True)),
        {"requeued": 1, "delivered": 1, "redelivered": 1},
        arguments={"x-queue-type": "quorum"},
    ),
    Case("0-9-1 publish, rolled back", old(methods.TxSelect()), all_of(publish, old(methods.TxRollback()))),
    Case(
        "0-9-1 publish, committed",
        old(methods.TxSelect()),
        all_of(publish, old(methods.TxCommit())),
        SENT,
        SENT,
        SENT,
    ),
    Case(
        "a dead letter that reaches no queue",
        all_of(publish, consume),
        old(methods.BasicReject(1, False)),
        {"discarded": 1},
        {"discarded": 1, "dead_lettered": 1},
        {"published": 1, "unroutable": 1},
        {"x-dead-letter-exchange": "amq.fanout"},
    ),
    Case(
        "1.0 transfer",
        attach_sender,
        new(raw.transfer(0, 0, b"x")),
        {"published": 1, "confirmed": 1},
        SENT,
        SENT,
    ),
    Case(
        "1.0 transfer, settled", attach_sender, new(raw.transfer(0, 0, b"x", settled=True)), SENT, SENT, SENT
    ),
    Case(
        "1.0 transfer, refused",
        all_of(publish, attach_sender),
        new(raw.transfer(0, 0, b"x")),
        {"published": 1, "rejected": 1},
        {"rejected": 1},
        SENT,
        REFUSES,
    ),
    Case(
        "1.0 transfer, no queue",
        all_of(lambda scene: scene.attach(raw.attach_sender(0, "/exchanges/amq.direct/none"))),
        new(raw.transfer(0, 0, b"x")),
        {"published": 1, "unroutable": 1},
        {},
        {"published": 1, "unroutable": 1},
    ),
    Case(
        "1.0 transfer, no address",
        all_of(lambda scene: scene.attach(raw.attach_sender(0, "", target=amqp10.Target(address=None)))),
        new(raw.transfer(0, 0, b"x")),
        {"rejected": 1},
        {},
    ),
    *(
        Case(
            f"1.0 delivery, {mode}",
            all_of(publish, publish),
            lambda scene, fields=fields: scene.receive(**fields),
            {mode: 2},
        )
        for mode, fields in (("delivered", {}), ("delivered_settled", {"snd_settle_mode": 1}))
    ),
    *(
        Case(
            f"1.0 {type(state).__name__}",
            all_of(publish, receive),
            new(raw.disposition(0, state=state)),
            moved,
        )
        for state, moved in (
            (amqp10.Accepted(), {"acknowledged": 1}),
            (amqp10.Rejected(), {"discarded": 1}),
            (amqp10.Released(), {"requeued": 1, "delivered": 1, "redelivered": 1}),
            (amqp10.Modified(delivery_failed=True), {"requeued": 1, "delivered": 1, "redelivered": 1}),
        )
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_these_counters_move_and_no_others(case: Case) -> None:
    async with running_broker() as broker:
        scene = Scene(broker, await connect091(broker).open(channels=2), await connect(broker).open())
        declare = methods.QueueDeclare("q", durable=True, arguments=dict(case.arguments))
        await scene.old.call(1, declare, methods.QueueDeclareOk)
        await scene.old.call(1, methods.QueueDeclare("dead", durable=True), methods.QueueDeclareOk)
        await scene.old.call(2, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        await case.before(scene)
        await settle_down()
        before = levels(broker)
        await case.action(scene)
        await settle_down()
        after = levels(broker)
    moved = {
        level: {
            name: count - before[level][name]
            for name, count in counted.items()
            if count != before[level][name]
        }
        for level, counted in after.items()
    }
    expected = {level: dict(case.client) for level in moved}
    expected["queues"] = expected["queues of virtual hosts"] = dict(
        case.client if case.queue is None else case.queue
    )
    expected["exchanges"] = dict(case.exchange)
    assert moved == expected


async def test_nothing_falls_when_something_ends(broker: Broker) -> None:
    """Links, sessions, channels, connections, queues: their numbers stay in the sums they were part of."""
    scene = Scene(broker, await connect091(broker).open(), await connect(broker).open())
    await scene.old.call(1, methods.QueueDeclare("q", durable=True, arguments=DLX), methods.QueueDeclareOk)
    await all_of(
        *(publish,) * 6,
        attach_sender,
        new(raw.transfer(0, 0, b"x")),
        receive,
        new(raw.disposition(0, 1, state=amqp10.Accepted()), raw.disposition(2, state=amqp10.Released())),
        consume,
        publish,
        publish,
        old(methods.BasicReject(1, False)),
    )(scene)
    lasting = ("protocols", "vhosts", "users", "queues of virtual hosts")
    before = levels(broker)
    assert {name for level in lasting for name, count in before[level].items() if count} >= {
        *("published", "confirmed", "delivered", "redelivered", "acknowledged", "requeued", "discarded"),
        "dead_lettered",
    }

    async def closed(channel: int) -> None:
        await scene.old.send(channel, methods.ChannelClose(200, "", 0, 0))
        await scene.old.until(methods.ChannelCloseOk)

    ends: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: scene.new.send(raw.frame(0, amqp10.Detach(handle=0, closed=True))),
        lambda: scene.new.send(raw.frame(0, amqp10.Detach(handle=1, closed=True))),
        lambda: scene.new.send(raw.frame(0, amqp10.End())),
        lambda: scene.old.send(1, methods.QueueDelete("q")),
        lambda: closed(1),
        scene.new.vanish,
        scene.old.vanish,
    )
    for end in ends:
        await end()
        await settle_down()
        after = levels(broker)
        while_connected = () if end in ends[-2:] else ("connections",)
        for level in (*lasting, *while_connected):
            assert all(after[level][name] >= count for name, count in before[level].items()), level
        before = after
    assert not broker.status()["connections"]
    assert not broker.status()["queues"]


async def test_what_comes_behind_a_deletion_is_counted(broker: Broker) -> None:
    """A queue is no more found when it still has a letter to come to."""
    client = await connect091(broker).open()
    for number in range(3):
        await client.call(1, methods.QueueDeclare("q"), methods.QueueDeclareOk)
        await client.send(1, message(1, "q", b"x"), methods.QueueDelete("q"))
        await client.until(methods.QueueDeleteOk)
        assert broker.status()["totals"]["queues"]["/"]["published"] == number + 1


def totals(broker: Broker) -> dict[str, dict[str, dict[str, int]]]:
    return {
        of: {
            name: {key: count for key, count in counters.items() if count} for name, counters in each.items()
        }
        for of, each in broker.status()["totals"].items()
        if of != "queues"
    }


async def test_what_ended_connections_did_stays_counted_by_protocol_virtual_host_and_user(
    broker: Broker,
) -> None:
    """Beside what those do that are there; a user who is deleted is left out, the protocol's sum is not."""
    declare(broker.catalog, "/", "q", durable=True)
    gone = await connect(broker).open()
    await gone.call(amqp10.Attach, raw.attach_sender(0, "/queues/q"))
    await gone.submit(raw.transfer(0, 0, b"x"), raw.transfer(0, 1, b"x"))
    await gone.vanish()
    there = await connect091(broker).open()
    await there.submit(1, message(1, "q", b"x"))
    assert totals(broker) == {
        "protocols": {"AMQP 1.0": {"published": 2, "confirmed": 2}, "AMQP 0-9-1": {"published": 1}},
        "vhosts": {"/": {"published": 3, "confirmed": 2}},
        "users": {"guest": {"published": 3, "confirmed": 2}},
    }
    await there.lose()
    delete_user(broker.catalog, "guest")
    assert totals(broker)["users"] == {}
    assert totals(broker)["protocols"]["AMQP 0-9-1"] == {"published": 1}


# --- AMQP 1.0 -------------------------------------------------------------------------------------


async def test_a_session_never_falls_out_of_the_sum_while_it_ends(broker: Broker) -> None:
    """Looked at between all steps, the connection's number never goes back."""
    client = await connect(broker).open()
    await client.call(amqp10.Attach, raw.attach_sender(0, "q"))
    await client.submit(raw.transfer(0, 0, b"x", settled=True))
    seen: list[int] = []

    class Watch(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            seen.extend(each.counted().published for each in broker.connections.values())

    watch = Watch()
    trio.lowlevel.add_instrument(watch)
    await client.call(amqp10.End, raw.frame(0, amqp10.End()))
    await settle_down()
    trio.lowlevel.remove_instrument(watch)
    assert seen
    assert set(seen) == {1}


# --- AMQP 0-9-1 -----------------------------------------------------------------------------------
