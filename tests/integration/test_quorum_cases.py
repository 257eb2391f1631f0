"""RabbitMQ's quorum_queue_SUITE case by case, as far as one node can show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker, NackError

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.pika_client import (
    Connect,
    Delivered,
    Inbox,
    Properties,
    get,
    get_all,
    parameters,
    put,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def declare(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    """A quorum queue; arguments without x-, underscores for dashes."""
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **given})


def ready(channel: BlockingChannel, queue: str) -> int:
    """Messages that are ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def await_ready(channel: BlockingChannel, queue: str, count: int) -> None:
    """Wait for so many."""
    until(channel, lambda: ready(channel, queue) == count, f"{count} messages in {queue}")


def a_millisecond_goes_by(channel: BlockingChannel, queue: str) -> None:
    """Wait until what was published before to live for 1 ms has lived so long, by the broker's clock.

    Three round trips may be over sooner on a fast machine. A message that is published now with the same time
    to live, to a queue by itself, is gone no sooner than those.
    """
    witness = f"{queue}-witness"
    channel.queue_declare(witness, exclusive=True)
    put(channel, witness, "w", properties=Properties(expiration="1"))
    await_ready(channel, witness, 0)
    channel.queue_delete(witness)


def counts(delivered: Delivered) -> tuple[bool, Any, Any]:
    """Redelivered, x-acquired-count and x-delivery-count."""
    headers = delivered.properties.headers or {}
    return delivered.method.redelivered, headers.get("x-acquired-count"), headers.get("x-delivery-count")


# --- declaring and deleting ---------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "declare_args", "long_name")
def test_each_argument_is_taken(channel: BlockingChannel, queue: str) -> None:
    """declare_args: and the same declaration again is the same queue; a long name is one (long_name)."""
    arguments = {
        "max_length": 2000,
        "max_length_bytes": 2000,
        "expires": 3_600_000,
        "message_ttl": 3_600_000,
        "delivery_limit": 7,
        "dead_letter_exchange": "amq.fanout",
        "dead_letter_routing_key": "key",
        "dead_letter_strategy": "at-least-once",
        "overflow": "reject-publish",
        "single_active_consumer": True,
        "quorum_initial_group_size": 1,
        "queue_leader_locator": "balanced",
        "consumer_timeout": 60_000,
    }
    name = queue + "n" * (255 - len(queue))
    declare(channel, name, **arguments)
    declare(channel, name, **arguments)
    with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'x-delivery-limit'"):
        declare(channel, name, **arguments | {"delivery_limit": 8})


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "declare_invalid_arg_1",
    "declare_invalid_arg_3",
    "declare_invalid_consumer_disconnected_timeout",
    "declare_invalid_consumer_timeout",
)
@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("queue_mode", "lazy", "invalid arg 'x-queue-mode'"),
        ("max_length", -5, "invalid arg 'x-max-length'"),
        ("consumer_timeout", -1, "invalid arg 'x-consumer-timeout'"),
        ("consumer_disconnected_timeout", "long", "x-consumer-disconnected-timeout"),
        ("max_priority", 5, "invalid arg 'x-max-priority'"),
    ],
)
def test_an_argument_that_it_cannot_have(
    channel: BlockingChannel, queue: str, argument: str, value: Any, words: str
) -> None:
    """declare_invalid_arg_1, declare_invalid_arg_3, declare_invalid_consumer_timeout,
    declare_invalid_consumer_disconnected_timeout: 406 with its name."""
    with pytest.raises(ChannelClosedByBroker, match=words) as caught:
        declare(channel, queue, **{argument: value})
    assert caught.value.reply_code == 406


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "consume_invalid_arg_1",
    "consume_invalid_arg_2",
    "consume_invalid_consumer_timeout_negative",
    "consume_invalid_consumer_timeout_wrong_type",
)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-stream-offset", 0),
        ("x-priority", "high"),
        ("x-consumer-timeout", -1),
        ("x-consumer-timeout", "long"),
    ],
)
def test_an_argument_that_its_consumers_cannot_have(
    channel: BlockingChannel, queue: str, argument: str, value: Any
) -> None:
    """consume_invalid_arg_1, consume_invalid_arg_2, consume_invalid_consumer_timeout_negative and
    _wrong_type: 406."""
    declare(channel, queue)
    with pytest.raises(ChannelClosedByBroker, match=argument) as caught:
        channel.basic_consume(queue, lambda *_: None, arguments={argument: value})
    assert caught.value.reply_code == 406


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "vhost_with_default_queue_type_declares_quorum_queue",
    "vhost_with_quorum_queue_is_deleted",
)
def test_all_kinds_by_default_type_of_their_virtual_host(
    broker: BrokerProcess, connect: Connect, queue: str
) -> None:
    """vhost_with_default_queue_type_declares_quorum_queue, vhost_with_quorum_queue_is_deleted."""
    run = CommandLine(broker)
    run("add-vhost", queue, "--default-queue-type", "quorum")
    try:
        run("set-permissions", "guest", ".*", ".*", ".*", "--vhost", queue)
        channel = connect(virtual_host=queue).channel()
        channel.queue_declare("q", durable=True)
        (row,) = run.json("list-queues", "name", "type", "--vhost", queue)
        assert row["type"] == "quorum"
        put(channel, "q", "1")
        await_ready(channel, "q", 1)
    finally:
        run("delete-vhost", queue)
    with pytest.raises(ConnectionClosedByBroker):
        until(channel, lambda: channel.connection.is_closed, "the end of the connection")


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delete_immediately_by_resource", "start_queue", "stop_queue")
def test_a_deleted_queue_is_another_when_it_is_declared_again(channel: BlockingChannel, queue: str) -> None:
    """delete_immediately_by_resource, start_queue, stop_queue: no message of the first is in the second."""
    declare(channel, queue)
    put(channel, queue, "1")
    await_ready(channel, queue, 1)
    assert channel.queue_delete(queue).method.message_count == 1
    declare(channel, queue)
    assert ready(channel, queue) == 0
    put(channel, queue, "2")
    await_ready(channel, queue, 1)
    assert get_all(channel, queue) == ["2"]


