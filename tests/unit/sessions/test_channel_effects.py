"""What queues say to a channel, and what is recorded of it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.observe import timeline as channel_ring
from amqp10broker.observe.frames.records import describe_method
from amqp10broker.observe.timeline import CHANNEL_NAMES, ChannelRing, timeline
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.queues import commands
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.channel_harness import (
    ChannelEnds,
    FakeQueueTask,
    Got,
    Harness,
    contents,
    properties_of,
    tags,
    text_of,
)
from tests.support.clocked_queue import ClockedQueue
from tests.support.declaring import bind, declare
from tests.support.scripted_queue import ScriptedQueue
from tests.support.steps import steps_of

QUORUM = {"x-queue-type": "quorum"}
SAC = {"x-single-active-consumer": True}
HEAD = b"\x91" + bytes(9)
"""Of a message of AMQP 0-9-1 without exchange, key and properties."""


def puppet(channel: ChannelEnds, name: str = "q", **arguments: Any) -> ScriptedQueue:
    """A queue that only does what the test says."""
    world = channel.world
    declare(world.catalog, world.vhost, name, arguments=arguments)
    box = world.box(name)
    return ScriptedQueue(name, box, box.commands)


def happen(channel: ChannelEnds, *effects: commands.Effect) -> list[Got]:
    """The channel hears of effects; what its client hears then."""
    channel.inbox.append(list(effects))
    channel.world.rest()
    return channel.take()


def consuming(channel: ChannelEnds, queue: ScriptedQueue, count: int = 3, **fields: Any) -> list[Got]:
    """A consumer `c` that holds `count` deliveries with the keys 100, 101, ..."""
    channel.say(methods.BasicConsume(queue.queue, "c", **fields))
    assert happen(channel, commands.Subscribed(queue.ref)) == [methods.BasicConsumeOk("c")]
    (credit,) = queue.told_only(commands.Credit)
    messages = [(HEAD, b"%d" % number) for number in range(count)]
    return happen(channel, queue.deliver(range(100, 100 + count), messages), queue.reply(credit))


@pytest.fixture
def channel() -> ChannelEnds:
    return Harness().channel()


# --- publishing into a full queue -----------------------------------------------------------------


def refuse(channel: ChannelEnds, queue: ScriptedQueue) -> list[Got]:
    """The queue is full for the publish that came."""
    publish = queue.publish()
    return happen(
        channel, commands.PublishRejected(publish.publisher, publish.ids, publish.settled, queue.queue)
    )


@pytest.mark.rabbitmq(
    "queue_length_limits_SUITE", "max_length_bytes_reject_confirm", "max_length_reject_confirm"
)
def test_a_full_queue_is_a_nack(channel: ChannelEnds) -> None:
    queue = puppet(channel)
    assert channel.call(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
    channel.publish("q", b"1")
    assert refuse(channel, queue) == [methods.BasicNack(1, False, False)]


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "confirms_rejects_conflict")
def test_a_full_queue_of_several_is_a_nack(channel: ChannelEnds) -> None:
    """Whatever the other says, before or after."""
    full, other = puppet(channel), puppet(channel, "other")
    for key in ("q", "other"):
        bind(channel.world.catalog, channel.world.vhost, _bound(key))
    channel.call(methods.ConfirmSelect())
    for first in (full, other):
        channel.publish("k", b"1", exchange="amq.fanout")
        refused, taken = full.publish(), other.publish()
        said: list[commands.Effect] = [
            commands.PublishRejected(refused.publisher, refused.ids, False, "q"),
            commands.Confirmed(taken.publisher, taken.ids, False),
        ]
        if first is other:
            said.reverse()
        assert happen(channel, *said) == [methods.BasicNack(refused.ids[0], False, False)]


def _bound(queue: str) -> Binding:
    return Binding("amq.fanout", Destination("queue", queue))


@pytest.mark.rabbitmq("queue_length_limits_SUITE", "max_length_bytes_drop_publish", "max_length_drop_publish")
def test_a_full_queue_drops_what_nobody_wants_confirmed(channel: ChannelEnds) -> None:
    queue = puppet(channel)
    channel.publish("q", b"1")
    assert refuse(channel, queue) == []
    assert channel.service.publishing.unconfirmed == 0


def test_a_full_queue_fails_the_commit(channel: ChannelEnds) -> None:
    """406, after every queue has spoken."""
    full, other = puppet(channel), puppet(channel, "other")
    assert channel.call(methods.TxSelect()) == methods.TxSelectOk()
    channel.publish("q", b"1")
    channel.publish("other", b"2")
    assert channel.say(methods.TxCommit()) == []
    assert refuse(channel, full) == []
    taken = other.publish()
    (closed,) = happen(channel, commands.Confirmed(taken.publisher, taken.ids, taken.settled))
    assert isinstance(closed, methods.ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")


# --- subscribing ----------------------------------------------------------------------------------


def subscribed(
    channel: ChannelEnds, queue: ScriptedQueue, tag: str = "c", **fields: Any
) -> commands.Subscribe:
    """What the queue is told of a new consumer."""
    channel.say(methods.BasicConsume(queue.queue, tag, **fields))
    (subscribe,) = queue.told_only(commands.Subscribe)
    happen(channel, commands.Subscribed(subscribe.consumer))
    return subscribe


def test_priority_and_time_out_are_arguments(channel: ChannelEnds) -> None:
    """x-priority for every queue, x-consumer-timeout in ms for quorum queues."""
    quorum, classic = puppet(channel, "quorum", **QUORUM), puppet(channel, "classic")
    found = subscribed(channel, quorum, arguments={"x-priority": -3, "x-consumer-timeout": 5000})
    assert (found.priority, found.timeout_ms) == (-3, 5000)
    found = subscribed(channel, classic, "d", arguments={"x-priority": 7})
    assert (found.priority, found.timeout_ms) == (7, None)
    found = subscribed(channel, quorum, "e")
    assert (found.priority, found.timeout_ms) == (0, None)


def test_exclusive_means_nothing_to_a_quorum_queue(channel: ChannelEnds) -> None:
    """It has the single active consumer instead."""
    assert subscribed(channel, puppet(channel, "classic"), exclusive=True).exclusive
    assert not subscribed(channel, puppet(channel, **QUORUM), "d", exclusive=True).exclusive


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE", "amqp_exclusive_consume_fails_on_exclusive_consumer_queue"
)
def test_exclusive_and_the_single_active_consumer_exclude_each_other(channel: ChannelEnds) -> None:
    """403, although nobody else is there."""
    queue = puppet(channel, **SAC)
    assert channel.refused(methods.BasicConsume("q", "c", exclusive=True)) == (
        403,
        "queue 'q' in vhost '/' in exclusive use",
    )
    assert queue.told() == []


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_should_fail_when_global_qos_true")
def test_global_qos_and_a_quorum_queue_exclude_each_other(channel: ChannelEnds) -> None:
    """540, which ends the connection; a classic queue serves both."""
    quorum, classic = puppet(channel, **QUORUM), puppet(channel, "classic")
    assert channel.call(methods.BasicQos(prefetch_count=5, global_=True)) == methods.BasicQosOk()
    subscribed(channel, classic)
    assert channel.fatal(methods.BasicConsume("q", "d")) == (
        540,
        "queue 'q' in vhost '/' does not support global qos",
    )
    assert quorum.told() == []


@pytest.mark.rabbitmq("single_active_consumer_SUITE", "basic_get_is_unsupported")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_nobody_gets_single_messages_beside_the_single_active_consumer(
    channel: ChannelEnds, kind: str
) -> None:
    """405 for basic.get, whatever the kind."""
    queue = puppet(channel, **SAC, **{"x-queue-type": kind})
    text = (
        "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not supported by "
        f"{kind} queues with single active consumer"
    )
    assert channel.refused(methods.BasicGet("q")) == (405, text)
    assert queue.told() == []


def test_a_consumer_of_a_quorum_queue_without_prefetch_may_hold_2000(channel: ChannelEnds) -> None:
    """One of a classic queue as many as there are."""
    for kind, most in (("quorum", 2_000), ("classic", 2_600)):
        other = channel.world.channel()
        queue = puppet(other, kind, **{"x-queue-type": kind})
        other.say(methods.BasicConsume(kind, "c"))
        happen(other, commands.Subscribed(queue.ref))
        key = 0
        credits = queue.told_only(commands.Credit)
        while credits and key < 2_600:
            (credit,) = credits
            keys = range(key, key + credit.credit)
            key = keys.stop
            messages = [(HEAD, b"")] * len(keys)
            happen(other, queue.deliver(keys, messages), queue.reply(credit))
            credits = queue.told_only(commands.Credit)
        assert key == most
        if kind == "quorum":
            other.say(methods.BasicAck(1_500, True))
            assert queue.told_only(commands.Credit), "what was acknowledged makes room"


# --- settling -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "delivery_count_amqpl_reject_nack_classic_queue",
    "delivery_count_amqpl_reject_nack_quorum_queue",
)
@pytest.mark.rabbitmq(
    "dead_lettering_SUITE",
    "dead_letter_multiple_nack",
    "dead_letter_nack_requeue",
    "dead_letter_nack_requeue_multiple",
    "dead_letter_reject",
    "dead_letter_reject_many",
    "dead_letter_reject_requeue",
)
@pytest.mark.parametrize(
    ("method", "delivery_outcome"),
    [
        (methods.BasicAck(1), commands.DeliveryOutcome.ACCEPT),
        (methods.BasicNack(1, False, True), commands.DeliveryOutcome.REQUEUE),
        (methods.BasicNack(1, False, False), commands.DeliveryOutcome.DISCARD),
        (methods.BasicReject(1, True), commands.DeliveryOutcome.REQUEUE_FAILED),
        (methods.BasicReject(1, False), commands.DeliveryOutcome.DISCARD_FAILED),
    ],
    ids=str,
)
@pytest.mark.parametrize("transactional", [False, True])
def test_each_method_is_a_verdict(
    channel: ChannelEnds,
    method: methods.Method,
    delivery_outcome: commands.DeliveryOutcome,
    transactional: bool,
) -> None:
    """basic.reject counts as a failed attempt, basic.nack does not."""
    queue = puppet(channel, **QUORUM)
    if transactional:
        channel.call(methods.TxSelect())
    consuming(channel, queue)
    queue.told()
    channel.say(method)
    if transactional:
        assert queue.told_only(commands.Settle) == []
        channel.say(methods.TxCommit())
    (settle,) = queue.told_only(commands.Settle)
    assert (list(settle.keys), settle.delivery_outcome, settle.answer) == ([100], delivery_outcome, False)


@pytest.mark.parametrize("how", ["channel", "connection"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_channel_that_is_gone_has_failed_with_what_it_held(
    channel: ChannelEnds, how: str, kind: str
) -> None:
    """As basic.reject counts: who takes the message over AMQP 1.0 next sees it in delivery-count."""
    queue = puppet(channel, **{"x-queue-type": kind})
    consuming(channel, queue)
    if how == "channel":
        assert channel.call(methods.ChannelClose(200, "", 0, 0)) == methods.ChannelCloseOk()
    else:
        channel.connection.close()
    (gone,) = queue.told_only(commands.Unsubscribe)
    assert gone.delivery_outcome is commands.DeliveryOutcome.REQUEUE_FAILED


# --- the single active consumer, and what is held for too long ------------------------------------


def test_a_consumer_that_holds_deliveries_too_long_is_cancelled(channel: ChannelEnds) -> None:
    """It hears so, gets no more, and may still acknowledge."""
    queue = puppet(channel, **QUORUM)
    assert tags(consuming(channel, queue)) == [1, 2, 3]
    queue.told()
    assert happen(channel, commands.TimedOut(queue.ref, [100, 101, 102], "q")) == [
        methods.BasicCancel("c", True)
    ]
    assert [type(letter).__name__ for letter in queue.told()] == ["GiveBack", "Cancel"]
    assert channel.say(methods.BasicAck(3, True)) == []
    assert happen(channel, commands.TimedOut(queue.ref, [100], "q")) == [], "once is enough"


@pytest.mark.rabbitmq("consumer_timeout_SUITE", "consumer_timeout_no_basic_cancel_capability")
@pytest.mark.parametrize(("arguments", "ms"), [({}, 1_800_000), ({"x-consumer-timeout": 5000}, 5000)])
def test_a_client_that_would_not_understand_a_cancel_loses_the_channel(
    arguments: dict[str, int], ms: int
) -> None:
    """406 with the time that counted."""
    channel = Harness().channel(capabilities=())
    queue = puppet(channel, **QUORUM)
    consuming(channel, queue, arguments=arguments)
    text = (
        f"delivery acknowledgement on channel 1 timed out. Timeout value used: {ms} ms. Acknowledge sooner, "
        "or set x-consumer-timeout of the consumer or its queue"
    )
    assert timed_out(channel, queue) == (406, text)


def timed_out(channel: ChannelEnds, queue: ScriptedQueue) -> tuple[int, str]:
    """The channel's end because of a delivery held for too long."""
    (closed,) = happen(channel, commands.TimedOut(queue.ref, [100], "q"))
    assert isinstance(closed, methods.ChannelClose)
    return closed.reply_code, text_of(closed.reply_code, closed.reply_text)


