"""AMQP 0-9-1, publishing and publisher confirms."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.config import Config
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import END, HEADER, content_header_frame, method_frame
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, kinds, properties_of
from tests.support.declaring import add_user, set_tags


@pytest.fixture
def channel() -> ChannelEnds:
    channel = Harness().channel()
    for name in "qr":
        channel.call(methods.QueueDeclare(name, durable=True))
    return channel


def confirming(channel: ChannelEnds) -> ChannelEnds:
    assert channel.call(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
    return channel


def got_from(channel: ChannelEnds, queue: str = "q") -> list[Any]:
    got = channel.consume(queue, "probe", no_ack=True)
    channel.call(methods.BasicCancel("probe"))
    return contents(got)


# --- what is checked ---------------------------------------------------------------------------------


def test_missing_exchange_is_not_found(channel: ChannelEnds) -> None:
    """The 404 is asynchronous; messages published before it have arrived."""
    got = channel.refused(channel.content("q", b"1"), channel.content("k", exchange="X"))
    assert got == (404, "no exchange 'X' in vhost '/'")
    assert channel.world.counts("q") == (1, 0)


def test_immediate_is_not_implemented(channel: ChannelEnds) -> None:
    assert channel.fatal(channel.content("q", immediate=True)) == (540, "immediate=true")


def test_mandatory_without_route_is_returned(channel: ChannelEnds) -> None:
    (returned,) = contents(
        channel.publish("k", b"body", exchange="amq.direct", mandatory=True, message_id="m"),
        methods.BasicReturn,
    )
    assert returned.method == methods.BasicReturn(312, "NO_ROUTE", "amq.direct", "k")
    assert returned.body == b"body"
    assert properties_of(returned).message_id == "m"


def test_mandatory_with_route_is_not_returned(channel: ChannelEnds) -> None:
    assert channel.publish("q", b"x", mandatory=True) == []


def test_unroutable_without_mandatory_is_dropped(channel: ChannelEnds) -> None:
    assert channel.publish("nowhere", b"x") == []


@pytest.mark.rabbitmq("message_size_limit_SUITE", "max_message_size")
def test_message_larger_than_configured_is_refused() -> None:
    channel = Harness(Config(max_message_size_bytes=100)).channel()
    channel.call(methods.QueueDeclare("q", durable=True))
    assert channel.publish("q", b"x" * 100) == []
    text = "message size 101 is larger than configured max size 100"
    assert channel.refused(channel.content("q", b"x" * 100), channel.content("q", b"x" * 101)) == (406, text)
    assert channel.world.counts("q") == (2, 0)


def head_of(size: int, exchange: str = "", *, immediate: bool = False) -> bytes:
    publish = methods.BasicPublish(exchange, "q", immediate=immediate)
    return method_frame(1, publish) + content_header_frame(1, b"\x00\x00", size)


def test_message_that_is_too_large_is_refused_at_its_header(channel: ChannelEnds) -> None:
    size = 16 * 1024 * 1024 + 1
    text = f"message size {size} is larger than configured max size {size - 1}"
    got = channel.say(head_of(size))
    assert [each.reply_text for each in got] == [f"PRECONDITION_FAILED - {text}"]  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [100_000, 2**40])
def test_what_the_method_says_is_looked_at_before_the_body_and_the_size(size: int) -> None:
    """Permission, exchange and size are checked in RabbitMQ's order, and no part of the body is kept."""
    world = Harness()
    add_user(world.catalog, "stranger", None)
    stranger = world.connect(user="stranger")
    got = stranger.channel(1).say(head_of(size, "nowhere"))
    (closed,) = got
    assert isinstance(closed, methods.ChannelClose)
    assert (closed.reply_code, closed.method_id) == (403, methods.BasicPublish.METHOD_ID)
    assert stranger.reader.unfinished.held_bytes == 0
    guest = world.connect()
    (closed,) = guest.channel(1).say(head_of(size, "nowhere"))
    assert isinstance(closed, methods.ChannelClose)
    assert (closed.reply_code, closed.method_id) == (404, methods.BasicPublish.METHOD_ID)
    assert not guest.reader.publishing