# --- publishing and consuming -------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "amqpl_headers", "subscribe_from_each", "validate_messages_on_queue"
)
def test_confirmed_messages_come_in_order_to_whoever_consumes(connect: Connect, queue: str) -> None:
    """subscribe_from_each, validate_messages_on_queue, amqpl_headers."""
    publisher = connect().channel()
    declare(publisher, queue)
    publisher.confirm_delivery()
    for number in range(20):
        put(publisher, queue, str(number), properties=Properties(headers={"n": number, "t": {"x": [1, "a"]}}))
    for first in (0, 10):
        channel = connect().channel()
        channel.basic_qos(prefetch_count=10)
        inbox = Inbox(channel, queue)
        taken = inbox.take(10)
        assert [each.text for each in taken] == [str(number) for number in range(first, first + 10)]
        headers = taken[0].properties.headers
        assert headers is not None
        assert (headers["n"], headers["t"]) == (first, {"x": [1, "a"]})
        channel.basic_ack(taken[-1].tag, multiple=True)
        channel.close()
    await_ready(publisher, queue, 0)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "cancel_and_consume_with_same_tag",
    "cancel_consumer_gh_12424",
    "cancel_consumer_gh_3729",
)
def test_a_tag_may_be_used_again(channel: BlockingChannel, queue: str) -> None:
    """cancel_and_consume_with_same_tag, cancel_consumer_gh_3729, cancel_consumer_gh_12424: the second
    consumer of a tag gets messages; what the first held stays held, and may be acknowledged."""
    declare(channel, queue)
    put(channel, queue, "1")
    first = Inbox(channel, queue, consumer_tag="tag")
    (held,) = first.take()
    channel.basic_cancel("tag")
    second = Inbox(channel, queue, consumer_tag="tag")
    put(channel, queue, "2")
    assert [each.text for each in second.take()] == ["2"]
    channel.basic_nack(held.tag, requeue=True)
    assert [each.text for each in second.take()] == ["1"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_metrics", "queue_declare_passive_consumer_count")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "query_consumers_test", "query_consumers_when_single_active_consumer_is_on_test"
)
def test_consumers_are_counted(channel: BlockingChannel, broker: BrokerProcess, queue: str) -> None:
    """queue_declare_passive_consumer_count, consumer_metrics: with and without."""
    declare(channel, queue)

    def consumers() -> int:
        return int(channel.queue_declare(queue, passive=True).method.consumer_count)

    assert consumers() == 0
    inbox = Inbox(channel, queue)
    assert consumers() == 1
    rows = CommandLine(broker).json("list-consumers")
    assert [each for each in rows if inbox.tag in str(each)]
    channel.basic_cancel(inbox.tag)
    assert consumers() == 0


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_priorities")
def test_the_higher_priority_gets_messages_as_long_as_it_may(channel: BlockingChannel, queue: str) -> None:
    """consumer_priorities."""
    declare(channel, queue)
    channel.basic_qos(prefetch_count=2)
    low = Inbox(channel, queue, arguments={"x-priority": 1})
    high = Inbox(channel, queue, arguments={"x-priority": 5})
    put(channel, queue, "1", "2", "3")
    high.take(2)
    low.take(1)
    assert (high.texts, low.texts) == (["1", "2"], ["3"])


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_one_channel_quorum_queue")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "requeue_multiple_true")
def test_one_nack_of_several_keeps_their_order(channel: BlockingChannel, queue: str) -> None:
    """requeue_multiple_true: before what nobody had."""
    declare(channel, queue, delivery_limit=5)
    put(channel, queue, *"12345")
    await_ready(channel, queue, 5)
    tags = [get(channel, queue).tag for _ in range(4)]
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    await_ready(channel, queue, 5)
    assert get_all(channel, queue) == [*"12345"]


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_two_channels_quorum_queue")
def test_the_other_channel_gets_what_a_closed_one_held(
    channel: BlockingChannel, connect: Connect, queue: str
) -> None:
    """requeue_two_channels_quorum_queue: turns; what the closed channel held comes in order."""
    declare(channel, queue)
    other = connect().channel()
    for each in (other, channel):  # without, three that come at once and one behind them are not two for each
        each.basic_qos(prefetch_count=2)
    first, second = Inbox(other, queue), Inbox(channel, queue)
    put(channel, queue, *"1234")
    done = second.take(2)
    held = [each.text for each in first.take(2)]
    channel.basic_ack(done[-1].tag, multiple=True)
    other.close()
    assert [each.text for each in second.take(2)] == held == sorted(held)
    assert [each.method.redelivered for each in second.messages] == [False, False, True, True]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "requeue_multiple_false")
