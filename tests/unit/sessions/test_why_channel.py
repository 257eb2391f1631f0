"""Why a channel or a link waits."""

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
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.sessions.diagnosis.wait_reasons import NO_WAIT, STUCK_MS, Wait, WaitContext, Waiting
from amqp10broker.sessions.diagnosis.why_channel import channel_view
from amqp10broker.sessions.diagnosis.why_link import session_view
from tests.support.channel_harness import ChannelEnds, Harness
from tests.support.declaring import declare
from tests.support.scenario import Scenario

EARLY, LATER, NOW = 1_000, 4_000, 16_000


@pytest.fixture
def world() -> Harness:
    world = Harness()
    declare(world.catalog, world.vhost, "q")
    return world


@pytest.fixture
def channel(world: Harness) -> ChannelEnds:
    return at(world.channel(), EARLY)


def at(channel: ChannelEnds, now_ms: int) -> ChannelEnds:
    channel.service.context.moment.ms = now_ms
    return channel


def status(channel: ChannelEnds, **around: Any) -> dict[str, Any]:
    return document(channel_view(channel.service, WaitContext(NOW, **around)))


def consumer(channel: ChannelEnds, **around: Any) -> tuple[str | None, str | None, float | None]:
    return waiting(status(channel, **around)["consumers"][0])


def waiting(thing: dict[str, Any]) -> tuple[str | None, str | None, float | None]:
    return thing["waits"], thing["waits_why"], thing["waits_for_s"]


# --- consumers ------------------------------------------------------------------------------------


def test_a_prefetch_that_is_used_up(channel: ChannelEnds) -> None:
    """The wait begins at the delivery that used it up; it also has the ready count."""
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


def test_a_client_that_acknowledges_too_slowly(channel: ChannelEnds) -> None:
    channel.say(BasicQos(0, 1, False))
    channel.publish("q", b"x", b"x")
    channel.consume("q", "c")
    at(channel, LATER)
    channel.say(BasicAck(1))
    code, why, for_s = consumer(channel)
    assert (code, for_s) == ("prefetch-full", 12.0)
    assert "the client acknowledged last 12 s ago; 0 messages ready in queue 'q'" in why


def test_a_prefetch_of_the_whole_channel(channel: ChannelEnds) -> None:
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


def test_room_that_an_acknowledgement_made_is_the_beginning_of_the_wait(channel: ChannelEnds) -> None:
    """Before it the prefetch was used up, which was another wait."""
    channel.say(BasicQos(0, 1, False))
    channel.consume("q", "c")
    channel.publish("q", b"x")
    at(channel, LATER)
    channel.say(BasicAck(1))
    code, _, for_s = consumer(channel)
    assert (code, for_s) == ("queue-empty", 12.0)


def test_a_client_that_does_not_read(channel: ChannelEnds) -> None:
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
def test_the_socket_has_not_taken_the_only_message(channel: ChannelEnds, no_ack: bool) -> None:
    """The writer has all of it: the queue is empty, but the client does not wait for the queue."""
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
    channel: ChannelEnds, qos: BasicQos, around: dict[str, Any], code: str, says: str
) -> None:
    """The wait does not claim a missing acknowledgement, because the connection is not read."""
    channel.say(qos)
    channel.consume("q", "c")
    channel.publish("q", b"x")
    found, why, for_s = consumer(channel, **around)
    assert (found, for_s) == (code, 12.0)
    assert why.startswith("it holds 1 delivery, and acknowledgements have to wait: ")
    assert says in why


@pytest.mark.parametrize(("around", "code", "says"), UNREAD)
def test_a_consumer_of_an_empty_queue_does_not_wait_for_the_reader(
    channel: ChannelEnds, around: dict[str, Any], code: str, says: str
) -> None:
    """No frame that its client could send would change it."""
    channel.consume("q", "c")
    assert consumer(channel, **around)[0] == "queue-empty-nothing-routed"


