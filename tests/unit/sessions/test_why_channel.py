"""Why channels and consumers of AMQP 0-9-1 wait: the code, what shows it, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.config import Config
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicQos,
    ConfirmSelect,
    QueueDeclare,
    TxCommit,
    TxRollback,
    TxSelect,
)
from amqp10broker.sessions.diagnosis.waits import STUCK_MS, WaitContext
from amqp10broker.sessions.diagnosis.why_channel import channel_view
from tests.support.channel_world import World, WorldChannel
from tests.support.declaring import declare

EARLY, LATER, NOW = 1_000, 4_000, 16_000


@pytest.fixture
def world() -> World:
    world = World()
    declare(world.catalog, world.vhost, "q")
    return world


@pytest.fixture
def channel(world: World) -> WorldChannel:
    return at(world.channel(), EARLY)


def at(channel: WorldChannel, now_ms: int) -> WorldChannel:
    """The channel's wakes are at this time from now on."""
    channel.service.context.moment.ms = now_ms
    return channel


def status(channel: WorldChannel, **around: Any) -> dict[str, Any]:
    return document(channel_view(channel.service, WaitContext(NOW, **around)))


def consumer(channel: WorldChannel, **around: Any) -> tuple[str | None, str | None, float | None]:
    return waiting(status(channel, **around)["consumers"][0])


def waiting(thing: dict[str, Any]) -> tuple[str | None, str | None, float | None]:
    return thing["waits"], thing["waits_why"], thing["waits_for_s"]


# --- consumers ------------------------------------------------------------------------------------


def test_a_prefetch_that_is_used_up(channel: WorldChannel) -> None:
    """Since the delivery that used it up; what is ready stands beside it."""
    channel.say(BasicQos(0, 2, False))
    channel.consume("q", "c")
    at(channel, LATER)
    channel.publish("q", *[b"x"] * 5)
    assert consumer(channel) == (
        "prefetch-full",
        (
            "it holds 2 of 2 deliveries that it may have unacknowledged (basic.qos); the client has "
            "acknowledged none; 3 messages ready in queue 'q'"
        ),
        12.0,
    )


def test_a_client_that_acknowledges_too_slowly(channel: WorldChannel) -> None:
    """When it did so last is told."""
    channel.say(BasicQos(0, 1, False))
    channel.publish("q", b"x", b"x")
    channel.consume("q", "c")
    at(channel, LATER)
    channel.say(BasicAck(1))
    code, why, for_s = consumer(channel)
    assert (code, for_s) == ("prefetch-full", 12.0)
    assert why is not None
    assert "the client acknowledged last 12 s ago; 0 messages ready in queue 'q'" in why


def test_a_prefetch_of_the_whole_channel(channel: WorldChannel) -> None:
    """Another consumer of the channel may hold all of it."""
    channel.say(BasicQos(0, 2, True))
    channel.publish("q", *[b"x"] * 4)
    channel.consume("q", "c")
    channel.consume("q", "d")
    _, other = status(channel)["consumers"]
    assert waiting(other) == (
        "channel-prefetch-full",
        (
            "the channel holds 2 of 2 deliveries that it may have unacknowledged (basic.qos with global), "
            "0 of them here; 2 messages ready in queue 'q'"
        ),
        15.0,
    )


def test_room_that_an_acknowledgement_made_is_the_beginning_of_the_wait(channel: WorldChannel) -> None:
    """Before it the prefetch was used up: that was another wait."""
    channel.say(BasicQos(0, 1, False))
    channel.consume("q", "c")
    channel.publish("q", b"x")
    at(channel, LATER)
    channel.say(BasicAck(1))
    code, _, for_s = consumer(channel)
    assert (code, for_s) == ("queue-empty", 12.0)


def test_a_queue_is_not_empty_whose_messages_another_holds(world: World, channel: WorldChannel) -> None:
    other = world.channel()
    other.consume("q", "holder")
    other.publish("q", b"x", b"x")
    channel.consume("q", "c")
    code, why, _ = consumer(channel)
    assert code == "unsettled-elsewhere"
    assert why is not None
    assert "all 2 messages of queue 'q' are unsettled" in why


def test_another_consumer_is_the_active_one(world: World, channel: WorldChannel) -> None:
    declare(world.catalog, world.vhost, "single", arguments={"x-single-active-consumer": True})
    world.channel().consume("single", "first")
    channel.consume("single", "second")
    channel.publish("single", b"x")
    code, why, _ = consumer(channel)
    assert code == "not-active"
    assert why is not None
    assert "single active consumer" in why