def test_single_nacks_come_back_in_their_order(channel: BlockingChannel, queue: str) -> None:
    """requeue_multiple_false: returns are served first, in the order of return."""
    declare(channel, queue, delivery_limit=5)
    put(channel, queue, *"1234")
    await_ready(channel, queue, 4)
    tags = [get(channel, queue).tag for _ in range(3)]
    for number in (2, 0, 1):
        channel.basic_nack(tags[number], requeue=True)
    await_ready(channel, queue, 4)
    assert get_all(channel, queue) == [*"3124"]


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "priority_queue_2_1_ratio",
    differs="two levels, two high messages before each normal one, as in 4.0 to 4.2",
)
@pytest.mark.rabbitmq("quorum_queue_SUITE", "priority_queue_fifo", note="in each level")
def test_two_high_ones_go_before_each_normal_one(channel: BlockingChannel, queue: str) -> None:
    """priority_queue_2_1_ratio, priority_queue_fifo: in each of the two levels first in, first out."""
    declare(channel, queue)
    for text, priority in (*((f"n{n}", n) for n in range(5)), *((f"h{n}", 5 + n) for n in range(4))):
        put(channel, queue, text, properties=Properties(priority=priority))
    await_ready(channel, queue, 9)
    texts = get_all(channel, queue)
    assert [text for text in texts if text[0] == "n"] == ["n0", "n1", "n2", "n3", "n4"]
    assert [text for text in texts if text[0] == "h"] == ["h0", "h1", "h2", "h3"]
    assert sorted(texts[:3]) == ["h0", "h1", "n0"]
    assert sorted(texts[3:6]) == ["h2", "h3", "n1"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "purge")