def test_an_acknowledgement_behind_a_method_that_a_queue_has_not_answered(
    world: Harness, channel: ChannelEnds
) -> None:
    """It has come but is not handled; before it comes, the wait is for the client."""
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
def test_acknowledgements_that_are_not_committed(channel: ChannelEnds, qos: BasicQos) -> None:
    """The client did acknowledge them; tx.commit is missing."""
    decided = "the client has decided on 1 of them in a transaction and not committed it"
    channel.publish("q", b"x", b"y")
    channel.say(TxSelect(), qos)
    channel.consume("q", "c")
    channel.say(BasicAck(1))
    code, why, _ = consumer(channel)
    assert code in ("prefetch-full", "channel-prefetch-full", "unsettled-here")
    assert decided in why
    assert "the client has acknowledged none" not in why
    channel.say(TxRollback())
    assert decided not in str(consumer(channel)[1])
    channel.say(BasicAck(1), TxCommit())
    assert decided not in str(consumer(channel)[1])


def test_a_queue_that_has_not_answered(world: Harness, channel: ChannelEnds) -> None:
    channel.consume("q", "c")
    world.box("q").stalled = True
    at(channel, LATER)
    channel.publish("q", *[b"x"] * 150)
    world.box("q").stalled = False
    assert consumer(channel)[0] is not None
    world.box("q").stalled = True
    asking = channel.service.consuming.consumers["c"]
    asking.credit.request(7, 7)
    asking.asked_ms = asking._moment.ms
    assert consumer(channel) == (
        "queue-credit-in-flight",
        "7 messages were asked of queue 'q': no answer yet",
        12.0,
    )


# --- channels -------------------------------------------------------------------------------------


def test_a_client_that_could_publish(channel: ChannelEnds) -> None:
    channel.say(ConfirmSelect())
    at(channel, LATER)
    channel.publish("q", b"x")
    assert waiting(status(channel, reader_credit=399)) == (
        None,
        "its turn: 399 contents until the connection waits; it published last 12 s ago",
        None,
    )


def test_a_queue_that_does_not_follow_holds_the_connection() -> None:
    """Credit flow: the wait has the queue, its unconfirmed messages, and the beginning."""
    world = Harness(config=Config(credit_flow_initial=4, credit_flow_more_after=2))
    declare(world.catalog, world.vhost, "q")
    channel = at(world.channel(), EARLY)
    world.box("q").stalled = True
    channel.publish("q", *[b"x"] * 4)
    code, why, for_s = waiting(status(channel, holds_reader=True, held_ms=LATER))
    assert (code, for_s) == ("credit-flow", 12.0)
    assert why.startswith(
        "the whole connection is not read: queue 'q' has not confirmed 4 messages of this channel and its "
        "credit_flow is used up"
    )


def test_another_channel_holds_the_connection(channel: ChannelEnds) -> None:
    """The wait names that channel, which has the cause."""
    assert waiting(status(channel, held_by="channel 7", held_ms=LATER)) == (
        "reader-held",
        "the connection is not read, because channel 7 of it takes nothing",
        12.0,
    )


def test_an_alarm_blocks_the_connection(channel: ChannelEnds) -> None:
    """The wait has the alarm and its beginning; it takes precedence over other causes."""
    code, why, for_s = waiting(
        status(channel, alarms=("disk", "memory"), blocked_ms=LATER, held_by="channel 3", held_ms=EARLY)
    )
    assert (code, for_s) == ("blocked-by-alarm", 12.0)
    assert why.startswith("the alarm of disk and memory is on")


def test_the_reader_waits_for_a_channel_that_waits_for_an_answer(
    world: Harness, channel: ChannelEnds
) -> None:
    world.box("q").stalled = True
    at(channel, LATER)
    channel.say(QueueDeclare("q", passive=True), BasicQos(0, 1, False), BasicConsume("q", "c"))
    assert waiting(status(channel, holds_reader=True, held_ms=NOW)) == (
        "method-in-flight",
        (
            "queue.declare of queue 'q' waits for an answer of the queue; 2 frames wait behind it; the "
            "whole connection is not read"
        ),
        12.0,
    )