@pytest.mark.rabbitmq("consumer_timeout_SUITE", "consumer_timeout_basic_get")
def test_a_message_that_was_fetched_and_held_too_long_ends_the_channel(channel: ChannelEnds) -> None:
    queue = puppet(channel, **QUORUM)
    channel.send(methods.BasicGet("q"))
    channel.world.rest()
    (credit,) = queue.told_only(commands.Credit)
    reply = commands.CreditReply(credit.consumer, 1, 0, 0, True, 0)
    happen(channel, queue.deliver([100], [(HEAD, b"m")]), reply)
    assert timed_out(channel, queue)[0] == 406


BATCH = 170
"""Messages of one read at full load, which take some 180 instructions each from read to write and back."""


def consuming_ring() -> ChannelEnds:
    """A channel in confirm mode that consumes what it publishes."""
    channel = Harness().channel()
    channel.call(methods.QueueDeclare("q"))
    channel.call(methods.ConfirmSelect())
    channel.consume("q")
    return channel


def watched(channel: ChannelEnds, link: str | None = "c") -> ChannelRing:
    """A ring that listens to a channel, or to a consumer of it."""
    service = channel.service
    consumer = None if link is None else service.consuming.consumers[link]

    def mark() -> channel_ring.ChannelMark:
        if consumer is None:
            return (channel.credit.credit, 0, False, 0, 0, False)
        credit = consumer.credit
        return (channel.credit.credit, 0, False, credit.granted, credit.waiting, credit.closed)

    ring = ChannelRing(service, consumer, mark, count().__next__, describe_method)
    service.listen((ring,))
    return ring


