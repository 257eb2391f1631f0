"""AMQP 0-9-1, channels: opening, closing, flow, and what happens behind a close."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp091 import methods
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, kinds

QUEUE = methods.QueueDeclare("q", durable=True)


def closed(channel: ChannelEnds) -> ChannelEnds:
    assert channel.call(methods.ChannelClose(200, "bye")) == methods.ChannelCloseOk()
    return channel


def test_channel_open_is_answered() -> None:
    Harness().channel()


def test_second_channel_open_closes_the_connection() -> None:
    assert Harness().channel().fatal(methods.ChannelOpen()) == (504, "second 'channel.open' seen")


@pytest.mark.parametrize(
    "method",
    [
        QUEUE,
        methods.BasicAck(1),
        methods.BasicQos(prefetch_count=1),
        methods.ChannelClose(200),
        methods.ConfirmSelect(),
    ],
    ids=str,
)
def test_a_method_on_a_channel_never_opened_closes_the_connection(method: methods.Method) -> None:
    channel = closed(Harness().channel())
    assert channel.fatal(method) == (504, "expected 'channel.open'")


def test_a_publish_on_a_channel_never_opened_closes_the_connection() -> None:
    channel = closed(Harness().channel())
    assert channel.fatal(channel.content("q", b"x")) == (504, "expected 'channel.open'")


def test_close_ok_on_a_closed_channel_is_ignored() -> None:
    channel = closed(Harness().channel())
    assert channel.say(methods.ChannelCloseOk()) == []
    assert channel.connection.fault is None


@pytest.fixture
def world() -> Harness:
    return Harness()


def test_channel_close_ends_consumers_and_requeues(world: Harness) -> None:
    """Consumers are cancelled and unacked messages are requeued in order, marked redelivered."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    other.publish("q", b"1", b"2", b"3")
    channel.consume("q")
    assert world.counts("q") == (0, 3)
    closed(channel)
    assert world.counts("q") == (3, 0)
    assert world.box("q").queue.consumers == 0
    got = other.consume("q")
    assert bodies(got) == [b"1", b"2", b"3"]
    assert [each.method.redelivered for each in contents(got)] == [True] * 3


def test_channel_number_is_used_again_after_close(world: Harness) -> None:
    channel = world.channel()
    channel.call(QUEUE)
    channel.say(methods.ConfirmSelect(), methods.BasicQos(prefetch_count=1))
    channel.publish("q", b"1", b"2")
    channel.consume("q")
    closed(channel)
    assert channel.call(methods.ChannelOpen()) == methods.ChannelOpenOk()
    got = channel.consume("q")
    assert [each.method.delivery_tag for each in contents(got)] == [1, 2]
    assert channel.publish("q", b"3", mandatory=True)[0].method.delivery_tag == 3  # type: ignore[union-attr]
    assert channel.call(methods.ConfirmSelect()) == methods.ConfirmSelectOk()
    assert channel.publish("nowhere", b"") == [methods.BasicAck(1, False)]


def test_close_and_open_in_one_write(world: Harness) -> None:
    """A client need not wait for close-ok before it opens the same number again."""
    channel = world.channel()
    assert channel.say(methods.ChannelClose(200), methods.ChannelOpen(), QUEUE) == [
        methods.ChannelCloseOk(),
        methods.ChannelOpenOk(),
        methods.QueueDeclareOk("q", 0, 0),
    ]


def test_confirms_of_a_closed_channel_do_not_reach_the_next_one_of_that_number(world: Harness) -> None:
    """Confirms of the queue that arrive after close and open are dropped."""
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(methods.ConfirmSelect())
    world.box("q").stalled = True
    assert channel.publish("q", b"1", b"2") == []
    assert channel.say(methods.ChannelClose(200), methods.ChannelOpen(), methods.ConfirmSelect()) == [
        methods.ChannelCloseOk(),
        methods.ChannelOpenOk(),
        methods.ConfirmSelectOk(),
    ]
    assert channel.publish("q", b"3") == []
    world.box("q").stalled = False
    world.rest()
    assert channel.take() == [methods.BasicAck(1, False)]