def test_an_exchange_declared_just_before_is_there_for_a_content_that_is_not_whole(
    channel: ChannelEnds,
) -> None:
    """Even an early check comes after the methods in front of it."""
    declare = method_frame(1, methods.ExchangeDeclare("new", "fanout", no_wait=True))
    assert channel.say(declare + head_of(2, "new")) == []
    assert channel.connection.reader.publishing
    assert channel.say(HEADER.pack(methods.FRAME_BODY, 1, 2) + b"ab" + END) == []
    assert not channel.connection.reader.publishing


def test_immediate_is_refused_before_the_body(channel: ChannelEnds) -> None:
    assert channel.fatal(head_of(5, immediate=True)) == (540, "immediate=true")


def test_a_channel_that_fails_forgets_the_content_that_is_coming(channel: ChannelEnds) -> None:
    """Content announced on a channel that is already closing is dropped."""
    (closed,) = channel.say(methods.QueueDeclare("missing", passive=True), head_of(5))
    assert isinstance(closed, methods.ChannelClose)
    assert closed.reply_code == 404
    assert not channel.connection.reader.publishing
    assert channel.connection.reader.unfinished.held_bytes == 0
    assert channel.say(methods.ChannelCloseOk(), methods.ChannelOpen()) == [methods.ChannelOpenOk()]


def test_a_content_of_a_client_that_is_no_publish_is_refused_before_its_body(channel: ChannelEnds) -> None:
    deliver = method_frame(1, methods.BasicDeliver("c", 1, False, "", "q")) + content_header_frame(
        1, b"\x00\x00", 5
    )
    channel.say(deliver)
    fault = channel.connection.fault
    assert fault.code == 503


@pytest.mark.rabbitmq("queue_parallel_SUITE", "publish")
@pytest.mark.parametrize("size", [0, 1, 1024, 1025, 8184, 8185, 40_000])
def test_bodies_of_every_size_arrive(size: int) -> None:
    """Sizes are empty, one frame, exactly one frame and several, in both directions."""
    channel = Harness().channel(frame_max=8192)
    channel.call(methods.QueueDeclare("q", durable=True))
    body = bytes(number % 251 for number in range(size))
    channel.publish("q", body)
    assert bodies(got_from(channel)) == [body]


def test_user_id_must_be_the_user(channel: ChannelEnds) -> None:
    """A user with the tag impersonator may differ, until the tag is removed."""
    assert channel.publish("q", b"x", user_id="guest") == []
    text = "user_id property set to 'A' but authenticated user was 'guest'"
    assert channel.refused(channel.content("q", b"x", user_id="A")) == (406, text)
    other = channel.world.channel()
    users = channel.world.catalog.users
    set_tags(users, "guest", ["impersonator"])
    for _ in range(2):
        assert other.publish("q", b"x", user_id="A") == []
    set_tags(users, "guest", [])
    assert other.refused(other.content("q", b"x", user_id="A")) == (406, text)


@pytest.mark.parametrize("expiration", ["", "abc", "12x", "-1", "315360000001"])
def test_bad_expiration_is_refused(channel: ChannelEnds, expiration: str) -> None:
    text = f"invalid expiration '{expiration}': must be milliseconds, an integer of 0 to 315360000000"
    assert channel.refused(channel.content("q", expiration=expiration)) == (406, text)


def test_good_expiration_is_kept(channel: ChannelEnds) -> None:
    for expiration in ("0", "315360000000"):
        assert channel.publish("q", b"", expiration=expiration) == []
    assert [properties_of(each).expiration for each in got_from(channel)] == ["0", "315360000000"]