def test_a_purge_leaves_what_is_held(channel: BlockingChannel, queue: str) -> None:
    """purge: ready ones go; what a consumer holds can still come back."""
    declare(channel, queue)
    put(channel, queue, "1", "2", "3")
    await_ready(channel, queue, 3)
    held = get(channel, queue)
    assert channel.queue_purge(queue).method.message_count == 2
    channel.basic_nack(held.tag, requeue=True)
    await_ready(channel, queue, 1)
    assert get_all(channel, queue) == ["1"]


# --- redelivery ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "consume_redelivery_count")
def test_a_redelivery_says_how_often(channel: BlockingChannel, queue: str) -> None:
    """consume_redelivery_count: basic.nack counts as acquired, basic.reject as a failed attempt too."""
    declare(channel, queue)
    put(channel, queue, "1")
    await_ready(channel, queue, 1)
    seen = []
    for give_back in (channel.basic_nack, channel.basic_reject, channel.basic_reject):
        delivered = get(channel, queue)
        seen.append(counts(delivered))
        give_back(delivered.tag, requeue=True)
        await_ready(channel, queue, 1)
    seen.append(counts(get(channel, queue)))
    assert seen[0][0] is False
    assert seen[0][1:] == (None, None)
    assert [each[0] for each in seen[1:]] == [True] * 3
    assert [each[1] for each in seen[1:]] == [1, 2, 3]
    assert [each[2] or 0 for each in seen[1:]] == [0, 1, 2]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_count")
def test_a_consumer_sees_how_often_too(channel: BlockingChannel, queue: str) -> None:
    """subscribe_redelivery_count: with basic.consume."""
    declare(channel, queue)
    inbox = Inbox(channel, queue)
    put(channel, queue, "1")
    for attempt in range(3):
        (delivered,) = inbox.take()
        assert (counts(delivered)[2] or 0) == attempt
        channel.basic_reject(delivered.tag, requeue=True)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "subscribe_redelivery_limit",
    "subscribe_redelivery_limit_many",
    "subscribe_redelivery_policy",
)
@pytest.mark.parametrize("by", ["argument", "policy"])
def test_a_message_is_dropped_beyond_the_limit(
    channel: BlockingChannel, broker: BrokerProcess, queue: str, by: str
) -> None:
    """subscribe_redelivery_limit, subscribe_redelivery_limit_many, subscribe_redelivery_policy: the attempt
    beyond the limit is the last."""
    run = CommandLine(broker)
    declare(channel, queue, **({"delivery_limit": 2} if by == "argument" else {}))
    if by == "policy":
        run("set-policy", queue, f"^{queue}$", '{"delivery-limit": 2}')
    try:
        inbox = Inbox(channel, queue)
        put(channel, queue, "1", "2", "3")
        for _ in range(9):
            channel.basic_reject(inbox.take()[0].tag, requeue=True)
        put(channel, queue, "end")
        assert inbox.take()[0].text == "end"
        assert sorted(inbox.texts[:-1]) == [*"111222333"]
    finally:
        run.done("clear-policy", queue)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_limit_disable")
def test_without_a_limit_it_comes_back_for_ever(channel: BlockingChannel, queue: str) -> None:
    """subscribe_redelivery_limit_disable: -1, and to the tail."""
    declare(channel, queue, delivery_limit=-1)
    inbox = Inbox(channel, queue)
    put(channel, queue, "1")
    for _ in range(30):
        channel.basic_reject(inbox.take()[0].tag, requeue=True)
    assert inbox.take()[0].text == "1"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delivery_limit_policy_update")