def test_nothing_is_written_behind_the_server_s_close(world: Harness) -> None:
    """Confirms that come after channel.close are not sent: the client has forgotten the channel."""
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(methods.ConfirmSelect())
    world.box("q").stalled = True
    channel.publish("q", b"1")
    assert kinds(channel.say(methods.BasicAck(9))) == ["ChannelClose"]
    world.box("q").stalled = False
    world.rest()
    assert channel.take() == []
    assert channel.say(methods.ChannelCloseOk()) == []


def test_nothing_is_written_behind_close_ok(world: Harness) -> None:
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(methods.ConfirmSelect())
    world.box("q").stalled = True
    channel.publish("q", b"1")
    # The channel has a letter waiting, so its task goes on and may hear of the confirm.
    assert channel.call(methods.ChannelClose(200)) == methods.ChannelCloseOk()
    world.box("q").stalled = False
    world.rest()
    assert channel.take() == []


@pytest.mark.parametrize("end", [methods.BasicAck(9), methods.ChannelClose(200)], ids=["error", "close"])
def test_confirms_that_are_due_come_before_the_close(end: methods.Method, world: Harness) -> None:
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(methods.ConfirmSelect())
    world.box("q").stalled = True
    channel.publish("q", b"1")
    world.box("q").run(1)
    channel.send(end)
    assert channel.connection.pass_on()
    # Both in one turn of the channel: the queue's answer, and what ends it.
    channel.take_letters(2)
    channel.wake()
    last = "ChannelClose" if isinstance(end, methods.BasicAck) else "ChannelCloseOk"
    assert kinds(channel.take()) == ["BasicAck", last]


def test_methods_behind_the_server_s_close_are_dropped_until_close_ok(world: Harness) -> None:
    """Publishes, acks and declarations in flight when the channel failed have no effect."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    got = channel.say(
        methods.BasicGet("missing"),
        channel.content("q", b"lost"),
        methods.QueueDeclare("late", durable=True),
        methods.BasicAck(7),
        methods.BasicConsume("q", "c"),
    )
    assert kinds(got) == ["ChannelClose"]
    assert world.counts("q") == (0, 0)
    assert world.vhost.find("late") is None
    assert channel.say(methods.ChannelCloseOk(), methods.ChannelOpen()) == [methods.ChannelOpenOk()]
    assert other.call(methods.QueueDeclare("q", passive=True)) == methods.QueueDeclareOk("q", 0, 0)


@pytest.mark.parametrize("failed", [False, True], ids=["the client's", "the broker's"])
def test_what_was_under_way_when_the_channel_was_closed_is_dropped(failed: bool, world: Harness) -> None:
    """Another client thread may still write on it; as in RabbitMQ, the connection stays open."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    if failed:
        assert kinds(channel.say(methods.BasicAck(9))) == ["ChannelClose"]
    got = channel.say(
        methods.ChannelCloseOk() if failed else methods.ChannelClose(200),
        channel.content("q", b"lost"),
        methods.QueueDeclare("late", durable=True),
        methods.BasicAck(7),
        methods.ChannelOpen(),
        channel.content("q", b"kept"),
    )
    assert kinds(got) == ["ChannelCloseOk", "ChannelOpenOk"][failed:]
    assert world.counts("q") == (1, 0)
    assert world.vhost.find("late") is None
    assert other.call(methods.QueueDeclare("q", passive=True)) == methods.QueueDeclareOk("q", 1, 0)


def test_the_client_s_close_that_crosses_ours_is_answered() -> None:
    """Both sides close: each close gets its close-ok, then the number is free."""
    channel = Harness().channel()
    assert kinds(channel.say(methods.BasicAck(9), methods.ChannelClose(200))) == [
        "ChannelClose",
        "ChannelCloseOk",
    ]
    assert channel.say(methods.ChannelCloseOk(), methods.ChannelOpen()) == [methods.ChannelOpenOk()]


def test_an_error_of_one_channel_leaves_the_others_alone(world: Harness) -> None:
    connection = world.connect()
    first, second = connection.channel(1), connection.channel(2)
    assert first.refused(methods.BasicAck(1)) == (406, "unknown delivery tag 1")
    assert second.call(QUEUE) == methods.QueueDeclareOk("q", 0, 0)


def test_reply_text_is_cut_at_255_bytes() -> None:
    channel = Harness().channel()
    name = "n" * 250
    (got,) = channel.say(methods.BasicGet(name))
    assert isinstance(got, methods.ChannelClose)
    assert len(got.reply_text) == 255
    assert got.reply_text.endswith("n...")
    assert got.reply_text.startswith("NOT_FOUND - no queue 'nnn")


