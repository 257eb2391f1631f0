"""What a channel of AMQP 0-9-1 makes of what queues do, and what it tells them."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    TxCommit,
    TxSelect,
    TxSelectOk,
)
from amqp10broker.queues.commands import (
    Confirmed,
    Credit,
    CreditReply,
    DeliveryOutcome,
    Effect,
    PublishRejected,
    Settle,
    Subscribe,
    Subscribed,
    TimedOut,
    Unsubscribe,
)
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.channel_world import Got, World, WorldChannel, tags, text_of
from tests.support.declaring import bind, declare
from tests.support.puppet import Puppet

QUORUM = {"x-queue-type": "quorum"}
SAC = {"x-single-active-consumer": True}
HEAD = b"\x91" + bytes(9)
"""Of a message of AMQP 0-9-1 without exchange, key and properties."""


def puppet(channel: WorldChannel, name: str = "q", **arguments: Any) -> Puppet:
    """A queue that only does what the test says."""
    world = channel.world
    declare(world.catalog, world.vhost, name, arguments=arguments)
    box = world.box(name)
    return Puppet(name, box, box.letters)


def happen(channel: WorldChannel, *effects: Effect) -> list[Got]:
    """The channel hears of effects; what its client hears then."""
    channel.inbox.append(list(effects))
    channel.world.rest()
    return channel.take()


def consuming(channel: WorldChannel, queue: Puppet, count: int = 3, **fields: Any) -> list[Got]:
    """A consumer `c` that holds `count` deliveries with the keys 100, 101, ..."""
    channel.say(BasicConsume(queue.queue, "c", **fields))
    assert happen(channel, Subscribed(queue.ref)) == [BasicConsumeOk("c")]
    (credit,) = queue.told_only(Credit)
    messages = [(HEAD, b"%d" % number) for number in range(count)]
    return happen(channel, queue.deliver(range(100, 100 + count), messages), queue.reply(credit))


@pytest.fixture
def channel() -> WorldChannel:
    return World().channel()


# --- publishing into a full queue -----------------------------------------------------------------


def refuse(channel: WorldChannel, queue: Puppet) -> list[Got]:
    """The queue is full for the publish that came."""
    publish = queue.publish()
    return happen(channel, PublishRejected(publish.publisher, publish.ids, publish.settled, queue.queue))


@pytest.mark.rabbitmq(
    "queue_length_limits_SUITE", "max_length_bytes_reject_confirm", "max_length_reject_confirm"
)
def test_a_full_queue_is_a_nack(channel: WorldChannel) -> None:
    queue = puppet(channel)
    assert channel.call(ConfirmSelect()) == ConfirmSelectOk()
    channel.publish("q", b"1")
    assert refuse(channel, queue) == [BasicNack(1, False, False)]


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "confirms_rejects_conflict")
def test_a_full_queue_of_several_is_a_nack(channel: WorldChannel) -> None:
    """Whatever the other says, before or after."""
    full, other = puppet(channel), puppet(channel, "other")
    for key in ("q", "other"):
        bind(channel.world.catalog, channel.world.vhost, _bound(key))
    channel.call(ConfirmSelect())
    for first in (full, other):
        channel.publish("k", b"1", exchange="amq.fanout")
        refused, taken = full.publish(), other.publish()
        said: list[Effect] = [
            PublishRejected(refused.publisher, refused.ids, False, "q"),
            Confirmed(taken.publisher, taken.ids, False),
        ]
        if first is other:
            said.reverse()
        assert happen(channel, *said) == [BasicNack(refused.ids[0], False, False)]


def _bound(queue: str) -> Binding:
    return Binding("amq.fanout", Destination("queue", queue))


@pytest.mark.rabbitmq("queue_length_limits_SUITE", "max_length_bytes_drop_publish", "max_length_drop_publish")
def test_a_full_queue_drops_what_nobody_wants_confirmed(channel: WorldChannel) -> None:
    queue = puppet(channel)
    channel.publish("q", b"1")
    assert refuse(channel, queue) == []
    assert channel.service.publishing.unconfirmed == 0


def test_a_full_queue_fails_the_commit(channel: WorldChannel) -> None:
    """406, after every queue has spoken."""
    full, other = puppet(channel), puppet(channel, "other")
    assert channel.call(TxSelect()) == TxSelectOk()
    channel.publish("q", b"1")
    channel.publish("other", b"2")
    assert channel.say(TxCommit()) == []
    assert refuse(channel, full) == []
    taken = other.publish()
    (closed,) = happen(channel, Confirmed(taken.publisher, taken.ids, taken.settled))
    assert isinstance(closed, ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")


# --- subscribing ----------------------------------------------------------------------------------


def subscribed(channel: WorldChannel, queue: Puppet, tag: str = "c", **fields: Any) -> Subscribe:
    """What the queue is told of a new consumer."""
    channel.say(BasicConsume(queue.queue, tag, **fields))
    (subscribe,) = queue.told_only(Subscribe)
    happen(channel, Subscribed(subscribe.consumer))
    return subscribe


def test_priority_and_time_out_are_arguments(channel: WorldChannel) -> None:
    """x-priority for every queue, x-consumer-timeout in ms for quorum queues."""
    quorum, classic = puppet(channel, "quorum", **QUORUM), puppet(channel, "classic")
    found = subscribed(channel, quorum, arguments={"x-priority": -3, "x-consumer-timeout": 5000})
    assert (found.priority, found.timeout_ms) == (-3, 5000)
    found = subscribed(channel, classic, "d", arguments={"x-priority": 7})
    assert (found.priority, found.timeout_ms) == (7, None)
    found = subscribed(channel, quorum, "e")
    assert (found.priority, found.timeout_ms) == (0, None)


def test_exclusive_means_nothing_to_a_quorum_queue(channel: WorldChannel) -> None:
    """It has the single active consumer instead."""
    assert subscribed(channel, puppet(channel, "classic"), exclusive=True).exclusive
    assert not subscribed(channel, puppet(channel, **QUORUM), "d", exclusive=True).exclusive


@pytest.mark.rabbitmq(
    "single_active_consumer_SUITE", "amqp_exclusive_consume_fails_on_exclusive_consumer_queue"
)
def test_exclusive_and_the_single_active_consumer_exclude_each_other(channel: WorldChannel) -> None:
    """403, although nobody else is there."""
    queue = puppet(channel, **SAC)
    assert channel.refused(BasicConsume("q", "c", exclusive=True)) == (
        403,
        "queue 'q' in vhost '/' in exclusive use",
    )
    assert queue.told() == []


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_should_fail_when_global_qos_true")
def test_global_qos_and_a_quorum_queue_exclude_each_other(channel: WorldChannel) -> None:
    """540, which ends the connection; a classic queue serves both."""
    quorum, classic = puppet(channel, **QUORUM), puppet(channel, "classic")
    assert channel.call(BasicQos(prefetch_count=5, global_=True)) == BasicQosOk()
    subscribed(channel, classic)
    assert channel.fatal(BasicConsume("q", "d")) == (
        540,
        "queue 'q' in vhost '/' does not support global qos",
    )
    assert quorum.told() == []


@pytest.mark.rabbitmq("single_active_consumer_SUITE", "basic_get_is_unsupported")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_nobody_gets_single_messages_beside_the_single_active_consumer(
    channel: WorldChannel, kind: str
) -> None:
    """405 for basic.get, whatever the kind."""
    queue = puppet(channel, **SAC, **{"x-queue-type": kind})
    text = (
        "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not supported by "
        f"{kind} queues with single active consumer"
    )
    assert channel.refused(BasicGet("q")) == (405, text)
    assert queue.told() == []


def test_a_consumer_of_a_quorum_queue_without_prefetch_may_hold_2000(channel: WorldChannel) -> None:
    """One of a classic queue as many as there are."""
    for kind, most in (("quorum", 2_000), ("classic", 2_600)):
        other = channel.world.channel()
        queue = puppet(other, kind, **{"x-queue-type": kind})
        other.say(BasicConsume(kind, "c"))
        happen(other, Subscribed(queue.ref))
        key = 0
        credits = queue.told_only(Credit)
        while credits and key < 2_600:
            (credit,) = credits
            keys = range(key, key + credit.credit)
            key = keys.stop
            messages = [(HEAD, b"")] * len(keys)
            happen(other, queue.deliver(keys, messages), queue.reply(credit))
            credits = queue.told_only(Credit)
        assert key == most
        if kind == "quorum":
            other.say(BasicAck(1_500, True))
            assert queue.told_only(Credit), "what was acknowledged makes room"


# --- settling -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "delivery_count_amqpl_reject_nack_classic_queue")
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
        (BasicAck(1), DeliveryOutcome.ACCEPT),
        (BasicNack(1, False, True), DeliveryOutcome.REQUEUE),
        (BasicNack(1, False, False), DeliveryOutcome.DISCARD),
        (BasicReject(1, True), DeliveryOutcome.REQUEUE_FAILED),
        (BasicReject(1, False), DeliveryOutcome.DISCARD_FAILED),
    ],
    ids=str,
)
@pytest.mark.parametrize("transactional", [False, True])
def test_each_method_is_a_verdict(
    channel: WorldChannel, method: Method, delivery_outcome: DeliveryOutcome, transactional: bool
) -> None:
    """basic.reject counts as a failed attempt, basic.nack does not."""
    queue = puppet(channel, **QUORUM)
    if transactional:
        channel.call(TxSelect())
    consuming(channel, queue)
    queue.told()
    channel.say(method)
    if transactional:
        assert queue.told_only(Settle) == []
        channel.say(TxCommit())
    (settle,) = queue.told_only(Settle)
    assert (list(settle.keys), settle.delivery_outcome, settle.answer) == ([100], delivery_outcome, False)


@pytest.mark.parametrize("how", ["channel", "connection"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_channel_that_is_gone_has_failed_with_what_it_held(
    channel: WorldChannel, how: str, kind: str
) -> None:
    """As basic.reject counts: who takes the message over AMQP 1.0 next sees it in delivery-count."""
    queue = puppet(channel, **{"x-queue-type": kind})
    consuming(channel, queue)
    if how == "channel":
        assert channel.call(ChannelClose(200, "", 0, 0)) == ChannelCloseOk()
    else:
        channel.connection.close()
    (gone,) = queue.told_only(Unsubscribe)
    assert gone.delivery_outcome is DeliveryOutcome.REQUEUE_FAILED


# --- the single active consumer, and what is held for too long ------------------------------------


def test_a_consumer_that_holds_deliveries_too_long_is_cancelled(channel: WorldChannel) -> None:
    """It hears so, gets no more, and may still acknowledge."""
    queue = puppet(channel, **QUORUM)
    assert tags(consuming(channel, queue)) == [1, 2, 3]
    queue.told()
    assert happen(channel, TimedOut(queue.ref, [100, 101, 102], "q")) == [BasicCancel("c", True)]
    assert [type(letter).__name__ for letter in queue.told()] == ["GiveBack", "Cancel"]
    assert channel.say(BasicAck(3, True)) == []
    assert happen(channel, TimedOut(queue.ref, [100], "q")) == [], "once is enough"


@pytest.mark.parametrize(("arguments", "ms"), [({}, 1_800_000), ({"x-consumer-timeout": 5000}, 5000)])
def test_a_client_that_would_not_understand_a_cancel_loses_the_channel(
    arguments: dict[str, int], ms: int
) -> None:
    """406 with the time that counted."""
    channel = World().channel(capabilities=())
    queue = puppet(channel, **QUORUM)
    consuming(channel, queue, arguments=arguments)
    text = (
        f"delivery acknowledgement on channel 1 timed out. Timeout value used: {ms} ms. Acknowledge sooner, "
        "or set x-consumer-timeout of the consumer or its queue"
    )
    assert timed_out(channel, queue) == (406, text)


def timed_out(channel: WorldChannel, queue: Puppet) -> tuple[int, str]:
    """The channel's end because of a delivery held for too long."""
    (closed,) = happen(channel, TimedOut(queue.ref, [100], "q"))
    assert isinstance(closed, ChannelClose)
    return closed.reply_code, text_of(closed.reply_code, closed.reply_text)


@pytest.mark.rabbitmq("consumer_timeout_SUITE", "consumer_timeout_basic_get")
def test_a_message_that_was_fetched_and_held_too_long_ends_the_channel(channel: WorldChannel) -> None:
    queue = puppet(channel, **QUORUM)
    channel.send(BasicGet("q"))
    channel.world.rest()
    (credit,) = queue.told_only(Credit)
    reply = CreditReply(credit.consumer, 1, 0, 0, True, 0)
    happen(channel, queue.deliver([100], [(HEAD, b"m")]), reply)
    assert timed_out(channel, queue)[0] == 406
