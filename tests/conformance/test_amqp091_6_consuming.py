"""AMQP 0-9-1, consuming: consume, cancel, get, prefetch."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.config import Config
from amqp10broker.protocols.amqp091 import methods
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, kinds, redelivered, tags

Q = methods.QueueDeclare("q", durable=True)
STREAM = methods.QueueDeclare("s", durable=True, arguments={"x-queue-type": "stream"})


@pytest.fixture
def channel() -> ChannelEnds:
    channel = Harness().channel()
    channel.call(Q)
    return channel


def fill(channel: ChannelEnds, *bodies: int, queue: str = "q") -> None:
    channel.world.channel().publish(queue, *[b"%d" % body for body in bodies])
    channel.world.rest()


# --- consume -----------------------------------------------------------------------------------------


def test_empty_tag_makes_the_server_choose(channel: ChannelEnds) -> None:
    first, second = channel.call(methods.BasicConsume("q")), channel.call(methods.BasicConsume("q"))
    assert isinstance(first, methods.BasicConsumeOk)
    assert isinstance(second, methods.BasicConsumeOk)
    assert first.consumer_tag.startswith("amq.ctag-")
    assert first.consumer_tag != second.consumer_tag


def test_tag_in_use_closes_the_connection(channel: ChannelEnds) -> None:
    channel.consume("q", "T")
    assert channel.fatal(methods.BasicConsume("q", "T")) == (530, "attempt to reuse consumer tag 'T'")


def test_tag_is_free_on_other_channels_and_after_cancel(channel: ChannelEnds) -> None:
    second = channel.connection.channel(2)
    assert second.consume("q", "T") == channel.consume("q", "T") == []
    channel.call(methods.BasicCancel("T"))
    assert channel.consume("q", "T") == []


def test_missing_queue_is_not_found(channel: ChannelEnds) -> None:
    assert channel.refused(methods.BasicConsume("x", "c")) == (404, "no queue 'x' in vhost '/'")


def test_no_local_is_ignored(channel: ChannelEnds) -> None:
    channel.consume("q", no_local=True)
    assert bodies(channel.publish("q", b"x")) == [b"x"]


def test_consume_without_answer(channel: ChannelEnds) -> None:
    fill(channel, 1)
    assert kinds(channel.say(methods.BasicConsume("q", "c", no_wait=True))) == ["BasicDeliver"]


def test_exclusive_consumer_is_alone(channel: ChannelEnds) -> None:
    """The second consumer gets 403, whichever is exclusive; cancel frees the queue."""
    other = channel.world.channel()
    text = (403, "queue 'q' in vhost '/' in exclusive use")
    channel.consume("q", "x", exclusive=True)
    assert other.refused(methods.BasicConsume("q", "c")) == text
    assert other.refused(methods.BasicConsume("q", "c", exclusive=True)) == text
    channel.call(methods.BasicCancel("x"))
    other.consume("q", "c")
    assert channel.refused(methods.BasicConsume("q", "x", exclusive=True)) == text


def test_exclusive_consumer_does_not_hinder_get(channel: ChannelEnds) -> None:
    channel.consume("q", "x", exclusive=True)
    assert channel.world.channel().call(methods.BasicGet("q")) == methods.BasicGetEmpty()


CLASSIC_TAKES = "consumers of a queue of type classic may give x-cancel-on-ha-failover, x-priority only"


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "consume_invalid_arg_1",
    "consume_invalid_arg_2",
    "consume_invalid_consumer_timeout_negative",
    "consume_invalid_consumer_timeout_wrong_type",
)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x-stream-offset": 1}, CLASSIC_TAKES),
        ({"x-consumer-timeout": 1}, CLASSIC_TAKES),
        ({"x-priority": "high"}, "must be an integer, not longstr"),
        ({"x-priority": True}, "must be an integer, not bool"),
        ({"x-cancel-on-ha-failover": 1}, "must be true or false, not signedint"),
    ],
)
def test_arguments_of_consume(channel: ChannelEnds, arguments: dict[str, Any], problem: str) -> None:
    (name,) = arguments
    text = f"invalid arg '{name}' for queue 'q' in vhost '/': {problem}"
    assert channel.refused(methods.BasicConsume("q", "c", arguments=arguments)) == (406, text)


def test_good_arguments_of_consume(channel: ChannelEnds) -> None:
    """x-priority is an integer; arguments without x- are the client's own, and select nothing."""
    fill(channel, 1)
    assert bodies(channel.consume("q", arguments={"x-priority": -3, "selector": "colour = 'red'"})) == [b"1"]


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "basic_get", "purge", "consume_with_autoack")
@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (methods.BasicGet("s"), "basic.get not supported by stream queues queue 's' in vhost '/'"),
        (methods.QueuePurge("s"), "purge not supported by queue 's' in vhost '/'"),
        (
            methods.BasicConsume("s", no_ack=True),
            "automatic acknowledgement not supported by stream 's' in vhost '/'",
        ),
    ],
)
def test_what_streams_do_not_support_closes_the_connection(
    channel: ChannelEnds, method: methods.Method, problem: str
) -> None:
    channel.call(STREAM)
    channel.call(methods.BasicQos(prefetch_count=1))
    assert channel.fatal(method) == (540, problem)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_without_qos")