def test_a_limit_that_is_changed_counts_from_then_on(
    channel: BlockingChannel, broker: BrokerProcess, queue: str
) -> None:
    """delivery_limit_policy_update."""
    run = CommandLine(broker)
    declare(channel, queue)
    run("set-policy", queue, f"^{queue}$", '{"delivery-limit": 10}')
    try:
        inbox = Inbox(channel, queue)
        put(channel, queue, "1")
        for _ in range(4):
            channel.basic_reject(inbox.take()[0].tag, requeue=True)
        (last,) = inbox.take()
        run("set-policy", queue, f"^{queue}$", '{"delivery-limit": 2}')
        channel.basic_reject(last.tag, requeue=True)
        put(channel, queue, "end")
        assert inbox.take()[0].text == "end"
    finally:
        run.done("clear-policy", queue)


# --- dead letters -------------------------------------------------------------------------------------


def order_of_the_dead(channel: BlockingChannel, queue: str, texts: str) -> None:
    """The dead letters of a queue are these."""
    dead = f"{queue}-dead"
    await_ready(channel, dead, len(texts))
    assert get_all(channel, dead) == [*texts]


def declare_with_the_dead(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    """A quorum queue, and a classic one for its dead letters."""
    channel.queue_declare(f"{queue}-dead", durable=True)
    declare(channel, queue, dead_letter_exchange="", dead_letter_routing_key=f"{queue}-dead", **arguments)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_limit_with_dead_letter")
def test_beyond_the_limit_it_is_dead_lettered(channel: BlockingChannel, queue: str) -> None:
    """subscribe_redelivery_limit_with_dead_letter: reason delivery_limit."""
    declare_with_the_dead(channel, queue, delivery_limit=1)
    inbox = Inbox(channel, queue)
    put(channel, queue, "1")
    for _ in range(2):
        channel.basic_reject(inbox.take()[0].tag, requeue=True)
    await_ready(channel, f"{queue}-dead", 1)
    dead = get(channel, f"{queue}-dead")
    assert dead.properties.headers is not None
    assert dead.properties.headers["x-first-death-reason"] == "delivery_limit"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "at_most_once_dead_letter_order_delivery_limit_channel_closed")
def test_dead_letters_of_a_closed_channel_keep_their_order(
    channel: BlockingChannel, connect: Connect, queue: str
) -> None:
    """at_most_once_dead_letter_order_delivery_limit_channel_closed."""
    declare_with_the_dead(channel, queue, delivery_limit=0)
    put(channel, queue, *"123456")
    await_ready(channel, queue, 6)
    other = connect().channel()
    Inbox(other, queue).take(6)
    other.close()
    order_of_the_dead(channel, queue, "123456")


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "at_most_once_dead_letter_order_maxlen", "queue_length_limit_drop_head"
)
def test_dead_letters_of_a_limit_of_length_keep_their_order(channel: BlockingChannel, queue: str) -> None:
    """at_most_once_dead_letter_order_maxlen, queue_length_limit_drop_head."""
    declare_with_the_dead(channel, queue, max_length=2)
    put(channel, queue, *"123456")
    order_of_the_dead(channel, queue, "1234")
    assert get_all(channel, queue) == [*"56"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "at_most_once_dead_letter_order_rejected")
def test_dead_letters_of_one_nack_keep_their_order(channel: BlockingChannel, queue: str) -> None:
    """at_most_once_dead_letter_order_rejected, dead_letter_to_classic_queue."""
    declare_with_the_dead(channel, queue)
    put(channel, queue, *"123456")
    taken = Inbox(channel, queue).take(6)
    channel.basic_nack(taken[-1].tag, multiple=True, requeue=False)
    order_of_the_dead(channel, queue, "123456")