def round_of(channel: ChannelEnds, messages: int, ring: ChannelRing | None) -> None:
    """So many messages are published, delivered and acknowledged as a range, in turns as of a task."""
    world = channel.world

    def turns() -> None:
        while channel.connection.pass_on():
            pass
        while channel.letters or channel.inbox:
            channel.take_letters(1000)
            channel.wake()
            if ring is not None:
                ring.turn_over()
        for box in world.boxes:
            box.run(1000)

    channel.send(*[channel.content("q", b"x" * 12) for _ in range(messages)])
    for _ in range(4):
        turns()
    last = max(got.method.delivery_tag for got in channel.take() if hasattr(got, "body"))
    channel.send(methods.BasicAck(last, True))
    for _ in range(3):
        turns()


@pytest.mark.parametrize("link", [None, "c"])
@pytest.mark.parametrize(("messages", "most"), [(BATCH, BATCH * 180 // 50), (1, 450)])
def test_a_channel_that_is_watched_takes_two_per_cent_more_at_most(
    link: str | None, messages: int, most: int
) -> None:
    """Of what a message takes in all at full load; a lone message takes 8 000 instructions."""
    taken = []
    for watch in (False, True):
        channel = consuming_ring()
        ring = watched(channel, link) if watch else None
        round_of(channel, messages, ring)
        taken.append(steps_of(lambda: round_of(channel, messages, ring)))  # noqa: B023
    assert ring.next >= 8, "nothing was recorded"
    assert 0 < taken[1] - taken[0] <= most


def test_the_oldest_goes_when_the_ring_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for what is gone hears how much that was, and the rest is as exact as before."""
    monkeypatch.setattr(channel_ring, "RECORDS_MAX", 16)
    monkeypatch.setattr(channel_ring, "LOOK_AFTER", 4)
    channel = consuming_ring()
    ring = watched(channel)
    for limit in range(1, 40):
        channel.call(methods.BasicQos(0, limit, True))
        ring.turn_over()
    found = timeline(ring, 0, 1000)
    assert found["lost"] == found["since"] > 0
    assert 16 <= len(found["steps"]) <= 16 + 4 + 2
    limits = [step["values"]["global_prefetch"] for step in found["steps"] if step["values"]]
    assert limits == list(range(limits[0], 40))
    assert found["start"]["global_prefetch"] in (limits[0] - 1, limits[0])
    part = timeline(ring, found["since"] + 3, 2)
    assert part["steps"] == found["steps"][3:5]
    assert timeline(ring, found["next"], 10)["steps"] == []


@pytest.mark.parametrize("refused", [False, True])
def test_a_content_that_is_read_in_parts_is_one_step(refused: bool) -> None:
    """When its first part came, the channel only asked whether it is wanted."""
    channel = consuming_ring()
    ring = watched(channel)
    content = channel.content("q", b"x" * 100, exchange="missing" if refused else "")
    channel.connection.send(content[:-50])
    channel.world.rest()
    ring.turn_over()
    channel.connection.send(content[-50:])
    channel.world.rest()
    frames = [step["frame"].split()[0] for step in timeline(ring, 0, 100)["steps"] if step["direction"]]
    if refused:
        assert frames == ["basic.publish", "channel.close"]
    else:
        assert sorted(frames) == ["basic.ack", "basic.deliver", "basic.publish"]


def test_a_channel_that_is_opened_again_in_the_same_turn_is_another() -> None:
    """Its timeline ends, and nothing of the new one stands in it as if it were of the old."""
    channel = consuming_ring()
    ring = watched(channel)
    channel.send(methods.ChannelClose(200, "", 0, 0), methods.ChannelOpen())
    while channel.connection.pass_on():
        pass
    channel.take_letters(1000)
    channel.wake()
    ring.turn_over()
    assert ring.ended == "the channel is closed"
    assert dict(zip(CHANNEL_NAMES, ring.before(ring.next), strict=True))["unconfirmed"] == 0


def test_a_consumer_that_goes_without_a_word_ends_its_timeline() -> None:
    """Its client did not ask to be told that queues go."""
    world = Harness()
    channel = world.channel(capabilities=())
    channel.call(methods.QueueDeclare("q"))
    channel.consume("q")
    ring = watched(channel)
    other = world.channel()
    other.call(methods.QueueDelete("q"))
    world.rest()
    ring.turn_over()
    assert ring.ended == "the consumer is cancelled"
    assert [record["direction"] for record in timeline(ring, 0, 10)["steps"]] == [None]


class QuorumWorld(Harness):
    """Its queues are quorum queues."""

    def start_queue(self, queue: QueueSpec) -> FakeQueueTask:
        box = super().start_queue(queue)
        box.queue = ClockedQueue(queue)  # type: ignore[assignment]
        return box

    def wait(self, queue: str, ms: int) -> None:
        """Time passes for a queue, and what comes of it arrives."""
        box = self.box(queue)
        clocked: Any = box.queue
        clocked.wait(ms)
        box.run(0)
        self.rest()


@pytest.fixture
def channel_counted() -> ChannelEnds:
    """A channel in a virtual host with a quorum queue `q`."""
    world = QuorumWorld()
    declare(world.catalog, world.vhost, "q", arguments={"x-queue-type": "quorum", "x-consumer-timeout": 500})
    return world.channel()


def counts(got: list[Got]) -> tuple[Any, Any]:
    """x-acquired-count and x-delivery-count of the one message that came."""
    (content,) = contents(got)
    headers = properties_of(content).headers or {}
    return headers.get("x-acquired-count"), headers.get("x-delivery-count")


def test_the_end_of_a_channel_is_a_failed_attempt(channel_counted: ChannelEnds) -> None:
    """Whoever gets the message next sees so."""
    channel_counted.publish("q", b"m")
    channel_counted.consume("q")
    other = channel_counted.world.channel()
    assert other.consume("q", "d") == []
    channel_counted.call(methods.ChannelClose(200, "", 0, 0))
    assert counts(other.take()) == (1, 1)


@pytest.mark.rabbitmq("consumer_timeout_SUITE", "consumer_timeout_with_basic_cancel_capability")
def test_a_consumer_that_holds_a_message_too_long_is_cancelled(channel_counted: ChannelEnds) -> None:
    """Another gets the message; it is no failed attempt."""
    channel_counted.publish("q", b"m")
    assert tags(channel_counted.consume("q")) == [1]
    world = channel_counted.world
    assert isinstance(world, QuorumWorld)
    world.wait("q", 600)
    assert channel_counted.take() == [methods.BasicCancel("c", True)]
    consumed, delivered = channel_counted.say(methods.BasicConsume("q", "d"))
    assert consumed == methods.BasicConsumeOk("d")
    assert counts([delivered]) == (1, 0)
    assert channel_counted.say(methods.BasicAck(1)) == [], "the late acknowledgement means nothing"
    assert world.counts("q") == (0, 1)
    channel_counted.say(methods.BasicAck(2))
    assert world.counts("q") == (0, 0)