def test_a_client_that_does_not_read(channel: WorldChannel) -> None:
    """Its consumer and its channel wait for the same socket."""
    channel.budget_bytes = 0
    channel.consume("q", "c")
    channel.publish("q", b"x", b"x")
    around = {"writer_blocked": True, "writer_ms": LATER, "writer_bytes": 70_000}
    assert consumer(channel, **around) == (
        "writer-blocked",
        (
            "2 deliveries of queue 'q' wait; the client does not read its socket: 70000 bytes wait for it, "
            "and deliveries behind them"
        ),
        12.0,
    )
    assert waiting(status(channel, **around))[0] == "writer-blocked"


@pytest.mark.parametrize("no_ack", [False, True])
def test_the_socket_has_not_taken_the_only_message(channel: WorldChannel, no_ack: bool) -> None:
    """All of it is with the writer: the queue is empty, but that is not what the client waits for."""
    channel.consume("q", "c", no_ack=no_ack)
    channel.publish("q", b"x")
    idle = "queue-empty" if no_ack else "unsettled-here"
    assert consumer(channel, writer_ms=NOW - STUCK_MS + 1, writer_bytes=9_000_000)[0] == idle
    around = {"writer_ms": LATER, "writer_bytes": 9_000_000}
    assert consumer(channel, **around) == (
        "writer-blocked",
        (
            "what is delivered waits; the client does not read its socket: 9000000 bytes wait for it, and "
            "deliveries behind them"
        ),
        12.0,
    )
    assert waiting(status(channel, **around))[0] == "writer-blocked"


UNREAD = [
    ({"blocked_ms": LATER, "alarms": ("memory",)}, "blocked-by-alarm", "the alarm of memory is on"),
    ({"held_by": "channel 7", "held_ms": LATER}, "reader-held", "because channel 7 of it takes nothing"),
    ({"holds_reader": True, "held_ms": LATER}, "credit-flow", "the whole connection is not read"),
]


@pytest.mark.parametrize(("around", "code", "says"), UNREAD)
@pytest.mark.parametrize("qos", [BasicQos(0, 1, False), BasicQos(0, 1, True), BasicQos(0, 0, False)])
def test_acknowledgements_that_nobody_reads(
    channel: WorldChannel, qos: BasicQos, around: dict[str, Any], code: str, says: str
) -> None:
    """That the client has acknowledged nothing is not known then: the connection is not read."""
    channel.say(qos)
    channel.consume("q", "c")
    channel.publish("q", b"x")
    found, why, for_s = consumer(channel, **around)
    assert (found, for_s) == (code, 12.0)
    assert why is not None
    assert why.startswith("it holds 1 delivery, and acknowledgements have to wait: ")
    assert says in why


@pytest.mark.parametrize(("around", "code", "says"), UNREAD)
def test_a_consumer_of_an_empty_queue_does_not_wait_for_the_reader(
    channel: WorldChannel, around: dict[str, Any], code: str, says: str
) -> None:
    """Nothing that its client could send would change it."""
    channel.consume("q", "c")
    assert consumer(channel, **around)[0] == "queue-empty-nothing-routed"


def test_an_acknowledgement_behind_a_method_that_a_queue_has_not_answered(
    world: World, channel: WorldChannel
) -> None:
    """It has come, and is not handled; until it comes it is the client's turn."""
    declare(world.catalog, world.vhost, "busy")
    channel.say(BasicQos(0, 1, False))
    channel.consume("q", "c")
    channel.publish("q", b"x")
    world.box("busy").stalled = True
    at(channel, LATER)
    channel.say(QueueDeclare("busy", passive=True))
    assert consumer(channel)[0] == "prefetch-full"
    channel.say(BasicAck(1))
    assert consumer(channel) == (
        "method-in-flight",
        (
            "it holds 1 delivery, and acknowledgements have to wait: queue.declare of queue 'busy' waits for "
            "an answer of the queue; 1 frame waits behind it"
        ),
        12.0,
    )


@pytest.mark.parametrize("qos", [BasicQos(0, 2, False), BasicQos(0, 2, True), BasicQos(0, 0, False)])
def test_acknowledgements_that_are_not_committed(channel: WorldChannel, qos: BasicQos) -> None:
    """The client did acknowledge them: what is missing is tx.commit."""
    decided = "the client has decided on 1 of them in a transaction and not committed it"
    channel.publish("q", b"x", b"y")
    channel.say(TxSelect(), qos)
    channel.consume("q", "c")
    channel.say(BasicAck(1))
    code, why, _ = consumer(channel)
    assert code in ("prefetch-full", "channel-prefetch-full", "unsettled-here")
    assert why is not None
    assert decided in why
    assert "the client has acknowledged none" not in why
    channel.say(TxRollback())
    assert decided not in str(consumer(channel)[1])
    channel.say(BasicAck(1), TxCommit())
    assert decided not in str(consumer(channel)[1])