@pytest.mark.rabbitmq("quorum_queue_SUITE", "at_most_once_dead_letter_order_expired", "message_ttl")
def test_dead_letters_of_time_keep_their_order(channel: BlockingChannel, queue: str) -> None:
    """at_most_once_dead_letter_order_expired, message_ttl."""
    declare_with_the_dead(channel, queue, message_ttl=1)
    put(channel, queue, *"123456")
    order_of_the_dead(channel, queue, "123456")


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "delivery_limit", "expired")
def test_at_least_once_dead_letters_of_each_reason(channel: BlockingChannel, queue: str) -> None:
    """rabbit_fifo_dlx_integration_SUITE expired, delivery_limit, rejected: each reason arrives."""
    declare(
        channel,
        queue,
        dead_letter_exchange=f"{queue}-dlx",
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
        delivery_limit=0,
    )
    channel.exchange_declare(f"{queue}-dlx", "fanout", auto_delete=True)
    channel.queue_declare(f"{queue}-dead", durable=True)
    channel.queue_bind(f"{queue}-dead", f"{queue}-dlx")
    put(channel, queue, "expired", properties=Properties(expiration="1"))
    await_ready(channel, f"{queue}-dead", 1)
    inbox = Inbox(channel, queue)
    put(channel, queue, "limit", "rejected")
    for delivered in inbox.take(2):
        channel.basic_reject(delivered.tag, requeue=delivered.text == "limit")
    await_ready(channel, f"{queue}-dead", 3)
    dead = [get(channel, f"{queue}-dead", auto_ack=True) for _ in range(3)]
    reasons = {each.text: (each.properties.headers or {})["x-first-death-reason"] for each in dead}
    assert reasons == {"expired": "expired", "limit": "delivery_limit", "rejected": "rejected"}


# --- limits and time ----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("quorum_queue_SUITE", "queue_length_limit_policy_cleared")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "queue_length_limit_reject_publish",
    differs="exact: RabbitMQ takes at least one more",
)
def test_a_limit_that_goes_makes_room(channel: BlockingChannel, broker: BrokerProcess, queue: str) -> None:
    """queue_length_limit_reject_publish, queue_length_limit_policy_cleared."""
    run = CommandLine(broker)
    declare(channel, queue)
    channel.confirm_delivery()
    run("set-policy", queue, f"^{queue}$", '{"max-length": 1, "overflow": "reject-publish"}')
    try:
        put(channel, queue, "1")
        with pytest.raises(NackError):
            put(channel, queue, "2", "3", "4")
        held = ready(channel, queue)
        run("clear-policy", queue)
        put(channel, queue, *"56789")
        assert ready(channel, queue) == held + 5
    finally:
        run.done("clear-policy", queue)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "per_message_ttl", "per_message_ttl_mixed_expiry")
def test_a_short_time_to_live_waits_behind_a_long_one(channel: BlockingChannel, queue: str) -> None:
    """per_message_ttl, per_message_ttl_mixed_expiry: messages expire at the head only."""
    declare(channel, queue)
    put(channel, queue, "long", properties=Properties(expiration="3600000"))
    put(channel, queue, "short", properties=Properties(expiration="1"))
    put(channel, f"{queue}", "none")
    await_ready(channel, queue, 3)
    a_millisecond_goes_by(channel, queue)
    assert ready(channel, queue) == 3
    assert get(channel, queue, auto_ack=True).text == "long"
    assert get_all(channel, queue) == ["none"]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "per_message_ttl_expiration_too_high")
def test_a_time_to_live_is_at_most_ten_years(channel: BlockingChannel, queue: str) -> None:
    """per_message_ttl_expiration_too_high: 406."""
    declare(channel, queue)
    put(channel, queue, "1", properties=Properties(expiration=str(10 * 366 * 24 * 3600 * 1000)))
    with pytest.raises(ChannelClosedByBroker) as caught:
        ready(channel, queue)
    assert caught.value.reply_code == 406


@pytest.mark.rabbitmq("quorum_queue_SUITE", "queue_ttl")
def test_an_unused_queue_goes(channel: BlockingChannel, broker: BrokerProcess, queue: str) -> None:
    """queue_ttl: its x-expires is over, declaring again does not renew it."""
    declare(channel, queue, expires=50)
    broker.wait_until(lambda: broker.queue(queue) is None, "the queue to go")
    with pytest.raises(ChannelClosedByBroker) as caught:
        ready(channel, queue)
    assert caught.value.reply_code == 404