def test_a_consumer_of_a_stream_needs_a_prefetch(channel: ChannelEnds) -> None:
    channel.call(STREAM)
    problem = "consumer prefetch count is not set for stream 's' in vhost '/'"
    assert channel.refused(methods.BasicConsume("s")) == (406, problem)


@pytest.mark.rabbitmq("per_node_limit_SUITE", "channel_consumers_limit")
def test_limit_of_consumers_per_channel() -> None:
    channel = Harness(Config(consumer_max_per_channel=1)).channel()
    channel.call(Q)
    channel.consume("q", "a")
    assert channel.fatal(methods.BasicConsume("q", "b")) == (
        530,
        "reached maximum (1) of consumers per channel",
    )


def test_delivery_has_tag_exchange_and_key(channel: ChannelEnds) -> None:
    """Delivery tags count from 1 per channel, over its consumers and basic.get."""
    channel.call(methods.QueueDeclare("r", durable=True))
    fill(channel, 1, 2)
    (got,) = channel.say(methods.BasicGet("q"))
    assert got.method == methods.BasicGetOk(1, False, "", "q", 1)  # type: ignore[union-attr]
    (first,) = contents(channel.consume("q", "c"))
    assert first.method == methods.BasicDeliver("c", 2, False, "", "q")
    channel.consume("r", "d", no_ack=True)
    (second,) = contents(channel.publish("r", b"3"))
    assert second.method == methods.BasicDeliver("d", 3, False, "", "r")


@pytest.mark.rabbitmq("queue_parallel_SUITE", "subscribe", "subscribe_consumers")
def test_consumers_take_turns(channel: ChannelEnds) -> None:
    """Equal consumers with a small prefetch get one message a turn, round robin."""
    others = [channel.world.channel() for _ in range(3)]
    for each in others:
        each.say(methods.BasicQos(prefetch_count=2))
        each.consume("q")
    fill(channel, 1, 2, 3, 4, 5, 6, 7)
    assert [bodies(each.take()) for each in others] == [[b"1", b"4"], [b"2", b"5"], [b"3", b"6"]]
    assert channel.world.counts("q") == (1, 6)


def test_a_burst_goes_in_turn_to_consumers_without_prefetch(channel: ChannelEnds) -> None:
    """The order is round robin, also where one of three has a prefetch of ten (seed 001)."""
    others = [channel.world.channel() for _ in range(3)]
    others[2].say(methods.BasicQos(prefetch_count=10))
    for each in others:
        each.consume("q")
    fill(channel, *range(12))
    turns = [[int(body) for body in bodies(each.take())] for each in others]
    assert turns == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.rabbitmq("queue_parallel_SUITE", "subscribe_with_autoack")
def test_no_ack_deliveries_need_no_ack(channel: ChannelEnds) -> None:
    """They are gone when they are written; acknowledging one is an error."""
    fill(channel, 1, 2)
    channel.consume("q", no_ack=True)
    assert channel.world.counts("q") == (0, 0)
    assert channel.refused(methods.BasicAck(1)) == (406, "unknown delivery tag 1")


# --- cancel ------------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("queue_parallel_SUITE", "basic_cancel")
def test_cancel_stops_deliveries_and_keeps_what_is_unacked(channel: ChannelEnds) -> None:
    """cancel-ok follows the last delivery; unacked ones can still be acknowledged."""
    fill(channel, 1, 2)
    channel.consume("q")
    assert channel.call(methods.BasicCancel("c")) == methods.BasicCancelOk("c")
    fill(channel, 3)
    assert channel.take() == []
    assert channel.world.counts("q") == (1, 2)
    assert channel.say(methods.BasicAck(1), methods.BasicNack(2, False, True)) == []
    assert channel.world.counts("q") == (2, 0)