def test_a_queue_that_has_not_answered(world: World, channel: WorldChannel) -> None:
    channel.consume("q", "c")
    world.box("q").stalled = True
    at(channel, LATER)
    channel.publish("q", *[b"x"] * 150)
    world.box("q").stalled = False
    assert consumer(channel)[0] is not None
    world.box("q").stalled = True
    asking = channel.service.consuming.consumers["c"]
    asking.credit.request(7, 7)
    asking.times.asked()
    assert consumer(channel) == (
        "queue-credit-in-flight",
        "7 messages were asked of queue 'q': no answer yet",
        12.0,
    )


# --- channels -------------------------------------------------------------------------------------


def test_a_client_that_could_publish(channel: WorldChannel) -> None:
    channel.say(ConfirmSelect())
    at(channel, LATER)
    channel.publish("q", b"x")
    assert waiting(status(channel, reader_credit=399)) == (
        None,
        "its turn: 399 contents until the connection waits; it published last 12 s ago",
        None,
    )


def test_a_queue_that_does_not_follow_holds_the_connection() -> None:
    """Credit flow: which queue, how much it has not confirmed, since when."""
    world = World(config=Config(credit_flow_initial=4, credit_flow_more_after=2))
    declare(world.catalog, world.vhost, "q")
    channel = at(world.channel(), EARLY)
    world.box("q").stalled = True
    channel.publish("q", *[b"x"] * 4)
    code, why, for_s = waiting(status(channel, holds_reader=True, held_ms=LATER))
    assert (code, for_s) == ("credit-flow", 12.0)
    assert why is not None
    assert why.startswith(
        "the whole connection is not read: queue 'q' has not confirmed 4 messages of this channel and its "
        "credit_flow is used up"
    )


def test_another_channel_holds_the_connection(channel: WorldChannel) -> None:
    """Which one is told: there the cause stands."""
    assert waiting(status(channel, held_by="channel 7", held_ms=LATER)) == (
        "reader-held",
        "the connection is not read, because channel 7 of it takes nothing",
        12.0,
    )


def test_an_alarm_blocks_the_connection(channel: WorldChannel) -> None:
    """Which alarm, and since when; it counts more than what else there is."""
    code, why, for_s = waiting(
        status(channel, alarms=("disk", "memory"), blocked_ms=LATER, held_by="channel 3", held_ms=EARLY)
    )
    assert (code, for_s) == ("blocked-by-alarm", 12.0)
    assert why is not None
    assert why.startswith("the alarm of disk and memory is on")


def test_a_method_that_a_queue_has_not_answered(world: World, channel: WorldChannel) -> None:
    """Which method and queue, and what waits behind it."""
    world.box("q").stalled = True
    at(channel, LATER)
    channel.say(QueueDeclare("q", passive=True), BasicQos(0, 1, False), BasicConsume("q", "c"))
    assert waiting(status(channel)) == (
        "method-in-flight",
        "queue.declare of queue 'q' waits for an answer of the queue; 2 frames wait behind it",
        12.0,
    )


def test_the_reader_waits_for_a_channel_that_waits_for_an_answer(world: World, channel: WorldChannel) -> None:
    """No queue's credit is used up: it is the method that holds the connection."""
    world.box("q").stalled = True
    at(channel, LATER)
    channel.say(QueueDeclare("q", passive=True), BasicQos(0, 1, False))
    assert waiting(status(channel, holds_reader=True, held_ms=NOW)) == (
        "method-in-flight",
        (
            "queue.declare of queue 'q' waits for an answer of the queue; 1 frame waits behind it; the whole "
            "connection is not read"
        ),
        12.0,
    )


def test_a_commit_that_waits_for_confirms(world: World, channel: WorldChannel) -> None:
    channel.say(TxSelect())
    world.box("q").stalled = True
    at(channel, LATER)
    channel.say(channel.content("q", b"x"), channel.content("q", b"x"), TxCommit())
    assert waiting(status(channel)) == (
        "method-in-flight",
        "tx.commit waits for 2 messages to be confirmed",
        12.0,
    )