def test_a_commit_that_waits_for_confirms(world: Harness, channel: ChannelEnds) -> None:
    channel.say(TxSelect())
    world.box("q").stalled = True
    at(channel, LATER)
    channel.say(channel.content("q", b"x"), channel.content("q", b"x"), TxCommit())
    assert waiting(status(channel)) == (
        "method-in-flight",
        "tx.commit waits for 2 messages to be confirmed",
        12.0,
    )


RECEIVE = "C> ATTACH h=1 source=/queues/q"
SEND = "C> ATTACH h=0 target=/queues/q"


class Timed:
    """A session whose lines are said at given times."""

    def __init__(self) -> None:
        self.scene = Scenario("q")

    def at(self, ms: int, *lines: str) -> None:
        self._service.moment.ms = ms
        for line in lines:
            self.scene.do(line)

    @property
    def _service(self) -> Any:
        return self.scene.world.clients["C"].sessions[0].service

    def look(self, ms: int, **around: Any) -> dict[str, Any]:
        (link,) = self.look_at_all(ms, **around)
        return link

    def look_at_all(self, ms: int, **around: Any) -> list[dict[str, Any]]:
        around.setdefault("writer_blocked", self.scene.world.clients["C"].blocked)
        return list(document(session_view(self._service, WaitContext(ms, **around)))["links"])


Steps = tuple[tuple[Any, ...], ...]