def test_properties_arrive_as_published(channel: ChannelEnds) -> None:
    """x-death is included, and basic.deliver has exchange and key."""
    given: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {"x-death": [{"count": 1}], "a": 1, "t": True, "n": None},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "10",
        "message_id": "m",
        "timestamp": 1,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "cluster_id": "x",
    }
    channel.publish("q", b"x", **given)
    (message,) = got_from(channel)
    properties = properties_of(message)
    assert {name: getattr(properties, name) for name in given} == given
    assert (message.method.exchange, message.method.routing_key) == ("", "q")


def test_cc_and_bcc_add_routing_keys(channel: ChannelEnds) -> None:
    """Each queue gets one copy under the first key; BCC is removed before delivery, CC is not."""
    headers = {"CC": ["r", "q"], "BCC": ["r"], "other": 1}
    assert channel.publish("q", b"x", headers=headers, mandatory=True) == []
    for name in "qr":
        (message,) = got_from(channel, name)
        assert properties_of(message).headers == {"CC": ["r", "q"], "other": 1}
        assert message.method.routing_key == "q"


@pytest.mark.rabbitmq("queue_parallel_SUITE", "cc_header_non_array_should_close_channel")
@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_cc_that_is_no_array_is_refused(channel: ChannelEnds, header: str) -> None:
    code, _ = channel.refused(channel.content("q", headers={header: "r"}))
    assert code == 406
    assert channel.world.counts("q") == (0, 0)


def test_one_bad_message_of_many_of_one_shape(channel: ChannelEnds) -> None:
    parts = [channel.content("q", b"%d" % number) for number in range(3)]
    bad = channel.content("q", expiration="x")
    got = channel.say(*parts, bad, *parts)
    assert kinds(got) == ["ChannelClose"]
    assert channel.world.counts("q") == (3, 0)


# --- confirms ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_select_ok")
def test_confirm_select_is_answered_and_repeatable(channel: ChannelEnds) -> None:
    confirming(channel)
    assert channel.publish("q", b"x") == [methods.BasicAck(1, False)]
    confirming(channel)
    assert channel.publish("q", b"x") == [methods.BasicAck(2, False)]


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_nowait")
def test_confirm_select_without_answer(channel: ChannelEnds) -> None:
    assert channel.say(channel.content("q"), methods.ConfirmSelect(True), channel.content("q")) == [
        methods.BasicAck(1, False)
    ]


def test_publishes_before_confirm_select_are_not_counted(channel: ChannelEnds) -> None:
    """This holds also when their queue takes them later."""
    channel.world.box("q").stalled = True
    channel.publish("q", b"1", b"2", b"3")
    confirming(channel)
    assert channel.publish("q", b"4") == []
    box = channel.world.box("q")
    box.run(1)
    channel.world.rest()
    assert channel.take() == []
    box.stalled = False
    channel.world.rest()
    assert channel.take() == [methods.BasicAck(1, False)]


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_unroutable_message")
def test_unroutable_is_acked_at_once(channel: ChannelEnds) -> None:
    confirming(channel)
    assert channel.publish("nowhere", b"x") == [methods.BasicAck(1, False)]


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_mandatory_unroutable")
def test_return_comes_before_the_ack(channel: ChannelEnds) -> None:
    confirming(channel)
    assert kinds(channel.publish("nowhere", b"x", mandatory=True)) == ["BasicReturn", "BasicAck"]
    got = channel.say(*[channel.content("nowhere", mandatory=True)] * 3)
    assert kinds(got) == ["BasicReturn"] * 3 + ["BasicAck"]
    assert got[-1] == methods.BasicAck(4, True)


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_acks")
def test_acks_of_a_batch_are_merged(channel: ChannelEnds) -> None:
    """A multiple ack covers all up to the smallest pending number; others are acked singly."""
    confirming(channel)
    assert channel.publish("q", *[b"x"] * 5) == [methods.BasicAck(5, True)]
    channel.world.box("r").stalled = True
    got = channel.say(*[channel.content(key) for key in ("q", "r", "q", "q", "r", "q")])
    assert got == [
        methods.BasicAck(6, False),
        methods.BasicAck(8, False),
        methods.BasicAck(9, False),
        methods.BasicAck(11, False),
    ]
    channel.world.box("r").stalled = False
    channel.world.rest()
    assert channel.take() == [methods.BasicAck(10, True)]


