"""What queues say to a channel, and what is recorded of it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from amqp10broker.observe import timeline as channel_ring
from amqp10broker.observe.frames.records import describe_method
from amqp10broker.observe.timeline import CHANNEL_NAMES, ChannelRing, timeline
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.queues import commands
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.channel_harness import (
    ChannelEnds,
    Got,
    Harness,
    tags,
    text_of,
)
from tests.support.declaring import bind, declare
from tests.support.scripted_queue import ScriptedQueue
from tests.support.steps import steps_of

QUORUM = {"x-queue-type": "quorum"}
SAC = {"x-single-active-consumer": True}
HEAD = b"\x91" + bytes(9)
"""Of a message of AMQP 0-9-1 without exchange, key and properties."""


def puppet(channel: ChannelEnds, name: str = "q", **arguments: Any) -> ScriptedQueue:
    world = channel.world
    declare(world.catalog, world.vhost, name, arguments=arguments)
    box = world.box(name)
    return ScriptedQueue(name, box, box.commands)


def happen(channel: ChannelEnds, *effects: commands.Effect) -> list[Got]:
    channel.inbox.append(list(effects))
    channel.world.rest()
    return channel.take()


def consuming(channel: ChannelEnds, queue: ScriptedQueue, count: int = 3, **fields: Any) -> list[Got]:
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
    """The error 406 follows all queues' answers."""
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
    channel.say(methods.BasicConsume(queue.queue, tag, **fields))
    (subscribe,) = queue.told_only(commands.Subscribe)
    happen(channel, commands.Subscribed(subscribe.consumer))
    return subscribe


def test_priority_and_time_out_are_arguments(channel: ChannelEnds) -> None:
    """x-priority applies to every queue, x-consumer-timeout in ms to quorum queues."""
    quorum, classic = puppet(channel, "quorum", **QUORUM), puppet(channel, "classic")
    found = subscribed(channel, quorum, arguments={"x-priority": -3, "x-consumer-timeout": 5000})
    assert (found.priority, found.timeout_ms) == (-3, 5000)
    found = subscribed(channel, classic, "d", arguments={"x-priority": 7})
    assert (found.priority, found.timeout_ms) == (7, None)
    found = subscribed(channel, quorum, "e")
    assert (found.priority, found.timeout_ms) == (0, None)


def test_exclusive_means_nothing_to_a_quorum_queue(channel: ChannelEnds) -> None:
    assert subscribed(channel, puppet(channel, "classic"), exclusive=True).exclusive
    assert not subscribed(channel, puppet(channel, **QUORUM), "d", exclusive=True).exclusive


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE", "amqp_exclusive_consume_fails_on_exclusive_consumer_queue"
)
def test_exclusive_and_the_single_active_consumer_exclude_each_other(channel: ChannelEnds) -> None:
    """The error is 403 without any other consumer."""
    queue = puppet(channel, **SAC)
    assert channel.refused(methods.BasicConsume("q", "c", exclusive=True)) == (
        403,
        "queue 'q' in vhost '/' in exclusive use",
    )
    assert queue.told() == []


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_should_fail_when_global_qos_true")
def test_global_qos_and_a_quorum_queue_exclude_each_other(channel: ChannelEnds) -> None:
    """The error is 540, which closes the connection; a classic queue supports both."""
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
    """basic.get fails with 405, whatever the kind."""
    queue = puppet(channel, **SAC, **{"x-queue-type": kind})
    text = (
        "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not supported by "
        f"{kind} queues with single active consumer"
    )
    assert channel.refused(methods.BasicGet("q")) == (405, text)
    assert queue.told() == []


def test_a_consumer_of_a_quorum_queue_without_prefetch_may_hold_2000(channel: ChannelEnds) -> None:
    """A consumer of a classic queue may hold any number."""
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
    """It counts as basic.reject: the next AMQP 1.0 consumer sees it in delivery-count."""
    queue = puppet(channel, **{"x-queue-type": kind})
    consuming(channel, queue)
    if how == "channel":
        assert channel.call(methods.ChannelClose(200, "", 0, 0)) == methods.ChannelCloseOk()
    else:
        channel.connection.close()
    (gone,) = queue.told_only(commands.Unsubscribe)
    assert gone.delivery_outcome is commands.DeliveryOutcome.REQUEUE_FAILED


# --- the single active consumer, and what is held for too long ------------------------------------


@pytest.mark.rabbitmq("consumer_timeout_SUITE", "consumer_timeout_with_basic_cancel_capability")
def test_a_consumer_that_holds_deliveries_too_long_is_cancelled(channel: ChannelEnds) -> None:
    """It gets basic.cancel, no more deliveries, and may still acknowledge."""
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
    """The error 406 has the time that applied."""
    channel = Harness().channel(capabilities=())
    queue = puppet(channel, **QUORUM)
    consuming(channel, queue, arguments=arguments)
    text = (
        f"delivery acknowledgement on channel 1 timed out. Timeout value used: {ms} ms. Acknowledge sooner, "
        "or set x-consumer-timeout of the consumer or its queue"
    )
    assert timed_out(channel, queue) == (406, text)


def timed_out(channel: ChannelEnds, queue: ScriptedQueue) -> tuple[int, str]:
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
    channel = Harness().channel()
    channel.call(methods.QueueDeclare("q"))
    channel.call(methods.ConfirmSelect())
    channel.consume("q")
    return channel


def watched(channel: ChannelEnds, link: str | None = "c") -> ChannelRing:
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
    """Publish, deliver and acknowledge so many messages as a range, in turns as of a task."""
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
    """The bound is of a message's whole cost at full load; a lone message takes 8 000 instructions."""
    taken = []
    for watch in (False, True):
        channel = consuming_ring()
        ring = watched(channel, link) if watch else None
        round_of(channel, messages, ring)
        taken.append(steps_of(lambda: round_of(channel, messages, ring)))  # noqa: B023
    assert ring.next >= 8, "nothing was recorded"
    assert 0 < taken[1] - taken[0] <= most


def test_the_oldest_goes_when_the_ring_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for dropped entries gets their number, and the rest is as exact as before."""
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
    """At its first part the channel only asked whether it is wanted."""
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
    """The old timeline ends, and no step of the new channel appears in it."""
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
    """Its client did not ask for basic.cancel notifications."""
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
