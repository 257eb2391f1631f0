"""AMQP 0-9-1, direct reply-to: the pseudo queue amq.rabbitmq.reply-to."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp091 import methods
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, kinds, properties_of

NAME = "amq.rabbitmq.reply-to"


@pytest.fixture
def channel() -> ChannelEnds:
    """Return the channel of a requester with a reply consumer; q takes the requests."""
    channel = Harness().channel()
    channel.call(methods.QueueDeclare("q", durable=True))
    assert channel.consume(NAME, "r", no_ack=True) == []
    return channel


def request(channel: ChannelEnds, **fields: Any) -> str:
    """Publish a request and return the reply address that the server sees."""
    assert channel.publish("q", b"request", reply_to=NAME, **fields) == []
    server = channel.world.channel()
    (got,) = contents(server.consume("q", "probe", no_ack=True))
    server.call(methods.ChannelClose(200))
    address = properties_of(got).reply_to
    assert address is not None
    return address


@pytest.mark.rabbitmq(
    "rabbit_volatile_queue_SUITE", "single_target_correlation", "single_target_no_correlation"
)
def test_reply_reaches_the_requester(channel: ChannelEnds) -> None:
    """Any channel may reply, by the default exchange and the generated name as key."""
    address = request(channel, correlation_id="c", headers={"h": 1})
    assert address.startswith(NAME + ".")
    server = channel.world.channel()
    assert server.publish(address, b"reply", mandatory=True, correlation_id="c") == []
    (got,) = contents(channel.take())
    assert got.method == methods.BasicDeliver("r", 1, False, "", address)
    assert got.body == b"reply"
    assert properties_of(got).correlation_id == "c"


def test_other_properties_of_a_request_are_kept(channel: ChannelEnds) -> None:
    """Only reply_to is rewritten; the name is left alone in other properties."""
    channel.publish("q", b"x", reply_to=NAME, message_id="m", headers={"a": NAME})
    channel.publish("q", b"x", message_id=NAME, reply_to="other")
    server = channel.world.channel()
    first, second = [properties_of(each) for each in contents(server.consume("q", no_ack=True))]
    assert (first.message_id, first.headers) == ("m", {"a": NAME})
    assert (second.message_id, second.reply_to) == (NAME, "other")


@pytest.mark.rabbitmq("direct_reply_to_amqpl_SUITE", "failure_ack_mode")
def test_consumer_that_would_acknowledge_is_refused() -> None:
    channel = Harness().channel()
    assert channel.refused(methods.BasicConsume(NAME, "r")) == (406, "reply consumer cannot acknowledge")


@pytest.mark.rabbitmq("direct_reply_to_amqpl_SUITE", "failure_multiple_consumers")
def test_second_consumer_is_refused(channel: ChannelEnds) -> None:
    method = methods.BasicConsume(NAME, "s", no_ack=True)
    assert channel.refused(method) == (406, "reply consumer already set")


@pytest.mark.rabbitmq("direct_reply_to_amqpl_SUITE", "failure_reuse_consumer_tag")
def test_reuse_of_the_tag_closes_the_connection(channel: ChannelEnds) -> None:
    code, text = channel.fatal(methods.BasicConsume(NAME, "r", no_ack=True))
    assert (code, text) == (530, "attempt to reuse consumer tag 'r'")


@pytest.mark.rabbitmq("direct_reply_to_amqpl_SUITE", "failure_publish")
def test_request_without_consumer_is_refused() -> None:
    channel = Harness().channel()
    channel.call(methods.QueueDeclare("q", durable=True))
    text = "fast reply consumer does not exist"
    assert channel.refused(channel.content("q", b"x", reply_to=NAME)) == (406, text)


def test_consumer_of_another_channel_does_not_count(channel: ChannelEnds) -> None:
    other = channel.connection.channel(2)
    text = "fast reply consumer does not exist"
    assert other.refused(other.content("q", b"x", reply_to=NAME)) == (406, text)


def test_request_after_cancel_is_refused(channel: ChannelEnds) -> None:
    """An equal request sent before does not change this."""
    request(channel)
    channel.call(methods.BasicCancel("r"))
    text = "fast reply consumer does not exist"
    message = channel.content("q", b"request", reply_to=NAME)
    assert channel.refused(message) == (406, text)


def test_new_consumer_has_a_new_address(channel: ChannelEnds) -> None:
    first = request(channel)
    channel.call(methods.BasicCancel("r"))
    channel.consume(NAME, "s", no_ack=True)
    second = request(channel)
    assert first != second
    server = channel.world.channel()
    server.publish(first, b"late")
    server.publish(second, b"in time")
    assert bodies(channel.take()) == [b"in time"]


@pytest.mark.parametrize("end", ["cancel", "close", "lost"])
def test_reply_to_nobody_is_returned(channel: ChannelEnds, end: str) -> None:
    address = request(channel)
    server = channel.world.channel()
    server.call(methods.ConfirmSelect())
    assert server.publish(address, b"1", mandatory=True) == [methods.BasicAck(1, False)]
    assert bodies(channel.take()) == [b"1"]
    if end == "cancel":
        channel.call(methods.BasicCancel("r"))
    elif end == "close":
        channel.say(methods.ChannelClose(200))
    else:
        channel.connection.close()
    channel.world.rest()
    assert kinds(server.publish(address, b"2", mandatory=True)) == ["BasicReturn", "BasicAck"]
    assert server.publish(address, b"3") == [methods.BasicAck(3, False)]


def test_declaring_the_generated_name_tells_whether_the_requester_is_there(channel: ChannelEnds) -> None:
    """With any flags it has 0 messages and 1 consumer, or is a 404."""
    address = request(channel)
    server = channel.world.channel()
    for method in (methods.QueueDeclare(address, passive=True), methods.QueueDeclare(address, durable=True)):
        assert server.call(method) == methods.QueueDeclareOk(address, 0, 1)
    channel.call(methods.BasicCancel("r"))
    text = f"no queue '{address}' in vhost '/'"
    assert server.refused(methods.QueueDeclare(address, passive=True)) == (404, text)


def test_declaring_the_bare_name_is_ok(channel: ChannelEnds) -> None:
    assert channel.call(methods.QueueDeclare(NAME)) == methods.QueueDeclareOk(NAME, 0, 1)


@pytest.mark.rabbitmq("bindings_SUITE", "bind_to_volatile_queue", "unbind_from_volatile_queue")
@pytest.mark.parametrize("bare", [False, True])
def test_bind_unbind_and_delete_are_refused(channel: ChannelEnds, bare: bool) -> None:
    name = NAME if bare else request(channel)
    text = f"operation not permitted on the direct reply-to queue '{name}'"
    for method in (
        methods.QueueBind(name, "amq.direct", "k"),
        methods.QueueUnbind(name, "amq.direct", "k"),
        methods.QueueDelete(name),
    ):
        other = channel.world.channel()
        assert other.refused(method) == (403, text)


def test_a_line_end_makes_no_other_queue_of_it(channel: ChannelEnds) -> None:
    """The line end is dropped, and the existing address is found."""
    address = request(channel)
    method = methods.QueueDeclare(address[:5] + "\n" + address[5:], exclusive=True, auto_delete=True)
    assert channel.call(method) == methods.QueueDeclareOk(address, 0, 1)


def test_nobody_else_may_consume_from_it(channel: ChannelEnds) -> None:
    """This includes other channels of the same connection."""
    address = request(channel)
    for other in (channel.world.channel(), channel.connection.channel(2)):
        code, _ = other.refused(methods.BasicConsume(address, "x", no_ack=True))
        assert code in (403, 405)


@pytest.mark.rabbitmq("direct_reply_to_amqp_SUITE", "many_replies")
@pytest.mark.rabbitmq("rabbit_volatile_queue_SUITE", "distinct_pids_not_deduplicated")
def test_many_replies_at_once_all_arrive(channel: ChannelEnds) -> None:
    """No reply is dropped when a server answers a thousand requests in one write."""
    address = request(channel)
    server = channel.world.channel()
    server.publish(address, *[b"%d" % number for number in range(1000)])
    assert bodies(channel.take()) == [b"%d" % number for number in range(1000)]


def test_replies_wait_for_a_socket_that_is_slow(channel: ChannelEnds) -> None:
    """They are written when the writer has room."""
    address = request(channel)
    channel.budget_bytes = 0
    channel.world.channel().publish(address, b"1", b"2")
    assert channel.take() == []
    channel.budget_bytes = 65_536
    channel.wake()
    assert bodies(channel.take()) == [b"1", b"2"]


@pytest.mark.parametrize("no_ack", [True, False])
def test_basic_get_is_refused(channel: ChannelEnds, no_ack: bool) -> None:
    """It gets 540, because replies are never stored and go to the consumer only."""
    address = request(channel)
    text = f"basic.get not supported by volatile queue '{address}' in vhost '/'"
    assert channel.fatal(methods.BasicGet(address, no_ack)) == (540, text)


@pytest.mark.parametrize("passive", [True, False])
def test_a_name_that_only_begins_so_is_any_other(channel: ChannelEnds, passive: bool) -> None:
    """A passive declaration of it is 404; a declaration is refused as reserved."""
    name = NAME + "-mine"
    problem = (
        (404, f"no queue '{name}' in vhost '/'")
        if passive
        else (403, f"queue name '{name}' contains reserved prefix 'amq.*'")
    )
    assert channel.refused(methods.QueueDeclare(name, passive=passive)) == problem