@pytest.mark.rabbitmq(
    "consumer_timeout_SUITE",
    "consumer_timeout_no_basic_cancel_capability",
    "consumer_timeout_with_basic_cancel_capability",
)
@pytest.mark.rabbitmq("quorum_queue_SUITE", "consumer_timeout")
@pytest.mark.parametrize("capability", [True, False])
def test_a_consumer_that_holds_a_message_too_long(
    broker: BrokerProcess, channel: BlockingChannel, queue: str, capability: bool
) -> None:
    """consumer_timeout: a client that understands it hears that its consumer was cancelled; from another the
    channel is closed (406). The message is there for others."""
    declare(channel, queue, consumer_timeout=50)
    properties = {"capabilities": {"consumer_cancel_notify": capability}}
    connection = BlockingConnection(parameters(broker, client_properties=properties))
    try:
        slow = connection.channel()
        cancelled: list[Any] = []
        slow.add_on_cancel_callback(cancelled.append)
        Inbox(slow, queue)
        # Not before: the time may be over before a client that stands still has read what it asked for, and
        # pika forgets what it has read of a channel that is closed.
        put(channel, queue, "1")
        until(slow, lambda: cancelled or slow.is_closed, "the end of the consumer")
        assert slow.is_closed is not capability
        await_ready(channel, queue, 1)
        again = get(channel, queue, auto_ack=True)  # what is held by a get, too, is held too long
        assert (again.text, again.method.redelivered) == ("1", True)
    finally:
        connection.close()


# --- restarts -----------------------------------------------------------------------------------------


@pytest.fixture
def restarts(tmp_path: Path) -> Iterator[Any]:
    """Start a broker with the test's data folder and connect to it; the one before is stopped or killed."""
    brokers: list[BrokerProcess] = []
    connections: list[BlockingConnection] = []

    def end(*, kill: bool) -> None:
        if kill and brokers:
            brokers[-1].kill()
        for connection in connections:
            with suppress(AMQPError):
                connection.close()
        connections.clear()
        if not kill and brokers:
            brokers[-1].stop()

    def start(*, kill: bool = False) -> BlockingChannel:
        end(kill=kill)
        folder = tmp_path / f"broker{len(brokers)}"
        folder.mkdir()
        brokers.append(BrokerProcess(folder, "--data-dir", str(tmp_path / "data")))
        connections.append(BlockingConnection(parameters(brokers[-1])))
        return connections[-1].channel()

    yield start
    end(kill=True)


@pytest.mark.rabbitmq(
    "quorum_queue_SUITE",
    "idempotent_recover",
    "publish_and_restart",
    "restart_all_types",
    "restart_queue",
    "server_system_recover",
    "stop_start_rabbit_app",
)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_everything_confirmed_is_there_after_a_restart(restarts: Any, queue: str, kill: bool) -> None:
    """publish_and_restart, restart_queue, restart_all_types, stop_start_rabbit_app, idempotent_recover,
    server_system_recover: messages of either delivery mode, in order; counts stay, held ones come back."""
    channel = restarts()
    declare(channel, queue)
    channel.confirm_delivery()
    for mode in (1, 2):
        put(channel, queue, *(f"{mode}-{n}" for n in range(3)), properties=Properties(delivery_mode=mode))
    first = get(channel, queue)
    channel.basic_reject(first.tag, requeue=True)
    await_ready(channel, queue, 6)
    held = get(channel, queue)
    assert held.text == "1-0"
    done = get(channel, queue)
    channel.basic_ack(done.tag)
    await_ready(channel, queue, 4)
    channel = restarts(kill=kill)
    await_ready(channel, queue, 5)
    again = get(channel, queue, auto_ack=True)
    assert (again.text, again.method.redelivered) == ("1-0", True)
    assert counts(again)[2] >= 1
    assert get_all(channel, queue) == ["1-2", "2-0", "2-1", "2-2"]
    channel = restarts(kill=kill)
    assert ready(channel, queue) == 0