def test_flow_active_is_answered() -> None:
    assert Harness().channel().call(methods.ChannelFlow(True)) == methods.ChannelFlowOk(True)


def test_flow_inactive_is_not_implemented() -> None:
    assert Harness().channel().fatal(methods.ChannelFlow(False)) == (540, "active=false")


def test_flow_ok_from_the_client_is_ignored() -> None:
    assert Harness().channel().say(methods.ChannelFlowOk(True)) == []


def test_access_request_gets_ticket_1() -> None:
    # pamqp does not know this method any more.
    assert Harness(strict=False).channel().call(
        methods.AccessRequest("/data", active=True)
    ) == methods.AccessRequestOk(1)


def test_a_server_s_method_from_a_client_is_invalid() -> None:
    code, text = Harness().channel().fatal(methods.QueueDeclareOk("q", 0, 0))
    assert code == 503
    assert text == "queue.declare-ok is not a method that a client sends on a channel"


def test_a_connection_method_on_a_channel_is_invalid() -> None:
    channel = Harness().channel()
    with pytest.raises(Exception, match="COMMAND_INVALID"):
        channel.send(methods.ConnectionBlocked("no"))


def test_methods_are_answered_in_order(world: Harness) -> None:
    channel = world.channel()
    got = channel.say(
        methods.QueueDeclare("a", durable=True),
        methods.QueueDeclare("a", durable=True, passive=True),
        methods.BasicQos(prefetch_count=3),
        methods.BasicGet("a"),
        channel.content("a", b"x"),
        methods.QueueDeclare("a", durable=True),
        methods.QueueDelete("a"),
        methods.ExchangeDeclare("e", "direct"),
    )
    assert kinds(got) == [
        "QueueDeclareOk",
        "QueueDeclareOk",
        "BasicQosOk",
        "BasicGetEmpty",
        "QueueDeclareOk",
        "QueueDeleteOk",
        "ExchangeDeclareOk",
    ]
    assert got[2] == methods.BasicQosOk()
    assert got[3] == methods.BasicGetEmpty()
    assert got[4] == methods.QueueDeclareOk("a", 1, 0)


def test_a_channel_that_waits_for_a_queue_keeps_what_follows(world: Harness) -> None:
    """While a queue has not answered nothing else of the channel is handled; other channels are."""
    connection = world.connect()
    first, second = connection.channel(1), connection.channel(2)
    first.call(QUEUE)
    world.box("q").stalled = True
    assert first.say(methods.QueueDeclare("q", passive=True), methods.BasicQos(prefetch_count=1)) == []
    assert second.call(methods.BasicQos(prefetch_count=1)) == methods.BasicQosOk()
    world.box("q").stalled = False
    world.rest()
    assert first.take() == [methods.QueueDeclareOk("q", 0, 0), methods.BasicQosOk()]


def test_the_error_of_an_answer_names_the_method_that_asked(world: Harness) -> None:
    """Class and method of channel.close are those of the request, also when the queue refused it."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    other.consume("q")
    assert channel.refused(methods.QueueDelete("q", if_unused=True)) == (406, "queue 'q' in vhost '/' in use")
    assert channel.refused(methods.BasicConsume("q", "x", exclusive=True)) == (
        403,
        "queue 'q' in vhost '/' in exclusive use",
    )


def test_contents_behind_a_refused_method_do_not_use_up_the_reader_s_credit(world: Harness) -> None:
    """The channel fails while publishes wait behind a method: they are dropped and counted as handled."""
    connection = world.connect()
    channel, other = connection.channel(1), connection.channel(2)
    channel.call(QUEUE)
    other.consume("q", exclusive=True)
    channel.send(methods.BasicConsume("q", "x"), *[channel.content("q", b"x")] * 1000)
    world.rest()
    assert kinds(channel.take()) == ["ChannelClose"]
    assert not connection.waiting, "the reader of the whole connection waits for ever"
    assert other.call(methods.BasicCancel("c")) is not None


def test_tx_and_confirm_are_per_channel() -> None:
    connection = Harness().connect()
    first, second = connection.channel(1), connection.channel(2)
    assert kinds(first.say(methods.TxSelect())) == ["TxSelectOk"]
    assert kinds(second.say(methods.ConfirmSelect())) == ["ConfirmSelectOk"]