def test_cancel_of_an_unknown_tag_is_ok(channel: ChannelEnds) -> None:
    assert channel.call(methods.BasicCancel("nobody")) == methods.BasicCancelOk("nobody")


def test_cancel_without_answer(channel: ChannelEnds) -> None:
    channel.consume("q")
    assert channel.say(methods.BasicCancel("c", True)) == []
    assert channel.call(methods.QueueDeclare("q", passive=True)) == methods.QueueDeclareOk("q", 0, 0)


def test_cancel_gives_back_what_was_not_written(channel: ChannelEnds) -> None:
    """Unwritten deliveries return to their places and are not marked redelivered."""
    channel.budget_bytes = 0
    fill(channel, 1, 2, 3)
    assert channel.consume("q") == []
    assert channel.service.consuming.has_unsent
    channel.budget_bytes = 65_536
    channel.send(methods.BasicCancel("c"))
    channel.connection.pass_on()
    channel.take_letters()
    channel.wake()
    channel.world.rest()
    assert channel.take() == [methods.BasicCancelOk("c")]
    got = channel.world.channel().consume("q")
    assert bodies(got) == [b"1", b"2", b"3"]
    assert redelivered(got) == [False] * 3


def test_deleted_queue_cancels_its_consumers(channel: ChannelEnds) -> None:
    """Clients with consumer_cancel_notify get basic.cancel with no-wait."""
    other = channel.world.channel()
    channel.consume("q", "a")
    channel.consume("q", "b")
    assert other.call(methods.QueueDelete("q")) == methods.QueueDeleteOk(0)
    channel.world.rest()
    assert sorted(channel.take(), key=str) == [methods.BasicCancel("a", True), methods.BasicCancel("b", True)]
    assert channel.call(methods.BasicCancel("a")) == methods.BasicCancelOk("a")


def test_deleted_queue_is_silent_for_clients_without_the_capability() -> None:
    world = Harness()
    channel, other = world.channel(capabilities=()), world.channel()
    channel.call(Q)
    channel.consume("q")
    other.call(methods.QueueDelete("q"))
    world.rest()
    assert channel.take() == []


def test_cancelled_consumer_hears_nothing_of_its_queue_s_end(channel: ChannelEnds) -> None:
    """It still holds deliveries, and a consumer of another queue uses its tag."""
    fill(channel, 1)
    channel.consume("q", "c")
    channel.call(methods.BasicCancel("c"))
    channel.call(methods.QueueDeclare("r", durable=True))
    channel.consume("r", "c")
    assert channel.world.channel().call(methods.QueueDelete("q")) == methods.QueueDeleteOk(0)
    channel.world.rest()
    assert channel.take() == []
    assert bodies(channel.publish("r", b"x")) == [b"x"]


@pytest.mark.rabbitmq("queue_type_SUITE", "ack_after_queue_delete")
def test_acks_after_the_queue_was_deleted_are_no_error(channel: ChannelEnds) -> None:
    """Every tag that was handed out may be acknowledged once."""
    fill(channel, 1, 2)
    channel.consume("q")
    channel.world.channel().call(methods.QueueDelete("q"))
    channel.world.rest()
    assert kinds(channel.take()) == ["BasicCancel"]
    assert channel.say(methods.BasicAck(1), methods.BasicNack(2, False, True)) == []
    assert channel.refused(methods.BasicAck(2)) == (406, "unknown delivery tag 2")


def test_cancel_ok_of_the_client_is_ignored(channel: ChannelEnds) -> None:
    """Some clients answer the server's basic.cancel although it needs no answer."""
    assert channel.say(methods.BasicCancelOk("c")) == []


# --- get ---------------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_first_empty", "consume_from_empty_queue")
@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume")
def test_get_gives_one_message_and_how_many_are_left(channel: ChannelEnds) -> None:
    fill(channel, 1, 2)
    got = channel.say(methods.BasicGet("q"), methods.BasicGet("q"), methods.BasicGet("q"))
    assert [each.method for each in contents(got, methods.BasicGetOk)] == [
        methods.BasicGetOk(1, False, "", "q", 1),
        methods.BasicGetOk(2, False, "", "q", 0),
    ]
    assert got[2] == methods.BasicGetEmpty()
    assert channel.world.counts("q") == (0, 2)
    channel.say(methods.BasicAck(2, True))
    assert channel.world.counts("q") == (0, 0)


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_and_autoack")
def test_get_with_no_ack(channel: ChannelEnds) -> None:
    fill(channel, 1, 2)
    channel.say(methods.BasicGet("q", True))
    assert channel.world.counts("q") == (1, 0)
    (got,) = contents(channel.say(methods.BasicGet("q")), methods.BasicGetOk)
    assert got.method.delivery_tag == 2
    assert channel.refused(methods.BasicAck(1)) == (406, "unknown delivery tag 1")