CASES: dict[str, tuple[Steps, str, float, str]] = {
    "never granted: since the attach": (
        ((2_000, RECEIVE),),
        "no-credit-never-granted", 8.0, "the client has granted no credit yet",
    ),
    "a flow without credit is no grant": (
        ((2_000, RECEIVE), (5_000, "C> FLOW h=1 dc=0 cr=0")),
        "no-credit-never-granted", 8.0, "its last flow, 5.0 s ago, set count 0 + credit 0",
    ),
    "used up: since the last delivery": (
        ((1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=2"), (3_000, "publish q 1"), (4_000, "publish q 5")),
        "no-credit-used-up", 6.0,
        "and it has sent no flow since; the grant, 9.0 s ago: count 0 + credit 2 (settling gives no credit)",
    ),
    "set to zero: since that flow": (
        ((1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=5"), (3_000, "C> FLOW h=1 dc=0 cr=0")),
        "no-credit-set-to-zero", 7.0, "7.0 s ago the client set the credit to 0, with credit left of",
    ),
    "revoked: since that flow": (
        ((1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=5", "publish q 2"), (3_000, "C> FLOW h=1 dc=0 cr=1")),
        "no-credit-revoked", 7.0, "its last flow says count 0 + credit 1, we are at 2: nothing left",
    ),
    "drained: since the answer": (
        ((1_000, RECEIVE), (3_000, "C> FLOW h=1 dc=0 cr=5 drain=true")),
        "no-credit-drained", 7.0, "it gave up 5 credits, and it has granted none since",
    ),
    "a stale flow: since the credit was used up, not since the flow": (
        (
            (1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=2"),
            (3_000, "publish q 5"),
            (8_000, "C> FLOW h=1 dc=0 cr=2", "C> FLOW h=1 dc=0 cr=2"),
        ),
        "no-credit-stale-flow", 7.0,
        "last flow 2.0 s ago: count 0 + credit 2, we are at 2: nothing left; flows since the last",
    ),
    "draining: since the flow": (
        ((1_000, RECEIVE, "stall q"), (4_000, "C> FLOW h=1 dc=0 cr=3 drain=true")),
        "draining", 6.0, "the client asked to drain 3 credits, and queue 'q' has not answered",
    ),
    "in flight: since the request": (
        ((1_000, RECEIVE, "stall q"), (4_000, "C> FLOW h=1 dc=0 cr=3")),
        "queue-credit-in-flight", 6.0, "3 messages were asked of queue 'q': no answer yet",
    ),
    "nothing came: since there is credit": (
        ((1_000, RECEIVE), (4_000, "C> FLOW h=1 dc=0 cr=3")),
        "queue-empty-nothing-routed", 6.0, "no exchange is bound to it",
    ),
    "unsettled here: since the last delivery": (
        ((1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=9"), (5_000, "publish q 3")),
        "unsettled-here", 5.0, "all 3 messages of queue 'q' are unsettled, here",
    ),
    "a full socket: since it takes nothing": (
        ((1_000, "block C", RECEIVE, "C> FLOW h=1 dc=0 cr=9"), (4_000, "publish q 3")),
        "writer-blocked", 6.0, "3 deliveries wait",
    ),
    "withheld: since the credit was used up": (
        (
            (1_000, SEND, "withhold q", "C> TRANSFER h=0 did=0..84", "C> TRANSFER h=0 did=85..169"),
            (4_000, "C> TRANSFER h=0 did=170..254"),
        ),
        "credit-withheld", 6.0, "255 deliveries are not confirmed by queue 'q', max_link_credit is 170",
    ),
    "an alarm: since it began": (
        ((1_000, SEND), (4_000, "alarm memory on")),
        "blocked-by-alarm", 6.0, "an alarm is on",
    ),
    "an alarm that was on before: since the attach": (
        ((1_000, "alarm memory on"), (4_000, SEND)),
        "blocked-by-alarm", 6.0, "an alarm is on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_link_waits_for_and_since_when(name: str) -> None:
    """The first look is ten seconds after the beginning."""
    steps, code, for_s, says = CASES[name]
    timed = Timed()
    for ms, *lines in steps:
        timed.at(ms, *lines)
    link = timed.look(10_000)
    assert (link["waits"], link["waits_for_s"]) == (code, for_s), link["waits_why"]
    assert says in link["waits_why"]


def test_the_window_of_the_client_is_closed() -> None:
    """It waits since the close, if deliveries waited then; since the first of them, if later."""
    scene = Timed()
    scene.at(1_000, "C> END", "C> BEGIN iw=1", RECEIVE, "C> FLOW h=1 dc=0 cr=8")
    scene.at(3_000, "publish q 1")
    assert scene.look(10_000)["waits"] == "unsettled-here"
    scene.at(6_000, "publish q 1")
    link = scene.look(10_000)
    assert (link["waits"], link["waits_for_s"]) == ("peer-window-closed", 4.0)
    assert "1 delivery waits; the client's incoming-window has been 0 for 7.0 s" in link["waits_why"]


@pytest.fixture
def timed() -> Timed:
    return Timed()


def test_a_publisher_that_could_send_does_not_wait(timed: Timed) -> None:
    """The status has its available credit and the outcome of its last message."""
    timed.at(1_000, SEND)
    link = timed.look(2_000)
    assert (link["waits"], link["waits_for_s"]) == (None, None)
    assert link["waits_why"] == "its turn: 170 credits, window open (400 frames); it has sent nothing yet"
    timed.at(4_000, "C> TRANSFER h=0 did=0")
    assert timed.look(10_000)["waits_why"] == (
        "its turn: 169 credits, window open (399 frames); it sent last 6.0 s ago, last outcome: accepted "
        "6.0 s ago"
    )


def test_a_delivery_that_is_being_sent_is_no_wait_before_a_second_is_over(timed: Timed) -> None:
    timed.at(1_000, SEND, "C> TRANSFER h=0 did=0 more=true")
    link = timed.look(1_000 + STUCK_MS - 1)
    assert link["waits"] is None
    assert "bytes of a delivery have come" in link["waits_why"]
    link = timed.look(1_000 + STUCK_MS)
    assert (link["waits"], link["waits_for_s"]) == ("delivery-unfinished", STUCK_MS / 1000)


@pytest.mark.parametrize(
    ("around", "code", "for_s"),
    [
        ({"writer_ms": 9_500, "writer_bytes": 5}, None, None),
        ({"writer_ms": 4_000, "writer_bytes": 5}, "writer-blocked", 6.0),
        ({"held_by": "session 3", "held_ms": 7_000}, "reader-held", 3.0),
    ],
)
def test_the_connection_holds_a_publisher(
    around: dict[str, Any], code: str | None, for_s: float | None, timed: Timed
) -> None:
    """Credit in an unsent flow does not count, nor does a turn too short to notice."""
    timed.at(1_000, SEND)
    link = timed.look(10_000, **around)
    assert (link["waits"], link["waits_for_s"]) == (code, for_s)


def test_the_connection_holds_a_consumer_without_credit(timed: Timed) -> None:
    """Its flow may be under way, or it may not have received its deliveries."""
    timed.at(1_000, RECEIVE)
    assert timed.look(10_000, held_by="session 3", held_ms=7_000)["waits"] == "reader-held"
    assert timed.look(10_000, writer_ms=2_000, writer_bytes=9)["waits"] == "writer-blocked"


@pytest.mark.parametrize("around", [{"held_by": "session 3", "held_ms": 7_000}, {"blocked_ms": 0}])
def test_a_link_with_credit_at_an_empty_queue_does_not_wait_for_the_reader(
    around: dict[str, Any], timed: Timed
) -> None:
    """No frame that its client could send would change it."""
    timed.at(1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=9")
    assert timed.look(10_000, **around)["waits"] == "queue-empty-nothing-routed"


def test_a_flow_that_opens_the_window_may_be_unread(timed: Timed) -> None:
    """The wait does not blame a missing flow while the connection is not read."""
    timed.at(1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=9 iw=1", "publish q 3")
    assert timed.look(10_000)["waits"] == "peer-window-closed"
    assert timed.look(10_000, held_by="session 3", held_ms=7_000)["waits"] == "reader-held"


def test_an_unsettled_map_that_is_incomplete(timed: Timed) -> None:
    """It has credit, messages are ready, and none is sent (2.7.3) until the client attaches again."""
    timed.at(1_000, "publish q 3", f"{RECEIVE} unsettled={{tag3:null}} incomplete-unsettled=true")
    timed.at(3_000, "C> FLOW h=1 dc=0 cr=9")
    link = timed.look(10_000)
    assert (link["waits"], link["waits_for_s"]) == ("unsettled-incomplete", 7.0)
    assert "before anything new is sent; 3 messages ready in queue 'q'" in link["waits_why"]


def test_an_attach_that_waits_for_its_queue(timed: Timed) -> None:
    """The client has granted credit, or will after the attach: the client causes no wait."""
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    declare(timed.scene.world.catalog, timed.scene.world.vhost, "s", arguments=arguments)
    timed.at(1_000, "stall s", "C> ATTACH h=1 source=/queues/s")
    timed.at(4_000, "C> FLOW h=1 dc=0 cr=5")
    link = timed.look(10_000)
    assert (link["waits"], link["waits_for_s"]) == ("queue-credit-in-flight", 9.0)
    assert "the attach waits until queue 's' says whether this is its active" in link["waits_why"]


def test_the_connection_is_not_read_during_an_alarm(timed: Timed) -> None:
    """The broker does not read, so it cannot claim that the client settles nothing."""
    timed.at(1_000, RECEIVE, "C> FLOW h=1 dc=0 cr=9", "publish q 2")
    assert timed.look(10_000)["waits"] == "unsettled-here"
    timed.at(4_000, "alarm memory on")
    link = timed.look(10_000, blocked_ms=0)
    assert (link["waits"], link["waits_for_s"]) == ("blocked-by-alarm", 6.0)
    assert "is not read until that is over" in link["waits_why"]


@pytest.mark.parametrize(("unread", "says"), [(False, "incoming-window at 0"), (True, "not read until it")])
def test_a_publisher_in_an_alarm_hears_what_the_broker_does(unread: bool, says: str, timed: Timed) -> None:
    """The broker closes the window, and stops reading a connection that sends nevertheless."""
    timed.at(1_000, SEND)
    timed.at(4_000, "alarm memory on")
    link = timed.look(10_000, blocked_ms=0 if unread else None, alarms=("memory",))
    assert (link["waits"], link["waits_for_s"]) == ("blocked-by-alarm", 6.0)
    assert says in link["waits_why"]


def test_a_delivery_that_was_sent_in_part_waits_for_the_window(timed: Timed) -> None:
    """Its transfer has begun, so it does not count among the waiting ones."""
    timed.scene.do("connect D max-frame-size=512", "D> BEGIN iw=1", "publish q 1 size=1200")
    timed.scene.do(RECEIVE.replace("C>", "D>"), "D> FLOW h=1 dc=0 cr=8")
    service = timed.scene.world.clients["D"].sessions[0].service
    (link,) = document(session_view(service, WaitContext(10_000)))["links"]
    assert link["waits"] == "peer-window-closed"
    assert "a delivery was sent in part; the client's incoming-window has been 0" in link["waits_why"]


def test_a_sender_that_jumps_ahead_while_credit_is_withheld(timed: Timed) -> None:
    """The status has the credits that it gave up, until the next grant."""
    timed.at(1_000, SEND, "withhold q", "C> TRANSFER h=0 did=0..84", "C> TRANSFER h=0 did=85..169")
    timed.at(3_000, "C> FLOW h=0 dc=200 cr=0")
    assert timed.look(10_000)["waits_why"].startswith("its turn: 55 credits")
    timed.at(4_000, "C> FLOW h=0 dc=300 cr=0")
    link = timed.look(10_000)
    assert (link["waits"], link["waits_for_s"]) == ("count-jumped", 6.0)
    assert link["waits_why"].startswith(
        "the client gave up 85 credits by a flow that names delivery-count 300, more than it has sent; 170 "
        "deliveries are not confirmed by queue 'q'"
    )


@pytest.mark.parametrize(
    ("full_ms", "code", "says"),
    [
        (5_000, "credit-withheld-by-full-disk", "because the disk has been full for 5.0 s"),
        (None, "credit-withheld-by-sync", "because a sync has been running for 6.0 s"),
    ],
)
def test_credit_is_withheld_because_of_the_disk(
    monkeypatch: pytest.MonkeyPatch, full_ms: int | None, code: str, says: str, timed: Timed
) -> None:
    """This reason is more exact than the alarm, which a full disk raises as well."""
    progress = QueueProgress(busy=True, sync_ms=4_000, full_ms=full_ms)
    monkeypatch.setattr(timed.scene.world.queues["q"], "progress", lambda: progress)
    timed.at(1_000, SEND, "withhold q", "C> TRANSFER h=0 did=0..84", "C> TRANSFER h=0 did=85..169")
    timed.at(3_000, "C> TRANSFER h=0 did=170..254")
    if full_ms is not None:
        timed.at(3_000, "alarm disk on")
    link = timed.look(10_000)
    assert (link["waits"], link["waits_for_s"]) == (code, 7.0)
    assert says in link["waits_why"]


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        (NO_WAIT, {"waits": None, "waits_why": None, "waits_for_s": None}),
        (
            Waiting(Wait.QUEUE_EMPTY, "why", 1_500),
            {"waits": "queue-empty", "waits_why": "why", "waits_for_s": 1.5},
        ),
        (Waiting(Wait.DRAINING, "why"), {"waits": "draining", "waits_why": "why", "waits_for_s": None}),
        (Waiting(None, "its turn"), {"waits": None, "waits_why": "its turn", "waits_for_s": None}),
    ],
)
def test_a_waiting_as_the_document_has_it(waiting: Waiting, expected: dict[str, object]) -> None:
    assert document(waiting.view()) == expected
