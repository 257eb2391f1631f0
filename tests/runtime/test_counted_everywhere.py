"""One action after the other: exactly these counters move, and everywhere where they are.

What a client does or gets moves by as much for the link or channel, the session, the connection, the
protocol, the virtual host and the user; what becomes of messages, for the queue and its virtual host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
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

NONE: Final[Mapping[str, Any]] = MappingProxyType({})
DLX = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
REFUSES = {"x-max-length": 1, "x-overflow": "reject-publish"}


def added(counters: Iterable[Mapping[str, int | None]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counters:
        total.update({name: count or 0 for name, count in each.items()})
    return total


def levels(broker: Broker) -> dict[str, Counter[str]]:
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
        await self.attach(raw.attach_receiver(1, "/queues/q", **fields))
        await self.new.send(raw.credit(1, 10))


Step = Callable[[Scene], Awaitable[None]]


async def later(scene: Scene) -> None:
    await trio.sleep(1)


async def nothing(scene: Scene) -> None:
    """No preparation."""


def old(*parts: Any) -> Step:
    return lambda scene: scene.old.send(1, *parts)


def new(*frames: bytes) -> Step:
    return lambda scene: scene.new.send(*frames)


def attached(frame: bytes) -> Step:
    return lambda scene: scene.attach(frame)


def all_of(*steps: Step) -> Step:
    async def run(scene: Scene) -> None:
        for step in steps:
            await step(scene)
            await settle_down()

    return run


publish = Scene.publish
consume = Scene.consume
receive = Scene.receive


class Case(NamedTuple):
    """What is done, and the names of what moves, each as often as it moves.

    Of the queue moves what moves of the client, if nothing else is said.
    """

    name: str
    before: Step
    action: Step
    client: str = ""
    queue: str | None = None
    exchange: str = ""
    arguments: Mapping[str, Any] = NONE


confirmed = partial(publish, channel=2)
nowhere = partial(publish, key="none")
expiring = partial(publish, expiration="50")
two_held = all_of(publish, publish, consume)
get, get_settled = (methods.BasicGet("q", no_ack=no_ack) for no_ack in (False, True))
reject, requeue = (old(methods.BasicReject(1, requeue)) for requeue in (False, True))
transfer = new(raw.transfer(0, 0, b"x"))
attach_sender = attached(raw.attach_sender(0, "/queues/q"))
attach_nowhere = attached(raw.attach_sender(0, "/exchanges/amq.direct/none"))
attach_anonymous = attached(raw.attach_sender(0, "", target=amqp10.Target(address=None)))

SENT = "published"
DEAD = "dead_lettered published"
LOST = "published unroutable"
AGAIN = "requeued delivered redelivered"
LIMITED = {"x-queue-type": "quorum", "x-delivery-limit": 1}
CASES = (
    Case("0-9-1 publish", nothing, publish, SENT, SENT, SENT),
    Case("0-9-1 publish, confirmed", nothing, confirmed, "published confirmed", SENT, SENT),
    Case("0-9-1 publish, refused", publish, confirmed, "published rejected", "rejected", SENT, REFUSES),
    Case("0-9-1 publish, no queue", nothing, nowhere, LOST, "", LOST),
    Case(
        "0-9-1 publish, returned",
        nothing,
        partial(nowhere, mandatory=True),
        *(f"{LOST} returned", "", f"{LOST} returned"),
    ),
    Case(
        "0-9-1 publish, the oldest is dropped",
        *(publish, publish),
        *(SENT, "published dropped", SENT),
        {"x-max-length": 1},
    ),
    Case("a message expires", expiring, later, queue="expired"),
    Case("a message expires, and is dead-lettered", expiring, later, "", f"expired {DEAD}", SENT, DLX),
    Case("0-9-1 consume", all_of(publish, publish), consume, "delivered delivered"),
    Case(
        "0-9-1 consume, no-ack",
        all_of(publish, publish),
        partial(consume, no_ack=True),
        "delivered_settled delivered_settled",
    ),
    Case("0-9-1 get", publish, old(get, get), "got got_nothing"),
    Case("0-9-1 get, no-ack", publish, old(get_settled, get_settled), "got_settled got_nothing"),
    Case("0-9-1 ack", two_held, old(methods.BasicAck(2, multiple=True)), "acknowledged acknowledged"),
    Case("0-9-1 ack of what was got", all_of(publish, old(get)), old(methods.BasicAck(1)), "acknowledged"),
    Case("0-9-1 nack, requeued", two_held, old(methods.BasicNack(1, False, True)), AGAIN),
    Case("0-9-1 recover", two_held, old(methods.BasicRecover(True)), f"{AGAIN} {AGAIN}"),
    Case(
        "0-9-1 get of what was returned",
        all_of(publish, old(get), requeue),
        old(get_settled),
        "got_settled redelivered",
    ),
    Case("0-9-1 reject", all_of(publish, consume), reject, "discarded"),
    Case(
        "0-9-1 reject, dead-lettered",
        all_of(publish, consume),
        reject,
        *("discarded", f"discarded {DEAD}", SENT),
        DLX,
    ),
    Case(
        "a quorum queue's limit of deliveries",
        all_of(publish, consume, requeue),
        old(methods.BasicReject(2, True)),
        *("requeued", "requeued delivery_limit"),
        arguments=LIMITED,
    ),
    Case("a quorum queue delivers again", two_held, requeue, AGAIN, arguments={"x-queue-type": "quorum"}),
    Case("0-9-1 publish, rolled back", old(methods.TxSelect()), all_of(publish, old(methods.TxRollback()))),
    Case(
        "0-9-1 publish, committed",
        old(methods.TxSelect()),
        all_of(publish, old(methods.TxCommit())),
        *(SENT, SENT, SENT),
    ),
    Case(
        "a dead letter that reaches no queue",
        all_of(publish, consume),
        reject,
        *("discarded", "discarded dead_lettered", LOST),
        {"x-dead-letter-exchange": "amq.fanout"},
    ),
    Case("1.0 transfer", attach_sender, transfer, "published confirmed", SENT, SENT),
    Case(
        "1.0 transfer, settled", attach_sender, new(raw.transfer(0, 0, b"x", settled=True)), SENT, SENT, SENT
    ),
    Case(
        "1.0 transfer, refused",
        all_of(publish, attach_sender),
        transfer,
        *("published rejected", "rejected", SENT),
        REFUSES,
    ),
    Case("1.0 transfer, no queue", attach_nowhere, transfer, LOST, "", LOST),
    Case("1.0 transfer, no address", attach_anonymous, transfer, "rejected", ""),
    *(
        Case(f"1.0 delivery, {mode}", all_of(publish, publish), partial(receive, **fields), f"{mode} {mode}")
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
            (amqp10.Accepted(), "acknowledged"),
            (amqp10.Rejected(), "discarded"),
            (amqp10.Released(), AGAIN),
            (amqp10.Modified(delivery_failed=True), AGAIN),
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
    expected = dict.fromkeys(moved, case.client)
    queue = case.client if case.queue is None else case.queue
    expected |= {"queues": queue, "queues of virtual hosts": queue, "exchanges": case.exchange}
    assert moved == {level: Counter(names.split()) for level, names in expected.items()}


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
    """A queue that is no longer found may still have a publish in its mailbox."""
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
    """Those of open connections are added; a deleted user is left out, but not from the protocol's sum."""
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
    """Between any two steps the connection's number never decreases."""
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