def test_get_of_a_requeued_message_is_redelivered(channel: ChannelEnds) -> None:
    fill(channel, 1)
    for turn in range(3):
        (got,) = contents(channel.say(methods.BasicGet("q")), methods.BasicGetOk)
        assert got.method.redelivered == bool(turn)
        assert got.method.delivery_tag == turn + 1
        assert channel.say(methods.BasicNack(turn + 1, False, True)) == []


def test_get_on_a_missing_queue(channel: ChannelEnds) -> None:
    assert channel.refused(methods.BasicGet("x")) == (404, "no queue 'x' in vhost '/'")


def test_get_that_meets_a_deleted_queue(channel: ChannelEnds) -> None:
    other = channel.world.channel()
    box = channel.world.box("q")
    channel.say(methods.BasicGet("q"))
    for _ in range(2):
        box.stalled = True
        other.send(methods.QueueDelete("q", if_empty=True))  # the queue decides, and is there until it has
        channel.world.rest()
        channel.send(methods.BasicGet("q"))
        channel.world.rest()
        box.stalled = False
        channel.world.rest()
        assert channel.take() == [methods.BasicGetEmpty()]
        other.take()
        other.call(Q)
        box = channel.world.box("q")


def test_get_and_a_consumer_on_one_channel(channel: ChannelEnds) -> None:
    channel.say(methods.BasicQos(prefetch_count=1))
    channel.consume("q")
    fill(channel, 1, 2)
    assert bodies(channel.take()) == [b"1"]
    (got,) = contents(channel.say(methods.BasicGet("q")), methods.BasicGetOk)
    assert got.body == b"2"


# --- prefetch ----------------------------------------------------------------------------------------


def test_prefetch_size_is_not_implemented(channel: ChannelEnds) -> None:
    assert channel.fatal(methods.BasicQos(prefetch_size=3)) == (540, "prefetch_size!=0 (3)")


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_consumer_has_at_most_prefetch_unacked(channel: ChannelEnds, prefetch: int) -> None:
    """An ack makes room for as many as it acknowledges."""
    fill(channel, *range(10))
    assert channel.call(methods.BasicQos(prefetch_count=prefetch)) == methods.BasicQosOk()
    assert len(bodies(channel.consume("q"))) == prefetch
    assert tags(channel.say(methods.BasicAck(prefetch, True))) == list(range(prefetch + 1, 2 * prefetch + 1))
    assert len(bodies(channel.say(methods.BasicAck(prefetch + 1)))) == min(1, 10 - 2 * prefetch)


def test_prefetch_0_is_no_limit(channel: ChannelEnds) -> None:
    fill(channel, *range(1000))
    assert len(bodies(channel.consume("q"))) == 1000


def test_prefetch_is_for_new_consumers(channel: ChannelEnds) -> None:
    channel.call(methods.QueueDeclare("r", durable=True))
    channel.say(methods.BasicQos(prefetch_count=1))
    channel.consume("q", "a")
    channel.say(methods.BasicQos(prefetch_count=3))
    channel.consume("r", "b")
    fill(channel, *range(5))
    fill(channel, *range(5), queue="r")
    assert channel.world.counts("q") == (4, 1)
    assert channel.world.counts("r") == (2, 3)


def test_prefetch_does_not_apply_to_no_ack(channel: ChannelEnds) -> None:
    fill(channel, *range(10))
    channel.say(methods.BasicQos(prefetch_count=1))
    assert len(bodies(channel.consume("q", no_ack=True))) == 10


def test_prefetch_counts_each_consumer_apart(channel: ChannelEnds) -> None:
    channel.say(methods.BasicQos(prefetch_count=2))
    channel.consume("q", "a")
    channel.consume("q", "b")
    fill(channel, *range(10))
    assert channel.world.counts("q") == (6, 4)


@pytest.mark.rabbitmq("rabbitmq_4_0_deprecations_SUITE", "when_global_qos_is_permitted_from_conf")
def test_global_prefetch_is_of_the_channel(channel: ChannelEnds) -> None:
    """It counts all consumers together; basic.get counts too, but is not limited."""
    channel.say(methods.BasicQos(prefetch_count=3, global_=True))
    channel.consume("q", "a")
    channel.consume("q", "b")
    fill(channel, *range(10))
    assert channel.world.counts("q") == (7, 3)
    assert tags(channel.take()) == [1, 2, 3]
    assert kinds(channel.say(methods.BasicGet("q"))) == ["BasicGetOk"]
    assert channel.say(methods.BasicAck(1)) == []
    assert len(bodies(channel.say(methods.BasicAck(4)))) == 1
    assert channel.world.counts("q") == (5, 3)