def test_ack_waits_for_the_last_queue(channel: ChannelEnds) -> None:
    for name in "qr":
        channel.call(methods.QueueBind(name, "amq.fanout", ""))
    confirming(channel)
    channel.world.box("r").stalled = True
    assert channel.publish("", b"x", exchange="amq.fanout") == []
    assert channel.world.counts("q") == (1, 0)
    channel.world.box("r").stalled = False
    channel.world.rest()
    assert channel.take() == [methods.BasicAck(1, False)]


def test_later_messages_may_be_confirmed_first(channel: ChannelEnds) -> None:
    confirming(channel)
    channel.world.box("q").stalled = True
    assert channel.say(channel.content("q"), channel.content("r")) == [methods.BasicAck(2, False)]


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "publisher_confirms_with_deleted_queue")
@pytest.mark.rabbitmq("rabbit_confirms_SUITE", "remove_queue")
def test_a_deleted_queue_counts_as_having_confirmed(channel: ChannelEnds) -> None:
    """This holds for messages published while the queue is being deleted."""
    other = channel.world.channel()
    confirming(channel)
    channel.world.box("q").stalled = True
    # On a condition the queue decides, and is there until it has.
    other.send(methods.QueueDelete("q", if_unused=True))
    channel.world.rest()
    assert channel.publish("q", b"1", b"2") == []
    channel.world.box("q").stalled = False
    channel.world.rest()
    assert channel.take() == [methods.BasicAck(2, True)]


def test_tx_on_a_confirm_channel_is_refused(channel: ChannelEnds) -> None:
    confirming(channel)
    assert channel.refused(methods.TxSelect()) == (406, "cannot switch from confirm to tx mode")


def test_confirm_on_a_tx_channel_is_refused(channel: ChannelEnds) -> None:
    channel.call(methods.TxSelect())
    assert channel.refused(methods.ConfirmSelect()) == (406, "cannot switch from tx to confirm mode")


def test_confirm_comes_although_a_consumer_was_first(channel: ChannelEnds) -> None:
    """A message that a consumer takes at once is confirmed like any other; tags are counted apart."""
    confirming(channel)
    channel.consume("q", no_ack=True)
    got = channel.publish("q", b"1", b"2")
    assert sorted(kinds(got)) == ["BasicAck", "BasicDeliver", "BasicDeliver"]
    assert channel.publish("r", b"3") == [methods.BasicAck(3, False)]


def test_delivery_tags_and_confirm_numbers_are_apart(channel: ChannelEnds) -> None:
    """A channel may publish with confirms and acknowledge deliveries, both counted from 1."""
    confirming(channel)
    channel.publish("q", b"1", b"2")
    assert kinds(channel.say(methods.BasicGet("q"))) == ["BasicGetOk"]
    assert channel.say(methods.BasicAck(1)) == []
    assert channel.refused(methods.BasicAck(2)) == (406, "unknown delivery tag 2")


@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_after_mandatory_bug")
def test_mandatory_after_a_message_without_route(channel: ChannelEnds) -> None:
    """The flag applies per message: only the mandatory one is returned."""
    confirming(channel)
    got = channel.say(channel.content("k"), channel.content("k", mandatory=True), channel.content("k"))
    assert kinds(got) == ["BasicReturn", "BasicAck"]
    assert got[-1] == methods.BasicAck(3, True)


def test_consume_while_messages_come(channel: ChannelEnds) -> None:
    got = channel.say(channel.content("q", b"1"), methods.BasicConsume("q", "c"), channel.content("q", b"2"))
    assert kinds(got) == ["BasicConsumeOk", "BasicDeliver", "BasicDeliver"]