def test_both_limits_hold(channel: ChannelEnds) -> None:
    channel.say(methods.BasicQos(prefetch_count=3, global_=True), methods.BasicQos(prefetch_count=2))
    channel.consume("q", "a")
    fill(channel, *range(10))
    assert channel.world.counts("q") == (8, 2)
    channel.take()
    channel.consume("q", "b")
    assert channel.world.counts("q") == (7, 3)


def test_global_prefetch_may_change_while_deliveries_are_out(channel: ChannelEnds) -> None:
    """A lower limit stops deliveries until it is met; a higher one or 0 allows more at once."""
    fill(channel, *range(20))
    channel.say(methods.BasicQos(prefetch_count=4, global_=True))
    assert len(bodies(channel.consume("q"))) == 4
    channel.say(methods.BasicQos(prefetch_count=2, global_=True))
    assert channel.say(methods.BasicAck(2, True)) == []
    assert len(bodies(channel.say(methods.BasicAck(3)))) == 1
    got = channel.say(methods.BasicQos(prefetch_count=5, global_=True))
    assert got[0] == methods.BasicQosOk()
    assert len(bodies(got)) == 3
    assert len(bodies(channel.say(methods.BasicQos(prefetch_count=0, global_=True)))) == 12


def test_global_prefetch_does_not_apply_to_no_ack(channel: ChannelEnds) -> None:
    """A consumer without acknowledgements neither counts nor is stopped."""
    channel.call(methods.QueueDeclare("r", durable=True))
    channel.say(methods.BasicQos(prefetch_count=1, global_=True))
    fill(channel, 1, 2)
    fill(channel, *range(10), queue="r")
    assert len(bodies(channel.consume("q", "a"))) == 1
    assert len(bodies(channel.consume("r", "b", no_ack=True))) == 10


@pytest.mark.rabbitmq("rabbitmq_4_0_deprecations_SUITE", "when_global_qos_is_not_permitted")
def test_global_prefetch_may_be_forbidden() -> None:
    """A forbidden global limit applies to each consumer."""
    channel = Harness(Config(permit_global_qos=False)).channel()
    channel.call(Q)
    channel.say(methods.BasicQos(prefetch_count=1, global_=True))
    channel.consume("q", "a")
    channel.consume("q", "b")
    fill(channel, 1, 2, 3)
    assert channel.world.counts("q") == (1, 2)


def test_given_back_by_a_global_limit_is_not_redelivered(channel: ChannelEnds) -> None:
    """Deliveries that the limit held back go to others in order, not marked redelivered."""
    other = channel.world.channel()
    channel.say(methods.BasicQos(prefetch_count=2, global_=True))
    channel.consume("q", "a")
    channel.consume("q", "b")
    fill(channel, *range(8))
    got = other.consume("q")
    assert sorted(bodies(channel.take()) + bodies(got)) == [b"%d" % number for number in range(8)]
    assert bodies(got) == sorted(bodies(got))
    assert not any(redelivered(got))


def test_a_client_that_does_not_read_leaves_messages_in_the_queue(channel: ChannelEnds) -> None:
    """A consumer has at most 200 unsent deliveries, whatever its prefetch."""
    fill(channel, *range(1000))
    channel.budget_bytes = 0
    assert channel.consume("q") == []
    assert channel.world.counts("q") == (800, 200)
    assert channel.service.consuming.consumers["c"].unsent == 200
    channel.budget_bytes = 65_536
    channel.wake()
    channel.world.rest()
    assert bodies(channel.take()) == [b"%d" % number for number in range(1000)]


def test_unsent_deliveries_return_unmarked_when_the_channel_closes(channel: ChannelEnds) -> None:
    """It holds for no-ack too: an unwritten message was not delivered."""
    for no_ack in (False, True):
        each = channel.world.channel()
        fill(channel, 1, 2, 3)
        each.budget_bytes = 0
        each.consume("q", no_ack=no_ack)
        assert kinds(each.say(methods.ChannelClose(200))) == ["ChannelCloseOk"]
        got = channel.consume("q", no_ack=True)
        assert bodies(got) == [b"1", b"2", b"3"]
        assert redelivered(got) == [False] * 3
        channel.call(methods.BasicCancel("c"))
